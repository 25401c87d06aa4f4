"""Tensors that have a shape, dtype, strides and device, and nothing else: no memory, no values, no autograd."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import torch

from torch_ir.errors import ConversionError, TorchIRError
from torch_ir.ops.torch_internals import (
    FakeTensor,
    disabled_torch_function,
    forbid_data_pointer,
    make_wrapper_subclass,
    pytree,
)
from torch_ir.ops.torch_types import dtype_name

_WITHOUT_STORAGE = {"storage_size": 0}  # else torch computes it from the sizes
_CPU = torch.device("cpu")
STALE = "a tensor that was kept from an earlier capture and has no values; do not keep what forward computes"


class Run:
    """One recording, which all of its ghosts refer to: they are of no use in another one, nor afterwards."""

    def __init__(self) -> None:
        self.refusal: NotCoveredError | None = None  # a model may catch it and go on, which must not go unseen
        self.sizes: Any = None  # that vary: `OpenSizes`
        self.is_over = False


class _Current(threading.local):
    run: Run | None = None  # that of this thread


_current = _Current()


class NotCoveredError(TorchIRError):
    """Something that the quick road does not cover; its message says what, and another road is taken."""

    def __init__(self, reason: str, run: Run | None = None) -> None:
        super().__init__(reason)
        run = run or _current.run
        if run is not None:
            run.refusal = self


class SizeCannotVaryError(NotCoveredError):
    """A size cannot vary as it was asked to, or torch cannot prove that it can."""


class StaleAnswersError(NotCoveredError):
    """Torch answers a question about sizes otherwise than when an earlier capture asked it; those answers are gone."""


@contextmanager
def running(run: Run) -> Iterator[None]:
    """Let what is refused in this thread be refused for a recording; afterwards its ghosts are of no use."""
    outer, _current.run = _current.run, run
    try:
        yield
    finally:
        _current.run, run.refusal, run.is_over = outer, None, True


class Form:
    """What a shape rule reads and gives; equal forms are one object, so that they can be compared by identity."""

    def __init__(
        self, shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, device: torch.device, offset: Any
    ) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.device = device
        self.offset = offset
        self.dtype_name = dtype_name(dtype)
        self.is_open = not all(type(size) is int for size in (*shape, *stride, offset))  # it has sizes that vary

    @cached_property
    def written_stride(self) -> tuple[int, ...] | None:
        """Strides as the IR has them: None where elements lie in row-major order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected and 0 not in self.shape:
                return self.stride
            expected *= size
        return None

    def ghost(self, value: int, run: Run, requires_grad: bool = False) -> Ghost:
        """A tensor of this form that stands for a value on the tape."""
        shape: Any = self.shape
        stride: Any = self.stride
        offset = self.offset
        if self.is_open:
            shape, stride, (offset,) = map(run.sizes.numbers, (shape, stride, (offset,)))
        made: Ghost = make_wrapper_subclass(
            Ghost,
            shape,
            stride,
            offset,
            None,
            self.dtype,
            torch.strided,
            self.device,
            False,
            requires_grad,
            **_WITHOUT_STORAGE if self.is_open else {},
        )
        forbid_data_pointer(made)  # code that looks for its memory must not find address 0
        made.form = self
        made.value = value
        made.run = run
        return made

    def fake(self) -> torch.Tensor:
        """A tensor on meta for shape rules; what is taken for fake has its device said elsewhere."""
        if not self.offset:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        reach = self.offset + 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        whole = torch.empty(reach, dtype=self.dtype, device="meta")
        return whole.as_strided(self.shape, self.stride, self.offset)


_forms: WeakValueDictionary[tuple[Any, ...], Form] = WeakValueDictionary()  # as long as a tape or a rule holds them


def form_of(tensor: torch.Tensor) -> Form:
    """The form of a tensor; what is on meta is taken for cpu."""
    if type(tensor) is Ghost:
        return tensor.form
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
        raise NotCoveredError(f"a tensor with layout {tensor.layout} or a pending operation")
    device = _CPU if tensor.device.type == "meta" else tensor.device
    key: Any = (tuple(tensor.shape), tensor.stride(), tensor.dtype, device, tensor.storage_offset())
    if isinstance(tensor, FakeTensor) and not all(type(size) is int for size in (*key[0], *key[1], key[4])):
        raise NotCoveredError("the size of a result depends on the data")
    return interned_form(key)


def form_of_input(tensor: torch.Tensor) -> Form:
    """The form of an input, which begins at the start of its memory wherever the example does."""
    form = form_of(tensor)
    return interned_form((form.shape, form.stride, form.dtype, form.device, 0)) if form.offset else form


def interned_form(key: tuple[Any, ...]) -> Form:
    """The form with this shape, stride, dtype, device and offset."""
    found = _forms.get(key)
    if found is None:
        found = _forms[key] = Form(*key)
    return found


class Ghost(torch.Tensor):
    """A tensor without memory that stands for a value on a tape."""

    form: Form
    value: int
    run: Run
    __torch_function__ = disabled_torch_function  # type: ignore[assignment]  # as torch asks for it

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch annotates another method
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called where no recorder watches, as in another thread: let it go on, and let the run be refused later."""
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
        raise NotCoveredError("the model asks for the memory of a tensor")

    untyped_storage = storage = _typed_storage = data_ptr = _memory

    def _detached(self) -> torch.Tensor:
        return self.detach()

    def _set_data(self, value: torch.Tensor) -> None:
        raise NotCoveredError("forward assigns the data of a tensor")

    data = property(_detached, _set_data)  # torch's own looks for memory

    def _values(self, *args: Any, **options: Any) -> Any:
        raise NotCoveredError("the model asks for the values of a tensor")

    tolist = numpy = __array__ = __dlpack__ = _values
