"""Functions that StableHLO lacks: error functions, logarithms of other bases, inverse and hyperbolic functions.

They are computed in float64 unless said otherwise, so that results differ from eager's by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from torch_ir.targets.stablehlo.operations import Builder, Value
from torch_ir.targets.stablehlo.rules.elementwise_rules import Made, in_double
from torch_ir.targets.stablehlo.rules.rule_table import add, lowers

# Rational approximations of the error functions, highest power first, from the Cephes library (S. Moshier).
_ERF = (
    [9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
     5.55923013010394962768e4],
    [1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
     4.92673942608635921086e4],
)  # fmt: skip
_ERFC_NEAR = (  # 1 <= x < 8
    [2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
     1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
     5.57535335369399327526e2],
    [1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
     1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2],
)  # fmt: skip
_ERFC_FAR = (  # x >= 8
    [5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0, 6.16021097993053585195e0,
     7.40974269950448939160e0, 2.97886665372100240670e0],
    [1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1, 1.70814450747565897222e1,
     9.60896809063285878198e0, 3.36907645100081516050e0],
)  # fmt: skip


_ERF_SINGLE = (  # |x| <= 4, from the Eigen library
    [-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
     -2.95459980854025e-03, -1.60960333262415e-02],
    [-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
     -1.42647390514189e-02],
)  # fmt: skip


def _polynomial(hlo: Builder, at: Value, coefficients: Sequence[float]) -> Value:
    total = hlo.like(at, coefficients[0])
    for coefficient in coefficients[1:]:
        total = hlo.pointwise("add", hlo.pointwise("multiply", total, at), hlo.like(at, coefficient))
    return total


def _ratio(hlo: Builder, at: Value, both: tuple[Sequence[float], Sequence[float]]) -> Value:
    return hlo.pointwise("divide", *(_polynomial(hlo, at, one) for one in both))


def _erf_near(hlo: Builder, x: Value) -> Value:
    """Return erf of |x| <= 1."""
    return hlo.pointwise("multiply", x, _ratio(hlo, hlo.pointwise("multiply", x, x), _ERF))


def _erfc_far(hlo: Builder, size: Value) -> Value:
    """Return erfc of x >= 1."""
    falling = hlo.pointwise("exponential", hlo.pointwise("negate", hlo.pointwise("multiply", size, size)))
    bounded = hlo.pointwise("minimum", size, hlo.like(size, 30))  # exp(-x*x) is 0 there
    is_near = hlo.compare("LT", size, hlo.like(size, 8))
    ratio = hlo.select(is_near, _ratio(hlo, bounded, _ERFC_NEAR), _ratio(hlo, bounded, _ERFC_FAR))
    return hlo.pointwise("multiply", falling, ratio)


def _erf(hlo: Builder, x: Value) -> Value:
    size = hlo.pointwise("abs", x)
    far = hlo.pointwise("multiply", hlo.pointwise("sign", x), _one_minus(hlo, _erfc_far(hlo, size)))
    return hlo.select(hlo.compare("LE", size, hlo.like(size, 1)), _erf_near(hlo, x), far)


def _erf_single(hlo: Builder, x: Value) -> Value:
    """Return erf of float32: the usual GELU needs no float64."""
    bounded = hlo.pointwise("maximum", hlo.pointwise("minimum", x, hlo.like(x, 4)), hlo.like(x, -4))
    ratio = _ratio(hlo, hlo.pointwise("multiply", bounded, bounded), _ERF_SINGLE)
    return hlo.pointwise("multiply", bounded, ratio)


def _erfc(hlo: Builder, x: Value) -> Value:
    size = hlo.pointwise("abs", x)
    far = _erfc_far(hlo, size)
    is_negative = hlo.compare("LT", x, hlo.like(x, 0))
    far = hlo.select(is_negative, hlo.pointwise("subtract", hlo.like(x, 2), far), far)
    return hlo.select(hlo.compare("LE", size, hlo.like(size, 1)), _one_minus(hlo, _erf_near(hlo, x)), far)


def _one_minus(hlo: Builder, value: Value) -> Value:
    return hlo.pointwise("subtract", hlo.like(value, 1), value)


def _log(base: float, hlo: Builder, x: Value) -> Value:
    return hlo.pointwise("divide", hlo.pointwise("log", x), hlo.like(x, math.log(base)))


def _atan(hlo: Builder, x: Value) -> Value:
    return hlo.pointwise("atan2", x, hlo.like(x, 1))


def _side(hlo: Builder, x: Value) -> Value:
    """Return sqrt(1 - x * x), the other side of a right triangle."""
    return hlo.pointwise("sqrt", hlo.pointwise("multiply", _one_minus(hlo, x), hlo.pointwise("add", x, hlo.like(x, 1))))


def _asin(hlo: Builder, x: Value) -> Value:
    return hlo.pointwise("atan2", x, _side(hlo, x))


def _acos(hlo: Builder, x: Value) -> Value:
    return hlo.pointwise("atan2", _side(hlo, x), x)


def _sinh(hlo: Builder, x: Value) -> Value:
    """(e + e / (e + 1)) / 2 with e = exp(|x|) - 1, which is exact near zero."""
    size = hlo.pointwise("abs", x)
    e = hlo.pointwise("exponential_minus_one", size)
    fraction = hlo.pointwise("divide", e, hlo.pointwise("add", e, hlo.like(e, 1)))
    is_huge = hlo.compare("EQ", e, hlo.like(e, math.inf))
    total = hlo.pointwise("add", e, hlo.select(is_huge, hlo.like(e, 0), fraction))
    half = hlo.pointwise("multiply", total, hlo.like(e, 0.5))
    return hlo.select(hlo.compare("LT", x, hlo.like(x, 0)), hlo.pointwise("negate", half), hlo.select(
        hlo.compare("EQ", x, hlo.like(x, 0)), x, half))  # fmt: skip


def _cosh(hlo: Builder, x: Value) -> Value:
    sides = (hlo.pointwise("exponential", side) for side in (x, hlo.pointwise("negate", x)))
    return hlo.pointwise("multiply", hlo.pointwise("add", *sides), hlo.like(x, 0.5))


def _asinh(hlo: Builder, x: Value) -> Value:
    """log1p(|x| + x * x / (1 + sqrt(x * x + 1))) with the sign of x; log(2 |x|) where x * x is huge."""
    size = hlo.pointwise("abs", x)
    one = hlo.like(x, 1)
    squared = hlo.pointwise("multiply", size, size)
    root = hlo.pointwise("sqrt", hlo.pointwise("add", squared, one))
    inner = hlo.pointwise("add", size, hlo.pointwise("divide", squared, hlo.pointwise("add", one, root)))
    huge = hlo.pointwise("add", hlo.pointwise("log", size), hlo.like(x, math.log(2)))
    is_huge = hlo.compare("GT", size, hlo.like(x, 1e100))
    size = hlo.select(is_huge, huge, hlo.pointwise("log_plus_one", inner))
    return hlo.select(hlo.compare("LT", x, hlo.like(x, 0)), hlo.pointwise("negate", size), hlo.select(
        hlo.compare("EQ", x, hlo.like(x, 0)), x, size))  # fmt: skip


def _acosh(hlo: Builder, x: Value) -> Value:
    """log1p(y + sqrt(y * (x + 1))) with y = x - 1; log(2 x) where x * x is huge."""
    one = hlo.like(x, 1)
    above = hlo.pointwise("subtract", x, one)
    root = hlo.pointwise("sqrt", hlo.pointwise("multiply", above, hlo.pointwise("add", x, one)))
    huge = hlo.pointwise("add", hlo.pointwise("log", x), hlo.like(x, math.log(2)))
    near = hlo.pointwise("log_plus_one", hlo.pointwise("add", above, root))
    found = hlo.select(hlo.compare("GT", x, hlo.like(x, 1e100)), huge, near)
    return hlo.select(hlo.compare("GE", x, one), found, hlo.like(x, math.nan))


def _atanh(hlo: Builder, x: Value) -> Value:
    doubled = hlo.pointwise("divide", hlo.pointwise("add", x, x), _one_minus(hlo, x))
    return hlo.pointwise("multiply", hlo.pointwise("log_plus_one", doubled), hlo.like(x, 0.5))


def _in_double(function: Callable[[Builder, Value], Value], hlo: Builder, made: Made, self: Value) -> Value:
    return hlo.convert(function(hlo, in_double(hlo, made, self)), made[0].dtype)


@lowers("aten.erf.default")
def erf(hlo: Builder, made: Made, self: Value) -> Value:
    if made[0].dtype == "float64":
        return _erf(hlo, hlo.convert(self, "float64"))
    return hlo.convert(_erf_single(hlo, hlo.wide(hlo.convert(self, made[0].dtype))), made[0].dtype)


_IN_DOUBLE: dict[str, Callable[[Builder, Value], Value]] = {
    "erfc": _erfc, "log2": partial(_log, 2.0), "log10": partial(_log, 10.0), "atan": _atan,
    "asin": _asin, "acos": _acos, "sinh": _sinh, "cosh": _cosh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh,
}  # fmt: skip
for _name, _function in _IN_DOUBLE.items():
    add(f"aten.{_name}.default", partial(_in_double, _function))
