"""Families of operators that take the same time for the same sizes, and the sizes on which that time depends.

matmul             rows, columns, depth
batched_matmul     batch, rows, columns, depth
conv               output places, input channels, output channels, kernel elements
depthwise          output places, channels, kernel elements
attention          batch times heads, queries, keys, width of a head; `masked_attention` with a mask tensor, and
                   `broadcast_mask_attention` with one mask value for all keys, for which a GPU has no fused kernel
all others         bytes read and written

`compiled_matmul` and others are the same operators as compiled code calls them, with weights laid out beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from torch_ir.analysis.cost_model.flop_formulas import FORMULAS, LEFT_OPERANDS
from torch_ir.analysis.cost_model.node_costs import NodeCost
from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.analysis.shapes.size_polynomials import product, weight_of
from torch_ir.errors import INVALID_ARGUMENTS
from torch_ir.ir import OpNode
from torch_ir.ir.graph.operator_sets import FLOATS, base_name

VIEW, POINTWISE = "view", "pointwise"
IN_COMPILED = "compiled_"  # prefix of families of compiled code
_CONTRACTIONS: dict[str, tuple[str, ...]] = {
    "matmul": ("rows", "columns", "depth"),
    "batched_matmul": ("batch", "rows", "columns", "depth"),
    "conv": ("places", "inputs", "outputs", "kernel"),
    "depthwise": ("places", "channels", "kernel"),
    "attention": ("heads", "queries", "keys", "width"),
    "masked_attention": ("heads", "queries", "keys", "width"),
    "broadcast_mask_attention": ("heads", "queries", "keys", "width"),
}
LAID_OUT = ("matmul", "conv", "depthwise")
CONTRACTIONS = {**_CONTRACTIONS, **{f"{IN_COMPILED}{name}": _CONTRACTIONS[name] for name in LAID_OUT}}
_MEMBERS: dict[str, tuple[str, ...]] = {
    "gelu": ("gelu", "erf", "gelu_", "hardswish", "mish", "elu", "selu", "softplus", "log_sigmoid"),
    "silu": ("silu", "silu_", "sigmoid", "logit", "glu"),
    "tanh": ("tanh",),
    "exp": ("exp", "log", "log1p", "expm1", "exp2", "log2"),
    "sin": ("sin", "cos", "tan"),
    "pow": ("pow",),
    "div": ("div", "sqrt", "rsqrt", "reciprocal"),
    "cast": ("to", "_to_copy", "type_as"),
    "copy": ("clone", "copy", "repeat", "repeat_interleave", "pad", "constant_pad_nd"),
    "transpose": ("contiguous", "reshape", "flatten", "reshape_as", "_reshape_copy"),
    "cat": ("cat", "stack", "concat"),
    "fill": ("arange", "full", "zeros", "ones", "empty", "zeros_like", "ones_like", "full_like", "new_zeros",
             "new_ones", "new_full", "scalar_tensor", "eye", "tril", "triu", "linspace"),
    "reduce": ("sum", "mean", "amax", "amin", "max", "min", "var", "std", "any", "all", "prod", "argmax", "argmin",
               "linalg_vector_norm", "norm", "var_mean", "logsumexp"),
    "softmax": ("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"),
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "rms_norm": ("rms_norm", "_fused_rms_norm"),
    "batch_norm": ("batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "instance_norm"),
    "group_norm": ("group_norm", "native_group_norm"),
    "pool": ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
             "max_pool2d_with_indices"),
    "mean_pool": ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    "embedding": ("embedding",),
    "gather": ("index_select", "index", "_unsafe_index", "gather", "take", "take_along_dim", "index_copy",
               "index_put", "scatter", "scatter_add", "slice_scatter", "select_scatter", "roll", "flip"),
    "scan": ("cumsum", "cumprod", "sort", "topk", "argsort", "multinomial", "bincount", "histc"),
}  # fmt: skip
_FAMILY = {f"aten.{name}": family for family, names in _MEMBERS.items() for name in names}
BY_BYTES = (VIEW, POINTWISE, *_MEMBERS, f"{IN_COMPILED}pool")
AXES: Mapping[str, tuple[str, ...]] = {**CONTRACTIONS, **dict.fromkeys(BY_BYTES, ("bytes",))}
# A compiler merges these with their neighbours: they work element by element, or along one dimension.
FUSIBLE = frozenset((VIEW, POINTWISE, *_MEMBERS)) - {"gather", "scan", "pool"}
_NARROW = {"float16": "bfloat16", "float64": "float32"}  # dtypes that are not calibrated, and a similar one


class Point(NamedTuple):
    """The facts that the time of a node depends on."""

    family: str
    dtype: str
    sizes: tuple[float, ...]


def point_of(row: NodeCost) -> Point | None:
    """Return the family and sizes of a node; None for a contraction of no family, such as `einsum`."""
    node, name = row.node, base_name(row.node.op_type)
    dtype = _dtype_of(node)
    if name in _SIZES:
        try:
            family, sizes = _SIZES[name](node)
        except INVALID_ARGUMENTS:
            return None
        return Point(family, dtype, tuple(max(1.0, weight_of(size)) for size in sizes))
    if name in FORMULAS or weight_of(row.flops):
        return None
    family = VIEW if is_view(node) or not node.outputs else _FAMILY.get(name, POINTWISE)
    return Point(family, dtype, (weight_of(row.bytes),))


def is_fusible(node: OpNode) -> bool:
    """Whether a compiler merges a node with its neighbours into one kernel."""
    name = base_name(node.op_type)
    if not name.startswith(("aten.", "prims.")) or name in FORMULAS or not node.outputs:
        return False
    return is_view(node) or _FAMILY.get(name, POINTWISE) in FUSIBLE


@lru_cache(maxsize=64)
def similar(dtype: str) -> str:
    """Return the calibrated dtype whose times are nearest."""
    return dtype if dtype in ("float32", "bfloat16") else _NARROW.get(dtype, "float32")


def _dtype_of(node: OpNode) -> str:
    """Return the dtype in which a node computes: that of its first floating-point tensor."""
    tensors = (*node.inputs, *node.outputs)
    found = next((tensor.dtype for tensor in tensors if tensor.dtype in FLOATS), "float32")
    return similar(found)


Sizes = tuple[str, tuple[int | str, ...]]


def _matmul(left: str) -> Callable[[OpNode], Sizes]:
    def sizes(node: OpNode) -> Sizes:
        made, depth = node.outputs[0].shape, node[left].shape[-1]
        matrices = [tensor for tensor in node.inputs if len(tensor.shape) >= 3]
        if len(matrices) >= 2 and len(made) >= 3:
            return "batched_matmul", (product(*made[:-2]), made[-2], made[-1], depth)
        return "matmul", (product(*made[:-1]), made[-1] if made else 1, depth)

    return sizes


def _conv(node: OpNode) -> Sizes:
    weight, made = node["weight"].shape, node.outputs[0].shape
    spatial = len(weight) - 2
    is_transposed = "transpose" in node.op_type or node.attrs.get("transposed") is True
    kernel = product(*weight[2:])
    places = node["input"].shape if is_transposed else made
    count = product(*places[: -spatial - 1], *places[-spatial:])
    groups = node.attrs.get("groups", 1)
    if isinstance(groups, int) and groups > 1 and weight[1] == 1:
        return "depthwise", (count, weight[0], kernel)
    return "conv", (product(count, groups), weight[1], weight[0] // groups if isinstance(weight[0], int) else 1, kernel)


def _attention(node: OpNode) -> Sizes:
    query, key = node["query"].shape, node["key"].shape
    return _attention_family(node), (product(*query[:-2]), query[-2], key[-2], query[-1])


def _attention_family(node: OpNode) -> str:
    if "attn_mask" not in node.args:
        return "attention"
    mask = node["attn_mask"]
    while mask.producer is not None and base_name(mask.producer.op_type) == "aten.expand":
        mask = mask.producer.inputs[0]
    return "broadcast_mask_attention" if mask.shape[-1:] == (1,) else "masked_attention"


_CONVS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
_SIZES: dict[str, Callable[[OpNode], Sizes]] = {
    **{f"aten.{name}": _matmul(left) for name, left in LEFT_OPERANDS.items()},
    **{f"aten.{name}": _conv for name in _CONVS},
    "aten.scaled_dot_product_attention": _attention,
}
