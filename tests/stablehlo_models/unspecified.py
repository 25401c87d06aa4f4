"""Results that XLA may compute differently from eager, and why; docs/stablehlo.md says the same."""

# values that XLA flushes to zero on the CPU, and those whose sums overflow or not, depending on their order
SKIPPED = ("denormal", "large")
# operators that may differ, and why
UNSPECIFIED = {
    **dict.fromkeys(("topk", "kthvalue", "msort"), "torch does not define the order of equal elements"),
    **dict.fromkeys(
        ("nn.functional.conv_transpose1d", "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d"),
        "NaN and infinity in the weight reach inserted zeros",
    ),
    **dict.fromkeys(
        (
            "nn.functional.interpolate.bilinear",
            "nn.functional.interpolate.trilinear",
            "nn.functional.upsample_bilinear",
        ),
        "torch's decomposition rounds uint8 otherwise, and spreads infinity",
    ),
    **dict.fromkeys(
        ("nn.functional.grid_sample", "nn.functional.multilabel_margin_loss", "native_dropout_backward"),
        "torch's decomposition treats NaN otherwise",
    ),
    "masked.logsumexp": "overflow of integers",
    "__rdiv__": "XLA replaces x * bool by a choice",
}
