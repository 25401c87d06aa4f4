"""Ghosts: tensors with a shape, dtype, strides and device, but without memory, values or autograd."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import torch

from torch_ir.capture.state.input_questions import set_questions
from torch_ir.errors import Cause, ConversionError, TorchIRError
from torch_ir.ops.torch_internals import (
    FakeTensor,
    disabled_torch_function,
    forbid_data_pointer,
    make_wrapper_subclass,
    pytree,
)
from torch_ir.ops.torch_types import dtype_name

_CPU = torch.device("cpu")
STALE = "a tensor that was kept from an earlier capture and has no values; do not keep what forward computes"


class Run:
    """One recording; its ghosts refer to it and are invalid in any other and afterwards."""

    def __init__(self) -> None:
        self.refusal: NotCoveredError | None = None  # kept, because the model may catch the exception and continue
        self.is_training = False  # whether it computes gradients
        self.sizes: Any = None  # `OpenSizes`, if sizes vary
        self.recorder: Any = None  # `Recorder`, during the run
        self.has_gradients = False  # whether forward has enabled gradients, which its tensors do not have
        self.is_over = False


class _Current(threading.local):
    run: Run | None = None  # of this thread


_current = _Current()


class NotCoveredError(TorchIRError):
    """The fast recording does not support something, which the message names; another step captures the model."""

    def __init__(self, reason: str, run: Run | None = None, *, cause: Cause = Cause.UNKNOWN) -> None:
        super().__init__(reason, cause=cause)
        run = run or _current.run
        if run is not None:
            run.refusal = self


class ForwardRaisedError(NotCoveredError):
    """Forward raised an exception, which it might not on tensors with values."""


class NeedsValuesError(Exception):
    """The form of a result depends on values, or no shape rule is known."""


class SizeCannotVaryError(NotCoveredError):
    """A size cannot vary as requested, or torch cannot prove that it can."""


class StaleAnswersError(NotCoveredError):
    """Torch answers a question about sizes otherwise than when an earlier capture asked it; those answers are gone."""


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Make this the current recording of the thread; afterwards, its ghosts are invalid."""
    outer, _current.run = _current.run, run
    try:
        yield
    finally:
        _current.run, run.refusal, run.is_over = outer, None, True


class Form:
    """The metadata of a tensor; equal forms are one object, so that they are compared by identity."""

    def __init__(
        self, shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, device: torch.device, offset: Any
    ) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.offset = offset
        self.dtype_name = dtype_name(dtype)
        self.is_open = not all(type(size) is int for size in (*shape, *stride, offset))  # whether it has open sizes

    @cached_property
    def written_stride(self) -> tuple[int, ...] | None:
        """Return the strides for the IR: None for row-major order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected and 0 not in self.shape:
                return self.stride
            expected *= size
        return None

    @cached_property
    def _facts(self) -> tuple[Any, ...]:
        """Return the arguments that make a tensor of this form; torch computes strides in row-major order faster."""
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.insert(0, strides[0] * max(size, 1))
        is_default = not self.offset and self.stride == tuple(strides[: len(self.shape)])
        layout = (None, None) if is_default else (self.stride, self.offset)
        return (Ghost, self.shape, *layout, None, self.dtype, torch.strided, self.device)

    def ghost(self, value: int, run: Run, requires_grad: bool = False) -> Ghost:
        """Return a tensor of this form for a value on the tape."""
        made: Ghost
        if self.is_open:  # torch would compute the size of the memory from numbers
            made = make_wrapper_subclass(*self._open_facts(run), False, requires_grad, storage_size=0)
        else:
            made = make_wrapper_subclass(*self._facts, False, requires_grad)
        forbid_data_pointer(made)  # reading its address must raise, not return 0
        made.form = self
        made.value = value
        made.run = run
        return made

    def _open_facts(self, run: Run) -> tuple[Any, ...]:
        """Return the same with the numbers of a run in place of open sizes."""
        shape, stride, (offset,) = map(run.sizes.numbers, (self.shape, self.stride, (self.offset,)))
        return (Ghost, shape, stride, offset, None, self.dtype, torch.strided, self.device)

    def fake(self) -> torch.Tensor:
        """Return a meta tensor of this form, for shape rules."""
        if not self.offset:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        reach = self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        whole = torch.empty(reach, dtype=self.dtype, device="meta")
        return whole.as_strided(self.shape, self.stride, self.offset)


_forms: WeakValueDictionary[tuple[Any, ...], Form] = WeakValueDictionary()  # alive while a tape or rule uses them


def form_of(tensor: torch.Tensor) -> Form:
    """Return the form of a tensor; meta becomes cpu."""
    if type(tensor) is Ghost:
        return tensor.form
    is_given = not isinstance(tensor, FakeTensor) and not tensor.is_meta  # the lazy conjugate of another is its node
    is_lazy = is_given and (tensor.is_conj() or tensor.is_neg())
    if tensor.layout is not torch.strided or tensor.is_quantized or is_lazy:
        raise NotCoveredError(f"a tensor with layout {tensor.layout}, or one that is quantised or lazily conjugated")
    device = _CPU if tensor.device.type == "meta" else tensor.device
    key: Any = (tuple(tensor.shape), tensor.stride(), tensor.dtype, device, tensor.storage_offset())
    if isinstance(tensor, FakeTensor) and not all(type(size) is int for size in (*key[0], *key[1], key[4])):
        raise NeedsValuesError("the size of a result depends on the data")
    return interned_form(key)


def form_of_input(tensor: torch.Tensor) -> Form:
    """Return the form of an input, with storage offset 0 whatever the example's is."""
    form = form_of(tensor)
    return interned_form((form.shape, form.stride, form.dtype, form.device, 0)) if form.offset else form


