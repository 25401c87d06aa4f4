"""Rewrite context: facts about a graph during rewriting: operators, shapes, weights, memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from torch_ir.analysis.memory.aliasing import COUNTING, is_counted, is_held_by_caller, moves_results
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.strides import moved_by
from torch_ir.analysis.values.constants import Constants, Number, new_budget
from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.errors import ShapeError, UnknownOperatorError
from torch_ir.ir import IR, Device, Dim, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ops.calling import mapped, split_arguments
from torch_ir.ops.effects import is_pure
from torch_ir.ops.known_names import objection, operator_objection
from torch_ir.ops.schema import bind, find_operator
from torch_ir.ops.torch_types import to_name

_kept: ContextVar[tuple[dict[IR, Knowledge], Budget] | None] = ContextVar("knowledge", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Keep facts about graphs until the end of the block, also across rewrites."""
    token = _kept.set(({}, new_budget()))
    try:
        yield
    finally:
        _kept.reset(token)


class Knowledge:
    """Facts about one graph; it may be rewritten meanwhile, as long as tensors keep their values."""

    @classmethod
    def of(cls, ir: IR) -> Knowledge:
        """Return the facts already known about a graph, or a new object."""
        kept = _kept.get()
        return cls(ir) if kept is None else _kept_in(*kept, ir)

    def __init__(self, ir: IR, budget: Budget | None = None) -> None:
        self._ir = ir
        self._devices: set[str] | None = None
        self._is_strided: bool | None = None
        self.shapes = Shapes(ir)
        self.constants = Constants(ir, budget)
        self._fixed: dict[TensorMeta, bool] = {target: False for target, _ in ir.mutations}
        self._sizes = {symbol.tensor: name for name, symbol in ir.symbols.items() if symbol.tensor is not None}

    def assume(self, tensor: TensorMeta, values: Collection[TensorMeta], outer: Knowledge) -> None:
        """Treat an input of a function as what all its calls pass: a weight, or one constant."""
        self._fixed[tensor] = self._fixed.get(tensor, False) or all(map(outer.is_weight, values))
        if self._fixed[tensor] and len(values) == 1:
            self.constants.assume(tensor, outer.value_of(*values))

    def assume_weights(self, tensors: Iterable[TensorMeta]) -> None:
        """Treat these inputs of a function as weights."""
        self._fixed.update(dict.fromkeys(tensors, True))

    def call(
        self, op_type: str, arguments: Mapping[str, Any], hints: Sequence[Dim] = ()
    ) -> tuple[dict[str, TensorMeta], dict[str, Any], list[TensorMeta]]:
        """Return a complete call: its tensors and attributes by name, with defaults filled in, and its outputs."""
        operator = find_operator(op_type)
        if operator is None:
            raise UnknownOperatorError(operator_objection(op_type) or f"there is no operator {op_type!r}")
        if message := objection([op_type], arguments):
            raise UnknownOperatorError(message)
        inputs, others = split_arguments(bind(operator, (), arguments), lambda value: isinstance(value, TensorMeta))
        attrs = {name: mapped(value, to_name) for name, value in others.items()}
        made = self.shapes.results(op_type, inputs, attrs, hints)
        if made is None:
            raise ShapeError(f"no shape inference for {op_type}")
        return inputs, attrs, made

    def ask_again(self) -> None:
        """Forget which tensors are not weights, and which are unknown: after a replacement, they may be."""
        self.constants.ask_again()
        self._fixed = {tensor: True for tensor, is_weight in self._fixed.items() if is_weight}
        self._fixed.update((target, False) for target, _ in self._ir.mutations)

    def is_weight(self, tensor: TensorMeta) -> bool:
        """Whether a tensor depends only on weights and constants, so that it is computed once when they are bound."""
        left = [tensor]
        while left:
            one = left[-1]
            if one not in self._fixed:
                maker = one.producer
                if maker is None:
                    self._fixed[one] = one.param is not None
                elif any(self._fixed.get(source) is False for source in maker.inputs):
                    self._fixed[one] = False
                elif unknown := [source for source in maker.inputs if source not in self._fixed]:
                    left += unknown
                    continue
                else:  # last, because it reads the body of a call, which many layers share
                    self._fixed[one] = is_fixed(maker, self._ir.functions)
            left.pop()
        return self._fixed[tensor]

    def is_home(self, device: str | None) -> bool:
        """Whether everything is on that device, or on the graph's if None: no node names another one."""
        if self._devices is None:
            named = (value for node in self._ir.nodes for value in node.attrs.values() if type(value) is Device)
            self._devices = {self._ir.device, *named}
        return self._devices == {device or self._ir.device}

    def scalar_of(self, tensor: TensorMeta) -> Number | None:
        """Return the number that every element of a tensor is known to be without weights; None if there is none."""
        return self.constants.scalar_of(tensor)

    def value_of(self, tensor: TensorMeta) -> torch.Tensor | None:
        """Return the value of a tensor, which must not be modified; None if it is unknown without weights, or large."""
        return self.constants.value(tensor)

    def is_idle(self, node: OpNode) -> bool:
        """Whether a node can be removed: its outputs are unused, it has no effect, and it determines no size."""
        return not any(made._uses for made in node.outputs) and is_pure(node) and self.names_no_size(node)

    def names_no_size(self, node: OpNode) -> bool:
        return not any(made in self._sizes for made in node.outputs)

    def passes_shape_rule(self, node: OpNode) -> bool:
        """Whether torch has a shape rule for a node, and it accepts the node's arguments."""
        try:
            return self.shapes.of(node) is not None
        except ShapeError:
            return False

    def agree(self, one: TensorMeta, other: TensorMeta) -> bool:
        """Whether two tensors have equal shape and dtype, however their sizes are written."""
        return self.shapes.agree(one, other)

    def is_held(self, tensor: TensorMeta) -> bool:
        """Whether the caller receives this tensor, directly or through a view."""
        return is_held_by_caller(tensor, self._ir.functions)

    def is_counted(self, tensor: TensorMeta) -> bool:
        """Whether a node such as `as_strided` may read the storage of this tensor, directly or through a view."""
        if self._is_strided is None:
            self._is_strided = any(node.op_type.startswith(COUNTING) for node in self._ir.all_nodes())
        return self._is_strided and is_counted(tensor, self._ir.functions)

    def objection(self, old: TensorMeta, new: TensorMeta) -> str:
        """Return why `new` cannot replace `old` everywhere; empty if it can."""
        if old in self._sizes:
            return f"it determines the size {self._sizes[old]!r}"
        if old.placement != new.placement:
            return "the two have different placements on the mesh"
        if self.is_counted(old):
            return "an as_strided node reads its storage"
        if moves_results(old, new, self._ir.functions):
            return "the caller would receive a tensor that shares memory with another one"
        try:
            if old.stride != new.stride:
                moved_by(self.shapes, old, new.stride)
        except ShapeError as error:
            return str(error)
        return ""

    def replace(self, old: TensorMeta, new: TensorMeta) -> None:
        """Replace `old` by `new`; if its strides differ, update those of the tensors computed from it."""
        moved = moved_by(self.shapes, old, new.stride) if old.stride != new.stride else {}
        old.replace_all_uses_with(new)
        for tensor, stride in moved.items():
            if tensor is not old:
                tensor.stride = stride


def _kept_in(kept: dict[IR, Knowledge], budget: Budget, ir: IR) -> Knowledge:
    if ir not in kept:
        kept[ir] = Knowledge(ir, budget)
    kept[ir].ask_again()
    return kept[ir]
