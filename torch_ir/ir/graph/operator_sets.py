"""Sets of operators and dtypes that several rooms use; facts that need torch's schemas are in `ops/effects.py`."""

FLOATS = ("float64", "float32", "float16", "bfloat16")  # torch computes in these
DROPOUTS = tuple(f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_"))
CONVOLUTIONS = ("aten.conv1d", "aten.conv2d", "aten.conv3d", "aten.convolution.default")  # not transposed
