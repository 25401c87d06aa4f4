"""Arguments that a hand-written graph leaves out have the defaults of torch's schemas, with or without torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.attr_orders import DEFAULTS, schema_defaults
from tests.graphs import tensor
from torch_ir import IR, OpNode, from_protobuf, to_protobuf
from torch_ir.cli import main
from torch_ir.ir.graph.attr_defaults import fill_defaults

STORED = sorted((Path(__file__).parent / "data" / "patterns").glob("*/*.json"))
WRITTEN = """graph(x: float32[2, 3], y: float32[2, 3]) {
  param w: float32[4, 3] = "w"
  add: float32[2, 3] = aten.add.Tensor(self=x, other=y)
  mean: float32[2, 1] = aten.mean.dim(self=add, dim=[1], keepdim=True)
  sub: float32[2, 3] = aten.sub.Tensor(self=add, other=mean)
  linear: float32[2, 4] = aten.linear.default(input=sub, weight=w)
  gelu: float32[2, 4] = aten.gelu.default(self=linear)
  softmax: float32[2, 4] = aten.softmax.int(self=gelu, dim=1)
  full: float32[2, 4] = aten.full.default(size=[2, 4], fill_value=1.0)
  mul: float32[2, 4] = aten.mul.Tensor(self=softmax, other=full)
  return mul
}
"""


def without_defaults(ir: IR) -> IR:
    """The same graph, whose nodes have only the arguments that differ from the schema's defaults."""
    table = json.loads(DEFAULTS.read_text())
    for node in ir.all_nodes():
        record = node.to_dict()["attrs"]
        for name, value in table.get(node.op_type, {}).items():
            if name in record and repr(record[name]) == repr(value):
                del node.attrs[name]
    return ir


MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 3))

    def forward(self, x, y):
        add = x + y
        return nn.functional.gelu((add - add.mean(1, keepdim=True)) @ self.w.T).softmax(1)
"""
READ: dict[str, Callable[[IR], IR]] = {
    "json": lambda ir: IR.from_json(ir.to_json()),
    "text": lambda ir: IR.parse(ir.to_text()),
    "protobuf": lambda ir: from_protobuf(to_protobuf(ir)),
    "clone": lambda ir: ir.clone(),
}


def test_the_table_is_that_of_the_installed_torch() -> None:
    """`python -m tests.attr_orders` regenerates it."""
    stored, installed = json.loads(DEFAULTS.read_text()), schema_defaults()
    assert len(stored) > 700
    wrong = {op for op, row in stored.items() if op in installed and not row.items() <= installed[op].items()}
    assert not wrong


@pytest.mark.parametrize("kind", READ)
def test_a_graph_without_defaults_is_read_as_the_complete_one(kind: str) -> None:
    """The graphs that each rule changes hold every argument that rules, formulas and targets read."""
    removed = 0
    for path in STORED:
        complete, written = IR.load(path), without_defaults(IR.load(path))
        removed += complete.to_text() != written.to_text()
        assert READ[kind](written).to_text() == complete.to_text(), path.name
    assert removed > len(STORED) / 2


def test_files_without_an_argument_are_completed_without_torch(tmp_path: Path) -> None:
    (tmp_path / "net.ir").write_text(WRITTEN)
    program = (
        "import sys; from torch_ir import IR; print(IR.load(sys.argv[1]).node('add')['alpha'], 'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "net.ir"], capture_output=True, text=True, check=True
    )
    assert found.stdout == "1 False\n"


@pytest.mark.parametrize(
    "command",
    [
        "check NET", "optimize NET --level clean", "optimize NET --level basic", "optimize NET --level full --verify",
        "cost NET", "draw NET -o net.svg", "memory NET", "info NET", "diff NET changed.ir", "run NET -w random",
        "convert NET -o net.py", "convert NET -o net.mlir", "lower NET -t none.py:target",
        "coverage NET -t none.py:target",
        "verify NET net.py:Net", "quantize NET --recipe int8", "plan NET --devices 2 --memory 1G --device h100",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["net.ir", "net.json"])
def test_every_command_reads_it(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(WRITTEN)
    Path("net.json").write_text(without_defaults(IR.parse(WRITTEN)).to_json())
    Path("changed.ir").write_text(WRITTEN.replace("aten.gelu", "aten.relu"))
    Path("net.py").write_text(MODEL)
    Path("none.py").write_text("import torch_ir\ntarget = torch_ir.Target('none')\n")
    status = main(command.replace("NET", name).split())
    assert status == (3 if command.startswith("diff") else 0), capsys.readouterr().err


def test_nodes_do_not_share_a_default() -> None:
    x = tensor("x", 1, 2, 4, 4)
    nodes = [
        OpNode(name, "aten.max_pool2d.default", [x], [tensor(name, 1, 2, 2, 2)], {"kernel_size": [2, 2]}, args=["self"])
        for name in ("a", "b")
    ]
    IR(nodes, [x], [node.output for node in nodes])
    assert nodes[0]["stride"] == []
    assert nodes[0]["stride"] is not nodes[1]["stride"]


@pytest.mark.parametrize(
    ("op_type", "args", "attrs"),
    [
        ("mine.add.Tensor", ["self", "other"], {}),
        ("aten.add.Tensor", [], {}),  # positions: the schema names them when the graph is checked or run
        ("aten.add.Tensor", ["self", "other"], {"alpha": 2}),
    ],
)
def test_calls_that_stay_as_they_are(op_type: str, args: list[str], attrs: dict[str, Any]) -> None:
    x = tensor("x", 2)
    node = OpNode("y", op_type, [x, x], [tensor("y", 2)], attrs, args=args)
    fill_defaults(node)
    assert node.attrs == attrs
