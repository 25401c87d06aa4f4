"""Operators of torch with arithmetic that no formula counts: transforms, decompositions, distances, sparse products.

Reports name those that a graph contains. All other operators without a formula work element by element, reduce, copy
or look up, and their cost is that of the bytes they move.
"""

from __future__ import annotations

import re

from torch_ir.analysis.cost_model.flop_formulas import FORMULAS
from torch_ir.ir.graph.operator_sets import base_name

# Namespaces of torch, of its collectives, and of quantisation, whose operators are known.
_NAMESPACES = frozenset(("_c10d_functional", "aten", "prims", "higher_order", "torch_ir", "quantized_decomposed"))
_UNCOUNTED = re.compile(
    r"aten\.(?:"
    r"_?fft_(?!.*(?:shift|freq)).*|i?stft"
    r"|_?linalg_(?!vector_norm|diagonal|cross|vecdot|norm|check_errors|vander).*"
    r"|_?cdist.*|_?pdist.*|_euclidean_dist"
    r"|_?cholesky.*|(?:log|slog)?det|p?inverse|qr|geqrf|orgqr|ormqr|svd|lu_solve|_lu_with_info|triangular_solve"
    r"|matrix_(?:exp|power)|chain_matmul|kron|cov|corrcoef|_trilinear|_compute_linear_combination"
    r"|(?:h|s|ss)p?(?:add)?mm|_sparse_.*mm.*|_sparse_semi_structured_(?:linear|addmm|mm)|_cslt_sparse_mm.*|_spsolve"
    r"|(?:cudnn|miopen|mkldnn|_mps|_nnpack)_.*(?:conv|rnn|linear).*|_?cudnn_rnn|_lstm_mps|_?(?:slow|thnn)_.*conv.*"
    r"|_?conv_(?:depthwise.*|tbc)|quantized_(?:lstm|gru|rnn).*|_thnn_fused_.*|fbgemm_linear_.*"
    r"|_native_multi_head_attention|_transformer_encoder_layer_fwd|_triton_.*attention.*"
    r"|_(?:flash|efficient|cudnn)_attention_forward.*|_wrapped_quantized_linear.*|_foreach_mm"
    r")"
)


def is_uncounted(op_type: str) -> bool:
    """Whether the arithmetic of an operator is not counted: it is foreign to torch, or has no formula."""
    name = base_name(op_type)
    if name in FORMULAS:
        return False
    return name.partition(".")[0] not in _NAMESPACES or _UNCOUNTED.fullmatch(name.rstrip("_")) is not None
