"""Inputs to compare two graphs on: random ones, and extreme ones that random numbers never hit.

Extreme inputs are all zeros, all ones (ties), masks with rows that keep nothing and rows that keep everything, large
and small magnitudes, and NaN, infinities, negative zeros and subnormal numbers among ordinary ones. They have the
smallest sizes that the graph admits, so that open sizes are 1 where they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_ir.analysis.shapes.open_sizes import admits, points_of
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ops.torch_types import TORCH_DTYPES

RANDOM = "random"
NAN, INFINITE = "NaN", "infinities"
_LARGEST_INDEX = 8
_EVERY = 5  # of so many elements, one is a special value
# Powers of two that inputs are multiplied with. Products of two such values stay in the range of the dtype.
_MAGNITUDES = {torch.float16: 5}
_MAGNITUDE = 20
Change = Callable[[torch.Tensor], torch.Tensor]


class Probe(NamedTuple):
    """Values for the inputs of a graph, and what is special about them."""

    kind: str
    values: list[Any]

    @property
    def is_extreme(self) -> bool:
        return self.kind != RANDOM


def probes(ir: IR, inputs: Sequence[torch.Tensor] | None, trials: int) -> Iterator[Probe]:
    """Random inputs, or the given ones, `trials` times, and then extreme ones; given integers stay as they are."""
    points = _points(ir)
    for trial in range(trials):
        yield Probe(
            RANDOM, drawn_inputs(ir, points[trial % len(points)], trial) if inputs is None else like(ir, inputs)
        )
    base = drawn_inputs(ir, smallest(ir), trials) if inputs is None else like(ir, inputs)
    for kind, change in _KINDS.items():
        values = [_changed(value, change, keeps_integers=inputs is not None) for value in base]
        if any(new is not old for new, old in zip(values, base, strict=True)):
            yield Probe(kind, values)


def like(ir: IR, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """Given inputs in the dtypes of the graph."""
    return [value.to(TORCH_DTYPES[tensor.dtype]) for tensor, value in zip(ir.graph_inputs, inputs, strict=True)]


def drawn_inputs(ir: IR, sizes: Mapping[str, int], seed: int = 0) -> list[Any]:
    """Random values for the inputs of a graph: small whole numbers where they may be places in a table."""
    generator = torch.Generator().manual_seed(seed)
    rows = [int(evaluate(node["weight"].shape[0], sizes)) for node in ir.all_nodes() if _is_look_up(node.op_type)]
    largest = min([_LARGEST_INDEX, *rows])
    return [_drawn(tensor, sizes, largest, generator) for tensor in ir.graph_inputs]


def smallest(ir: IR) -> Mapping[str, int]:
    """The smallest sizes that the graph admits, but for no elements at all; the smallest known ones where unclear."""
    least = {name: max(symbol.min or 0, 1) for name, symbol in ir.symbols.items()}
    return least if admits(ir, least) else _points(ir)[0]


def _points(ir: IR) -> list[Mapping[str, int]]:
    return sorted(points_of(ir), key=lambda point: sum(point.values())) or [{}]


def _is_look_up(op_type: str) -> bool:
    return op_type.startswith("aten.embedding")


def _drawn(tensor: TensorMeta, sizes: Mapping[str, int], largest: int, generator: torch.Generator) -> torch.Tensor:
    shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
    dtype = TORCH_DTYPES[tensor.dtype]
    if dtype == torch.bool:
        made = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") < 0.75
    elif dtype.is_floating_point or dtype.is_complex:
        wide = dtype if dtype.is_complex else torch.float32
        made = torch.randn(shape, generator=generator, dtype=wide, device="cpu").to(dtype)
    else:
        made = torch.randint(0, max(largest, 1), shape, generator=generator, dtype=torch.int64, device="cpu").to(dtype)
    if tensor.stride is None:
        return made
    laid = torch.empty_strided(shape, [int(evaluate(step, sizes)) for step in tensor.stride], dtype=dtype, device="cpu")
    return laid.copy_(made)


def _changed(value: Any, change: Change, *, keeps_integers: bool) -> Any:
    """An input with extreme values, laid out as it was; the same object where a change does not concern its dtype."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    is_float = value.is_floating_point() or value.is_complex()
    if keeps_integers and not is_float and value.dtype != torch.bool:
        return value
    made = change(value)
    if made is value:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu").copy_(made)


def _zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(value)


def _ones(value: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(value)


def _masked_rows(value: torch.Tensor) -> torch.Tensor:
    """Truth values, and whole numbers that may stand for some: nothing in the first row, everything in the last."""
    if value.is_floating_point() or value.is_complex() or not value.dim():
        return value
    made = (value % 2 if value.dtype != torch.bool else value).clone()
    rows = made.view(-1, made.shape[-1]) if made.is_contiguous() else made
    rows[-1], rows[0] = 1, 0
    return made


def _large(value: torch.Tensor) -> torch.Tensor:
    return value * 2.0 ** _MAGNITUDES.get(value.dtype, _MAGNITUDE) if value.is_floating_point() else value


def _small(value: torch.Tensor) -> torch.Tensor:
    return value * 2.0 ** -_MAGNITUDES.get(value.dtype, _MAGNITUDE) if value.is_floating_point() else value


def _tiny(value: torch.Tensor) -> torch.Tensor:
    """Subnormal numbers and zeros of both signs among others."""
    if not value.is_floating_point():
        return value
    least = torch.finfo(value.dtype).smallest_normal
    return _sprinkled(value, (-0.0, least / 4, 0.0, -least / 2))


def _nan(value: torch.Tensor) -> torch.Tensor:
    return _sprinkled(value, (float("nan"),)) if value.is_floating_point() else value


def _infinite(value: torch.Tensor) -> torch.Tensor:
    return _sprinkled(value, (float("inf"), -float("inf"))) if value.is_floating_point() else value


def _sprinkled(value: torch.Tensor, numbers: tuple[float, ...]) -> torch.Tensor:
    """The values with these numbers in their turn at every so many places."""
    flat = value.flatten().clone()
    for count, place in enumerate(range(0, flat.numel(), _EVERY)):
        flat[place] = numbers[count % len(numbers)]
    return flat.view(value.shape)


_KINDS: dict[str, Change] = {
    "all zeros": _zeros,
    "all ones": _ones,
    "wholly masked rows": _masked_rows,
    "large values": _large,
    "small values": _small,
    "zeros and subnormal numbers": _tiny,
    NAN: _nan,
    INFINITE: _infinite,
}
