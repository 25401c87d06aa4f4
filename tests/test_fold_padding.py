"""Padding is folded into the convolution or the pool that reads it."""

import pytest

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir.passes.weights.fold_padding import fold_padding

_X = "x: float32[2, 4, 6, 7]"
_WEIGHTS = "w: float32[4, 4, 3, 3], v: float32[2, 4, 3]"


def test_a_convolution_pads_by_itself() -> None:
    """conv(pad(x)) is conv(x) with padding; the sizes of `pad` begin with the last dimension."""
    ir = small(
        _X,
        weights="w: float32[4, 4, 3, 3]",
        pad="aten.constant_pad_nd.default(x, [1, 1, 2, 2])",
        conv="aten.conv2d.default(pad, w, padding=[0, 1])",
    )
    assert text(optimized(ir, [fold_padding])) == lines("""
        graph(x: float32[2, 4, 6, 7]) {
          param w: float32[4, 4, 3, 3] = "w"
          conv2d: float32[2, 4, 8, 9] = aten.conv2d.default(input=x, weight=w, bias=None, \
stride=[1, 1], padding=[2, 2], dilation=[1, 1], groups=1)
          return conv2d
        }
    """)


@pytest.mark.parametrize(
    ("pad", "reader"),
    [
        ("aten.pad.default(x, [1, 1, 1, 1])", "aten.conv2d.default(pad, w)"),
        ("aten.pad.default(x, [1, 1], value=0.0)", "aten.conv2d.default(pad, w, stride=[2, 2])"),
        ("aten.constant_pad_nd.default(x, [2, 2, 1, 1, 0, 0])", "aten.conv2d.padding(pad, w, padding='valid')"),
        (
            "aten.constant_pad_nd.default(x, [1, 1, 1, 1])",
            "aten.convolution.default(pad, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
        ),
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1])", "aten.avg_pool2d.default(pad, [3, 3])"),
        ("aten.constant_pad_nd.default(x, [1, 1, 0, 0])", "aten.avg_pool2d.default(pad, [2, 2], divisor_override=3)"),
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1], -float('inf'))", "aten.max_pool2d.default(pad, [3], [2])"),
    ],
)
def test_every_reader(pad: str, reader: str) -> None:
    """Every form of padding and of its consumers; one node is left."""
    ir = small(_X, weights=_WEIGHTS, pad=pad, made=reader)
    after = optimized(ir, [fold_padding])
    assert [node.op_type.split(".")[1] for node in after.nodes] == [reader.split(".")[1]]


def test_every_reader_takes_what_it_needs() -> None:
    """Padding that two convolutions read is gone when both pad by themselves."""
    ir = small(
        _X,
        weights=_WEIGHTS,
        pad="aten.constant_pad_nd.default(x, [1, 1, 1, 1])",
        conv="aten.conv2d.default(pad, w)",
        conv_1="aten.conv2d.default(pad, w, dilation=[1, 1])",
        add="aten.add.Tensor(conv, conv_1)",
    )
    assert len(optimized(ir, [fold_padding]).nodes) == 3


@pytest.mark.parametrize(
    ("pad", "reader", "why"),
    [
        ("[1, 0, 1, 1]", "aten.conv2d.default(pad, w)", "it pads one side more than the other"),
        ("[-1, -1, 1, 1]", "aten.conv2d.default(pad, w)", "it crops, or pads by a symbolic size"),
        ("[1, 1, 1, 1, 1, 1]", "aten.avg_pool2d.default(pad, [3, 3])", "it pads the batch or the channels"),
        ("[2, 2, 2, 2]", "aten.avg_pool2d.default(pad, [3, 3])", "pooling pads by at most half of its window"),
        (
            "[1, 1, 1, 1]",
            "aten.conv2d.padding(pad, w, padding='same')",
            "the amount that padding='same' adds depends on the padded size",
        ),
    ],
)
def test_declines(pad: str, reader: str, why: str) -> None:
    """Padding that the consumer cannot represent."""
    ir = small(_X, weights=_WEIGHTS, pad=f"aten.constant_pad_nd.default(x, {pad})", made=reader)
    after, report = proved(ir, [fold_padding])
    assert text(after) == text(ir)
    assert [decline.why for decline in report.declined] == [why]


@pytest.mark.parametrize(
    ("pad", "reader"),
    [
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1], 0.5)", "aten.conv2d.default(pad, w)"),
        ("aten.pad.default(x, [1, 1, 1, 1], mode='reflect')", "aten.conv2d.default(pad, w)"),
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1])", "aten.max_pool2d.default(pad, [3, 3])"),
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1])", "aten.avg_pool2d.default(pad, [3, 3], ceil_mode=True)"),
        (
            "aten.constant_pad_nd.default(x, [1, 1, 1, 1])",
            "aten.avg_pool2d.default(pad, [3, 3], count_include_pad=False)",
        ),
        ("aten.constant_pad_nd.default(x, [1, 1, 1, 1])", "aten.conv_transpose2d.input(pad, w)"),
    ],
)
def test_stays(pad: str, reader: str) -> None:
    """Padding with another value than that of the reader, or one that the reader does not count."""
    ir = small(_X, weights=_WEIGHTS, pad=pad, made=reader)
    assert text(optimized(ir, [fold_padding])) == text(ir)
