"""Inputs with fixed values: what a model computes from them alone is computed during the capture, not recorded.

The model receives a fixed input as a real tensor, so that its Python may read the numbers. A tensor that is computed
only from such tensors, and from numbers, is real as well; where an operator reads it together with other tensors, it
becomes a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from torch_ir.capture.fast.shape_recorder import Recorder
from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.capture.fast.symbolic_size import SYMBOLIC
from torch_ir.capture.fixed_inputs import guard_inputs
from torch_ir.capture.instrument import all_intercepted
from torch_ir.ir import IR
from torch_ir.ops.effects import is_forbidden, may_draw, written_arguments
from torch_ir.ops.schema import bind
from torch_ir.ops.torch_internals import TENSOR_CHECK, OpOverload, memory_key, pytree, schema_of

_MOST = 1 << 16  # elements of a tensor whose values are followed: those of positions and lengths, not of images
_LIFT = torch.ops.aten.lift_fresh.default
_CPU, _META = torch.device("cpu"), torch.device("meta")
_UNKNOWN = object()
_EXPAND, _EXPAND_AS = torch.ops.aten.expand.default, torch.ops.aten.expand_as.default
_INDEXED = frozenset(
    (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)
)  # their second argument is a list of indices
_MASKS = (torch.bool, torch.uint8)


class KnownValues:
    """The real tensors of one run; `recorded` are the numbers of calls that must be recorded all the same."""

    def __init__(self, fixed: Collection[torch.Tensor], recorded: Collection[int] = ()) -> None:
        self.written: int | None = None  # the call whose result, a real tensor, was written to with recorded values
        self._fixed = {id(tensor): tensor for tensor in fixed}
        self._recorded = recorded
        self._tensors: dict[int, torch.Tensor] = {}  # by identity; kept alive, so that no other takes its place
        self._makers: dict[int, int] = {}  # memory -> the number of the call that allocated it
        self._inputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._calls = 0

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._tensors

    def is_fixed(self, tensor: torch.Tensor) -> bool:
        """Whether this example input has a fixed value."""
        return id(tensor) in self._fixed

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a real tensor for the model in place of a fixed input."""
        copy = tensor.detach().clone()
        self._tensors[id(copy)] = copy
        self._inputs.append((tensor, copy))
        return copy

    def recorder(self, model: nn.Module, with_functions: bool) -> KnowingRecorder:
        return KnowingRecorder(model, with_functions, self)

    def check_inputs(self) -> None:
        """Raise if forward has written to a fixed input."""
        if not all(torch.equal(tensor, copy) for tensor, copy in self._inputs):
            raise NotCoveredError("forward writes to an input whose value is fixed")

    def by_values(self, func: Any, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Return a call that does the same with sizes and indices instead of what they are computed from."""
        if func is _EXPAND_AS and args[0] in self:
            return _EXPAND, (args[0], list(args[1].shape))
        if func in _INDEXED and any(index in self and index.dtype in _MASKS for index in args[1]):
            return func, (args[0], [index for mask in args[1] for index in self._indices(mask)], *args[2:])
        return func, args

    def _indices(self, index: Any) -> Sequence[Any]:
        """Return the integer indices of a known mask; any other index unchanged."""
        if index not in self or index.dtype not in _MASKS:
            return (index,)
        found: Sequence[torch.Tensor] = index.nonzero().unbind(1)
        self._tensors.update((id(each), each) for each in found)
        return found

    def result(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call of which everything is known, else `_UNKNOWN`."""
        if not isinstance(func, OpOverload) or not self._is_known(func, args, kwargs):
            return _UNKNOWN
        self._calls += 1
        if self._calls in self._recorded:
            return _UNKNOWN
        result = args[0].clone() if func is _LIFT else func(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(tensor.numel() > _MOST for tensor in made):
            return _UNKNOWN
        for tensor in made:
            self._tensors[id(tensor)] = tensor
            self._makers.setdefault(memory_key(tensor), self._calls)
        return result

    def _is_known(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if may_draw(func) or is_forbidden(str(func)) or any(type(leaf) in SYMBOLIC for leaf in leaves):
            return False
        if func is _LIFT:
            return type(tensors[0]) is torch.Tensor and tensors[0].device == _CPU
        if not tensors:
            return _is_small_factory(func, args, kwargs)
        if all(tensor in self for tensor in tensors):
            return True
        if any(tensor in self for tensor in tensors):
            self._refuse_write(func, args, kwargs)
        return False

    def _refuse_write(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise if a call writes recorded values to a real tensor; the call that made it must be recorded, too."""
        bound = bind(func, args, kwargs)
        for tensor in pytree.tree_leaves([bound[name] for name in written_arguments(func, bound)]):
            if tensor in self:
                self.written = self._makers.get(memory_key(tensor))
                raise NotCoveredError(f"{func} writes to a tensor that is computed from fixed inputs")


@cache
def _makes_tensors(func: OpOverload) -> bool:
    """Whether an operator makes a new tensor on a device, with defined values."""
    is_factory = any(argument.name == "device" for argument in schema_of(func).arguments)
    return is_factory and not str(func).startswith("aten.empty")


def _is_small_factory(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if not _makes_tensors(func) or kwargs.get("device") not in (None, _CPU):
        return False
    return bool(func(*args, **{**kwargs, "device": _META}).numel() <= _MOST)


class KnowingRecorder(Recorder):  # type: ignore[no-untyped-call]  # torch does not annotate its base class
    """Computes what is known, and records everything else."""

    def __init__(self, model: nn.Module, with_functions: bool, values: KnownValues) -> None:
        super().__init__(model, with_functions)
        self.values = values
        self.can_repeat = False
        self._constants: dict[int, tuple[torch.Tensor, Ghost]] = {}  # a copy of a real tensor, and its ghost

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with all_intercepted({TENSOR_CHECK: self._check_all}):
            return super().run(args, kwargs)

    def _check_all(self, check: Callable[..., None], kind: type, condition: torch.Tensor, message: Any = None) -> None:
        """Record a check of a recorded tensor, instead of reading its value."""
        if type(condition) is not Ghost:
            check(kind, condition, message)
            return
        text = message() if callable(message) else message
        torch.ops.aten._assert_async.msg(condition.all(), str(text or "a check of the model failed"))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        func, args = self.values.by_values(func, args)
        result = self.values.result(func, args, kwargs or {})
        return result if result is not _UNKNOWN else super().__torch_dispatch__(func, types, args, kwargs)

    def given(self, tensor: torch.Tensor, ghost: Ghost) -> torch.Tensor:
        return self.values.given(tensor) if self.values.is_fixed(tensor) else ghost

    def guarded(self, ir: IR, inputs: Mapping[str, torch.Tensor]) -> IR:
        self.values.check_inputs()
        guard_inputs(ir, {name: tensor for name, tensor in inputs.items() if self.values.is_fixed(tensor)})
        return ir.check()

    def known(self, value: Any) -> Any:
        if value not in self.values:
            return super().known(value)
        copy, ghost = self._constants.get(id(value), (None, None))
        if copy is None or not torch.equal(copy, value):  # new, or written to since then
            copy = value.clone(memory_format=torch.contiguous_format)
            ghost = self.tape.given(copy)
            self.tape.constants[ghost.value] = (copy, self.modules.scope)
            self._constants[id(value)] = (copy, ghost)
        return ghost
