"""Graphs at the limits of the rules: attention by mask, fill and cast, and factors and terms after layers."""

import itertools
import math
from collections.abc import Callable
from functools import partial

from tests.patterns import Hit
from tests.random_graphs import runs
from tests.rewriting import small
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR

_FILLS = (-math.inf, -3.4028234663852886e38, -1e30, -1e9, -65504.0, -1e4, -100.0, 0.0)
_NUMBERS = (1e-6, 0.125, 1.0, -1.0, 3.0, 1e6, 1e30, 0.0)
_MASKS = ("filled", "chosen", "one minus", "added")
_CASTS = ("", "float32", "float16", "bfloat16", "int32")


def _graph(inputs: str, weights: str, calls: dict[str, str]) -> IR | None:
    """Return the graph of these calls; None if torch refuses one, such as a fill that the dtype cannot represent."""
    try:
        ir = small(inputs, weights=weights, **calls)
    except (TorchIRError, OverflowError, RuntimeError):
        return None
    return ir if runs(ir) else None


def _attention(dtype: str, mask: str, fill: float, wide: str) -> IR | None:
    calls = {"bmm": "aten.bmm.default(q, k)"}
    scores = _cast(calls, "wide", "bmm", wide)
    kind = wide or dtype
    number = f"float({str(fill)!r})"
    if mask == "filled":
        calls["masked"] = f"aten.masked_fill.Scalar({scores}, m, {number})"
    elif mask == "chosen":
        calls["masked"] = f"aten.where.ScalarOther(m, {scores}, {number})"
    elif mask == "one minus":
        calls |= {"truth": f"aten.to.dtype(m, Dtype({kind!r}))", "rest": "aten.rsub.Scalar(truth, 1)"}
        calls |= {"term": f"aten.mul.Tensor(rest, {number})", "masked": f"aten.add.Tensor({scores}, term)"}
    else:
        calls |= {"choice": f"aten.where.Scalar(m, 0.0, {number})", "term": f"aten.to.dtype(choice, Dtype({kind!r}))"}
        calls |= {"masked": f"aten.add.Tensor({scores}, term)"}
    calls["softmax"] = "aten.softmax.int(masked, -1)"
    weights = _cast(calls, "narrow", "softmax", dtype if wide else "")
    calls["made"] = f"aten.bmm.default({weights}, v)"
    return _graph(f"q: {dtype}[2, 3, 4], k: {dtype}[2, 4, 3], v: {dtype}[2, 3, 4], m: bool[2, 3, 3]", "", calls)


def _cast_attention(dtype: str, first: str, second: str) -> IR | None:
    """Casts to another dtype and back before the softmax and after it."""
    calls = {"bmm": "aten.bmm.default(q, k)"}
    scores = _cast(calls, "back", _cast(calls, "cast", "bmm", first), dtype if first else "")
    calls["softmax"] = f"aten.softmax.int({scores}, -1)"
    weights = _cast(calls, "returned", _cast(calls, "rounded", "softmax", second), dtype if second else "")
    calls["made"] = f"aten.bmm.default({weights}, v)"
    return _graph(f"q: {dtype}[2, 3, 4], k: {dtype}[2, 4, 3], v: {dtype}[2, 3, 4]", "", calls)


def _cast(calls: dict[str, str], name: str, tensor: str, dtype: str) -> str:
    if dtype:
        calls[name] = f"aten.to.dtype({tensor}, Dtype({dtype!r}))"
    return name if dtype else tensor


def _after_layer(dtype: str, layer: str, sign: str, other: str) -> IR | None:
    if layer == "linear":
        given, weights = f"x: {dtype}[3, 4]", f"w: {dtype}[5, 4], b: {dtype}[5], c: {dtype}[5]"
    else:
        given, weights = f"x: {dtype}[2, 3, 5, 5]", f"w: {dtype}[4, 3, 3, 3], b: {dtype}[4], c: {dtype}[4, 1, 1]"
    calls = {"layer": f"aten.{layer}.default(x, w, b)", "after": f"aten.{sign}.Tensor(layer, {other})"}
    return _graph(given, weights, calls)


def _batch_norm(dtype: str, eps: float) -> IR | None:
    norm = f"aten.batch_norm.default(layer, g, b, mean, var, False, 0.1, {eps}, False)"
    statistics = ", ".join(f"{name}: {dtype}[4]" for name in ("g", "b", "mean", "var"))
    calls = {"layer": "aten.conv2d.default(x, w)", "norm": norm, "relu": "aten.relu.default(norm)"}
    return _graph(f"x: {dtype}[2, 3, 5, 5]", f"w: {dtype}[4, 3, 3, 3], {statistics}", calls)


def _builders() -> dict[Hit, Callable[[str], IR | None]]:
    """Return how each graph is built in a dtype, by pass and name."""
    found: dict[Hit, Callable[[str], IR | None]] = {}
    for mask, fill, wide in itertools.product(_MASKS, _FILLS, ("", "float32")):
        found["attention", f"{mask} {fill} {wide}"] = partial(_attention, mask=mask, fill=fill, wide=wide)
    for first, second in itertools.product(_CASTS, _CASTS):
        found["attention", f"casts {first} {second}"] = partial(_cast_attention, first=first, second=second)
    others = [*map(repr, _NUMBERS), "c"]
    for layer, sign, other in itertools.product(("linear", "conv2d"), ("mul", "div", "add", "sub"), others):
        found["fold-arithmetic", f"{layer} {sign} {other}"] = partial(_after_layer, layer=layer, sign=sign, other=other)
    for eps in (0.0, 1e-12, 1e-5):
        found["fold-batch-norm", f"eps {eps}"] = partial(_batch_norm, eps=eps)
    return found


BUILDERS = _builders()
