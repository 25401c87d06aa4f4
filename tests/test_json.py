"""The JSON file: exact bytes, a digest that detects changes, a header with the version."""

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.graphs import chain, everything, mlp
from tests.refusals import changed, refused, without_digest
from torch_ir import deserialize_ir, serialize_ir
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.json.json_text import write_document

DOCUMENTED = """\
{
"format": "torch-ir",
"version": 1,
"model_name": "SimpleMLP",
"pytorch_version": "2.13.0",
"graph_inputs": [
{"name": "x", "shape": [1, 4], "dtype": "float32"}
],
"graph_outputs": [
{"name": "linear_1", "shape": [1, 2], "dtype": "float32"}
],
"weights": [
{"name": "fc1.weight", "shape": [8, 4], "dtype": "float32"},
{"name": "fc1.bias", "shape": [8], "dtype": "float32"},
{"name": "fc2.weight", "shape": [2, 8], "dtype": "float32"},
{"name": "fc2.bias", "shape": [2], "dtype": "float32"}
],
"weight_name_mapping": {"p_fc1_weight": "fc1.weight", "p_fc1_bias": "fc1.bias", "p_fc2_weight": "fc2.weight", \
"p_fc2_bias": "fc2.bias"},
"nodes": [
{"name": "linear", "op_type": "aten.linear.default", "inputs": [{"name": "x", "shape": [1, 4], "dtype": "float32", \
"producer_node": "x", "producer_output_idx": 0}, {"name": "p_fc1_weight", "shape": [8, 4], "dtype": "float32"}, \
{"name": "p_fc1_bias", "shape": [8], "dtype": "float32"}], "outputs": [{"name": "linear", "shape": [1, 8], "dtype": \
"float32"}], "attrs": {}, "args": ["input", "weight", "bias"], "module": "fc1", "module_class": "Linear"},
{"name": "relu", "op_type": "aten.relu.default", "inputs": [{"name": "linear", "shape": [1, 8], "dtype": "float32", \
"producer_node": "linear", "producer_output_idx": 0}], "outputs": [{"name": "relu", "shape": [1, 8], "dtype": \
"float32"}], "attrs": {}, "args": ["self"], "module": "relu", "module_class": "ReLU"},
{"name": "linear_1", "op_type": "aten.linear.default", "inputs": [{"name": "relu", "shape": [1, 8], "dtype": \
"float32", "producer_node": "relu", "producer_output_idx": 0}, {"name": "p_fc2_weight", "shape": [2, 8], "dtype": \
"float32"}, {"name": "p_fc2_bias", "shape": [2], "dtype": "float32"}], "outputs": [{"name": "linear_1", "shape": \
[1, 2], "dtype": "float32"}], "attrs": {}, "args": ["input", "weight", "bias"], "module": "fc2", "module_class": \
"Linear"}
],
"params": {"p_fc1_weight": {"kind": "parameter"}, "p_fc1_bias": {"kind": "parameter"}, "p_fc2_weight": {"kind": \
"parameter"}, "p_fc2_bias": {"kind": "parameter"}},
"digest": "sha256:773856e9bdae8408af3f0765fd7039a7b5d4d68e87c91b7911d4d5bab1d2c069"
}
"""


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_the_documented_model_to_the_byte() -> None:
    """The file of the documented model is exactly this, and round-trips."""
    assert mlp().to_json() == DOCUMENTED
    assert IR.from_json(DOCUMENTED).to_json() == DOCUMENTED


def test_documented_keys_in_the_documented_order() -> None:
    """After the header come the documented keys; ours follow, and only if they are not empty."""
    documented = [
        "model_name", "pytorch_version", "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "nodes",
    ]  # fmt: skip
    assert list(chain("aten.neg.default").to_dict()) == ["format", "version", *documented]
    assert list(everything().to_dict()) == [
        "format", "version", *documented, "constants", "params", "mutations", "symbols", "constraints", "input_tree",
        "output_tree", "functions", "device", "fixed_layout", "modules", "extensions",
    ]  # fmt: skip
    assert list(json.loads(everything().to_json()))[-1] == "digest"


def test_reading_and_writing_gives_the_same_bytes() -> None:
    """For a graph that uses every part of the format, through each of the documented functions."""
    text = everything().to_json()
    assert IR.from_json(text).to_json() == text
    assert serialize_ir(IR.from_json(text)) == text
    assert write_document(IR.from_dict(json.loads(text)).to_dict()) == text
    assert serialize_ir(deserialize_ir(mlp().to_json())) == mlp().to_json()


def test_bytes_do_not_depend_on_hash_seeds() -> None:
    """Two processes with different hash seeds write the same file."""
    program = (
        "from tests.graphs import everything; import sys; sys.stdout.buffer.write(everything().to_json().encode())"
    )
    written = {_python(program, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "4242")}
    assert written == {everything().to_json().encode()}


def test_reading_and_writing_need_no_torch() -> None:
    """Loading, checking, printing and saving a file leave torch unimported."""
    program = (
        "import sys; from torch_ir import IR; from tests.graphs import everything; ir = everything();"
        "ir = IR.from_json(ir.to_json()); str(ir.check()); sys.exit('torch' in sys.modules)"
    )
    assert _python(program).returncode == 0


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", program]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, env={**os.environ, **environment}, capture_output=True, check=False)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_reading_gives_shared_tensors() -> None:
    """A loaded node reads the same tensor object that another produces, and uses are counted."""
    ir = IR.from_json(everything().to_json())
    mm = ir.node("mm").output
    assert ir.node("max_1").inputs[0] is mm
    assert mm.consumers == [ir.node("max_1"), ir.node("cat"), ir.node("cat")]
    assert ir.mutations[0][0] is ir.params[1]
    assert ir.symbols["batch"].tensor is ir.graph_inputs[0]