def interned_form(key: tuple[Any, ...]) -> Form:
    """Return the form with this shape, stride, dtype, device and offset."""
    found = _forms.get(key)
    if found is None:
        found = _forms[key] = Form(*key)
    return found


def _refuse(tensor: torch.Tensor, reason: str) -> None:
    if type(tensor) is Ghost and tensor.run.has_gradients and not tensor.run.is_training:
        raise NotCoveredError(reason)


class Ghost(torch.Tensor):
    """A tensor without memory, for a value on a tape."""

    form: Form
    value: int
    run: Run
    __torch_function__ = disabled_torch_function  # type: ignore[assignment]  # as torch asks for it

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch annotates another method
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Handle a call outside the recorder, as in another thread: continue, and refuse the run later."""
        ghosts = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Ghost)]
        if any(ghost.run.is_over for ghost in ghosts):
            raise ConversionError(f"{func} is called on {STALE}")
        for ghost in ghosts:
            NotCoveredError(f"{func} is called where the recorder cannot see it", ghost.run)
        given = pytree.tree_map_only(Ghost, lambda ghost: ghost.form.fake(), (tuple(args), dict(kwargs or {})))
        return func(*given[0], **given[1])

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]  # torch's takes an option of its own
        return f"Ghost({tuple(self.form.shape)}, {self.form.dtype})"

    def _memory(self) -> Any:
        raise NotCoveredError("the model reads the memory of a tensor")

    untyped_storage = storage = _typed_storage = data_ptr = _memory

    def _detached(self) -> torch.Tensor:
        return self.detach()

    def _set_data(self, value: torch.Tensor) -> None:
        if self.run.recorder is None:
            raise NotCoveredError("forward assigns the data of a tensor")
        self.run.recorder.set_data(self, value)

    data = property(_detached, _set_data)  # torch's property reads memory

    def _values(self, *args: Any, **options: Any) -> Any:
        if self.run.recorder is not None:
            self.run.recorder.queries.leave()
        raise NotCoveredError("the model reads the values of a tensor")

    def __int__(self) -> int:
        return int(self.item())  # which is a symbol: a guard of the whole number, not of the exact one

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return memo.setdefault(id(self), self.clone())  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self._values() if self.run.recorder is None else self.run.recorder.queries.to_list(self)

    numpy = __array__ = __dlpack__ = __reduce_ex__ = _values


set_questions(Ghost, refuse=_refuse)
