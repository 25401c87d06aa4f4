"""Operator families, for colours only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from torch_ir.ir import IR, OpNode
from torch_ir.ir.json.json_fields import Dim

_FAMILIES: dict[str, str] = {
    "matmul": """
        addbmm addmm addmv addr baddbmm bilinear bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
        conv_transpose3d convolution _convolution dot einsum grouped_mm _grouped_mm linear matmul mm mv outer
        scaled_mm _scaled_mm tensordot lstm gru rnn_tanh rnn_relu lstm_cell gru_cell embedding embedding_bag""",
    "normalisation": """
        batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional native_batch_norm cudnn_batch_norm
        group_norm native_group_norm instance_norm layer_norm native_layer_norm local_response_norm rms_norm
        _fused_rms_norm weight_norm _weight_norm normalize renorm""",
    "activation": """
        relu relu6 prelu _prelu_kernel leaky_relu rrelu elu celu selu gelu glu silu mish sigmoid hardsigmoid
        hardswish hardtanh hardshrink softshrink tanhshrink softplus softsign log_sigmoid logsigmoid tanh softmax
        _softmax log_softmax _log_softmax threshold dropout native_dropout alpha_dropout feature_dropout""",
    "reduction": """
        all amax amin aminmax any argmax argmin avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
        adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d count_nonzero cross_entropy_loss cummax cummin cumprod cumsum linalg_norm
        linalg_vector_norm logcumsumexp logsumexp max max_pool1d max_pool2d max_pool3d max_pool2d_with_indices mean
        median min mode mse_loss nansum nll_loss norm prod sort std std_mean sum topk var var_mean""",
    "movement": """
        alias as_strided broadcast_to cat channel_shuffle chunk clone constant_pad_nd contiguous copy detach diagonal
        expand expand_as flatten flip fold gather im2col col2im index index_add index_copy index_put index_select lift
        lift_fresh lift_fresh_copy masked_fill masked_scatter masked_select movedim narrow pad permute pixel_shuffle
        pixel_unshuffle reflection_pad1d reflection_pad2d repeat repeat_interleave replication_pad1d
        replication_pad2d reshape roll scatter scatter_add scatter_reduce select select_scatter slice slice_scatter
        split split_with_sizes squeeze stack t tensor_split tile to _to_copy transpose tril triu unbind unflatten unfold
        unsafe_split unsqueeze upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_bicubic2d view
        view_as _unsafe_view""",
    "attention": """
        scaled_dot_product_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
        _scaled_dot_product_cudnn_attention _native_multi_head_attention flex_attention""",
    "communication": """
        all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_reduce
        all_reduce_coalesced all_to_all_single broadcast reduce_scatter_tensor reduce_scatter_tensor_coalesced
        wait_tensor""",
    "elementwise": """
        abs acos add addcdiv addcmul angle asin atan atan2 bitwise_and bitwise_left_shift bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min clip complex conj copysign cos cosh deg2rad div
        divide eq erf erfc erfinv exp exp2 expm1 fill floor floor_divide fmod frac ge gt heaviside hypot imag isfinite
        isinf isnan le lerp lgamma log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logit
        lt maximum minimum mul multiply nan_to_num ne neg negative polar pow real reciprocal remainder round
        rsqrt rsub sgn sign sin sinc sinh sqrt square sub subtract tan true_divide trunc where xlogy""",
}
_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names.split()}


_STRONGEST = (
    "attention", "matmul", "normalisation", "activation", "reduction", "elementwise", "movement", "communication",
)  # fmt: skip
_OPEN = 64  # for a size that a graph leaves open
_IN_NAMES = {"attention": "attention", "norm": "normalisation"}


def family_of(op_type: str) -> str:
    """Return the family of `aten.relu_.default` or `higher_order.flex_attention`; `other` if it is unknown."""
    parts = op_type.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return _FAMILY_OF.get(name) or _FAMILY_OF.get(name.rstrip("_"), "other")


class Families:
    """The families of the nodes of one graph; what the functions do is counted once for each."""

    def __init__(self) -> None:
        self._work: dict[IR, Counter[str]] = {}

    def of(self, node: OpNode, functions: Mapping[str, IR]) -> str:
        """Return the family of a node; of a layer, by its name, else the family inside that does most of the work."""
        if not node.is_call:
            return family_of(node.op_type)
        name = node.op_type.rpartition(".")[2].lower()
        named = next((family for part, family in _IN_NAMES.items() if part in name), "")
        work = self._work_of(node, functions) if not named else {}
        return named or max(work, key=lambda family: (work[family], -_STRONGEST.index(family)), default="other")

    def _work_of(self, node: OpNode, functions: Mapping[str, IR]) -> Mapping[str, int]:
        """Return how much the families of a node do, in steps for each element that it returns."""
        body = functions.get(node.attrs["function"]) if node.is_call else None
        if body is None:
            family = family_of(node.op_type)
            return {family: _steps(node, family)} if family in _STRONGEST else {}
        if body not in self._work:
            inside: Counter[str] = Counter()
            for inner in body.nodes:
                inside.update(self._work_of(inner, body.functions or functions))
            self._work[body] = inside
        return self._work[body]


def _steps(node: OpNode, family: str) -> int:
    """Estimate the operations of a node; open sizes count as 64, and a product takes one step for each term."""
    made = sum(_elements(tensor.shape) for tensor in node.outputs)
    if family == "movement":
        return 0
    if family == "attention":
        return 2 * made * _elements(node.inputs[1].shape[-2:-1]) if len(node.inputs) > 1 else made
    if family == "matmul" and len(node.inputs) > 1 and "embedding" not in node.op_type:
        weight = node.inputs[1].shape
        return made * (_elements(weight[1:]) if "conv" in node.op_type else _elements(node.inputs[0].shape[-1:]))
    return made


def _elements(shape: Sequence[Dim]) -> int:
    return math.prod(size if isinstance(size, int) else _OPEN for size in shape)
