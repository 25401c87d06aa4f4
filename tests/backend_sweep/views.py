"""Operators of the database on views that are made inside the graph, of inputs, weights, constants and results.

Each tensor of a call is a chain of one to three views, the result may be viewed again, and calls in place write through
the views: the base is returned too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.backend_sweep.cases import Case, has_special_values, made_case
from tests.backend_sweep.pairs import CONSUMERS, SHAPES, layers
from tests.backend_sweep.view_chains import View, applied, chain, result_view
from tests.operators.cases import Call, chosen_samples, database

DTYPES = ("float32", "float64", "bfloat16", "int64", "bool")
# they read or make strides, and are drawn several times
LAYOUT = frozenset((
    "as_strided", "as_strided_copy", "as_strided_scatter", "broadcast_to", "chunk", "contiguous", "diagonal",
    "diagonal_scatter", "expand", "flatten", "narrow", "narrow_copy", "permute", "ravel", "reshape", "reshape_as",
    "select", "select_scatter", "slice", "slice_scatter", "split", "squeeze", "t", "transpose", "unbind", "unfold",
    "unfold_copy", "unsqueeze", "view", "view_as", "view_as_complex", "view_as_real", "view_copy",
))  # fmt: skip
_LAYOUT_DRAWS = 3
_SOURCES = ("input", "input", "input", "computed", "computed", "weight", "constant")


@dataclass
class Argument:
    """A tensor of a call: where its base comes from, and the views of it."""

    source: str
    base: Tensor
    names: list[str] = field(default_factory=list)
    views: list[View] = field(default_factory=list)


class Viewed(nn.Module):
    """A call whose tensors are views made in the model; `written` also returns the base of the first one."""

    def __init__(self, call: Call, arguments: Sequence[Argument], after: View | None, *, written: bool) -> None:
        super().__init__()
        self.call, self.arguments, self.after, self.written = call, arguments, after, written
        for index, argument in enumerate(arguments):
            if argument.source == "weight":
                self.register_buffer(f"weight_{index}", argument.base)

    def given(self) -> list[Tensor]:
        """The inputs of the model; that of a computed base is rolled."""
        found = [argument for argument in self.arguments if argument.source in ("input", "computed")]
        return [_rolled(each.base, -1) if each.source == "computed" else each.base for each in found]

    def forward(self, *given: Tensor) -> Any:
        left, bases = iter(given), []
        for index, argument in enumerate(self.arguments):
            if argument.source in ("input", "computed"):
                base = next(left)
                bases.append(_rolled(base, 1) if argument.source == "computed" else base)
            else:
                bases.append(getattr(self, f"weight_{index}") if argument.source == "weight" else argument.base)
        tensors = [applied(each.views, base) for each, base in zip(self.arguments, bases, strict=True)]
        results = pytree.tree_leaves(self.call(*tensors))
        if self.after is not None:
            results[0] = self.after(results[0])
        return [*results, bases[0]] if self.written else results


def _rolled(tensor: Tensor, by: int) -> Tensor:
    return tensor.roll(by, 0) if tensor.dim() else tensor.reshape(1).roll(by, 0).reshape(())


def view_cases(part: int = 0, parts: int = 1, seed: int = 0) -> Iterator[Case]:
    """One of several equal parts of the cases: operators of the database in every dtype, functional and in place."""
    for operator in database()[part::parts]:
        name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
        for form, function in (("", operator.get_op()), (" in place", operator.get_inplace())):
            for dtype in DTYPES if function is not None else ():
                if getattr(torch, dtype) not in operator.supported_dtypes("cpu"):
                    continue
                draw = random.Random(f"{seed}/{name}/{form}/{dtype}")
                samples = [
                    sample for _, sample in chosen_samples(operator, getattr(torch, dtype), 1 + _LAYOUT_DRAWS)
                    if not (form and sample.broadcasts_input)
                ]  # fmt: skip
                for number in range((_LAYOUT_DRAWS if operator.name in LAYOUT else 1) if samples else 0):
                    sample = draw.choice(samples)
                    call = Call(function, (sample.input, *sample.args), sample.kwargs).eval()
                    tensors = _tensors(((sample.input, *sample.args), sample.kwargs))
                    label = f"{name}{form} {dtype} {number}"
                    yield from _made(draw, label, operator.name, dtype, call, tensors, written=bool(form))


def sample_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """So many cases of common operators, without the database, which takes seconds to import."""
    draw = random.Random(seed)
    for number in range(count):
        shape, dtype = draw.choice(SHAPES[:4]), DTYPES[number % len(DTYPES)]
        name, function = draw.choice([*CONSUMERS.items(), *layers(shape), ("add_", lambda y: y.add_(1))])
        x = torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(number)).to(getattr(torch, dtype))
        call = Call(function, (x,), {}).eval()
        yield from _made(draw, f"{number}: {name} {dtype}", name, dtype, call, [x], written=name == "add_")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _made(
    draw: random.Random, label: str, operator: str, dtype: str, call: Call, tensors: Sequence[Tensor], *, written: bool
) -> Iterator[Case]:
    if not tensors or any(leaf.layout != torch.strided or leaf.is_quantized for leaf in tensors):
        return
    model, named = _viewed(draw, call, tensors, written=written)
    if model is not None:
        special = has_special_values(operator)
        name = f"{label} of {named}"
        case = made_case(name, operator, dtype, model, model.given(), special=special, writes=True)
        if case is not None:
            yield case


def _viewed(draw: random.Random, call: Call, tensors: Sequence[Tensor], *, written: bool) -> tuple[Viewed | None, str]:
    """A model, with the names of its views; None where the call does not take them."""
    arguments = [_argument(draw, tensor, written=written and not at) for at, tensor in enumerate(tensors)]
    try:
        with torch.no_grad():
            results = pytree.tree_leaves(call(*(applied(each.views, each.base.clone()) for each in arguments)))
    except Exception:  # overlapping memory cannot be written, and some values are meant to fail
        return None, ""
    is_seen = draw.random() < 0.5 and results and isinstance(results[0], Tensor) and results[0].layout == torch.strided
    after = result_view(draw, results[0]) if is_seen else None
    named = "; ".join(f"{each.source} {' '.join(each.names)}" for each in arguments)
    return Viewed(call, arguments, after, written=written).eval(), named


def _argument(draw: random.Random, tensor: Tensor, *, written: bool) -> Argument:
    base, names, views = chain(draw, tensor.detach(), draw.choice((1, 1, 2, 2, 3)))
    return Argument(draw.choice(_SOURCES[:5] if written else _SOURCES), base, names, views)
