"""Keep numbers in float64, and integers, where torch's ONNX exporter would round them to float32.

The exporter writes 0.1 in `x * 0.1` as a float32 constant and converts that to the dtype of `x`. Three repairs:

- Translations are wrapped: where an operator computes in float64, they get their numbers as float64 constants.
- Operators with an ONNX attribute for their number, which is a float32 by definition, as the slope of LeakyRelu, and
  translations that torch does not trace, are left out, so that torch decomposes them into arithmetic.
- What still computes in float32 is listed by `narrowed`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cache, wraps
from struct import pack, unpack
from typing import Any, Optional

import numpy
import onnx_ir
import torch
from onnxscript import evaluator, opset18
from onnxscript.onnx_types import TensorType
from torch import Tensor, fx

from torch_ir.ir import IR
from torch_ir.ops.torch_internals import ONNX_SIGNATURE, pytree

op: Any = opset18  # its annotations do not cover traced functions
_DOUBLE, _FLOAT = onnx_ir.DataType.DOUBLE, onnx_ir.DataType.FLOAT
_WIDE = ("float64", "complex128")
_WIDE_CODES = frozenset((onnx_ir.DataType.DOUBLE, onnx_ir.DataType.COMPLEX128))
_NARROW = frozenset((_FLOAT, onnx_ir.DataType.FLOAT16, onnx_ir.DataType.BFLOAT16))
_CONVERSIONS = frozenset(("Cast", "CastLike", "Expand"))  # operators whose dtype no other operand determines
_SIZES = frozenset(("Shape", "Size"))
_WIDE_INTEGERS = frozenset((onnx_ir.DataType.INT32, onnx_ir.DataType.INT64))
_FLOATS = {torch.float64, torch.complex128}
_INTEGERS = {torch.int32, torch.int64, torch.uint32, torch.uint64}
_NARROW_FLOATS = {torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32}
_FRACTIONS = (onnx_ir.AttributeType.FLOAT, onnx_ir.AttributeType.FLOATS)
_DECOMPOSED = frozenset(
    f"aten::{name}"
    for name in (
        # with a float32 attribute of ONNX
        "leaky_relu", "elu", "celu", "selu", "hardsigmoid", "hardswish", "hardshrink", "softshrink", "threshold",
        "layer_norm", "native_layer_norm", "batch_norm", "_native_batch_norm_legit_no_training", "group_norm",
        "native_group_norm", "instance_norm", "_native_batch_norm_legit", "_native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_functional", "native_batch_norm", "gelu", "addmm", "addmv", "addbmm", "baddbmm",
        "rms_norm", "linalg_vector_norm", "norm.Scalar", "norm.ScalarOpt_dim",
        # not traced
        "addcdiv", "addcmul", "fill.Scalar", "lerp.Scalar", "hardtanh", "softplus", "sinc", "special_sinc",
        "deg2rad", "rad2deg",
    )
)  # fmt: skip


def is_float32(value: float) -> bool:
    """Whether a number is the same in float32."""
    try:
        return value != value or unpack("f", pack("f", value))[0] == value
    except OverflowError:
        return False


def with_integer_division(registry: Any) -> None:
    """Round quotients of wide integers as integers; the exporter rounds them in float32."""
    for target in (torch.ops.aten.div.Tensor_mode, torch.ops.aten.div.Scalar_mode):
        translation = next(one.onnx_function for one in registry.get_decomps(target) if not one.is_complex)
        registry.register_op(target, _divided_by(translation), is_complex=False)


def _divided_by(translation: Callable[..., Any]) -> Callable[..., Any]:
    def divided(self: TensorType, other: TensorType, rounding_mode: Optional[str] = None) -> Any:  # noqa: UP045 - onnxscript reads it
        if rounding_mode is None or self.dtype not in _WIDE_INTEGERS:
            return translation(self, other, rounding_mode=rounding_mode)
        given: Any = other  # a number in `Scalar_mode`
        divisor = given if isinstance(given, onnx_ir.Value) else op.CastLike(op.Constant(value_int=given), self)
        quotient = op.Div(self, divisor)  # towards zero
        if rounding_mode == "trunc":
            return quotient
        zero = op.CastLike(op.Constant(value_int=0), self)
        rest = op.Sub(self, op.Mul(quotient, divisor))
        is_above = op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(divisor, zero)))
        return op.Sub(quotient, op.CastLike(is_above, self))

    return divided


def exact_for(registry: Any, ir: IR) -> Any:
    """Return the registry for a graph: itself, or one that keeps float64."""
    wide = [node for node in ir.all_nodes() if any(one.dtype in _WIDE for one in (*node.inputs, *node.outputs))]
    return _exact(registry) if wide else registry


@cache
def _exact(registry: Any) -> Any:
    exact = copy(registry)
    exact.functions = {
        target: [replace(one, onnx_function=_recorded_exactly(one.onnx_function)) for one in translations]
        for target, translations in registry.functions.items()
        if target not in _DECOMPOSED
    }
    return exact


def _recorded_exactly(translation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(translation)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if not _is_wide(args, kwargs):
            return translation(*args, **kwargs)
        with evaluator.default_as(_Exact(evaluator.default())):
            return translation(*args, **kwargs)

    return recorded


def _is_wide(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator reads float64, or makes it of numbers alone."""
    values = [one for one in pytree.tree_leaves([args, dict(kwargs)]) if isinstance(one, onnx_ir.Value)]
    return any(one.dtype == _DOUBLE for one in values) or kwargs.get("dtype") in _WIDE_CODES


