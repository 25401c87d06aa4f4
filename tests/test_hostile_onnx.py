"""Hostile text in the names of a graph, in the ONNX file that is written: every text field of it is only text."""

from collections.abc import Iterator, MutableSequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from tests.adversarial.nodes import call, chain
from tests.graphs import tensor
from tests.test_hostile_labels import TEXTS
from torch_ir import IR, OpNode, execute_ir, random_weights
from torch_ir.ir import Origin, TensorMeta
from torch_ir.ir.graph.name_grammar import is_name
from torch_ir.ir.graph.tensor import Param
from torch_ir.targets import bind_onnx, to_onnx

NAMES = [*TEXTS, "../../outside", "/etc/passwd", "a\\..\\b", "C:\\x", "file:///x", "%n%s"]
_NOWHERE = "weights-that-are-not-bound-yet"


def hostile(names: list[str]) -> IR:
    """A chain of layers; each has one text as the name of its node, module, class, source line and weight."""
    source = x = tensor("x", 2, 3)
    nodes, params = [], []
    for number, text in enumerate(names):
        name = f"{text}_{number}" if is_name(f"{text}_{number}", 1000) else f"n{number}"
        params.append(TensorMeta(f"w{number}", (3, 3), "float32", param=Param((f"{text}.{number}",), "parameter")))
        origin, outputs = Origin(f"{text}{number}", 0, text, text), [TensorMeta(name, (2, 3), "float32")]
        inputs, args = [source, params[-1]], ["input", "weight"]
        nodes.append(OpNode(name, "aten.linear.default", inputs, outputs, {"bias": None}, args=args, origin=origin))
        source = outputs[0]
    return IR(nodes, [x], [source], params=params, model_name=names[0]).check()


def _texts(message: Any) -> Iterator[tuple[str, str]]:
    """All text fields of a protobuf message, with their names."""
    for field, value in message.ListFields():
        for item in value if isinstance(value, MutableSequence) else [value]:
            if field.type == field.TYPE_MESSAGE:
                yield from _texts(item)
            elif field.type == field.TYPE_STRING:
                yield field.name, item


def test_every_text_field(tmp_path: Path) -> None:
    """Printable, no documentation, no path but the names of files next to it; the file runs and gives eager results."""
    ir = hostile(NAMES[::-1])
    to_onnx(ir, tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx", load_external_data=False)
    texts = list(_texts(model))
    assert {text for _, text in texts} >= {f"{text}.{number}" for number, text in enumerate(NAMES[::-1])}
    assert [text for _, text in texts if not text.isprintable()] == []
    assert [text for name, text in texts if name == "doc_string"] == []
    located = {each.value for held in model.graph.initializer for each in held.external_data if each.key == "location"}
    assert located == {_NOWHERE}
    weights = random_weights(ir)
    bind_onnx(tmp_path / "a.onnx", weights)
    onnx.checker.check_model(tmp_path / "a.onnx", full_check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.onnx"]
    given = torch.randn(2, 3)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": given.numpy()})
    (expected,) = execute_ir(ir, [given], weights)
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_names_of_functions(tmp_path: Path) -> None:
    """A call finds its function, in a file that onnx's checker accepts, and the results are those of the graph."""
    given, x = tensor("x", 2, 3), tensor("x", 2, 3)
    body = OpNode("y", "aten.relu.default", [given], [tensor("y", 2, 3)], args=["self"])
    names = ["../x", "a;b", "$(id)", "end", "A b"]
    nodes = chain(x, len(names), lambda index, source: call(f"y{index}", names[index], source))
    functions = {name: IR([body], [given], [body.output]).clone() for name in names}
    ir = IR(nodes, [x], [nodes[-1].output], functions=functions).check()
    to_onnx(ir, tmp_path / "a.onnx")
    onnx.checker.check_model(tmp_path / "a.onnx", full_check=True)
    assert [text for _, text in _texts(onnx.load(tmp_path / "a.onnx")) if not text.isprintable()] == []
    value = torch.randn(2, 3)
    (found,) = onnxruntime.InferenceSession(tmp_path / "a.onnx").run(None, {"x": value.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), value.relu())
