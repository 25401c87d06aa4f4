"""Constants: values that are known without any weight, and the one number that fills a whole tensor.

    known = Constants(ir)
    known.value(mask)          # a tensor of torch, or None
    known.scalar_of(scale)     # 0.125 where every element is that, or None

Known are constants and temporaries whose values the graph holds, and whatever is computed from them, or from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch

from torch_ir.analysis.cost_model.flop_formulas import base_name
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, Device, Expr, Layout, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ops.calling import keywords, results
from torch_ir.ops.foldable import is_foldable, traps
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.registry import get_execution_fn
from torch_ir.ops.schema import find_operator
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name

Number = Union[bool, int, float, complex]
_LIMIT = 1 << 20  # bytes of a value that is looked at
_BUDGET = 1 << 28  # bytes of all values that are computed
# All their elements are one number, whatever the tensor that they read holds.
_FILLS = frozenset(
    f"aten.{name}"
    for name in (
        "full", "zeros", "ones", "scalar_tensor", "new_full", "new_zeros", "new_ones", "full_like", "zeros_like",
        "ones_like",
    )
)  # fmt: skip
# Their elements are elements of their tensor, as they are.
_KEEP_ELEMENTS = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view", "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "lift_fresh",
        "lift_fresh_copy", "permute", "repeat", "reshape", "select", "slice", "squeeze", "t", "transpose", "unsqueeze",
    )
)  # fmt: skip


def new_budget() -> Budget:
    """Bytes of values that may be computed for one optimisation; they are kept, so that memory is bounded as well."""
    return Budget(_BUDGET)


class Constants:
    """What is known about the values of one graph; the graph may change in between, as values stay what they are."""

    def __init__(self, ir: IR, budget: Budget | None = None) -> None:
        self._budget = budget or new_budget()
        self._shapes = Shapes(ir)
        self._never = {target for target, _ in ir.mutations}
        self._values: dict[TensorMeta, torch.Tensor | None] = dict.fromkeys(self._never)
        self._scalars: dict[TensorMeta, Number | None] = {}

    def assume(self, tensor: TensorMeta, value: torch.Tensor | None) -> None:
        """Take an input of a function for a constant, as every call gives it that one."""
        if value is None or self._values.get(tensor) is not None:
            return
        self._scalars.clear()  # what was not known may be known now
        self._values = {one: known for one, known in self._values.items() if known is not None or one in self._never}
        self._values[tensor] = value

    def value(self, tensor: TensorMeta) -> torch.Tensor | None:
        """The value of a tensor, which is not to be changed; None where it is not known, or large."""
        left = [tensor]
        while left:
            maker = (one := left[-1]).producer
            if one in self._values:
                left.pop()
            elif maker is None:
                self._values[one] = _held(one)
            elif unknown := [source for source in _read(maker) if source not in self._values]:
                left += unknown
            else:
                self._values.update(zip(maker.outputs, self._computed(maker), strict=True))
        return self._values[tensor]

    def scalar_of(self, tensor: TensorMeta) -> Number | None:
        """The number that every element of a tensor is, bit for bit; None where there is none."""
        if tensor not in self._scalars:
            self._scalars[tensor] = self._scalar_of(tensor)
        return self._scalars[tensor]

    def _scalar_of(self, tensor: TensorMeta) -> Number | None:
        source = tensor
        while (maker := source.producer) is not None and base_name(maker.op_type) in _KEEP_ELEMENTS:
            source = maker.inputs[0]
        if 0 in tensor.shape or source.dtype != tensor.dtype:
            return None
        if maker is not None and base_name(maker.op_type) in _FILLS:
            return _filling(maker)
        value = self.value(source)
        return None if value is None else _uniform(value)

    def _computed(self, node: OpNode) -> Sequence[torch.Tensor | None]:
        """What a node makes of values that are known; nothing where one of them is not, or torch refuses."""
        unknown = [None] * len(node.outputs)
        sources = _read(node)
        given = [value for source in sources if (value := self._values[source]) is not None]
        if len(given) < len(sources) or not all(map(is_small, node.outputs)):
            return unknown
        if base_name(node.op_type) in _FILLS:
            return [_filled(node)] if self._budget.take(_spent_on(node)) else unknown
        values = dict(zip(node.args, given, strict=True))
        if not _is_computable(node) or traps(node, values) or not self._is_sound(node):
            return unknown
        if not self._budget.take(_spent_on(node)):
            return unknown
        operator: Any = find_operator(node.op_type)
        try:
            with NeutralState():
                made = results(operator, keywords(values, node.attrs))
        except Exception:  # what torch refuses now, it refuses when the graph runs
            return unknown
        return made if len(made) == len(node.outputs) and all(map(_is_like, made, node.outputs)) else unknown

    def _is_sound(self, node: OpNode) -> bool:
        """Whether a node makes what the graph says; a kernel that is given anything else may crash or fill memory."""
        try:
            made = self._shapes.of(node)
        except ShapeError:
            return False
        return made is not None and len(made) == len(node.outputs) and all(map(self._shapes.agree, node.outputs, made))


def _is_computable(node: OpNode) -> bool:
    """Whether a node always makes the same of the same inputs, on the CPU, by a kernel that is safe on any values."""
    return is_foldable(node) and _is_on_cpu(node) and is_fixed(node)


def _is_on_cpu(node: OpNode) -> bool:
    """Whether a node asks for no other device, and for no other layout than a dense one."""
    wanted = {value for value in node.attrs.values() if isinstance(value, (Device, Layout))}
    return wanted <= {"cpu", "strided"}


def is_small(tensor: TensorMeta, limit: int = _LIMIT) -> bool:
    """Whether a tensor takes no more than so many bytes."""
    size = size_in_bytes(tensor)
    return size is not None and size <= limit


def size_in_bytes(tensor: TensorMeta) -> int | None:
    """How many bytes the elements of a tensor take; None where its sizes are open."""
    size = DTYPES[tensor.dtype]
    for dim in tensor.shape:
        if not isinstance(dim, int):
            return None
        size *= dim
    return size


def _spent_on(node: OpNode) -> int:
    """The bytes of what a node reads and makes."""
    return sum(size_in_bytes(tensor) or 0 for tensor in (*node.inputs, *node.outputs))


def _read(node: OpNode) -> Sequence[TensorMeta]:
    """The tensors on whose values the result depends."""
    return () if base_name(node.op_type) in _FILLS else node.inputs


def _held(tensor: TensorMeta) -> torch.Tensor | None:
    """The value of a constant that the graph holds."""
    param = tensor.param
    if param is None or param.in_state_dict or param.data is None or not is_small(tensor):
        return None
    return to_tensor(param.data, tensor.stride)


def _is_like(made: object, wanted: TensorMeta) -> bool:
    if not isinstance(made, torch.Tensor) or made.layout != torch.strided or made.is_quantized:
        return False
    return tuple(made.shape) == wanted.shape and dtype_name(made.dtype) == wanted.dtype


def _filled(node: OpNode) -> torch.Tensor | None:
    """The value of a tensor that one number fills."""
    number = _filling(node) if _is_on_cpu(node) else None
    shape = [int(dim) for dim in node.output.shape]
    return None if number is None else torch.full(shape, number, dtype=TORCH_DTYPES[node.output.dtype], device="cpu")


def _filling(node: OpNode) -> Number | None:
    """The number with which a node fills its result, as its dtype holds it."""
    default = 1 if "ones" in node.op_type else 0
    number = node.attrs.get("fill_value", node.attrs.get("s", default))
    if isinstance(number, Expr) or get_execution_fn(node.op_type) is not None:
        return None
    try:
        return _item(torch.full([], number, dtype=TORCH_DTYPES[node.output.dtype], device="cpu"))
    except (RuntimeError, TypeError):  # a number that the dtype cannot hold, or a dtype that cannot be filled
        return None


def _item(value: torch.Tensor) -> Number | None:
    """The only element; NaN is no number."""
    number: Number = value.item()
    return number if number == number else None


def _uniform(value: torch.Tensor) -> Number | None:
    """The element that all are, bit for bit."""
    raw = from_tensor(value).raw
    return _item(value.flatten()[0]) if raw == raw[: value.element_size()] * value.numel() else None
