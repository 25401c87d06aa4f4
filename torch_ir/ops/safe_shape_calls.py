"""Which of torch's shape rules may be called, and which of them in this process.

Graphs may be untrusted, and shape rules check less than kernels do: some crash, and some do work for every piece, step
or iteration in their arguments. Rules that take too long are not called at all. The rules of common operators run in
this process, all others in a child process (`analysis.shapes.shape_worker`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from torch_ir.ir import Layout
from torch_ir.ops.foldable import FAMILIES
from torch_ir.ops.torch_internals import DispatchKey, OpOverload, decomposition_table, schema_of

_MOST_PIECES = 1 << 14  # outputs of one call, and items of one list
_MOST_STEPS = 1 << 12
_MOST_ROUNDS = 64
# Their rules read invalid memory, or all of it: found by calling them with random arguments.
_NEVER = frozenset(
    (
        "_foreach_copy", "_new_zeros_with_same_feature_meta", "_nnpack_spatial_convolution", "_remove_batch_dim",
        "_saturate_weight_to_fp16", "_stack", "_thnn_differentiable_gru_cell_backward",
        "_thnn_differentiable_lstm_cell_backward", "conv_tbc_backward", "fractional_max_pool2d_backward",
        "histogramdd", "quantized_lstm_cell",
    )
)  # fmt: skip
_RECURRENT = frozenset(f"aten.{name}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer"))
# They repeat their work as often as this argument says.
_ROUNDS = {"aten.diff": "n", "aten.combinations": "r", "aten.matrix_power": "n", "aten.linalg_matrix_power": "n"}
_ROUNDS |= {**dict.fromkeys(_RECURRENT, "num_layers"), "aten.round": "decimals"}
_BY_SIZE = frozenset(("aten.bilinear", "aten._trilinear"))  # they repeat their work for every index of a dimension
_CUBIC = frozenset(("aten.linalg_multi_dot", "aten.chain_matmul", "aten.einsum"))  # in the number of their tensors
_DIVISORS = ("group", "groups", "num_groups")  # by which rules divide unchecked
# Operators of layers whose rules never crashed in thousands of hostile calls (tests/hostile_calls.py). In
# addition, the rules of the operators that fold constants run in this process.
_LAYERS = frozenset(
    (
        "_assert_tensor_metadata", "_log_softmax", "_softmax", "_unsafe_index", "adaptive_avg_pool1d",
        "adaptive_avg_pool2d", "addmm", "argsort", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "batch_norm",
        "bernoulli", "bmm", "celu", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d", "convolution", "dot", "einsum", "embedding", "empty", "empty_like", "full", "full_like",
        "glu", "group_norm", "hardsigmoid", "hardswish", "index_put", "instance_norm", "layer_norm",
        "linalg_vector_norm", "linear", "log_sigmoid", "log_softmax", "masked_scatter", "matmul", "max_pool1d",
        "max_pool2d", "max_pool2d_with_indices", "max_pool3d", "mish", "mm", "moveaxis", "mv", "native_batch_norm",
        "native_dropout", "native_group_norm", "native_layer_norm", "new_empty", "new_full", "new_ones", "new_zeros",
        "norm", "ones", "ones_like", "pad", "pixel_shuffle", "prelu", "rand", "rand_like", "randn", "randn_like",
        "reflection_pad1d", "reflection_pad2d", "relu6", "rms_norm", "scaled_dot_product_attention", "scalar_tensor",
        "scatter", "scatter_add", "selu", "softmax", "sort", "std", "topk", "unfold", "upsample_bilinear2d",
        "upsample_nearest2d", "var", "var_mean", "zeros", "zeros_like",
    )
)  # fmt: skip
_CHECKED = _LAYERS.union(*(family.names for family in FAMILIES))
_UNSAFE = frozenset(("quantized", "_quantized", "sparse"))  # namespaces; their outputs are not strided, either
_OF_TORCH = frozenset(
    (
        "aten", "inductor", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prims", "quantization",
        "quantized_decomposed", "rngprims", "static_runtime", "symm_mem",
    )
)  # fmt: skip
_QUANTIZED = frozenset(("qint8", "quint8", "qint32", "quint4x2", "quint2x4"))


def may_call_rule(
    operator: OpOverload, shapes: Sequence[Sequence[int]], dtypes: Collection[str], attrs: Mapping[str, Any]
) -> bool:
    """Whether torch's shape rule may be called: it returns, and soon."""
    name = f"{operator.namespace}.{schema_of(operator).name.partition('::')[2]}"
    return not (
        not _has_safe_rule(operator)
        or not _QUANTIZED.isdisjoint(dtypes)
        or any(isinstance(value, (list, tuple)) and len(value) > _MOST_PIECES for value in attrs.values())
        or any(isinstance(value, Layout) and value != "strided" for value in attrs.values())  # would run real kernels
        or any(attrs.get(divisor) == 0 for divisor in _DIVISORS)
        or (name in _ROUNDS and abs(_number(attrs, _ROUNDS[name])) > _MOST_ROUNDS)
        or (name in _RECURRENT and any(size > _MOST_STEPS for shape in shapes[:1] for size in shape[:2]))
        or (name in _BY_SIZE and any(size > _MOST_ROUNDS for shape in shapes for size in shape))
        or (name in _CUBIC and len(shapes) > _MOST_ROUNDS)
        or (_gives_list(operator) and _pieces(name, shapes, attrs) > _MOST_PIECES)
    )


def is_safe_in_process(operator: OpOverload, shapes: Sequence[Sequence[int]], attrs: Mapping[str, Any]) -> bool:
    """Whether the shape rule of an operator may run in this process: it is on the list, or user-defined."""
    if operator.namespace not in _OF_TORCH:
        return True
    if attrs.get("enable_gqa") and any(0 in shape for shape in shapes):  # divides by a number of heads
        return False
    namespace, name, overload = str(operator).split(".")
    return namespace == "aten" and (name in _CHECKED or f"{name}.{overload}" in _CHECKED)


@cache
def _has_safe_rule(operator: OpOverload) -> bool:
    """Whether an operator is public or has its own rule; of operators that write, only those like `relu_`."""
    name = schema_of(operator).name.partition("::")[2]
    if operator.namespace in _UNSAFE or name in _NEVER:
        return False
    if schema_of(operator).is_mutable and (name.startswith("_") or not name.endswith("_")):
        return False
    if "sparse" in name or name.startswith("quantized_"):
        return False
    if operator.namespace != "aten" or not name.startswith("_") or name.startswith("__"):
        return True
    keys = (DispatchKey.Meta, DispatchKey.CompositeImplicitAutograd)
    return operator in decomposition_table or any(map(operator.has_kernel_for_dispatch_key, keys))


@cache
def _gives_list(operator: OpOverload) -> bool:
    return any("List" in str(result.type) for result in schema_of(operator).returns)


def _pieces(name: str, shapes: Sequence[Sequence[int]], attrs: Mapping[str, Any]) -> int:
    """Return the maximum number of outputs."""
    largest = max((size for shape in shapes for size in shape), default=0)
    if "split_size" in attrs:
        return largest // max(_number(attrs, "split_size"), 1) + 1
    for count in ("chunks", "sections"):
        if count in attrs:
            return abs(_number(attrs, count))
    if "unbind" in name:
        dim, shape = _number(attrs, "dim"), shapes[0] if shapes else ()
        return shape[dim] if -len(shape) <= dim < len(shape) else largest
    return len(shapes)


def _number(attrs: Mapping[str, Any], name: str) -> int:
    value = attrs.get(name)
    return value if isinstance(value, int) else 0
