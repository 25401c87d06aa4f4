"""Casts: one canonical form, no cast to the same dtype, and only rounding casts remain of a chain."""

import pytest
import torch

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, extract_ir
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.passes import optimize
from torch_ir.passes.clean.casts import HELD_BY


def _ops(ir: IR) -> list[str]:
    return [node.op_type for node in ir.nodes]


def _cast(source: str, dtype: str) -> str:
    return f"aten.to.dtype({source}, Dtype('{dtype}'))"


@pytest.mark.parametrize(
    "call",
    [
        "aten._to_copy.default(x, dtype=Dtype('float16'))",
        "aten.to.device(x, Device('cpu'), Dtype('float16'))",
        "aten.to.dtype_layout(x, dtype=Dtype('float16'), layout=Layout('strided'), device=Device('cpu'))",
        "aten.to.other(x, like)",
        "aten.type_as.default(x, like)",
        "aten.to.dtype(x, Dtype('float16'), True, True, MemoryFormat('preserve_format'))",
    ],
)
def test_every_spelling_becomes_one(call: str) -> None:
    """to.dtype is the simplest to run and to match."""
    ir = small("x: float32[3], like: float16[2]", cast=call)
    (node,) = optimized(ir, ["casts"], exact=True).nodes
    wanted = {"dtype": "float16", "non_blocking": False, "copy": False, "memory_format": None}
    assert (node.op_type, node.attrs) == ("aten.to.dtype", wanted)


def test_a_cast_to_the_dtype_that_is_there() -> None:
    """RMS norm in float32 casts to float32 and back."""
    ir = small(
        "x: float32[3]",
        to=_cast("x", "float32"),
        copy="aten._to_copy.default(to, dtype=Dtype('float32'))",
        exp="aten.exp.default(copy)",
    )
    assert text(optimized(ir, ["casts"], exact=True)) == lines("""
        graph(x: float32[3]) {
          exp: float32[3] = aten.exp.default(self=x)
          return exp
        }
    """)


def test_a_copy_that_the_caller_holds_stays_one() -> None:
    """The result did not share memory before."""
    ir = small("x: float32[3]", copy="aten._to_copy.default(x, dtype=Dtype('float32'))")
    after, report = proved(ir, ["casts"], exact=True)
    assert _ops(after) == ["aten._to_copy.default"]
    assert [decline.why for decline in report.declined] == [
        "the caller would receive a tensor that shares memory with another one"
    ]


def test_another_layout_stays() -> None:
    """A cast that packs elements does more than a cast."""
    packed = "aten._to_copy.default(t, dtype=Dtype('float16'), memory_format=MemoryFormat('contiguous_format'))"
    ir = small("x: float32[2, 3]", t="aten.t.default(x)", cast=packed)
    after, report = proved(ir, ["casts"], exact=True)
    assert _ops(after) == ["aten.t.default", "aten._to_copy.default"]
    assert [decline.why for decline in report.declined] == ["its result has another layout"]


@pytest.mark.parametrize("call", ["aten.to.device(x, Device('cpu'), Dtype('float32'))", "aten.type_as.default(x, y)"])
def test_another_device_stays(call: str) -> None:
    """In a graph with two devices, the device of a tensor is not inferred."""
    ir = small(
        "x: float32[3], y: float32[3]",
        cast=call,
        exp="aten.exp.default(cast)",
        away="aten.to.device(exp, Device('cuda:1'), Dtype('float32'))",
    )
    after, report = optimize(ir, passes=["casts"])
    assert _ops(after) == _ops(ir)
    assert {decline.why.partition(" to ")[0] for decline in report.declined} == {"it may move"}


@pytest.mark.parametrize(
    ("dtype", "between"),
    [("float32", "float64"), ("bfloat16", "float32"), ("int32", "int64"), ("int8", "bfloat16"), ("bool", "float16")],
)
def test_there_and_back(dtype: str, between: str) -> None:
    """Through a dtype that has all the values, nothing happens."""
    ir = small(f"x: {dtype}[4]", there=_cast("x", between), back=_cast("there", dtype), sin="aten.sin.default(back)")
    assert _ops(optimized(ir, ["casts"], exact=True)) == ["aten.sin.default"]


@pytest.mark.parametrize(
    ("dtype", "between"),
    [("float32", "bfloat16"), ("float16", "bfloat16"), ("int64", "float64"), ("int32", "float32"), ("int64", "int32")],
)
def test_what_rounds_stays(dtype: str, between: str) -> None:
    """Through a dtype that lacks some values, these are lost, and must be."""
    ir = small(f"x: {dtype}[4]", there=_cast("x", between), back=_cast("there", dtype), sin="aten.sin.default(back)")
    after, report = proved(ir, ["casts"], exact=True)
    assert _ops(after) == ["aten.to.dtype", "aten.to.dtype", "aten.sin.default"]
    assert [decline.why for decline in report.declined] == [f"the cast from {dtype} to {between} may round"]


def test_a_chain_is_one_cast() -> None:
    """float16 -> float32 -> float64 -> bfloat16 rounds only at its end; other consumers keep their value."""
    ir = small(
        "x: float16[4]",
        ["last", "exp"],
        a=_cast("x", "float32"),
        b=_cast("a", "float64"),
        last=_cast("b", "bfloat16"),
        exp="aten.exp.default(a)",
    )
    after = optimized(ir, ["casts"], exact=True)
    assert [(node.op_type, node.inputs[0].name) for node in after.nodes] == [
        ("aten.to.dtype", "x"),
        ("aten.to.dtype", "x"),
        ("aten.exp.default", "a"),
    ]


def test_whole_numbers_of_large_ones() -> None:
    """The conversion of out-of-range numbers depends on the kernel, so it is not rewritten."""
    ir = small("x: float16[4]", wide=_cast("x", "float32"), last=_cast("wide", "int8"))
    assert len(optimized(ir, ["casts"], exact=True).nodes) == 2
    truth = small("x: float16[4]", wide=_cast("x", "float32"), last=_cast("wide", "bool"))
    assert len(optimized(truth, ["casts"], exact=True).nodes) == 1


@pytest.mark.parametrize("dtype", sorted(HELD_BY))
def test_dtypes_that_have_every_value(dtype: str) -> None:
    """A round trip through the wider dtype restores every value, bit for bit."""
    kind = TORCH_DTYPES[dtype]
    width = torch.empty(0, dtype=kind).element_size()
    if dtype == "bool":
        values = torch.tensor([False, True])
    elif width == 1:
        values = torch.arange(256).to(torch.uint8).view(kind)
    elif width == 2:
        values = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(kind)
    else:
        values = torch.randint(-(2**31), 2**31, (20_000,)).to(torch.int32).view(kind)
    for between in HELD_BY[dtype]:
        back = values.to(TORCH_DTYPES[between]).to(kind)
        same = (back == values) | ((back != back) & (values != values))
        assert same.all(), between


def test_a_model_in_bfloat16_keeps_its_casts() -> None:
    """Norms that compute in float32 do so afterwards."""

    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.to(torch.float32)
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    for dtype, count in ((torch.bfloat16, 2), (torch.float32, 0)):
        ir = extract_ir(Norm().eval(), (torch.empty(2, 8, device="meta", dtype=dtype),))
        assert _ops(optimized(ir, ["casts", "dead-code"], exact=True)).count("aten.to.dtype") == count
