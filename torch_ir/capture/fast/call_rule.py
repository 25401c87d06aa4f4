"""The rule of a kind of call: an operator with all arguments but its tensors, and the forms of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torch_ir.capture.fast.shape_tensors import Form
from torch_ir.capture.fast.symbolic_size import Size
from torch_ir.ops.effects import may_draw
from torch_ir.ops.torch_internals import OpOverload, pytree


@dataclass(frozen=True, eq=False)
class Output:
    """One result: its form, and the index of the input that it is, shares memory with, or is a lazy conjugate of."""

    form: Form
    same_as: int | None = None
    view_of: int | None = None
    conjugate_of: int | None = None


@dataclass(frozen=True, eq=False)
class Rule:
    """One kind of call: an operator with all arguments but its tensors, and its results."""

    func: OpOverload
    op_type: str
    name: str
    args: tuple[str, ...]  # the argument name of each input
    order: tuple[int, ...]  # the position of each input among the tensors of the call
    attrs: Mapping[str, Any]
    outputs: tuple[Output | None, ...]
    makes_list: type | None  # the type of the container, if there are several results
    answer: Any = None  # of a call that returns no tensor and has no node
    is_question: bool = False
    new_value: Form | None = None  # of a call that writes: the form of its functional twin's result
    assertion: Rule | None = None  # that torch.export inserts before a cast
    call: tuple[Any, Any] = ((), {})  # the arguments and keywords, with indices in place of tensors

    @cached_property
    def is_in_order(self) -> bool:
        """Whether the inputs are the tensors of the call, in their order."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def only_output(self) -> Output | None:
        """Return the output of a call that returns one new tensor and writes to none."""
        is_plain = len(self.outputs) == 1 and self.makes_list is None and self.new_value is None
        output = self.outputs[0] if is_plain else None
        is_new = output is not None and output.same_as is None and output.conjugate_of is None
        return output if is_new else None

    @cached_property
    def is_random(self) -> bool:
        return may_draw(self.func)

    @cached_property
    def copied(self) -> tuple[str, ...]:
        """Return the attributes that each node has a copy of: lists, which can be changed in place, and open sizes."""
        return tuple(name for name, value in self.attrs.items() if isinstance(value, list) or type(value) is Size)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """Return the symbolic numbers among the arguments."""
        return tuple(leaf for leaf in pytree.tree_leaves(list(self.attrs.values())) if type(leaf) is Size)

    @cached_property
    def elements(self) -> list[int | None]:
        """Return the indices of the present results; None for a single result."""
        if self.makes_list is None:
            return [None] if self.outputs else []
        return [index for index, output in enumerate(self.outputs) if output is not None]


class Place(int):
    """The index of a tensor of a call, in place of the tensor."""


def filled_call(rule: Rule, tensors: Sequence[torch.Tensor], number: Callable[[Size], Any]) -> tuple[Any, Any]:
    """Return the arguments and keywords of a recorded call with these inputs of its step."""
    by_place: dict[int, torch.Tensor] = dict(zip(rule.order, tensors, strict=True))

    def filled(value: Any) -> Any:
        if type(value) is Place:
            return by_place[value]
        if isinstance(value, (list, tuple)):
            return [filled(item) for item in value]
        return number(value) if type(value) is Size else value

    args, kwargs = rule.call
    return [filled(value) for value in args], {name: filled(value) for name, value in kwargs.items()}
