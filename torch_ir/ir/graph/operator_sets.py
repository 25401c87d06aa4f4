"""Names of operators, and sets of them and of dtypes that several rooms use.

Facts that need torch's schemas are in `ops/effects.py`.
"""

FLOATS = ("float64", "float32", "float16", "bfloat16")  # torch computes in these
DROPOUTS = tuple(f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_"))
CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution.default")  # not transposed
# prefixes; they restore quantised values in every run: computed once, they would keep the larger tensor in memory
RESTORING = ("quantized_decomposed.dequantize_", "quantized_decomposed.convert_element_type.")


def base_name(op_type: str) -> str:
    """Return `aten.conv2d` for `aten.conv2d.default`."""
    return ".".join(op_type.split(".")[:2])
