"""One call for each family of operators, at any point of its grid.

A case returns calls that do the same work on different weights: if they are called in turn, weights come from memory,
not from the cache, as those of a large model do. Activations are reused, as the output of one layer is the input of the
next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torch_ir.ops.schema import find_operator

Call = Callable[[], Any]
Sizes = Sequence[float]
_COLUMNS = 768  # of what is normalised or reduced
_CHANNELS = 64
_HEAD = 64
_WORDS = 8192
_MOST_CALLS = 256
_MOST_PACKED = 16
_INPUTS = 3


@dataclass
class Bench:
    """Source of tensors for cases: slices of one large tensor of random values, which exceeds the cache."""

    device: torch.device
    dtype: torch.dtype
    pool: Tensor  # flat
    is_cold: bool = True

    def tensor(self, *shape: int) -> Tensor:
        count = math.prod(shape)
        repeats = math.ceil(count / self.pool.numel())
        values = self.pool if repeats == 1 else self.pool.repeat(repeats)
        return values[:count].clone().view(shape)

    def weights(self, *shape: int, most: int = _MOST_CALLS) -> list[Tensor]:
        """Return different weights, as many as the pool has, up to a number; one if they are to stay in the cache."""
        size = math.prod(shape)
        count = min(most if self.is_cold else 1, self.pool.numel() // size)
        if count < 1:
            return [self.tensor(*shape)]
        step = self.pool.numel() // count
        return [self.pool[number * step :][:size].view(shape) for number in range(count)]

    def inputs(self, *shape: int) -> list[Tensor]:
        """Return a few equal inputs: the tensors around an operator of a model are not all in the nearest cache."""
        return [self.tensor(*shape) for _ in range(_INPUTS)]


def _each(function: Callable[[Tensor], Any], inputs: Iterable[Tensor]) -> list[Call]:
    """Return a call on each of some tensors."""
    return [partial(function, x) for x in inputs]


def _matmul(bench: Bench, sizes: Sizes) -> list[Call]:
    rows, columns, depth = map(int, sizes)
    x = bench.tensor(rows, depth)
    return _each(lambda w: functional.linear(x, w), bench.weights(columns, depth))


def _batched_matmul(bench: Bench, sizes: Sizes) -> list[Call]:
    batch, rows, columns, depth = map(int, sizes)
    x, y = bench.tensor(batch, rows, depth), bench.tensor(batch, depth, columns)
    return [lambda: torch.matmul(x, y)]


def _sides(places: int) -> tuple[int, int, int]:
    """Return a batch size, a height and a width with about so many places; images are of up to 112 x 112."""
    batch = max(1, round(places / 112**2))
    height = max(1, math.isqrt(places // batch))
    return batch, height, max(1, round(places / batch / height))


def _conv(bench: Bench, sizes: Sizes) -> list[Call]:
    places, inputs, outputs, kernel = map(int, sizes)
    side = math.isqrt(kernel)
    batch, height, width = _sides(places)
    x = bench.tensor(batch, inputs, height, width)
    weights = bench.weights(outputs, inputs, side, side)
    return _each(lambda w: functional.conv2d(x, w, padding=side // 2), weights)


def _depthwise(bench: Bench, sizes: Sizes) -> list[Call]:
    places, channels, kernel = map(int, sizes)
    side = math.isqrt(kernel)
    batch, height, width = _sides(places)
    x, w = bench.tensor(batch, channels, height, width), bench.tensor(channels, 1, side, side)
    return [lambda: functional.conv2d(x, w, padding=side // 2, groups=channels)]


def _operator(name: str) -> Any:
    found = find_operator(name)
    if found is None:
        raise NotImplementedError(f"torch has no {name}")
    return found


def _compiled_matmul(bench: Bench, sizes: Sizes) -> list[Call]:
    """A linear layer of oneDNN, with packed weights."""
    rows, columns, depth = map(int, sizes)
    x = bench.tensor(rows, depth)
    pack, product = _operator("mkldnn._reorder_linear_weight.default"), _operator("mkldnn._linear_pointwise.default")
    weights = [pack(w, rows) for w in bench.weights(columns, depth, most=_MOST_PACKED)]
    return _each(lambda w: product(x, w, None, "none", [], ""), weights)


def _compiled_conv(bench: Bench, sizes: Sizes) -> list[Call]:
    places, inputs, outputs, kernel = map(int, sizes)
    batch, height, width = _sides(places)
    return _channels_last(bench, (batch, inputs, height, width), (outputs, inputs), math.isqrt(kernel), 1)


def _compiled_depthwise(bench: Bench, sizes: Sizes) -> list[Call]:
    places, channels, kernel = map(int, sizes)
    batch, height, width = _sides(places)
    return _channels_last(bench, (batch, channels, height, width), (channels, 1), math.isqrt(kernel), channels)


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _channels_last(bench: Bench, image: tuple[int, ...], weight: tuple[int, int], side: int, groups: int) -> list[Call]:
    """A convolution on channels-last tensors: of oneDNN with packed weights on a CPU."""
    x = _laid_out(bench.tensor(*image))
    weights, pad = bench.weights(*weight, side, side, most=_MOST_PACKED), [side // 2] * 2
    if bench.device.type == "cuda":
        return _each(lambda w: functional.conv2d(x, w, padding=pad, groups=groups), map(_laid_out, weights))
    pack = _operator("mkldnn._reorder_convolution_weight.default")
    convolution, ones = _operator("mkldnn._convolution_pointwise.default"), [1, 1]
    packed = [pack(w, pad, ones, ones, groups, list(image)) for w in weights]
    how: tuple[Any, ...] = (pad, ones, ones, groups, "none", [], "")
    return _each(lambda w: convolution(x, w, None, *how), packed)


def _attention(
    bench: Bench, sizes: Sizes, masked: Callable[[int, int, torch.device], Tensor | None] = lambda *_: None
) -> list[Call]:
    heads, queries, keys, width = map(int, sizes)
    query, key, value = (bench.tensor(1, heads, length, width) for length in (queries, keys, keys))
    mask = masked(queries, keys, bench.device)
    return [lambda: functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)]


def _causal(queries: int, keys: int, device: torch.device) -> Tensor:
    ones = torch.ones(1, 1, queries, keys, device=device, dtype=torch.bool)
    return ones.tril(max(0, keys - queries))


def _broadcast(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(1, 1, queries, 1, device=device, dtype=torch.bool).expand(1, 1, queries, keys)


def _elements(bench: Bench, sizes: Sizes, tensors: float, multiple: int = 1) -> int:
    """Return how many elements each of so many tensors has, if together they have this number of bytes."""
    return max(1, round(sizes[0] / bench.dtype.itemsize / tensors / multiple)) * multiple


def _unary(function: Callable[[Tensor], Any]) -> Callable[[Bench, Sizes], list[Call]]:
    def case(bench: Bench, sizes: Sizes) -> list[Call]:
        return _each(function, [x.abs() + 0.5 for x in bench.inputs(_elements(bench, sizes, 2))])

    return case


def _rows(function: Callable[[Tensor], Any], tensors: float = 2) -> Callable[[Bench, Sizes], list[Call]]:
    def case(bench: Bench, sizes: Sizes) -> list[Call]:
        return _each(function, bench.inputs(_elements(bench, sizes, tensors, _COLUMNS) // _COLUMNS, _COLUMNS))

    return case


def _layer_norm(bench: Bench, sizes: Sizes) -> list[Call]:
    weight = bench.tensor(_COLUMNS)
    return _rows(lambda x: torch.layer_norm(x, x.shape[-1:], weight, weight))(bench, sizes)


def _images(function: Callable[[Tensor, Tensor], Any], tensors: float) -> Callable[[Bench, Sizes], list[Call]]:
    def case(bench: Bench, sizes: Sizes) -> list[Call]:
        side = max(4, math.isqrt(_elements(bench, sizes, tensors, _CHANNELS) // _CHANNELS))
        batch = max(1, round(side**2 / 112**2))
        side = min(side, 112)
        ones = bench.tensor(_CHANNELS).abs()
        return _each(lambda x: function(x, ones), bench.inputs(batch, _CHANNELS, side, side))

    return case


def _pointwise(bench: Bench, sizes: Sizes) -> list[Call]:
    inputs = bench.inputs(_elements(bench, sizes, 3))
    return [partial(torch.add, x, y) for x, y in pairwise(inputs)]


def _cast(bench: Bench, sizes: Sizes) -> list[Call]:
    other = torch.bfloat16 if bench.dtype == torch.float32 else torch.float32
    inputs = bench.inputs(max(1, round(sizes[0] / (bench.dtype.itemsize + other.itemsize))))
    return _each(lambda x: x.to(other), inputs)


def _transpose(bench: Bench, sizes: Sizes) -> list[Call]:
    """The heads of attention, from places first to heads first."""
    rows = max(2, _elements(bench, sizes, 2) // _COLUMNS)  # of one row, the result is contiguous already
    inputs = bench.inputs(1, rows, _COLUMNS // _HEAD, _HEAD)
    return _each(lambda x: x.reshape(1, -1), [x.transpose(1, 2) for x in inputs])


def _cat(bench: Bench, sizes: Sizes) -> list[Call]:
    inputs = bench.inputs(max(1, _elements(bench, sizes, 4, _HEAD) // _HEAD), _HEAD)
    return [partial(torch.cat, pair) for pair in pairwise(inputs)]


def _fill(bench: Bench, sizes: Sizes) -> list[Call]:
    count = _elements(bench, sizes, 1)
    return [lambda: torch.full((count,), 1.0, device=bench.device, dtype=bench.dtype)]


def _look_up(bench: Bench, sizes: Sizes, call: Callable[[Tensor, Tensor], Any]) -> list[Call]:
    table = bench.tensor(_WORDS, _COLUMNS)
    index = torch.randint(_WORDS, (max(1, _elements(bench, sizes, 2) // _COLUMNS),), device=bench.device)
    return [lambda: call(table, index)]


def _compiled_pool(bench: Bench, sizes: Sizes) -> list[Call]:
    side = max(4, math.isqrt(_elements(bench, sizes, 1.25, _CHANNELS) // _CHANNELS))
    return _each(lambda x: functional.max_pool2d(x, 3, 2, 1), map(_laid_out, bench.inputs(1, _CHANNELS, side, side)))


def _view(bench: Bench, sizes: Sizes) -> list[Call]:
    x = bench.tensor(1, _COLUMNS // _HEAD, _HEAD)
    return [lambda: x.transpose(0, 1)]


CASES: dict[str, Callable[[Bench, Sizes], list[Call]]] = {
    "matmul": _matmul,
    "batched_matmul": _batched_matmul,
    "conv": _conv,
    "depthwise": _depthwise,
    "compiled_matmul": _compiled_matmul,
    "compiled_conv": _compiled_conv,
    "compiled_depthwise": _compiled_depthwise,
    "attention": _attention,
    "masked_attention": partial(_attention, masked=_causal),
    "broadcast_mask_attention": partial(_attention, masked=_broadcast),
    "view": _view,
    "pointwise": _pointwise,
    "gelu": _unary(functional.gelu),
    "silu": _unary(functional.silu),
    "tanh": _unary(torch.tanh),
    "exp": _unary(torch.exp),
    "sin": _unary(torch.sin),
    "pow": _unary(lambda x: torch.pow(x, 2)),
    "div": _unary(torch.rsqrt),
    "cast": _cast,
    "copy": _unary(torch.clone),
    "transpose": _transpose,
    "cat": _cat,
    "fill": _fill,
    "reduce": _rows(lambda x: x.sum(-1), 1),
    "softmax": _rows(lambda x: torch.softmax(x, -1)),
    "layer_norm": _layer_norm,
    "rms_norm": _rows(lambda x: torch.rms_norm(x, x.shape[-1:])),
    "batch_norm": _images(lambda x, ones: torch.batch_norm(x, ones, ones, ones, ones, False, 0.1, 1e-5, True), 2),
    "group_norm": _images(lambda x, ones: torch.group_norm(x, 32, ones, ones), 2),
    "pool": _images(lambda x, ones: functional.max_pool2d(x, 3, 2, 1), 1.25),
    "compiled_pool": _compiled_pool,
    "mean_pool": _images(lambda x, ones: functional.adaptive_avg_pool2d(x, 1), 1),
    "embedding": lambda bench, sizes: _look_up(bench, sizes, lambda table, index: functional.embedding(index, table)),
    "gather": lambda bench, sizes: _look_up(bench, sizes, lambda table, index: table[index]),
    "scan": _rows(lambda x: torch.cumsum(x, -1)),
}
