"""Inputs for comparing two graphs: random ones, and extreme ones that random numbers never reach.

Extreme inputs are all zeros, all ones (ties), masks with rows that keep nothing and rows that keep everything, large
and small magnitudes, and NaN, infinities, negative zeros and subnormal numbers among ordinary ones. Of NaN and
infinities there are many, and one alone, which shows to which results it spreads. Extreme inputs have the smallest
sizes that the graph admits, so that symbolic sizes are 1 where possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torch_ir.analysis.shapes.open_sizes import admits, points_of
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ops.torch_types import TORCH_DTYPES

RANDOM = "random"
_LARGEST_INDEX = 8
_EVERY = 5  # every fifth element becomes a special value
# Exponents of the powers of two that scale inputs; products of two scaled values stay in the range of the dtype.
_MAGNITUDES = {torch.float16: 5}
_MAGNITUDE = 20
Change = Callable[[torch.Tensor], torch.Tensor]


class Probe(NamedTuple):
    """Input values for a graph, and their kind."""

    kind: str
    values: list[Any]

    @property
    def is_extreme(self) -> bool:
        return self.kind != RANDOM


def has_any(is_special: Callable[[torch.Tensor], torch.Tensor], values: Sequence[Any]) -> bool:
    """Whether any number among input values is special, such as `torch.isinf`."""
    floats = [value for value in values if isinstance(value, torch.Tensor) and _is_float(value)]
    return any(bool(is_special(value.float() if value.element_size() == 1 else value).any()) for value in floats)


def probes(ir: IR, inputs: Sequence[torch.Tensor] | None, trials: int) -> Iterator[Probe]:
    """Yield random inputs, or the given ones, `trials` times, then extreme ones; given integers are kept."""
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
    """Return inputs converted to the dtypes of the graph."""
    return [value.to(TORCH_DTYPES[tensor.dtype]) for tensor, value in zip(ir.graph_inputs, inputs, strict=True)]


def drawn_inputs(ir: IR, sizes: Mapping[str, int], seed: int = 0) -> list[Any]:
    """Return random inputs for a graph; integers are small, as they may be indices, and numbers are the given sizes."""
    generator = torch.Generator().manual_seed(seed)
    tables = [node["weight"] for node in ir.all_nodes() if node.op_type.startswith("aten.embedding")]
    largest = min([_LARGEST_INDEX, *(int(evaluate(table.shape[0], sizes)) for table in tables)])
    numbers = {
        symbol.tensor: sizes[name] for name, symbol in ir.symbols.items() if symbol.dim is None and name in sizes
    }
    return [
        numbers[tensor] if tensor in numbers else _drawn(tensor, sizes, largest, generator)
        for tensor in ir.graph_inputs
    ]


def smallest(ir: IR) -> Mapping[str, int]:
    """Return the smallest non-zero sizes that the graph admits, or the smallest known valid ones."""
    least = {name: max(symbol.min or 0, 1) for name, symbol in ir.symbols.items()}
    return least if admits(ir, least) else _points(ir)[0]


def _points(ir: IR) -> list[Mapping[str, int]]:
    return sorted(points_of(ir), key=lambda point: sum(point.values())) or [{}]


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
    """Return an input with extreme values in the same layout, or the same object if the change does not apply."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    if keeps_integers and not _is_float(value) and value.dtype != torch.bool:
        return value
    made = change(value)
    if made is value:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu").copy_(made)


def _is_float(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _masked_rows(value: torch.Tensor) -> torch.Tensor:
    """Return booleans, or integers used as such: all false in the first row, all true in the last."""
    if _is_float(value) or not value.dim():
        return value
    made = (value % 2 if value.dtype != torch.bool else value).clone()
    rows = made.view(-1, made.shape[-1]) if made.is_contiguous() else made
    rows[-1], rows[0] = 1, 0
    return made


def _scaled(value: torch.Tensor, sign: int) -> torch.Tensor:
    exponent = sign * _MAGNITUDES.get(value.dtype, _MAGNITUDE)
    return value * 2.0**exponent if _is_float(value) else value


def _tiny(value: torch.Tensor) -> torch.Tensor:
    """Return the values with subnormal numbers and zeros of both signs among them."""
    if not _is_float(value):
        return value
    least = torch.finfo(value.dtype).smallest_normal
    return _sprinkled(value, (-0.0, least / 4, 0.0, -least / 2))


def _sprinkled(value: torch.Tensor, numbers: tuple[float, ...], *, once: bool = False) -> torch.Tensor:
    """Return floats with every fifth, or the middle one, replaced by these numbers in turn; of complex ones, parts."""
    if value.is_complex():
        parts = torch.view_as_real(value.resolve_conj()).contiguous()
        return torch.view_as_complex(_sprinkled(parts, numbers, once=once))
    if not value.is_floating_point():
        return value
    flat = value.flatten().clone()
    for count, place in enumerate([flat.numel() // 2] if once else range(0, flat.numel(), _EVERY)):
        flat[place] = numbers[count % len(numbers)]
    return flat.view(value.shape)


_KINDS: dict[str, Change] = {
    "all zeros": torch.zeros_like,
    "all ones": torch.ones_like,
    "wholly masked rows": _masked_rows,
    "large values": partial(_scaled, sign=1),
    "small values": partial(_scaled, sign=-1),
    "zeros and subnormal numbers": _tiny,
    "NaN": partial(_sprinkled, numbers=(math.nan,)),
    "infinities": partial(_sprinkled, numbers=(math.inf, -math.inf)),
    "one NaN": partial(_sprinkled, numbers=(math.nan,), once=True),
    "one infinity": partial(_sprinkled, numbers=(math.inf,), once=True),
    "one negative infinity": partial(_sprinkled, numbers=(-math.inf,), once=True),
}
