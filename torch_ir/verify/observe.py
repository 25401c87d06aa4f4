"""Observations beside the verdict: values that differ from their declaration, and limits of the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from torch_ir.errors import listed
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta, evaluate
from torch_ir.ir.graph.attr_types import values_in
from torch_ir.ops.effects import is_random, is_uninitialised
from torch_ir.ops.torch_types import dtype_name
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.watched_values import DeclarationWatch
from torch_ir.verify.further_inputs import is_constant


class Observer(DeclarationWatch):
    """Watches the runs of a graph; `first` is the first value that differs from its declaration.

    Strides are noted, not judged: torch's predictions differ from some of its kernels.
    """

    def __init__(self) -> None:
        self.first = ""
        self.seen: set[OpNode] = set()
        self.strided: dict[str, None] = {}  # values with other strides than declared
        self.unread: dict[str, None] = {}  # unused values that differ from their declaration

    def __call__(self, tensor: TensorMeta, value: Any, sizes: Sizes) -> None:
        if tensor.producer is not None:
            self.seen.add(tensor.producer)
        problem = undeclared(tensor, value, sizes)
        if problem and not tensor.consumers:  # torch mispredicts the sizes of some secondary results
            self.unread[tensor.name] = None
        else:
            self.first = self.first or problem
        if tensor.stride is not None and not _has_strides(value, [evaluate(step, sizes) for step in tensor.stride]):
            self.strided[tensor.name] = None


def undeclared(tensor: TensorMeta, value: Any, sizes: Sizes) -> str:
    """Return how a value differs from its declaration, or ""."""
    if not isinstance(value, torch.Tensor):
        return ""
    shape = [evaluate(dim, sizes) for dim in tensor.shape]
    if (shape, tensor.dtype) == (list(value.shape), dtype_name(value.dtype)):
        return ""
    declared, found = f"{tensor.dtype}{shape}", f"{dtype_name(value.dtype)}{list(value.shape)}"
    place = f"of {tensor.producer!r}" if tensor.producer is not None else "given to a function"
    return f"{tensor.name!r} {place} is declared {declared}, but is {found}"


def _has_strides(value: Any, strides: Sequence[Any]) -> bool:
    """Whether a tensor has these strides, ignoring dimensions of size 1; True for anything but dense tensors."""
    is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel() > 0
    if not is_dense or value.dim() != len(strides):
        return True
    pairs = zip(value.shape, value.stride(), strides, strict=True)
    return all(size == 1 or found == declared for size, found, declared in pairs)


def notes(ir: IR, inputs: Iterable[Any], observer: Observer, is_probed: bool) -> Iterator[str]:
    """Yield notes on the verdict."""
    random = _listed(ir, is_random)
    if random:
        yield f"{random}: random numbers; both sides had the same seed"
    uninitialised = _listed(ir, is_uninitialised)
    if uninitialised:
        yield f"{uninitialised}: uninitialised memory, whose values are arbitrary until written"
    for tensor, value in zip(ir.graph_inputs, inputs, strict=True):
        if isinstance(value, torch.Tensor) and value.numel() > 1 and is_constant(value):
            is_drawn = is_probed and (value.is_floating_point() or value.dtype == torch.bool)
            drawn = "; random values were compared too" if is_drawn else ""
            yield f"all elements of input {tensor.name!r} are equal, which hides many errors{drawn}"
    if observer.strided:
        names = listed(list(map(repr, observer.strided)), 1)
        yield f"{names}: strides differ from the declared ones; they are not judged"
    if observer.unread:
        unread = ", ".join(map(repr, observer.unread))
        yield f"{unread}: differs from its declaration; not judged, as it is unused"
    for caller, name in _not_run(ir, observer):
        yield f"function {name!r} of {caller!r} did not run on any of the inputs and was not compared"


def provisos(ir: IR) -> list[str]:
    """Return the conditions under which the verdict holds: one random seed, training mode."""
    nodes = list(ir.all_nodes())
    is_training = any(node.attrs.get(name) is True for node in nodes for name in ("train", "training"))
    found = {"for random numbers of one seed": any(map(is_random, nodes)), "in training mode": is_training}
    return [proviso for proviso, holds in found.items() if holds]


def _listed(ir: IR, question: Callable[[OpNode], bool]) -> str:
    found = [node for node in ir.all_nodes() if question(node)]
    operators = ", ".join(dict.fromkeys(node.op_type for node in found))
    return f"{len(found)} node{'s' if len(found) > 1 else ''} ({operators})" if found else ""


def _not_run(ir: IR, observer: Observer) -> Iterator[tuple[OpNode, str]]:
    """Yield functions of which no node ran, with the node that refers to them."""
    for node in ir.nodes:
        for name in values_in(node.attrs):
            if isinstance(name, FunctionRef):
                body = ir.functions[name]
                makers = [inner for inner in body.nodes if inner.outputs]
                if makers and not observer.seen.intersection(makers):
                    yield node, str(name)
                else:
                    yield from _not_run(body, observer)
