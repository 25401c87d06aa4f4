"""Version 0 files of the documented peer load, pass the check, run, and return the original models' results.

The files in `data/peer` were written by the peer itself; `data/peer/make.py` says how. `documented.json` is the
simplified file of its documentation, which says neither the names of weights nor the dtypes of what nodes read.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_ir import IR, SerializationError, execute_ir, load_ir
from torch_ir.ir import Param

FOLDER = Path(__file__).parent / "data" / "peer"
NAMES = sorted(path.name.split(".")[0] for path in FOLDER.glob("*.values.json"))


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.values.json").read_text())
    return found


def to_tensor(record: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(record["data"], dtype=getattr(torch, record["dtype"])).reshape(record["shape"])


def run(ir: IR, name: str) -> list[torch.Tensor]:
    known = values(name)
    weights = {key: to_tensor(record) for key, record in known["weights"].items()}
    return list(execute_ir(ir, tuple(map(to_tensor, known["inputs"])), weights=weights))


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def test_every_kind_of_file_is_here() -> None:
    """These files cover every difference of the peer; each must occur at least once."""
    assert NAMES == ["cat", "cnn", "constants", "index", "max", "mlp", "norm", "tied"]
    everything = "".join((FOLDER / f"{name}.json").read_text() for name in NAMES)
    for speciality in ("built-in function getitem", "_tensor_list_sizes", "_tensor_list_none_masks", '"constants"'):
        assert speciality in everything


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_the_peer_gives_what_the_model_gave(name: str) -> None:
    """Loaded, run with the same weights: the outputs of the original model, also after our own file."""
    ir = load_ir(FOLDER / f"{name}.json")
    expected = [to_tensor(record) for record in values(name)["outputs"]]
    for each in (ir, IR.from_json(ir.to_json())):
        torch.testing.assert_close(run(each, name), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_documented_tables_are_kept(name: str) -> None:
    """Names, shapes, dtypes, mapping and operators are those of the file; only getitem nodes are gone."""
    ir, given = IR.load(FOLDER / f"{name}.json"), document(name)
    assert (ir.model_name, ir.pytorch_version) == (given["model_name"], given["pytorch_version"])
    assert [w.to_dict() for w in ir.weights] == given["weights"]
    assert ir.weight_name_mapping == given["weight_name_mapping"]
    assert [t.to_dict() for t in ir.graph_inputs] == given["graph_inputs"]
    assert [(t.shape, t.dtype) for t in ir.graph_outputs] == [
        (tuple(record["shape"]), record["dtype"]) for record in given["graph_outputs"]
    ]
    assert [(node.name, node.op_type) for node in ir.nodes] == [
        (record["name"], record["op_type"]) for record in given["nodes"] if "getitem" not in record["op_type"]
    ]


def test_readers_of_getitem_read_the_output_itself() -> None:
    """split -> getitem -> mul becomes split -> mul; a returned getitem is the returned output."""
    ir = IR.load(FOLDER / "cnn.json")
    split, mul = ir.node("split"), ir.node("mul")
    assert mul.inputs == split.outputs
    assert ir.graph_outputs[1] is split.outputs[1]
    best, where = IR.load(FOLDER / "max.json").node("max_1").outputs
    assert (best.dtype, where.dtype) == ("float32", "int64")
    assert len(best.consumers) == 2


def test_constants_come_as_bytes_and_buffers_are_told_from_parameters() -> None:
    """Decimals in the file become bytes; names determine the kind of each weight."""
    ir = IR.load(FOLDER / "constants.json")
    assert {key: (data.dtype, data.raw.hex()) for key, data in ir.constants.items()} == {
        "steps": ("int64", "0000000000000000" "0100000000000000" "0200000000000000"),
        "k": ("float32", "0000c03f" "000000c0" "0000803e"),
        "lifted_tensor_0": ("bool", "010001"),
    }  # fmt: skip
    assert all(param.param and param.param.kind == "constant" for param in ir.params)
    kinds = {p.key: p.param.kind for p in IR.load(FOLDER / "cnn.json").params if p.param}
    assert (kinds["bn.running_mean"], kinds["bn.weight"]) == ("buffer", "parameter")


def test_an_empty_constant_has_the_shape_of_its_weight() -> None:
    """[] in decimals has lost all sizes but the first; the table of weights still has them."""
    given = document("constants")
    given["weights"].append({"name": "none", "shape": [0, 3], "dtype": "float32"})
    given["weight_name_mapping"]["c_none"] = "none"
    given["constants"]["none"] = {"data": [], "dtype": "float32"}
    assert IR.from_dict(given).constants["none"].shape == (0, 3)


def test_the_simplified_file_of_the_documentation_loads_and_runs() -> None:
    """Without a mapping, `p_fc1_weight` is `fc1.weight`; without a dtype, an input has its producer's."""
    ir = IR.load(FOLDER / "documented.json")
    assert ir.weight_name_mapping == {
        "p_fc1_weight": "fc1.weight", "p_fc1_bias": "fc1.bias", "p_fc2_weight": "fc2.weight", "p_fc2_bias": "fc2.bias",
    }  # fmt: skip
    assert {t.dtype for t in ir.tensors()} == {"float32"}
    expected = [to_tensor(record) for record in values("mlp")["outputs"]]
    torch.testing.assert_close(run(ir, "mlp"), expected, rtol=1e-6, atol=1e-6)


