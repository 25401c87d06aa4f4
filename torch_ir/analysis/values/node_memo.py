"""Memoise functions of nodes by form: a node without names."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch_ir.ir import OpNode, TensorMeta

T = TypeVar("T")


def form_of(node: OpNode) -> Hashable:
    """Return a key of the operator, its arguments, and the shapes, dtypes, strides and identity of its tensors."""
    numbers: dict[TensorMeta, int] = {}
    read = tuple([numbers.setdefault(tensor, len(numbers)) for tensor in node.inputs])
    tensors = tuple([(tensor.shape, tensor.dtype, tensor.stride) for tensor in (*numbers, *node.outputs)])
    return node.computation, read, tensors


def once_per_form(ask: Callable[[OpNode], T]) -> Callable[[OpNode], T]:
    """Memoise a function of nodes by their form."""
    answers: dict[Hashable, T] = {}

    def answer(node: OpNode) -> T:
        form = form_of(node)
        if form not in answers:
            answers[form] = ask(node)
        return answers[form]

    return answer
