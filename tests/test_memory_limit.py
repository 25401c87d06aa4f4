"""A run whose declared sizes do not fit into memory is rejected before it starts (R13)."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.graphs import mlp, tensor, weight
from torch_ir import (
    IR,
    ExecutionError,
    IRExecutor,
    Limits,
    OpNode,
    execute_ir,
    extract_ir,
    open_weights,
    random_weights,
)
from torch_ir.analysis.memory.memory_bound import Demand
from torch_ir.ir import FunctionRef
from torch_ir.run.memory_check import memory_limit

HUGE = 1 << 40
_MADE = {"dtype": None, "layout": None, "device": None, "pin_memory": None}


def full(size: int = HUGE) -> IR:
    out = tensor("full", size)
    return IR([OpNode("full", "aten.full.default", [], [out], {"size": [size], "fill_value": 1.0, **_MADE})], [], [out])


def repeated() -> IR:
    x, out = tensor("x", 2), tensor("repeat", HUGE)
    return IR(
        [OpNode("repeat", "aten.repeat.default", [x], [out], {"repeats": [HUGE // 2]}, args=["self"])], [x], [out]
    )


def copied(op_type: str, attrs: dict[str, object]) -> IR:
    """A view of one element that looks huge, and then a copy of it; the file hides the strides."""
    x, wide, out = tensor("x", 1), tensor("expand", HUGE), tensor("copy", HUGE)
    expand = OpNode("expand", "aten.expand.default", [x], [wide], {"size": [HUGE], "implicit": False}, args=["self"])
    return IR([expand, OpNode("copy", op_type, [wide], [out], attrs, args=["self"])], [x], [out])


BOMBS: dict[str, Callable[[], IR]] = {
    "full": full,
    "repeat": repeated,
    "contiguous": lambda: copied("aten.contiguous.default", {"memory_format": None}),
    "reshape": lambda: copied("aten.reshape.default", {"shape": [HUGE]}),
    "clone": lambda: copied("aten.clone.default", {"memory_format": None}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_not_set_off(name: str) -> None:
    """The sentence names the bytes, the limit, the node, and how to allow it."""
    ir = BOMBS[name]()
    with pytest.raises(
        ExecutionError, match=r"a run would need [\d,]+ bytes, more than [\d,]+, most of them for OpNode"
    ):
        execute_ir(ir, [torch.ones(1 if name not in ("full", "repeat") else 2)][: len(ir.graph_inputs)], {})


def test_a_view_takes_no_memory() -> None:
    """However large it looks."""
    x, wide, out = tensor("x", 1), tensor("expand", HUGE), tensor("slice_1", 2)
    expand = OpNode("expand", "aten.expand.default", [x], [wide], {"size": [HUGE], "implicit": False}, args=["self"])
    attrs = {"dim": 0, "start": 0, "end": 2, "step": 1}
    ir = IR([expand, OpNode("slice_1", "aten.slice.Tensor", [wide], [out], attrs, args=["self"])], [x], [out])
    assert torch.equal(execute_ir(ir, (torch.ones(1),), {})[0], torch.ones(2))


def test_what_is_read_for_the_last_time_goes() -> None:
    """A chain of ten needs memory for two values at once, and the check knows it."""
    values = [tensor("x", 1000), *(tensor(f"relu_{index}", 1000) for index in range(10))]
    nodes = [OpNode(made.name, "aten.relu.default", [read], [made], args=["self"]) for read, made in pairwise(values)]
    ir = IR(nodes, values[:1], values[-1:])
    peak = Demand(ir).peak({}).bytes
    assert (peak, Demand(ir).bound({})) == (12_000, 44_000)
    execute_ir(ir, (torch.ones(1000),), {}, limits=Limits(memory_bytes=peak))
    with pytest.raises(ExecutionError, match="a run would need 12,000 bytes, more than 11,999"):
        execute_ir(ir, (torch.ones(1000),), {}, limits=Limits(memory_bytes=peak - 1))


def test_open_sizes_are_those_of_the_call() -> None:
    """The same executor accepts a small input, and rejects a large one."""
    sizes = ({0: torch.export.Dim("batch")},)
    ir = extract_ir(nn.Linear(4, 4).eval(), (torch.empty(2, 4),), dynamic_shapes=sizes, strict=False)
    executor = IRExecutor(ir, random_weights(ir), limits=Limits(memory_bytes=1000))
    executor.execute((torch.ones(2, 4),))
    with pytest.raises(ExecutionError, match="a run would need 3,280 bytes, more than 1,000"):
        executor.execute((torch.ones(100, 4),))
    executor.execute((torch.ones(3, 4),))


def test_what_is_computed_once_counts_when_weights_are_bound() -> None:
    w, made, x, out = weight("w", 2), tensor("repeat", HUGE), tensor("x", 1), tensor("add", HUGE)
    repeat = OpNode("repeat", "aten.repeat.default", [w], [made], {"repeats": [HUGE // 2]}, args=["self"])
    add = OpNode("add", "aten.add.Tensor", [x, made], [out], {"alpha": 1}, args=["self", "other"])
    with pytest.raises(ExecutionError, match=r"most of them for OpNode\('repeat'"):
        IRExecutor(IR([repeat, add], [x], [out], params=[w]), {"w": torch.ones(2)})


def test_streamed_weights_count_while_they_are_held(tmp_path: Path) -> None:
    ir = mlp()
    whole, streamed = Demand(ir).peak({}).bytes, Demand(ir, streamed=True).peak({}).bytes
    assert streamed < whole
    save_file(random_weights(ir), tmp_path / "weights.safetensors")
    limits = Limits(memory_bytes=streamed)
    execute_ir(ir, (torch.ones(1, 4),), open_weights(tmp_path / "weights.safetensors"), limits=limits)
    with pytest.raises(ExecutionError, match="a run would need"):
        execute_ir(ir, (torch.ones(1, 4),), random_weights(ir), limits=limits)


def test_functions_that_call_each_other_are_counted_in_no_time() -> None:
    """Sixty levels, each called twice by the next, need as much memory as a single path."""
    graph = _level(None)
    for _ in range(60):
        graph = _level(graph)
    assert Demand(graph).peak({}).bytes < 61 * 3 * 400
    assert Demand(graph).bound({}) > 1 << 60


def _level(inner: IR | None) -> IR:
    x, one, two = tensor("x", 100), tensor("one", 100), tensor("two", 100)
    if inner is None:
        return IR([OpNode("one", "aten.relu.default", [x], [one], args=["self"])], [x], [one])
    attrs = {"function": FunctionRef("body")}
    nodes = [
        OpNode("one", "call", [x], [one], attrs, args=["x"]),
        OpNode("two", "call", [one], [two], attrs, args=["x"]),
    ]
    return IR(nodes, [x], [two], functions={"body": inner})


def test_sizes_that_the_data_decides_are_not_known_before() -> None:
    """They do not count; only an isolated run limits them."""

    class Found(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero() * 2

    ir = extract_ir(Found().eval(), (torch.ones(4),), strict=False)
    assert execute_ir(ir, (torch.ones(4),), {}, limits=Limits(memory_bytes=100))[0].shape == (4, 1)


def test_the_limit_is_what_the_machine_has_unless_one_is_given() -> None:
    """The memory of another device is unknown."""
    assert memory_limit(Limits(memory_bytes=7), "cuda") == memory_limit(Limits(memory_bytes=7)) == 7
    assert 1 << 28 < memory_limit(Limits()) <= memory_limit(Limits(), "cuda")
