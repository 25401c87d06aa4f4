"""Small programs that take views of tensors, write to them, read others afterwards and return some."""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

View = Callable[[Tensor, int, int], Any]
Write = Callable[[Tensor, Tensor, int], Any]


def _dim(tensor: Tensor, number: int) -> int:
    """Any dimension, also counted from the end."""
    return number % (2 * tensor.dim()) - tensor.dim()


def _slice(tensor: Tensor, a: int, b: int) -> Tensor:
    dim, size = _dim(tensor, a), tensor.shape[_dim(tensor, a)]
    start = b % (2 * size) - size
    index: list[Any] = [slice(None)] * tensor.dim()
    index[dim] = slice(start, None if b % 3 else size + 5, 1 + a % 2)
    return tensor[tuple(index)]


def _diagonal(tensor: Tensor, a: int, b: int) -> Tensor:
    dim1 = _dim(tensor, a)
    return tensor.diagonal(b % 3 - 1, dim1, dim1 - 1 if dim1 > -tensor.dim() else dim1 + 1)


def _rows(tensor: Tensor) -> list[int]:
    half = tensor.numel() // 2
    return [2, half] if half * 2 == tensor.numel() else [tensor.numel()]


# Operators whose results alias another tensor; a few return a copy for some layouts.
VIEWS: dict[str, View] = {
    "slice": _slice,
    "narrow": lambda t, a, b: t.narrow(_dim(t, a), b % t.shape[_dim(t, a)], 1),
    "select": lambda t, a, b: t.select(_dim(t, a), b % (2 * t.shape[_dim(t, a)]) - t.shape[_dim(t, a)]),
    "item": lambda t, a, b: t[..., b % t.shape[-1]],
    "mixed": lambda t, a, b: t[None, b % t.shape[0], ..., a % 2 :],
    "transpose": lambda t, a, b: t.transpose(_dim(t, a), _dim(t, b)),
    "t": lambda t, a, b: t.t(),
    "permute": lambda t, a, b: t.permute(tuple((dim + a) % t.dim() for dim in range(t.dim()))),
    "movedim": lambda t, a, b: t.movedim(_dim(t, a), _dim(t, b)),
    "view": lambda t, a, b: t.view(_rows(t)),
    "reshape": lambda t, a, b: t.reshape(_rows(t)),
    "flatten": lambda t, a, b: t.flatten(),
    "unflatten": lambda t, a, b: t.unflatten(_dim(t, a), (-1, 2)),
    "view_as": lambda t, a, b: t.view_as(t),
    "unsqueeze": lambda t, a, b: t.unsqueeze(a % (t.dim() + 1) - (t.dim() + 1) * (b % 2)),
    "squeeze": lambda t, a, b: t.squeeze() if b % 2 else t.squeeze(_dim(t, a)),
    "split": lambda t, a, b: t.split(1 + b % 2, _dim(t, a)),
    "split_sizes": lambda t, a, b: t.split([1, t.shape[_dim(t, a)] - 1], _dim(t, a)),
    "chunk": lambda t, a, b: t.chunk(2 + b % 2, _dim(t, a)),
    "tensor_split": lambda t, a, b: t.tensor_split(2, _dim(t, a)),
    "unbind": lambda t, a, b: t.unbind(_dim(t, a)),
    "diagonal": _diagonal,
    "expand": lambda t, a, b: t.unsqueeze(0).expand(2, *t.shape),
    "expand_nothing": lambda t, a, b: t.expand(t.shape),
    "unfold": lambda t, a, b: t.unfold(_dim(t, a), 2, 1 + b % 2),
    "as_strided": lambda t, a, b: t.as_strided((2,), (1,)),
    "detach": lambda t, a, b: t.detach(),
    "contiguous": lambda t, a, b: t.contiguous(),
    "to": lambda t, a, b: t.to(torch.float32 if b % 2 else torch.int64),
    "bits": lambda t, a, b: t.view(torch.int32 if t.dtype == torch.float32 else torch.float64),
    "dropout": lambda t, a, b: F.dropout(t, 0.5, training=False),
}
# Operators that change the elements of a tensor; the other operand never aliases it.
WRITES: dict[str, Write] = {
    "add": lambda t, other, a: t.add_(other, alpha=1 + a % 2),
    "add_number": lambda t, other, a: t.add_(a),
    "iadd": lambda t, other, a: t.__iadd__(other),
    "sub": lambda t, other, a: t.sub_(a + 1),
    "mul": lambda t, other, a: t.mul_(a % 3 - 1),
    "clamp": lambda t, other, a: t.clamp_(-a, a),
    "relu": lambda t, other, a: t.relu_(),
    "neg": lambda t, other, a: t.neg_(),
    "copy": lambda t, other, a: t.copy_(other),
    "fill": lambda t, other, a: t.fill_(a),
    "zero": lambda t, other, a: t.zero_(),
    "set_slice": lambda t, other, a: t.__setitem__(slice(a % 2, None), a),
    "set_item": lambda t, other, a: t.__setitem__((..., a % t.shape[-1]), other.flatten()[0]),
    "set_mask": lambda t, other, a: t.__setitem__(t > a, -a),
    "set_indices": lambda t, other, a: t.__setitem__(torch.tensor([0, a % t.shape[0]]), a),
    "masked_fill": lambda t, other, a: t.masked_fill_(t > 0, a),
    "index_fill": lambda t, other, a: t.index_fill_(_dim(t, a), torch.tensor([0]), a),
    "index_add": lambda t, other, a: t.index_add_(0, torch.tensor([0]), t[:1].clone()),
    "index_copy": lambda t, other, a: t.index_copy_(0, torch.tensor([t.shape[0] - 1]), t[:1] * 2),
    "scatter": lambda t, other, a: t.scatter_(_dim(t, a), torch.zeros_like(t, dtype=torch.int64), a),
    "out": lambda t, other, a: torch.mul(other.expand(t.shape), 2, out=t),
    "compare": lambda t, other, a: t.gt_(a),
}
# Operators whose results have their own memory.
FRESH: dict[str, View] = {
    "double": lambda t, a, b: t * 2,
    "clone": lambda t, a, b: t.clone(),
    "rows": lambda t, a, b: t.clone(memory_format=torch.contiguous_format),
    "zeros": lambda t, a, b: torch.zeros(3, 4),
    "zeros_like": lambda t, a, b: torch.zeros_like(t),
    "literal": lambda t, a, b: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "cast": lambda t, a, b: t.to(torch.float64),
    "cat": lambda t, a, b: torch.cat([t, t]),
    "number": lambda t, a, b: t + a,
}


