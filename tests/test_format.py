"""The format: written files conform to the JSON Schema, and stored files of every version load."""

import gzip
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

from tests.format_files import FILES, FOLDER, INLINE_LIMIT
from tests.graphs import everything
from tests.random_graphs import random_graph
from torch_ir import IR, SerializationError, execute_ir, load_protobuf, to_protobuf
from torch_ir.formats import lowered_from_protobuf, lowered_to_protobuf
from torch_ir.golden.pack import read_pack
from torch_ir.ir.graph.attr_types import DEVICE_KINDS, DTYPES, LAYOUTS, MEMORY_FORMATS, is_device
from torch_ir.ir.graph.tensor import PARAM_KINDS
from torch_ir.ir.json.encode import FORMAT, VERSION

TEXTS = sorted(name for name in FILES if name.endswith(".json"))
GZIPPED = sorted(name for name in FILES if name.endswith(".json.gz"))
MESSAGES = sorted(name for name in FILES if name.endswith(".binpb") and name != "lowered.binpb")


@cache
def schema() -> Draft202012Validator:
    return Draft202012Validator(json.loads((files("torch_ir.formats") / "torch_ir.schema.json").read_text()))


def wrong_by_schema(text: str) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in schema().iter_errors(json.loads(text))]


# -- the schema -------------------------------------------------------------------------------------------------------


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema().schema)


def test_its_closed_lists_are_those_of_the_reader() -> None:
    shapes = schema().schema["$defs"]
    tags = {next(iter(tag["properties"])): tag["properties"] for tag in shapes["tagged"]["oneOf"]}
    assert set(shapes["dtype"]["enum"]) == set(DTYPES)
    assert set(tags["$layout"]["$layout"]["enum"]) == set(LAYOUTS)
    assert set(tags["$memory_format"]["$memory_format"]["enum"]) == set(MEMORY_FORMATS)
    assert set(shapes["param"]["properties"]["kind"]["enum"]) == set(PARAM_KINDS)
    device = schema().evolve(schema=shapes["device"])
    for text in (*DEVICE_KINDS, "cuda:1", "cuda:x", "cuda:", "gpu", "cpu:1234567890"):
        assert device.is_valid(text) == is_device(text)
    head = schema().schema["properties"]
    assert (head["format"]["const"], head["version"]["const"]) == (FORMAT, VERSION)


def test_what_is_written_is_what_the_schema_says() -> None:
    for ir in [everything(), *map(random_graph, range(30))]:
        assert wrong_by_schema(ir.to_json()) == []


@pytest.mark.parametrize("name", TEXTS)
def test_stored_files_are_what_the_schema_says(name: str) -> None:
    assert wrong_by_schema((FOLDER / name).read_text()) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("version", 2),
        ("surprise", 1),
        ("device", "gpu"),
        ("nodes.0.source_line", 3),
        ("nodes.0.inputs.0.dtype", "float33"),
        ("nodes.0.outputs.0.shape", [-1]),
        ("nodes.1.attrs.far", {"$float": "huge"}),
        ("nodes.1.attrs.far", {"$pickle": "gASVKQ=="}),
        ("nodes.1.attrs.large", {"$int": "0x10"}),
        ("nodes.1.name", "a<script>"),
        ("params.p_w.kind", "secret"),
        ("constants.steps", {"shape": [2], "dtype": "int16", "file": "../etc/passwd", "offset": 0, "digest": "x"}),
        ("functions.body.format", "torch-ir"),
    ],
)
def test_schema_and_reader_refuse_the_same(place: str, value: Any) -> None:
    document = json.loads(everything().to_json())
    del document["digest"]
    *outer, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inner = document
    for part in outer:
        inner = inner[part]
    inner[last] = value
    text = json.dumps(document)
    assert wrong_by_schema(text)
    with pytest.raises(SerializationError):
        IR.from_json(text)


# -- stored files -----------------------------------------------------------------------------------------------------


def test_every_kind_of_file_is_stored() -> None:
    assert {name for name in FILES if not (FOLDER / name).exists()} == set()


@pytest.mark.parametrize("name", TEXTS)
def test_a_stored_file_loads_and_is_written_back_as_it_was(name: str, tmp_path: Path) -> None:
    ir = IR.load(FOLDER / name)
    ir.save(tmp_path / name, inline_limit=INLINE_LIMIT if name == "layers.json" else None)
    for written in tmp_path.iterdir():
        assert written.read_bytes() == (FOLDER / written.name).read_bytes()


@pytest.mark.parametrize("name", GZIPPED)
def test_a_stored_gzip_file_loads_and_is_what_the_text_says(name: str) -> None:
    """Its bytes are those of zlib, which may change from release to release; its text may not."""
    ir = IR.load(FOLDER / name)
    assert ir.to_json() == IR.load(FOLDER / name.removesuffix(".gz")).to_json()
    assert wrong_by_schema(gzip.decompress((FOLDER / name).read_bytes()).decode()) == []


@pytest.mark.parametrize("name", MESSAGES)
def test_a_stored_message_loads_and_is_what_the_text_says(name: str) -> None:
    ir = load_protobuf(FOLDER / name)
    assert ir.to_json() == IR.load(FOLDER / name.replace(".binpb", ".json")).to_json()
    assert to_protobuf(ir) == (FOLDER / name).read_bytes()


def test_stored_layers_load() -> None:
    raw = (FOLDER / "lowered.binpb").read_bytes()
    document = lowered_from_protobuf(raw)
    assert document["layers"][0]["value"] == {"unit": "gemm", "size": [2, 4], "scale": 0.5}
    assert lowered_to_protobuf(document) == raw


def test_a_stored_pack_is_what_its_graph_gives() -> None:
    """The stored graph and weights reproduce the stored values."""
    pack = read_pack(FOLDER / "pack")
    values = {value.name: pack.tensor(value) for value in [*pack.inputs, *pack.values]}
    ir = IR.load(FOLDER / "layers.json")
    weights = pack_weights()
    found = execute_ir(ir, (values["x"],), weights)
    for tensor, result in zip(ir.graph_outputs, found, strict=True):
        torch.testing.assert_close(result, values[tensor.name])


def pack_weights() -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(FOLDER / "pack" / "weights-00001.safetensors")


# -- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [VERSION + 1, 99])
def test_a_future_version_is_refused_with_its_number(version: int) -> None:
    text = everything().to_json().replace(f'"version": {VERSION}', f'"version": {version}')
    with pytest.raises(SerializationError, match=f"version {version}.*up to {VERSION}") as caught:
        IR.from_json(text[: text.rindex(',\n"digest"')] + "\n}\n")
    assert caught.value.path == "$.version"
