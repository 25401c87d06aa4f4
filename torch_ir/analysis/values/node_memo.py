"""Forms: a node without names, so that what is asked of one node is answered for all that are like it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch_ir.ir import OpNode, TensorMeta

T = TypeVar("T")


def form_of(node: OpNode) -> Hashable:
    """The operator, its arguments, and shape, dtype and strides of all tensors; which of them are one is told too."""
    numbers: dict[TensorMeta, int] = {}
    read = tuple([numbers.setdefault(tensor, len(numbers)) for tensor in node.inputs])
    tensors = tuple([(tensor.shape, tensor.dtype, tensor.stride) for tensor in (*numbers, *node.outputs)])
    return node.op_type, node.args, repr(node.attrs), read, tensors


def once_per_form(ask: Callable[[OpNode], T]) -> Callable[[OpNode], T]:
    """A question about nodes that is asked once for all nodes of a form."""
    answers: dict[Hashable, T] = {}

    def answer(node: OpNode) -> T:
        form = form_of(node)
        if form not in answers:
            answers[form] = ask(node)
        return answers[form]

    return answer