def test_dtypes_that_are_not_said_follow_from_what_is_read() -> None:
    """An output without a dtype has that of its first input; inputs have their producer's."""
    given = document("mlp")
    for record in [given["graph_inputs"][0], *given["weights"]]:
        record["dtype"] = "bfloat16"
    for node in given["nodes"]:
        for record in [*node["inputs"], *node["outputs"]]:
            del record["dtype"]
    del given["graph_outputs"][0]["dtype"]
    assert {t.dtype for t in IR.from_dict(given).tensors()} == {"bfloat16"}


def test_loading_leaves_the_given_dict_alone() -> None:
    """Missing values are filled in elsewhere."""
    for name in ("documented", "cnn"):
        given = document(name)
        before = copy.deepcopy(given)
        IR.from_dict(given)
        assert given == before


def test_our_additions_are_read_without_a_header_as_well() -> None:
    """A hand-written document needs no header, and may still contain the kind of a weight."""
    given = document("mlp")
    given["params"] = {"p_fc1_bias": {"kind": "buffer", "tied": ["other.bias"]}}
    assert IR.from_dict(given).params[1].param == Param(("fc1.bias", "other.bias"), "buffer")


@pytest.mark.parametrize(
    ("name", "place", "value", "path"),
    [
        ("cnn", ("nodes", 4, "attrs", "index"), 2, "$.nodes[4].attrs.index"),
        ("cnn", ("nodes", 4, "attrs", "index"), -1, "$.nodes[4].attrs.index"),
        ("cnn", ("nodes", 4, "attrs", "index"), "0", "$.nodes[4].attrs.index"),
        ("cnn", ("nodes", 4, "attrs"), {}, "$.nodes[4].attrs"),
        ("cnn", ("nodes", 4, "outputs"), [], "$.nodes[4].attrs.index"),
        ("cnn", ("nodes", 4, "outputs", 0, "shape"), [1], "$.nodes[4].outputs[0]"),
        ("cnn", ("nodes", 6, "inputs", 0, "name"), [], "$.nodes[6].inputs[0].name"),
        ("cnn", ("nodes", 6, "inputs", 0), 1, "$.nodes[6].inputs[0]"),
        ("cnn", ("nodes", 6, "inputs"), None, "$.nodes[6].inputs"),
        ("cnn", ("nodes", 6, "outputs"), 5, "$.nodes[6].outputs"),
        ("cnn", ("nodes", 6), None, "$.nodes[6]"),
        ("cnn", ("nodes",), {}, "$.nodes"),
        ("cnn", ("graph_inputs",), 5, "$.graph_inputs"),
        ("cnn", ("graph_inputs", 0, "dtype"), [], "$.graph_inputs[0].dtype"),
        ("cnn", ("graph_outputs", 0), [], "$.graph_outputs[0]"),
        ("cnn", ("weights", 0), "w", "$.weights[0]"),
        ("cnn", ("weight_name_mapping",), [], "$.weight_name_mapping"),
        ("cnn", ("model_name",), 1, "$.model_name"),
        ("constants", ("constants", "k"), [], "$.constants.k"),
        ("constants", ("constants", "k", "data"), [1, "2", 3], "$.constants.k.data"),
        ("constants", ("constants", "k", "data"), [[1], [2, 3]], "$.constants.k.data"),
        ("constants", ("constants", "k", "shape"), [3], "$.constants.k"),
        ("mlp", ("surprise",), 1, "$"),
        ("mlp", ("nodes", 0, "surprise"), 1, "$.nodes[0]"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(name: str, place: tuple[Any, ...], value: Any, path: str) -> None:
    """Files of the peer are read as strictly as ours."""
    given = document(name)
    outer: Any = given
    for part in place[:-1]:
        outer = outer[part]
    outer[place[-1]] = value
    with pytest.raises(SerializationError) as caught:
        IR.from_dict(given)
    assert caught.value.path == path


def test_weights_that_claim_one_name_are_refused() -> None:
    """Two keys that would be read under one name are a contradiction, not a guess."""
    given = document("documented")
    given["weights"].append({"name": "fc1_weight", "shape": [8, 4], "dtype": "float32"})
    with pytest.raises(SerializationError, match="list different weights"):
        IR.from_dict(given)
