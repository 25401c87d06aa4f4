"""Lowering returns a result, whatever a handler does."""

import random
from collections.abc import Callable
from typing import Any

import pytest

import catalogue
from tests.graphs import chain, mlp
from tests.lowering import accepting, assert_joined, graph_of
from torch_ir import IR, Declined, OpNode, Target, op
from torch_ir.ir.regroup.granularity import at_level, public_name


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text fails")


class _Hostile:
    """A value that refuses every question."""

    @property
    def __class__(self) -> Any:
        raise ValueError

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __bool__(self) -> bool:
        raise ValueError

    __hash__ = None


def _raises(error: BaseException) -> Callable[[OpNode], Any]:
    def handler(node: OpNode) -> Any:
        raise error

    return handler


def _destroys(node: OpNode) -> None:
    for reader in [reader for output in node.outputs for reader in output.consumers]:
        reader.inputs, reader.attrs, reader.origin = (), None, None  # type: ignore[assignment]
    node.inputs, node.outputs, node.name, node.op_type = (), (), "", "destroyed"
    node.attrs.clear()


def _recurses(node: OpNode) -> Any:
    return _recurses(node)


HANDLERS: list[Callable[..., Any]] = [
    *map(
        _raises,
        [ValueError("a\nb"), KeyError("x"), AssertionError(), _UnprintableError(), MemoryError(), StopIteration()],
    ),
    _destroys,
    _recurses,
    lambda node: Declined(_Hostile()),  # type: ignore[arg-type]
    lambda node: _Hostile(),
    lambda: None,
    lambda node, **everything: everything["body"].nodes,
    lambda node: node["no such argument"],
]


def _wild_target(ir: IR, seed: int) -> Target:
    """Handlers of every kind for a random half of a graph's operators and modules."""
    chance = random.Random(seed)
    target = Target("wild")
    names = dict.fromkeys([*(node.op_type for node in ir.nodes), *map(public_name, ir.modules.values())])
    for name in names:
        if chance.random() < 0.5:
            target.lowers(name)(chance.choice(HANDLERS))
    for node in ir.nodes:
        made = [(arg, t.producer.op_type) for arg, t in zip(node.args, node.inputs, strict=True) if t.producer]
        if made and chance.random() < 0.3:
            arg, op_type = chance.choice(made)
            pattern = op(node.op_type, **{arg: op(op_type).named(f"n{len(target.patterns)}")})
            target.lowers(pattern)(chance.choice(HANDLERS))
    return target


def _assert_survives(ir: IR, decompose: bool) -> None:
    before = ir.to_json()
    for seed in range(4):
        lowered = _wild_target(ir, seed).lower(ir, decompose=decompose)
        assert ir.to_json() == before
        lowered.ir.check()
        assert_joined(lowered)
        assert lowered.report()


NAMES = [entry.name for entry in catalogue.entries()]
SAMPLE = random.Random(0).sample(NAMES, 8)


@pytest.mark.parametrize("name", SAMPLE)
def test_no_handler_can_break_lowering(name: str) -> None:
    """Whatever handlers raise, return or destroy, the result is consistent, and the graph is unchanged."""
    _assert_survives(graph_of(name), decompose=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_handler_can_break_lowering_anywhere(name: str) -> None:
    """The same on every model, with nodes split by torch as well."""
    ir = graph_of(name)
    _assert_survives(ir, decompose=True)
    _assert_survives(at_level(ir, "module"), decompose=False)


def test_an_interrupt_is_not_swallowed() -> None:
    npu = Target("npu")
    npu.lowers("aten.relu")(_raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        npu.lower(chain("aten.relu.default"))


def test_handlers_cannot_hurt_the_graph() -> None:
    """A handler that tears its node apart harms neither the lowered graph nor the layers around it."""
    npu = accepting("aten.relu")

    @npu.lowers("aten.linear")
    def linear(node: OpNode) -> str:
        _destroys(node)
        return "done"

    lowered = npu.lower(mlp())
    assert lowered.ir.check().nodes[0].op_type == "aten.linear.default"
    assert [layer.inputs for layer in lowered] == [("x",), ("linear",), ("relu",)]
