"""Compact files: what repeats is written once, nothing is lost, and what is read is judged as any other file."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import everything, mlp, tensor
from torch_ir.cli.main import main
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, Limits, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.repeats import expand, fold


def layers(count: int) -> IR:
    """`count` equal layers of two nodes, each with a weight."""
    x = tensor("x", 4)
    nodes: list[OpNode] = []
    params = []
    for index in range(count):
        key = f"layers.{index}.weight"
        weight = TensorMeta(f"p_layers_{index}_weight", (4,), "float32", param=Param((key,)))
        params.append(weight)
        origin = Origin(f"layers.{index}", 0, "Scale", "net.py:7")
        read = nodes[-1].output if nodes else x
        for op, reads, args in [("mul", [read, weight], ["self", "other"]), ("relu", [], ["self"])]:
            name = f"{op}_{index}" if index else op
            reads = reads or [nodes[-1].output]
            nodes.append(OpNode(name, f"aten.{op}.default", reads, [tensor(name, 4)], args=args, origin=origin))
    modules = {f"layers.{index}": "net.Scale" for index in range(count)}
    return IR(nodes, [x], [nodes[-1].output], params=params, model_name="Layers", modules=modules).check()


def returns(ir: IR) -> str:
    """The compact text, from which the graph comes back to the byte."""
    text = ir.to_json(compact=True)
    assert IR.from_json(text).to_json() == ir.to_json()
    assert IR.from_json(text).to_json(compact=True) == text
    return text


def test_layers_are_written_once() -> None:
    """The first layer differs, as its nodes have no number; the run begins at the first node that repeats evenly."""
    document = json.loads(returns(layers(100)))
    assert document["compact"] is True
    assert document["weight_name_mapping"] == {
        "$0": {"$repeat": 100, "items": {"p_layers_<0+1>_weight": "layers.<0+1>.weight"}}
    }
    *before, run, last = document["nodes"]
    assert [node["name"] for node in (*before, last)] == ["mul", "relu", "mul_1", "relu_99"]
    assert run["$repeat"] == 98
    relu, mul = run["items"]
    assert relu["inputs"][0]["name"] == "mul_<1+1>"
    assert (mul["name"], mul["module"]) == ("mul_<2+1>", "layers.<2+1>")
    assert len(returns(layers(1000))) < len(returns(layers(100))) + 50


def test_any_graph_comes_back() -> None:
    """Whether or not anything repeats in it."""
    returns(everything())
    returns(mlp())
    returns(layers(1))
    returns(layers(2))


def test_numbers_that_do_not_grow_evenly_are_left_alone() -> None:
    """Zeros in front, signs of less and more, sizes that grow, numbers that fall: nothing of it is lost."""
    for names in (
        ["a.00", "a.01", "a.02", "a.03"],
        ["a<0+1>", "a<1+1>", "a<2+1>"],
        ["a.9", "a.8", "a.7", "a.6"],
        ["a.1", "a.2", "a.4", "a.8"],
        [f"a.{10**25 + index}" for index in range(4)],
    ):
        params = [TensorMeta(f"p{i}", (2,), "float32", param=Param((key,))) for i, key in enumerate(names)]
        x = tensor("x", 2)
        text = returns(IR([], [x], [x], params=params))
        assert not any("$repeat" in weight for weight in json.loads(text)["weights"])
    params = [TensorMeta(f"p{i}", (i,), "float32", param=Param((f"a.{i}",))) for i in range(5)]
    returns(IR([], [x], [x], params=params))
    params = [TensorMeta(f"${i}", (2,), "float32", param=Param((f"a.{i}",))) for i in range(5)]
    returns(IR([], [x], [x], params=params))


def test_names_that_are_no_strings_are_refused() -> None:
    """As in any file."""
    ir = mlp()
    ir.nodes[0].name = b"linear"  # type: ignore[assignment]  # that is the mistake
    with pytest.raises(SerializationError, match="cannot be written as JSON"):
        ir.to_json(compact=True)
    with pytest.raises(SerializationError, match="cannot be written as JSON"):
        ir.to_json()


NAMES = st.builds("{}{}{}".format, st.sampled_from(["a", "b.", "é<"]), st.integers(0, 12), st.sampled_from(["", ".w"]))


@settings(max_examples=200, deadline=None)
@given(st.lists(NAMES, max_size=30), st.lists(NAMES, max_size=30, unique=True), st.integers(1, 4))
def test_folding_can_be_undone(names: list[str], keys: list[str], times: int) -> None:
    """For any lists and tables."""
    records = [{"name": name, "shape": [1, 2]} for name in names * times]
    document: dict[str, Any] = {"format": "torch-ir", "version": 1}
    document.update(dict.fromkeys(("graph_inputs", "graph_outputs", "weights", "nodes"), records))
    document["modules"] = dict(zip(keys, keys, strict=True))
    assert json.dumps(expand(fold(document), Limits())) == json.dumps(document)


def test_files(tmp_path: Path) -> None:
    """A compact file is loaded as any other; large constants lie beside it, and its digest finds any damage."""
    everything().save(tmp_path / "m.json", compact=True, inline_limit=0)
    assert IR.load(tmp_path / "m.json").to_json() == everything().to_json()
    text = layers(9).to_json(compact=True)
    with pytest.raises(SerializationError, match="not what was written"):
        IR.from_json(text.replace("<0+1>", "<0+2>"))


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`convert --compact` writes such a file, and every verb reads it."""
    monkeypatch.chdir(tmp_path)
    layers(9).save("m.json")
    assert main(["convert", "m.json", "-o", "small.json", "--compact"]) == 0
    assert Path("small.json").read_text() == layers(9).to_json(compact=True)
    assert main(["convert", "small.json", "-o", "back.json"]) == 0
    assert Path("back.json").read_bytes() == Path("m.json").read_bytes()
    assert main(["convert", "m.json", "-o", "m.pb", "--compact"]) == 1
    assert "--compact is for JSON files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "run", "message"),
    [
        ("weights", {"$repeat": 0, "items": [{}]}, "$.weights[0]: a run repeats nothing"),
        ("weights", {"$repeat": -1, "items": [{}]}, "$.weights[0]: a run repeats nothing"),
        ("weights", {"$repeat": 2, "items": []}, "$.weights[0]: a run has no items"),
        ("weights", {"$repeat": True, "items": [{}]}, "$.weights[0].$repeat: expected a whole number"),
        ("weights", {"$repeat": 2}, "$.weights[0]: 'items' is missing"),
        ("weights", {"$repeat": 2, "items": {"a": 1}}, "$.weights[0].items: expected a list"),
        ("weights", {"$repeat": 2, "items": [{}], "more": 1}, "$.weights[0]: unknown key 'more'"),
        ("weights", {"$repeat": 10**9, "items": [{}]}, "$.weights[0]: a run says more than it may"),
        ("weights", {"$repeat": 2, "items": [{"name": "<0+1>"}]}, "$.weights[0]: 'shape' is missing"),
        ("weights", {"$repeat": 2, "items": [{"<0+1>": 1, "0": 2}]}, "the key '0' stands twice"),
        ("weights", {"$repeat": 2, "items": [{"$repeat": 2, "items": [1]}]}, "$.weights[0]: unknown key '$repeat'"),
        ("modules", {"$repeat": 2, "items": {"same": "A"}}, "$.modules: 'same' stands twice"),
        ("modules", {"$repeat": 2, "items": ["A"]}, "$.modules.$0.items: expected an object"),
        ("compact", None, "$.compact: it can only be true"),
        ("compact", False, "$.compact: it can only be true"),
    ],
)
def test_bad_runs_are_refused(key: str, run: Any, message: str) -> None:
    """Each with its place."""
    document = json.loads(layers(4).to_json(compact=True))
    del document["digest"]
    document[key] = [run] if key == "weights" else {"$0": run} if key == "modules" else run
    with pytest.raises(SerializationError) as caught:
        IR.from_json(json.dumps(document))
    assert message in str(caught.value)


def test_what_no_json_gives_is_refused() -> None:
    """from_dict takes what a program hands it."""
    for item in (object(), {1, 2}):
        document = json.loads(layers(4).to_json(compact=True))
        del document["digest"]
        document["weights"] = [{"$repeat": 2, "items": [item]}]
        with pytest.raises(SerializationError, match=r"^\$\.weights\[0\]\.items: not JSON"):
            IR.from_dict(document)


def test_the_limit_can_be_set() -> None:
    """A few bytes must not stand for more than the reader has room for."""
    text = layers(1000).to_json(compact=True)
    with pytest.raises(SerializationError, match="says more than it may"):
        IR.from_json(text, Limits(expanded_bytes=10_000))
