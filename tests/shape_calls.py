"""Random calls of layers and of simple operators, for tests of shape rules."""

import random
from collections.abc import Callable
from typing import Any

import torch

from torch_ir.capture.fast.call_tape import Tape
from torch_ir.capture.fast.shape_tensors import Ghost

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64)


class Calls:
    """Random calls, on ghosts."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.tape = Tape()

    def one_of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def maybe(self, value: Any, likely: float = 0.8) -> Any:
        return value if self.random.random() < likely else None

    def dtype(self) -> torch.dtype:
        return self.random.choice(DTYPES) if self.random.random() < 0.3 else self.random.choice(FLOATS)

    def shape(self, most: int = 4, least: int = 0) -> list[int]:
        sizes = (0, 1, 2, 3, 4, 6, 8) if self.random.random() < 0.1 else (1, 2, 3, 4, 6, 8)
        return [self.one_of(*sizes) for _ in range(self.random.randint(least, most))]

    def tensor(self, shape: list[int], dtype: torch.dtype = torch.float32) -> Ghost:
        return self.tape.given(self.meta(shape, dtype))

    def meta(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor: mostly new, else permuted, a part of a larger one, expanded, or with odd strides."""
        how = self.random.random()
        rank = len(shape)
        order = self.random.sample(range(rank), rank) if how > 0.6 else list(range(rank))
        part = [self.one_of(0, 0, 1, 2) if 0.75 < how < 0.85 else 0 for _ in shape]
        base = [1 if 0.85 < how < 0.9 and self.one_of(True, False) else size for size in shape]
        made = torch.empty([base[at] + part[at] for at in order], dtype=dtype, device="meta")
        made = made.permute(sorted(range(rank), key=order.__getitem__))
        for at, more in enumerate(part):
            made = made.narrow(at, self.random.randint(0, more), base[at])
        made = made.expand(shape)
        if how > 0.9:  # any stride for sizes of 1, or for all
            strides = [
                self.one_of(0, 1, 2, 3, 7, 100) if size == 1 or how > 0.97 else stride
                for size, stride in zip(shape, made.stride(), strict=True)
            ]
            made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
        return made

    def same(self, shape: list[int]) -> tuple[Any, ...]:
        return (self.tensor(shape, self.dtype()),)

    def pair(self) -> tuple[Any, Any]:
        shape = self.shape()
        other = [self.one_of(size, size, size, 1) for size in shape][self.one_of(0, 0, 0, 1) :]
        one = self.tensor(shape, self.dtype())
        return one, self.tensor(other, self.one_of(one.dtype, one.dtype, self.dtype()))


def unary(call: Calls) -> tuple[Any, ...]:
    return call.same(call.shape())


def power(call: Calls) -> tuple[Any, ...]:
    return (*unary(call), call.one_of(2, 3, 0.5, -1))


def clamped(call: Calls) -> tuple[Any, ...]:
    return (*unary(call), call.one_of(0, 0.5, None), 1)


def floor(call: Calls) -> tuple[Any, ...]:
    return (*unary(call), call.one_of(0, 0.5))


def binary(call: Calls) -> tuple[Any, ...]:
    found: tuple[Any, ...] = call.one_of(call.pair(), (call.pair()[0], call.one_of(2, 0.5, True)))
    return found


def comparison(call: Calls) -> tuple[Any, ...]:
    return call.pair()[0], call.one_of(2, 0.5)


def dimension(call: Calls, shape: list[int]) -> int:
    return call.random.randint(-len(shape), len(shape) - 1)