class _Exact:
    """Passes operators on to the exporter's recorder, with float64 constants."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        if hasattr(recorder, "eval"):  # the interface that onnxscript prefers, of older evaluators
            self.eval = self._by_schema

    def _by_schema(self, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        number = _replaced_constant(schema.name, kwargs)
        if number is not None:
            args, kwargs = (), {"value": number}
        return self._recorder.eval(schema, _exact_operands(schema.name, args), kwargs)

    def eval_op(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        number = _replaced_constant(op.name, kwargs)
        if number is not None:
            args, kwargs = (), {"value": number}
        return self._recorder.eval_op(op, _exact_operands(op.name, args), kwargs)

    def eval_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Replace numbers that become tensors, unless another tensor determines their dtype."""
        params = _parameters(function)
        positional = [*zip(params, args, strict=False)]
        named = [(param, kwargs[param.name]) for param in params if param.name in kwargs]
        bound = {
            param.type_constraint.name: value.dtype
            for param, value in (*positional, *named)
            if param.is_param() and isinstance(value, onnx_ir.Value)
        }

        def exact(param: Any, value: Any) -> Any:
            is_free = param.is_param() and bound.get(param.type_constraint.name, _DOUBLE) == _DOUBLE
            return _constant(value) if is_free and _is_inexact(value) else value

        given = [*(exact(param, value) for param, value in positional), *args[len(positional) :]]
        options = {**kwargs, **{param.name: exact(param, value) for param, value in named}}
        return self._recorder.eval_function(function, given, options)


def _parameters(function: Any) -> list[Any]:
    signature = getattr(function, ONNX_SIGNATURE, None) or getattr(function, "op_signature", None)
    return [] if signature is None else list(signature.params)


def _replaced_constant(name: str, kwargs: Mapping[str, Any]) -> onnx_ir.TensorProtocol | None:
    """Return the value of a Constant whose numbers float32 cannot represent."""
    given = kwargs.get("value_float", kwargs.get("value_floats")) if name == "Constant" else None
    return _tensor(given) if _is_inexact(given) else None


def _exact_operands(name: str, args: Sequence[Any]) -> Sequence[Any]:
    is_free = name in _CONVERSIONS and args and _is_inexact(args[0])
    return [_constant(args[0]), *args[1:]] if is_free else args


def _constant(value: Any) -> Any:
    return op.Constant(value=_tensor(value))


def _tensor(value: Any) -> onnx_ir.TensorProtocol:
    return onnx_ir.tensor([value.real, value.imag] if isinstance(value, complex) else value, dtype=_DOUBLE)


def _is_inexact(*values: Any) -> bool:
    """Whether a number, or one of a list, is another one in float32."""
    parts = [part for part in pytree.tree_leaves(list(values)) if isinstance(part, (float, complex))]
    return not all(is_float32(part.real) and is_float32(part.imag) for part in parts)


# -- what is left -----------------------------------------------------------------------------------------------------


def narrowed(model: onnx_ir.Model) -> Iterator[fx.Node]:
    """Return the nodes of torch's graph that compute in float64 or wide integers, but in float32 in ONNX.

    The exporter inlines its functions; their nodes have no origin, and are attributed to the one before.
    """
    for graph in (model.graph, *model.functions.values()):
        before: fx.Node | None = None
        for made_from, run in itertools.groupby(graph, key=lambda node: node.meta.get("node")):
            nodes = [*run]
            kinds = _declared(nodes) if made_from is None else _dtypes(made_from)
            parts = [inner for node in nodes for inner in _with_inner_nodes(node)]
            origin = made_from or before
            before = origin
            if _NARROW_FLOATS & kinds or not kinds & (_FLOATS | _INTEGERS) or origin is None:
                continue
            rounds = kinds & _FLOATS and any(map(_rounds, parts))
            if rounds or any(map(_is_cast_to_float32, parts)):
                yield origin


def _declared(nodes: Sequence[onnx_ir.Node]) -> set[torch.dtype]:
    """Return the dtypes of what nodes read from others and what others read: the tensors of torch's graph."""
    inside = set(nodes)
    read = [one for node in nodes for one in node.inputs if one is not None and one.producer() not in inside]
    made = [
        one for node in nodes for one in node.outputs if one.is_graph_output() or not inside.issuperset(one.consumers())
    ]
    kinds = {one.dtype for one in (*read, *made)}
    return {onnx_ir.tensor_adapters.to_torch_dtype(kind) for kind in kinds if kind is not None}


def _with_inner_nodes(node: onnx_ir.Node) -> Iterator[onnx_ir.Node]:
    """Return a node and those of its graphs, such as the body of a Loop."""
    yield node
    for attr in node.attributes.values():
        if attr.type == onnx_ir.AttributeType.GRAPH:
            yield from attr.as_graph().all_nodes()


def _dtypes(node: fx.Node) -> set[torch.dtype]:
    values = [one.meta.get("val") for one in (*node.all_input_nodes, node)]
    return {one.dtype for one in pytree.tree_leaves(values) if isinstance(one, Tensor)}


def _is_cast_to_float32(node: onnx_ir.Node) -> bool:
    """Whether a node converts numbers that float32 may not represent, other than sizes."""
    if node.op_type != "Cast" or node.attributes.get_int("to", 0) not in _NARROW:
        return False
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    return producer is None or producer.op_type not in _SIZES


def _rounds(node: onnx_ir.Node) -> bool:
    """Whether a node has a fraction in float32, other than one that is exact, such as 0.5."""
    values = [attr.value for attr in node.attributes.values() if attr.type in _FRACTIONS]
    return any(not _is_short(one) for one in pytree.tree_leaves(values))


def _is_short(value: float) -> bool:
    """Whether the shortest decimal of a float32 is exactly the number, as of 0.5 but not of 0.1."""
    return not is_float32(value) or value in (0.0, 1.0) or float(str(numpy.float32(value))) == value
