"""Quantised values: a pair of conversions that restores the same numbers is removed."""

from tests.rewriting import optimized, proved, small

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
RANGE = "3, -128, 127, Dtype('int8')"


def pairs(second: str) -> dict[str, str]:
    """Quantise, go back, quantise by the second scale, go back."""
    return {
        "q": f"{QUANTIZE}(x, 0.1, {RANGE})",
        "d": f"{DEQUANTIZE}(q, 0.1, {RANGE})",
        "q_1": f"{QUANTIZE}(d, {second}, {RANGE})",
        "d_1": f"{DEQUANTIZE}(q_1, {second}, {RANGE})",
        "relu": "aten.relu.default(d_1)",
    }


def test_a_second_pair_goes() -> None:
    """Quantising twice in the same way returns the same numbers."""
    after = optimized(small("x: float32[64]", **pairs("0.1")), ["quantization", "dead-code"], exact=True)
    assert [node.name for node in after.nodes] == ["q", "d_1", "relu"]


def test_another_scale_stays() -> None:
    """Quantising with another scale is different, and the report says so."""
    after, report = proved(small("x: float32[64]", **pairs("0.3")), ["quantization"], exact=True)
    assert len(after.nodes) == 5
    assert [decline.why for decline in report.declined] == ["its quantisation parameters differ"]
