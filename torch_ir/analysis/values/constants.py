"""Constants: values known without any weight, and the single number that fills a tensor.

    known = Constants(ir)
    known.value(mask)          # a torch tensor, or None
    known.scalar_of(scale)     # 0.125 if every element has that value, else None

Known are constants and temporaries with values in the graph, and whatever is computed from them, or from no inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.values.prologue import is_fixed
from torch_ir.errors import ShapeError
from torch_ir.ir import IR, Device, Expr, Layout, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ops.calling import keywords, results
from torch_ir.ops.foldable import is_foldable, traps
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.registry import get_execution_fn
from torch_ir.ops.schema import find_operator
from torch_ir.ops.tensor_data import from_tensor, spread_bytes, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name

Number = Union[bool, int, float, complex]
_LIMIT = 1 << 20  # bytes of a single value
_BUDGET = 1 << 28  # bytes of all computed values
_MOST_TIMES = 64  # the bytes of a constant that its memory may span without counting
# All their elements are one number, whatever their input tensor contains.
_FILLS = frozenset(
    f"aten.{name}"
    for name in (
        "full", "zeros", "ones", "scalar_tensor", "new_full", "new_zeros", "new_ones", "full_like", "zeros_like",
        "ones_like",
    )
)  # fmt: skip
# Their elements are elements of their input, unchanged.
_KEEP_ELEMENTS = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view", "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "lift_fresh",
        "lift_fresh_copy", "permute", "repeat", "reshape", "select", "slice", "squeeze", "t", "transpose", "unsqueeze",
    )
)  # fmt: skip


def new_budget() -> Budget:
    """Return the bytes of values that one optimisation may compute; values are kept, so this also bounds memory."""
    return Budget(_BUDGET)


class Constants:
    """The known values of one graph; the graph may be rewritten meanwhile, as long as tensors keep their values."""

    def __init__(self, ir: IR, budget: Budget | None = None) -> None:
        self._budget = budget or new_budget()
        self._shapes = Shapes(ir)
        self._values: dict[TensorMeta, torch.Tensor | None] = {target: None for target, _ in ir.mutations}
        self._scalars: dict[TensorMeta, Number | None] = {}
        self._waiting: set[TensorMeta] = set()  # unknown only because what they are computed from is

    def assume(self, tensor: TensorMeta, value: torch.Tensor | None) -> None:
        """Treat an input of a function as a constant, because every call passes it."""
        if value is None or self._values.get(tensor) is not None:
            return
        self.ask_again()
        self._values[tensor] = value

    def ask_again(self) -> None:
        """Forget what is unknown because something else is: after a replacement, it may be known."""
        for tensor in self._waiting:
            self._values.pop(tensor, None)
        self._waiting.clear()
        self._scalars = {tensor: number for tensor, number in self._scalars.items() if number is not None}

    def value(self, tensor: TensorMeta) -> torch.Tensor | None:
        """Return the value of a tensor, which must not be modified; None if it is unknown or large."""
        left = [tensor]
        while left:
            maker = (one := left[-1]).producer
            if one in self._values:
                left.pop()
            elif maker is None:
                self._values[one] = self._held(one)
            elif unknown := [source for source in _read(maker) if source not in self._values]:
                left += unknown
            else:
                self._values.update(zip(maker.outputs, self._computed(maker), strict=True))
        return self._values[tensor]

    def scalar_of(self, tensor: TensorMeta) -> Number | None:
        """Return the number that every element of a tensor is, bit for bit; None if there is none."""
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

    def _held(self, tensor: TensorMeta) -> torch.Tensor | None:
        """Return the value of a constant stored in the graph; wide gaps between its elements count."""
        param = tensor.param
        if param is None or param.in_state_dict or param.data is None or not is_small(tensor):
            return None
        gaps = spread_bytes(param.data, tensor.stride) - _MOST_TIMES * param.data.size
        return to_tensor(param.data, tensor.stride) if gaps <= 0 or self._budget.take(gaps) else None

    def _computed(self, node: OpNode) -> Sequence[torch.Tensor | None]:
        """Compute the outputs of a node with known inputs; None for each if one is unknown, or torch refuses."""
        unknown = [None] * len(node.outputs)
        sources = _read(node)
        given = [value for source in sources if (value := self._values[source]) is not None]
        if not all(map(is_small, node.outputs)):
            return unknown
        if len(given) < len(sources):
            self._waiting.update(node.outputs)
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
        except Exception:  # torch will refuse it again when the graph runs
            return unknown
        return made if len(made) == len(node.outputs) and all(map(_is_like, made, node.outputs)) else unknown

    def _is_sound(self, node: OpNode) -> bool:
        """Whether a node has the declared outputs; on other inputs, a kernel may crash or exhaust memory."""
        try:
            made = self._shapes.of(node)
        except ShapeError:
            return False
        return made is not None and len(made) == len(node.outputs) and all(map(self._shapes.agree, node.outputs, made))


def _is_computable(node: OpNode) -> bool:
    """Whether a node is deterministic, runs on the CPU, and has a kernel that is safe for any values."""
    return is_foldable(node) and _is_on_cpu(node) and is_fixed(node)


def _is_on_cpu(node: OpNode) -> bool:
    """Whether a node requests no other device, and no other layout than a dense one."""
    requested = {value for value in node.attrs.values() if isinstance(value, (Device, Layout))}
    return requested <= {"cpu", "strided"}


def is_small(tensor: TensorMeta, limit: int = _LIMIT) -> bool:
    """Whether a tensor takes at most `limit` bytes."""
    size = size_in_bytes(tensor)
    return size is not None and size <= limit


def size_in_bytes(tensor: TensorMeta) -> int | None:
    """Return the size of a tensor's elements in bytes; None if its sizes are open."""
    size = DTYPES[tensor.dtype]
    for dim in tensor.shape:
        if not isinstance(dim, int):
            return None
        size *= dim
    return size