class Line(NamedTuple):
    """One line of a program: the operation, its tensors among those so far, and two numbers."""

    name: str
    target: int
    other: int
    a: int
    b: int


@dataclass
class _Value:
    tensor: Tensor
    memory: int  # equal if two may alias


class Program(nn.Module):
    """Runs its lines on an input, a transposed one, an integer one, a buffer and results."""

    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self.lines = lines
        self.register_buffer("state", torch.arange(12.0).reshape(3, 4) - 6)

    def forward(self, x: Tensor, y: Tensor, n: Tensor) -> Any:
        values = [_Value(tensor, memory) for memory, tensor in enumerate((x, self.state, y, n, x + 1))]
        results: list[Tensor] = []
        for line in self.lines:
            target = values[line.target % len(values)]
            if line.name in WRITES:
                other = values[line.other % len(values)]
                source = other.tensor.clone() if other.memory == target.memory else other.tensor
                WRITES[line.name](target.tensor, source, line.a)
                continue
            memory = target.memory if line.name in VIEWS else len(values)
            made = {**VIEWS, **FRESH}[line.name](target.tensor, line.a, line.b)
            values += [_Value(tensor, memory) for tensor in (made if isinstance(made, (list, tuple)) else [made])]
            if line.other % 4 == 0:
                results.append(values[line.b % len(values)].tensor * 1)
        return results, [value.tensor for value in values[line.b % 3 :: 3]]


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.arange(12.0).reshape(3, 4), torch.arange(4.0).reshape(2, 2).t(), torch.arange(6).reshape(2, 3)


def random_lines(source: random.Random, length: int) -> list[Line]:
    """Return lines that run in order; lines that fail on the tensors so far are drawn again."""
    lines: list[Line] = []
    while len(lines) < length:
        table = source.choice((VIEWS, VIEWS, WRITES, WRITES, FRESH))
        line = Line(source.choice(list(table)), *(source.randrange(n) for n in (60, 60, 6, 6)))
        if runs([*lines, line]):
            lines.append(line)
    return lines


def runs(lines: list[Line]) -> bool:
    """Whether torch runs it, and without a warning, as of writes to expanded tensors."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            Program(lines)(*inputs())
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError, NotImplementedError, UserWarning):
            return False
    return True