def with_dimension(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return (*call.same(shape), dimension(call, shape))


def weight(call: Calls, shape: list[int], dtype: torch.dtype) -> Any:
    return call.maybe(call.tensor(shape, call.one_of(dtype, dtype, dtype, torch.float32)))


def linear(call: Calls) -> tuple[Any, ...]:
    shape, out, dtype = call.shape(least=1), call.one_of(1, 3, 5), call.dtype()
    width = call.one_of(shape[-1], shape[-1], 2)
    return call.tensor(shape, dtype), call.tensor([out, width], dtype), weight(call, [out], dtype)


def convolution(count: int) -> Callable[[Calls], tuple[Any, ...]]:
    def make(call: Calls) -> tuple[Any, ...]:
        groups, dtype = call.one_of(1, 1, 2, 4), call.dtype()
        inner, out = call.one_of(1, 2, 3), groups * call.one_of(1, 2)
        sizes = [call.one_of(1, 5, 6, 9) for _ in range(count)]
        window = [call.one_of(1, 2, 3) for _ in range(count)]
        options = [[call.one_of(*values) for _ in range(call.one_of(1, count))] for values in ((1, 2), (0, 1), (1, 2))]
        batch = call.one_of([], [1], [2])
        x = call.tensor([*batch, groups * inner, *sizes], dtype)
        return x, call.tensor([out, inner, *window], dtype), weight(call, [out], dtype), *options, groups

    return make


def pooled(call: Calls) -> tuple[Any, ...]:
    x = call.tensor(
        [*call.one_of([], [1], [2]), call.one_of(1, 3), call.one_of(1, 5, 8), call.one_of(4, 7)], call.dtype()
    )
    kernel = [call.one_of(1, 2, 3) for _ in range(call.one_of(1, 2))]
    return x, kernel, call.one_of([], [2], [1, 2]), [call.one_of(0, 0, 1)]


def max_pooled(call: Calls) -> tuple[Any, ...]:
    return *pooled(call), [call.one_of(1, 1, 2)], call.one_of(False, True)


def average_pooled(call: Calls) -> tuple[Any, ...]:
    return *pooled(call), call.one_of(False, True), call.one_of(False, True), call.one_of(None, None, 3)


def adaptive(call: Calls) -> tuple[Any, ...]:
    return call.tensor([*call.one_of([], [1], [2]), call.one_of(1, 3), 5, 7], call.dtype()), call.one_of([1, 1], [2, 3])


def batch_norm(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(least=2), call.dtype()
    both = [weight(call, shape[1:2], dtype) for _ in range(2)]
    statistics = [call.tensor(shape[1:2], dtype) for _ in range(2)] if call.one_of(True, True, False) else [None, None]
    return call.tensor(shape, dtype), *both, *statistics, call.one_of(False, False, False, True), 0.1, 1e-5, True


def layer_norm(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(least=1), call.dtype()
    last = shape[-call.random.randint(1, len(shape)) :]
    return call.tensor(shape, dtype), last, weight(call, last, dtype), weight(call, last, dtype), 1e-5


def group_norm(call: Calls) -> tuple[Any, ...]:
    shape, dtype = [call.one_of(1, 2), call.one_of(2, 4), *call.shape(most=2)], call.dtype()
    return (
        call.tensor(shape, dtype),
        call.one_of(1, 2),
        weight(call, shape[1:2], dtype),
        weight(call, shape[1:2], dtype),
    )


def softmax(call: Calls) -> tuple[Any, ...]:
    return *with_dimension(call), call.one_of(None, None, torch.float32)


def dropout(call: Calls) -> tuple[Any, ...]:
    return *unary(call), call.one_of(0.0, 0.5), call.one_of(False, False, True)


def embedding(call: Calls) -> tuple[Any, ...]:
    indices = call.tensor(call.shape(), call.one_of(torch.int64, torch.int32, torch.float32))
    return call.tensor([7, call.one_of(1, 4)], call.dtype()), indices, call.one_of(-1, 2)


def gather(call: Calls) -> tuple[Any, ...]:
    shape = call.shape()
    index = [call.one_of(size, size, 1, size + 1) for size in shape]
    kind = call.one_of(torch.int64, torch.int64, torch.int64, torch.int32)
    return call.tensor(shape, call.dtype()), call.one_of(0, -1, 1), call.tensor(index, kind)


def matmul(call: Calls) -> tuple[Any, ...]:
    dtype, outer, inner = call.dtype(), call.shape(most=2), call.one_of(1, 2, 3)
    others = [call.one_of(size, size, size, 1) for size in outer][call.one_of(0, 0, 0, 1) :]
    one = call.tensor([*outer, call.one_of(1, 4), inner], dtype)
    return one, call.tensor([*others, inner, call.one_of(1, 5)], dtype)


def heads(call: Calls, batch: int, count: int, length: int, width: int, dtype: torch.dtype) -> Ghost:
    """A tensor of several heads, as models split one: of a projection, of a third of a larger one, or any."""
    how = call.random.random()
    if how < 0.4:
        return call.tensor([batch, count, length, width], dtype)
    whole = torch.empty([batch, length, call.one_of(1, 3) * count * width], dtype=dtype, device="meta")
    part = whole[..., whole.shape[-1] - count * width :]
    return call.tape.given(part.view(batch, length, count, width).transpose(1, 2))


def transposed_convolution(count: int) -> Callable[[Calls], tuple[Any, ...]]:
    def make(call: Calls) -> tuple[Any, ...]:
        x, weight, bias, stride, padding, dilation, groups = convolution(count)(call)
        weight = call.tensor([x.shape[-count - 1], call.one_of(1, 2), *weight.shape[2:]], weight.dtype)
        channels = call.one_of(weight.shape[1] * groups, weight.shape[1] * groups, 2)
        bias = None if bias is None else call.tensor([channels], bias.dtype)
        return x, weight, bias, stride, padding, [call.one_of(0, 0, 1)], groups, dilation

    return make


def pooled_by(count: int, is_mean: bool = False) -> Callable[[Calls], tuple[Any, ...]]:
    def make(call: Calls) -> tuple[Any, ...]:
        x = image(call, count)
        kernel = [call.one_of(1, 2, 3) for _ in range(call.one_of(1, count))]
        stride, padding = call.one_of([], [2], [1] * count), [call.one_of(0, 0, 1)]
        if is_mean:
            return x, kernel, stride, padding, call.one_of(False, True), call.one_of(False, True)
        return x, kernel, stride, padding, [call.one_of(1, 1, 2)], call.one_of(False, True)

    return make


def adaptive_by(count: int) -> Callable[[Calls], tuple[Any, ...]]:
    return lambda call: (image(call, count), [call.one_of(1, 2, 3) for _ in range(count)])


def image(call: Calls, count: int) -> Ghost:
    """A tensor with channels: row-major, with the channels innermost, or any other."""
    sizes = [call.one_of(1, 2, 3, 4, 5, 8) for _ in range(count)]
    shape = [*call.one_of([1], [2], [3], [2], [], [0]), call.one_of(1, 2, 3, 4, 8), *sizes]
    how, dtype = call.random.random(), call.dtype()
    if how < 0.4 or len(shape) not in (4, 5):
        return call.tensor(shape, dtype)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    made = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=formats[len(shape)])
    if how > 0.8:  # a part of a larger image
        larger = [*shape[:-1], shape[-1] + 1] if how > 0.9 else [shape[0], shape[1] + 1, *shape[2:]]
        made = torch.empty(larger, dtype=dtype, device="meta").to(memory_format=formats[len(shape)])
        made = made[..., :-1] if how > 0.9 else made[:, 1:]
    return call.tape.given(made)


def upsampled(name: str) -> Callable[[Calls], tuple[Any, ...]]:
    """Calls of upsampling to sizes, or by factors."""
    packet, overload = name.split(".")
    count = int(packet[-2])

    def make(call: Calls) -> tuple[Any, ...]:
        x = image(call, count)
        aligned = () if "nearest" in packet else (call.one_of(False, True),)
        sizes = call.one_of([call.one_of(1, 2, 3, 7, 8) for _ in range(count)], list(x.shape[-count:]))
        factors = [call.one_of(2.0, 2.0, 0.5, 1.0, 1.7, 3.0) for _ in range(count)]
        if overload == "default":
            return x, sizes, *aligned, *call.one_of([], [], factors)
        return (x, *call.one_of((sizes, *aligned, None), (None, *aligned, factors)))

    return make


def shuffled(call: Calls) -> tuple[Any, ...]:
    factor = call.one_of(1, 2, 3)
    sizes = [call.one_of(1, 2) * factor**2, call.one_of(1, 2, 3) * factor, call.one_of(1, 2, 3) * factor]
    return call.tensor([*call.one_of([], [1], [2], [2, 2]), *sizes], call.dtype()), factor


def loss(call: Calls) -> tuple[Any, ...]:
    one, other = call.pair()
    same = call.tensor(list(one.shape), call.one_of(one.dtype, one.dtype, other.dtype))
    return one, call.one_of(same, same, other), call.one_of(0, 1, 2)


def class_loss(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(least=2), call.dtype()
    target = call.tensor([*shape[:1], *shape[2:]], call.one_of(torch.int64, torch.int64, torch.int32))
    weights = call.maybe(call.tensor(shape[1:2], dtype), 0.2)
    return call.tensor(shape, dtype), target, weights, call.one_of(0, 1, 1, 2), -100


def smoothed_class_loss(call: Calls) -> tuple[Any, ...]:
    x, target, *how = class_loss(call)
    probabilities = call.tensor(list(x.shape), x.dtype)
    return x, call.one_of(target, target, probabilities), *how, call.one_of(0.0, 0.0, 0.1)


def einsum(call: Calls) -> tuple[Any, ...]:
    """Products of two tensors, in any order of labels; sometimes of other sizes, or of other forms."""
    sizes = {label: call.one_of(1, 2, 3, 4, 5, 6) for label in "abcdefgh"}
    common, left, right = ("".join(part) for part in ("ab", "cd", "ef"))
    terms = [call.random.sample(both, len(both)) for both in (
        common[: call.one_of(0, 1, 2)] + left[: call.one_of(0, 1, 2)] + "gh"[: call.one_of(1, 1, 2)],
        common[: call.one_of(0, 1, 2)] + right[: call.one_of(0, 1, 2)] + "gh"[: call.one_of(1, 1, 2)],
    )]  # fmt: skip
    output = [label for label in {**dict.fromkeys(terms[0]), **dict.fromkeys(terms[1])} if label not in "gh"]
    output = call.random.sample(output, len(output)) + [label for label in "h" if call.one_of(0, 0, 0, 1)]
    dtype = call.dtype()
    tensors = [call.tensor([sizes[label] for label in term], dtype) for term in terms]
    names = [*map("".join, terms)]
    arrow = call.one_of("->", "->", "->", " -> ") + "".join(output)
    return ",".join(names) + arrow, tensors


def attention(call: Calls) -> tuple[Any, ...]:
    dtype = call.dtype()
    batch, count, length, width = (call.one_of(1, 1, 2, 3, 4, 4, 2, 3, 0) for _ in range(4))
    keys, wide = call.one_of(length, length, 6, 1), call.one_of(width, width, width, 5)
    groups = call.one_of(count, count, count, 1, 2)
    query = heads(call, batch, count, length, width, dtype)
    key, value = (heads(call, batch, groups, keys, size, dtype) for size in (width, wide))
    shape = call.one_of(
        [length, keys], [1, keys], [batch, 1, length, keys], [batch, count, length, keys], [batch, 1, 1, keys],
        [1, count, length, 1], [batch, length, keys],
    )  # fmt: skip
    found = call.meta(shape, call.one_of(dtype, torch.bool, torch.bool, torch.float32, torch.int64))
    if call.one_of(True, False):
        found = found.expand(*shape[:-2], length, keys)
    mask = call.maybe(call.tape.given(found), 0.6)
    drop = call.one_of(0.0, 0.0, 0.0, 0.1, 1.0)
    return query, key, value, mask, drop, mask is None and call.one_of(False, True)


def attention_options(call: Calls, query: Ghost, key: Ghost) -> dict[str, Any]:
    is_grouped = query.shape[1] != key.shape[1] or call.one_of(True, False)
    divides_by_zero = 0 in (query.shape[1], key.shape[1])  # in torch's own rule, which ends the process
    return {"scale": call.one_of(None, 0.5), "enable_gqa": is_grouped and not divides_by_zero}