def _spent_on(node: OpNode) -> int:
    """Return the bytes of a node's inputs and outputs."""
    return sum(size_in_bytes(tensor) or 0 for tensor in (*node.inputs, *node.outputs))


def _read(node: OpNode) -> Sequence[TensorMeta]:
    """Return the tensors whose values determine the result."""
    return () if base_name(node.op_type) in _FILLS else node.inputs


def _is_like(made: object, expected: TensorMeta) -> bool:
    if not isinstance(made, torch.Tensor) or made.layout != torch.strided or made.is_quantized:
        return False
    return tuple(made.shape) == expected.shape and dtype_name(made.dtype) == expected.dtype


def _filled(node: OpNode) -> torch.Tensor | None:
    """Return the value of a tensor filled with one number."""
    number = _filling(node) if _is_on_cpu(node) else None
    shape = [int(dim) for dim in node.output.shape]
    return None if number is None else torch.full(shape, number, dtype=TORCH_DTYPES[node.output.dtype], device="cpu")


def _filling(node: OpNode) -> Number | None:
    """Return the number with which a node fills its output, converted to its dtype."""
    default = 1 if "ones" in node.op_type else 0
    number = node.attrs.get("fill_value", node.attrs.get("s", default))
    if isinstance(number, Expr) or get_execution_fn(node.op_type) is not None:
        return None
    try:
        return _item(torch.full([], number, dtype=TORCH_DTYPES[node.output.dtype], device="cpu"))
    except (RuntimeError, TypeError, OverflowError):  # the dtype cannot represent it, or cannot be filled
        return None


def _item(value: torch.Tensor) -> Number | None:
    """Return the only element; None for NaN, and for a dtype whose elements are not numbers in Python."""
    try:
        number: Number = value.item()
    except RuntimeError:
        return None
    return number if number == number else None


def _uniform(value: torch.Tensor) -> Number | None:
    """Return the element that all others equal, bit for bit."""
    raw = from_tensor(value).raw
    return _item(value.flatten()[0]) if raw == raw[: value.element_size()] * value.numel() else None
