"""Names of watched values: unique inside functions, and those of the golden pack."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import catalogue
import torch_ir
from tests.golden_packs import compared, dumped
from tests.graphs import tensor
from tests.proof import captured
from torch_ir import IR, IRExecutor, TensorMeta, write_golden
from torch_ir.golden.pack import read_pack
from torch_ir.ir import FunctionRef, OpNode, Param

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * 2


class Stack(nn.Module):
    """Three equal blocks, and a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(self.blocks(x)))


STACK = Stack().eval()


def fused() -> IR:
    return torch_ir.optimize(captured(STACK, X), "full")[0]


def folded() -> IR:
    return captured(STACK, X).fold_blocks()


def outputs_of_blocks() -> list[Tensor]:
    """The results of the `relu` of each block, by hooks of the model itself."""
    found: list[Tensor] = []
    hooks = [
        module.linear.register_forward_hook(lambda *call: found.append(call[2].relu()))
        for module in STACK.modules()
        if isinstance(module, Block)
    ]
    STACK(X)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("build", [fused, folded])
def test_dumps_by_name_are_those_of_the_pack(build: Any, tmp_path: Path) -> None:
    """Nothing collides: every value of the pack is in the dumps, and equal."""
    ir = build()
    write_golden(ir, STACK.state_dict(), (X,), tmp_path / "pack", model=STACK)
    values = dumped(ir, STACK.state_dict(), X)
    assert list(values) == [value.name for value in read_pack(tmp_path / "pack").values]
    assert any("/" in name for name in values)
    found = compared(tmp_path / "pack", values)
    assert (found.is_equal, found.missing, found.unknown) == (True, [], [])


def test_values_of_calls_are_those_of_the_model() -> None:
    """`relu@1` is of the second block; a second run has the same names."""
    ir = folded()
    seen: dict[str, Tensor] = {}
    nodes: dict[str, Any] = {}

    def keep(tensor: TensorMeta, value: Any, sizes: object) -> None:
        seen[tensor.name] = value.clone()
        nodes[tensor.name] = tensor.producer

    executor = IRExecutor(ir, STACK.state_dict(), watch=keep)
    executor(-X)
    first = list(seen)
    executor(X)
    assert list(seen) == first
    path, body = next((name, body) for name, body in ir.functions.items() if body.nodes[0].op_type.startswith("aten"))
    relu = next(node for node in body.nodes if node.op_type == "aten.relu.default")
    for call, expected in enumerate(outputs_of_blocks()):
        torch.testing.assert_close(seen[f"{path}/{relu.output.name}@{call}"], expected)
        assert nodes[f"{path}/{relu.output.name}@{call}"] is relu
    assert f"{path}/{relu.output.name}@3" not in seen


def test_the_first_wrong_call_is_named(tmp_path: Path) -> None:
    ir = folded()
    write_golden(ir, STACK.state_dict(), (X,), tmp_path / "pack")
    names = [value.name for value in read_pack(tmp_path / "pack").values]
    broken = next(name for name in names if name.endswith("@1") and "/relu" in name)
    found = compared(tmp_path / "pack", dumped(ir, STACK.state_dict(), X, broken=broken))
    assert found.divergence is not None
    assert found.divergence.output == broken


def test_a_name_of_the_graph_is_not_one_inside_a_function(tmp_path: Path) -> None:
    """A pack of one module, and dumps of everything: the outer `linear` is not compared with that of a block."""
    ir = folded()
    write_golden(ir, STACK.state_dict(), (X,), tmp_path / "pack", only=["blocks"])
    values = dumped(ir, STACK.state_dict(), X)
    found = compared(tmp_path / "pack", values)
    assert found.is_equal
    alone = {name: value for name, value in values.items() if "/" not in name}
    assert compared(tmp_path / "pack", alone).differing == []


def test_loops_inside_functions() -> None:
    """Each round has its own names; no two values share one."""
    entry = catalogue.find("while_loop")
    torch.manual_seed(0)
    model, inputs = entry.build(), entry.inputs()
    names: list[str] = []
    watch = lambda tensor, value, sizes: names.append(tensor.name)  # noqa: E731  # one call
    IRExecutor(captured(model, *inputs), model.state_dict(), watch=watch).execute(inputs)
    assert len(set(names)) == len(names)
    assert "while_loop_cond_graph_0/gt@1" in names


def test_calls_of_the_prologue_are_counted_first() -> None:
    """A function that runs once over a weight, and in every run over an input; also after other weights are bound."""
    given, a = tensor("given", 2, 3), tensor("a", 2, 3)
    body = IR([OpNode("a", "aten.relu.default", [given], [a], args=["self"])], [given], [a])
    x, y, z, total = (tensor(name, 2, 3) for name in ("x", "y", "z", "total"))
    w = TensorMeta("w", (2, 3), "float32", param=Param(("w",), "parameter"))
    call = {"function": FunctionRef("body")}
    nodes = [
        OpNode("y", "call", [x], [y], call, args=["given"]),
        OpNode("z", "call", [w], [z], call, args=["given"]),
        OpNode("total", "aten.add.Tensor", [y, z], [total], args=["self", "other"]),
    ]
    ir = IR(nodes, [x], [total], params=[w], functions={"body": body})
    names: list[str] = []
    executor = IRExecutor(ir, watch=lambda tensor, value, sizes: names.append(tensor.name))
    for _ in range(2):
        executor.load_weights_from_state_dict({"w": torch.ones(2, 3)})
        executor(torch.ones(2, 3))
        executor(torch.ones(2, 3))
    every = ["body/a@1", "y", "total"]
    assert names == ["body/a@0", "z", *every, *every] * 2