def test_collection_of_garbage_goes_on_after_reading() -> None:
    """Reading pauses Python's collector; afterwards it is as it was, also after an error."""
    program = (
        "import gc, torch_ir; from tests.graphs import mlp; text = mlp().to_json();"
        "torch_ir.IR.from_json(text); assert gc.isenabled(); gc.disable();"
        "torch_ir.IR.from_json(text); assert not gc.isenabled(); gc.enable()\n"
        "try: torch_ir.IR.from_json('{}')\n"
        "except torch_ir.SerializationError: assert gc.isenabled()\n"
        "else: raise AssertionError"
    )
    assert _python(program).returncode == 0


def test_a_node_read_alone_stands_alone() -> None:
    """OpNode.from_dict without a graph creates its own tensors; a wrong number of names is a SerializationError."""
    record = mlp().nodes[0].to_dict()
    node = OpNode.from_dict(record)
    assert [t.name for t in node.inputs] == ["x", "p_fc1_weight", "p_fc1_bias"]
    assert node.inputs[0].producer_node == "x"
    with pytest.raises(
        SerializationError, match=r"^\$\.args: OpNode\('linear', .*\) has 3 inputs, but 1 argument names"
    ):
        OpNode.from_dict({**record, "args": ["input"]})


# -- the digest -------------------------------------------------------------------------------------------------------


def test_any_changed_byte_of_the_body_is_seen() -> None:
    """For every changed byte of a file, loading raises an error, or the graph is the same."""
    raw = mlp().to_json().encode()
    body = range(2, raw.index(b',\n"digest"'))
    randomness = random.Random(1)
    for position in body:
        damaged = bytearray(raw)
        damaged[position] = (damaged[position] + randomness.randrange(1, 256)) % 256
        try:
            text = damaged.decode()
        except UnicodeDecodeError:
            continue
        refused(text)


def test_a_lost_or_added_byte_is_seen() -> None:
    """Also in the digest line itself; only the very last line break may be missing."""
    text = mlp().to_json()
    for position in range(2, len(text) - 1):
        refused(text[:position] + text[position + 1 :])
    assert IR.from_json(text[:-1]).to_json() == text
    refused(text.replace("\n", "\r\n"))


def test_without_its_digest_line_a_file_may_be_edited() -> None:
    """Deleting the digest line marks a deliberate change."""
    edited = mlp().to_json().replace("aten.relu.default", "aten.tanh.default")
    assert "delete the digest line" in str(refused(edited))
    ir = IR.from_json(without_digest(edited))
    assert ir.node("relu").op_type == "aten.tanh.default"


@pytest.mark.parametrize("digest", ["null", '""', '"sha256:"', f'"sha256:{hashlib.sha256(b"").hexdigest()}"', "[]"])
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    """A digest may be absent, but not empty, and not anywhere but at the end."""
    body = without_digest(mlp().to_json())
    assert refused(body.replace("\n}\n", f',\n"digest": {digest}\n}}\n')).path == "$.digest"
    assert refused(body.replace("{\n", f'{{\n"digest": {digest},\n', 1)).path == "$.digest"


# -- header -----------------------------------------------------------------------------------------------------------


def test_a_newer_version_is_refused_by_name() -> None:
    """The message names the version of the file and the supported ones."""
    error = refused(changed("version", 2))
    assert str(error) == "$.version: the file has format version 2, but this torch_ir reads versions up to 1"


@pytest.mark.parametrize(("key", "value"), [("version", 0), ("version", "1"), ("version", True), ("format", "onnx")])
def test_a_header_that_is_not_ours_is_refused(key: str, value: Any) -> None:
    """A wrong format or version is rejected."""
    assert refused(changed(key, value)).path == f"$.{key}"


def test_half_a_header_is_refused() -> None:
    """A file without a header has the documented format; an incomplete header is an error."""
    for key in ("format", "version"):
        document = everything().to_dict()
        del document[key]
        assert refused(document).path in ("$", "$.format")


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("surprise", "$"),
        ("nodes[0].surprise", "$.nodes[0]"),
        ("nodes[0].inputs[0].surprise", "$.nodes[0].inputs[0]"),
        ("nodes[0].outputs[0].surprise", "$.nodes[0].outputs[0]"),
        ("graph_inputs[0].surprise", "$.graph_inputs[0]"),
        ("weights[0].surprise", "$.weights[0]"),
        ("constants.steps.surprise", "$.constants.steps"),
        ("params.p_w.surprise", "$.params.p_w"),
        ("mutations[0].surprise", "$.mutations[0]"),
        ("symbols.batch.surprise", "$.symbols.batch"),
        ("functions.body.surprise", "$.functions.body"),
        ("functions.body.format", "$.functions.body"),
        ("functions.body.nodes[0].surprise", "$.functions.body.nodes[0]"),
        ("output_tree.surprise", "$.output_tree"),
        ("output_tree.tree.surprise", "$.output_tree.tree"),
    ],
)
def test_unknown_keys_are_refused_with_their_path(place: str, path: str) -> None:
    """An unknown key is an error or a newer format; it is never ignored."""
    error = refused(changed(place, 1))
    assert error.path == path
    assert "unknown key" in str(error)


def test_a_misspelt_key_names_the_nearest() -> None:
    """The error for a typo suggests the key."""
    document = changed("nodes[0].outputs", [])
    document["nodes"][0]["ouputs"] = document["nodes"][0].pop("outputs")
    assert str(refused(document)) == "$.nodes[0]: unknown key 'ouputs'; did you mean 'outputs'?"
