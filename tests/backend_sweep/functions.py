"""Functions that are not in the operator database: writes, masks, negative indices, and dynamic sizes.

Each is tried with fixed sizes on several inputs, or with an open batch at sizes 1, 2 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # as everyone calls it
from torch import Tensor, nn
from torch.export import Dim

from tests.backend_sweep.cases import Case, eager, is_comparable, made_case
from torch_ir import TorchIRError, extract_ir

BATCHES = (1, 2, 5)


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def written(change: Callable[[Tensor], None]) -> Callable[[Tensor], Tensor]:
    """A function that changes a copy of its argument."""

    def function(x: Tensor) -> Tensor:
        y = x.clone()
        change(y)
        return y

    return function


def _set(*place: Any, to: float = 9.0) -> Callable[[Tensor], Tensor]:
    return written(lambda y: y.__setitem__(place if len(place) > 1 else place[0], to))


def _attend(mask: Tensor | None, **options: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], mask, **options)


def _scatter(reduce: str, include_self: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, i: x.scatter_reduce(0, i.expand(3, 6), x[:3] * 2, reduce, include_self=include_self)


X, ROWS, SQUARE = (4, 6), torch.tensor([-1, 0, -1]), torch.tensor([[0], [2], [0]])
NONE_SEEN = torch.tensor([[True] * 4, [False] * 4, [True, False, True, False], [False] * 4])
BAGS = torch.tensor([[2, 1, 2], [3, 2, 0], [2, 2, 2]])
TABLE = torch.arange(30.0).reshape(10, 3) / 7
CLASSES, IGNORED = torch.tensor([0, 5, 2, 2]), torch.tensor([0, -100, 2, -100])
# name: the function, and the dtype of its first argument, of shape X; index tensors come after it
FLOATS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "y[-1] = 9": (_set(-1), ()),
    "y[:, -2] = 9": (_set(slice(None), -2), ()),
    "y[-2:] = 9": (_set(slice(-2, None)), ()),
    "y[:-1, 1:-1] = 9": (_set(slice(None, -1), slice(1, -1)), ()),
    "y[::2] = 9": (_set(slice(None, None, 2)), ()),
    "y[-3:-1] += 1": (written(lambda y: y[-3:-1].add_(1)), ()),
    "y[i] = 9": (lambda x, i: x.index_put((i,), torch.full((3, 6), 9.0)), (ROWS,)),
    "y[i] += 1": (lambda x, i: x.index_put((i,), torch.ones(3, 6), accumulate=True), (ROWS,)),
    "y[:, i] = 9": (lambda x, i: x.index_put((torch.arange(4)[:, None], i), torch.tensor(9.0)), (ROWS,)),
    "x[i]": (lambda x, i: x[i], (ROWS,)),
    "x[:, i]": (lambda x, i: x[:, i], (ROWS,)),
    "x[i, i]": (lambda x, i: x[i, i], (ROWS,)),
    "x[[-1, -2]]": (lambda x: x[[-1, -2]], ()),
    "x[-1], x[..., -3]": (lambda x: (x[-1], x[..., -3]), ()),
    "take": (lambda x, i: x.take(i), (ROWS,)),
    "roll, flip": (lambda x: (x.roll(-1, 0), x.flip(-1)), ()),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), ()),
    "softshrink": (F.softshrink, ()),
    "hardshrink": (F.hardshrink, ()),
    "uint8 + float": (lambda x: (x > 0).to(torch.uint8) * 200 + x, ()),
    "batch norm, training": (lambda x: F.batch_norm(x, None, None, training=True), ()),
    "instance norm": (lambda x: F.instance_norm(x.reshape(2, 2, 6)), ()),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (CLASSES,)),
    "cross entropy, smoothed": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (CLASSES,)),
    "cross entropy, smoothed, ignored": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), (IGNORED,)),
    "cross entropy, smoothed, sum": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum"),
        (IGNORED,),
    ),
    "cross entropy, smoothed, each": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="none"),
        (IGNORED,),
    ),
    "cross entropy, smoothed, weighted": (
        lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
        (IGNORED, torch.arange(6.0) + 1),
    ),
    **{f"scatter {r}": (_scatter(r, True), (SQUARE,)) for r in ("sum", "prod", "mean", "amax", "amin")},
    **{f"scatter {r}, without self": (_scatter(r, False), (SQUARE,)) for r in ("sum", "prod", "mean", "amax", "amin")},
    "attention": (_attend(None), ()),
    "attention, causal": (_attend(None, is_causal=True), ()),
    "attention, masked": (_attend(NONE_SEEN), ()),
    "attention, all masked": (_attend(torch.zeros(4, 4, dtype=torch.bool)), ()),
    "attention, float mask": (_attend(torch.zeros(4, 4).masked_fill(~NONE_SEEN, float("-inf"))), ()),
    "softmax of -inf": (lambda x: (x * 0 + float("-inf")).softmax(-1), ()),
    "masked softmax": (lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1), ()),
    "embedding bag": (lambda x, b: F.embedding_bag(b, x[0, 0] * TABLE, mode="mean"), (BAGS,)),
    **{
        f"embedding bag, padding, {mode}": (
            lambda x, b, mode=mode: F.embedding_bag(b, x[0, 0] * TABLE, mode=mode, padding_idx=2),
            (BAGS,),
        )
        for mode in ("sum", "mean", "max")
    },
    "var, std": (lambda x: (x.var(), x.std(1), x.var(0, unbiased=False), x.std(dim=1, correction=2)), ()),
    "var of one": (lambda x: x[:1].var(0, unbiased=False), ()),
    "kthvalue": (lambda x: x.kthvalue(2), ()),
    "median, mode": (lambda x: (x.median(-1)[0], x.mode(-1)[0]), ()),
    "topk, sort": (lambda x: (x.topk(2)[0], x.sort(-1, descending=True)[0]), ()),
    "clone, no-ops": (lambda x: (x.clone(), x.reshape(6, 4), x.contiguous(), x * 1), ()),
    "dropout in inference": (lambda x: F.dropout(x, 0.5, False), ()),
    "round, trunc, frac": (lambda x: ((x * 4).round() / 2, x.trunc(), x.frac(), (x * 2).round(decimals=1)), ()),
    "rounding modes": (lambda x: (torch.div(x, 0.3, rounding_mode="floor"), x % 0.7, torch.fmod(x, -0.7)), ()),
    "empty": (lambda x: (x[:0].sum(), x[:0].reshape(0, 6), torch.cat([x[:0], x])), ()),
    "to integers": (lambda x: ((x.tanh() * 100).to(torch.int8), (x.tanh() * 1000).to(torch.int32)), ()),
    "integer sums": (lambda x: ((x > 0).sum(0), (x > 0).cumsum(1), (x.abs() * 20).to(torch.uint8).cumsum(0)), ()),
}
INTEGERS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x: (x * x + 1, x.abs()),
    "below zero": lambda x: (x - 7, -x),
    "division": lambda x: (x // 3, x // -3, x % 3, x % -3, torch.fmod(x, -3), torch.div(x, 3, rounding_mode="trunc")),
    "shifts": lambda x: (x << 3, x >> 2),
    "shifts by tensors": lambda x: (x << (x.abs() % 9), x >> (x.abs() % 9)),
    "bits": lambda x: (x & 6, x | 9, x ^ 5, ~x),
    "sums": lambda x: (x.sum(), x.sum(0), x.cumsum(1), x.prod(1), x.cumprod(0)),
    "clamp": lambda x: (x.clamp(-3, 4), x.clamp(min=2), x.clamp(max=2)),
    "extremes": lambda x: (x.max(), x.min(), x.amax(0), x.argmax(1)),
    "power": lambda x: x**2,
    "mean, float": lambda x: (x.float().mean(), x / 4, x * 0.5),
    "compare": lambda x: (x > 3, x == x.flip(0), x.ne(0).any(0), x.ne(0).all(1)),
}
OPEN: dict[str, Callable[[Tensor], Any]] = {
    "x[-2:]": lambda x: x[-2:],
    "x[:-1]": lambda x: x[:-1],
    "x[-1]": lambda x: x[-1],
    "x[1:]": lambda x: x[1:],
    "x[::2]": lambda x: x[::2],
    "y[-1] = 9": _set(-1),
    "y[-2:] = 9": _set(slice(-2, None)),
    "x[[-1]]": lambda x: x[[-1]],
    "mean, var": lambda x: (x.mean(0), x.var(0, unbiased=False), x.sum(), x.amax(0)),
    "softmax over the batch": lambda x: x.softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "cat, flip, roll": lambda x: (torch.cat([x, x[:1]]), x.flip(0), x.roll(1, 0)),
    "attention": lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "matmul": lambda x: x.flatten(1) @ x.flatten(1).t(),
    "reshape": lambda x: (x.reshape(-1, 6), x.flatten(), x.transpose(0, 1), x.unsqueeze(1).squeeze(2)),
    "expand": lambda x: x[:1].expand(x.shape[0], 4, 6) + x,
    "arange": lambda x: torch.arange(x.shape[0])[:, None, None] * x,
    "layer norm": lambda x: F.layer_norm(x, (6,)),
    "pool": lambda x: F.max_pool1d(x, 2),
    "argmax": lambda x: x.argmax(0),
    "where": lambda x: torch.where(x > 0, x, x.mean()),
    "training batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "gather": lambda x: x.gather(1, (x > 0).long().cumsum(1).clamp(max=3)),
    "tril": lambda x: (x @ x.transpose(1, 2)).tril(-1),
}


def function_cases(chosen: Sequence[str] | None = None) -> Iterator[Case]:
    """The functions on floats and integers with fixed sizes, or those of them that are chosen by name."""
    torch.manual_seed(0)
    x = torch.randn(X)
    for name, (function, others) in _only(FLOATS, chosen):
        case = made_case(name, name, "float32", Function(function).eval(), [x, *others], special="mean" not in name)
        if case is not None:
            yield case
    for dtype in ("int64", "int32", "int8", "uint8"):
        kind = getattr(torch, dtype)
        whole = torch.randint(0 if dtype == "uint8" else -11, 12, X).to(kind)
        for name, function in _only(INTEGERS, chosen):
            case = made_case(f"{name} {dtype}", name, dtype, Function(function).eval(), [whole])
            if case is not None:
                yield case


def _only(table: Mapping[str, Any], chosen: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    return ((name, entry) for name, entry in table.items() if chosen is None or name in chosen)


def open_cases(chosen: Sequence[str] | None = None) -> Iterator[Case]:
    """The functions at open sizes; each run is another batch."""
    torch.manual_seed(0)
    drawn = {f"batch of {size}": torch.randn(size, 4, 6) for size in BATCHES}
    for name, function in _only(OPEN, chosen):
        model = Function(function).eval()
        sizes = (({0: Dim("batch", min=1, max=64)},),)
        try:
            ir = extract_ir(model, (torch.randn(3, 4, 6),), strict=False, dynamic_shapes=sizes)
        except TorchIRError:
            continue
        runs = {label: ([x], wanted) for label, x in drawn.items() if (wanted := eager(model, [x])) is not None}
        if is_comparable(ir):
            yield Case(f"{name}, open", name, "float32", ir, runs, model)
