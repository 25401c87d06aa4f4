"""Every feature of a model survives the file bit for bit, or is refused at capture with a one-line error."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torch_ir import ExecutionError, IRExecutor, TorchIRError, extract_ir
from torch_ir.ir import IR, TensorData
from torch_ir.ir.files.side_file import StoredData
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES

QUANTISED = [name for name in TORCH_DTYPES if name.startswith(("qint", "quint"))]
PLAIN = [name for name in TORCH_DTYPES if name not in QUANTISED]
IEEE = ("float64", "float32", "float16", "bfloat16")


class Call(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Held(nn.Module):
    """A model that applies a function to a buffer or to a plain tensor attribute."""

    def __init__(self, held: torch.Tensor, function: Callable[[torch.Tensor], Any], as_buffer: bool) -> None:
        super().__init__()
        self.function = function
        if as_buffer:
            self.register_buffer("held", held)
        else:
            self.held = held

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.held), x + 1


def through_a_file(ir: IR, folder: Path, inline_limit: int | None = None) -> IR:
    """The graph after a visit to the disk; a second visit must not change a byte."""
    ir.save(folder / "graph.json", inline_limit=inline_limit)
    again = IR.load(folder / "graph.json")
    assert again.to_json() == ir.to_json()
    return again


def check_same(model: nn.Module, folder: Path, *inputs: Any) -> IR:
    """Extract, save, load, run: outputs have the bits and strides of the model's own."""
    ir = through_a_file(extract_ir(model.eval(), inputs, strict=False), folder)
    assert_same(IRExecutor(ir, model.state_dict())(*inputs), model(*inputs))
    return ir


def assert_same(one: Any, other: Any) -> None:
    if isinstance(other, (tuple, list)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif isinstance(other, torch.Tensor):
        facts = [(t.dtype, t.shape, t.stride(), t.layout, t.device) for t in (one, other)]
        assert facts[0] == facts[1]
        assert bits(one) == bits(other)
    else:
        assert repr(one) == repr(other)


def bits(tensor: torch.Tensor) -> bytes:
    return from_tensor(tensor).raw


# -- dtypes -----------------------------------------------------------------------------------------------------------


def values_of(dtype: str, count: int = 24) -> torch.Tensor:
    """Random bits: of floats, these are also subnormal numbers and payloads of not-a-number; the special ones first."""
    generator = torch.Generator().manual_seed(len(dtype))
    raw = torch.randint(0, 256, (count * DTYPES[dtype],), dtype=torch.uint8, generator=generator)
    found = (raw % 2 if dtype == "bool" else raw).view(TORCH_DTYPES[dtype])
    if dtype in IEEE:
        special = [-0.0, math.inf, -math.inf, math.nan, torch.finfo(found.dtype).smallest_normal / 2]
        found[: len(special)] = torch.tensor(special, dtype=found.dtype)
    return found.reshape(2, -1)


class Everywhere(nn.Module):
    """One dtype as an input, a weight, a constant in the text and a constant beside the file."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.register_buffer("weight", values_of(dtype))
        self.constant = values_of(dtype, 12)
        self.register_buffer("large", values_of(dtype, 100), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(-1), self.weight.view(-1), self.constant.view(-1), self.large.view(-1)


@pytest.mark.parametrize("dtype", PLAIN)
def test_every_dtype_survives_everywhere(dtype: str, tmp_path: Path) -> None:
    """As input, weight, inline constant and side-file constant: the same bits are returned."""
    model, x = Everywhere(dtype).eval(), values_of(dtype)
    limit = 12 * DTYPES[dtype]
    ir = through_a_file(extract_ir(model, (x,), strict=False), tmp_path, limit)
    assert {type(data) for data in ir.constants.values()} == {TensorData, StoredData}
    assert_same(IRExecutor(ir, {"weight": model.weight})(x), model(x))


def test_the_list_of_dtypes_is_that_of_torch() -> None:
    """A new dtype of torch fails this test until the format has a name for it."""
    assert set(TORCH_DTYPES.values()) == {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()} == DTYPES


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_elements_survive_with_any_strides(data: st.DataObject) -> None:
    """Row-major bytes and strides restore the tensor: transposed, stepped, expanded or overlapping."""
    dtype = TORCH_DTYPES[data.draw(st.sampled_from(PLAIN))]
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    stride = data.draw(st.lists(st.integers(0, 6), min_size=len(shape), max_size=len(shape)))
    memory = torch.arange(100 * dtype.itemsize).to(torch.uint8)
    tensor = (memory % 2 if dtype == torch.bool else memory).view(dtype).as_strided(shape, stride)
    stored = from_tensor(tensor)
    assert stored.shape == tuple(shape)
    assert bits(to_tensor(stored)) == bits(to_tensor(stored, stride)) == stored.raw
    assert to_tensor(stored).is_contiguous()
    if tensor.numel():
        assert to_tensor(stored, stride).stride() == tuple(stride)


# -- attributes -------------------------------------------------------------------------------------------------------

X = torch.arange(24.0).reshape(2, 3, 4)
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda x: (x.to(torch.float8_e4m3fn), x.sum(dtype=torch.complex128), torch.zeros(2, dtype=torch.uint32)),
    "device": lambda x: (x.to("cpu"), torch.ones(2, device="cpu"), x.to(torch.device("cpu", 0), torch.float64)),
    "layout": lambda x: torch.empty_like(x, layout=torch.strided).fill_(3),
    "memory format": lambda x: (
        x[None].to(memory_format=torch.channels_last),
        x[None, None].clone(memory_format=torch.channels_last_3d),
        x.transpose(0, 1).clone(memory_format=torch.preserve_format),
        x.transpose(0, 1).contiguous(memory_format=torch.contiguous_format),
    ),
    "no generator": lambda x: torch.dropout(x, 0.5, False) + torch.zeros_like(x).bernoulli_(0.0, generator=None),
    "special floats": lambda x: (
        torch.clamp(x, -math.inf, math.inf),
        torch.full((2,), math.nan),
        torch.full((2,), -0.0),
        x.masked_fill(x > 3, -math.inf),
        torch.nan_to_num(x / 0, nan=-0.0, posinf=math.inf),
        torch.full((2,), 5e-324, dtype=torch.float64),
        torch.full((2,), 1.7976931348623157e308, dtype=torch.float64),
    ),
    "large ints": lambda x: (
        torch.full((2,), 2**63 - 1),
        torch.full((2,), -(2**63)),
        torch.full((2,), 2**64 - 1, dtype=torch.uint64),
        x[:, : 2**63 - 1],
    ),
    "complex": lambda x: (
        x * (1 - 2j),
        torch.full((2,), complex(math.nan, -0.0)),
        torch.full((2,), complex(-math.inf, math.inf), dtype=torch.complex128),
    ),
    "text": lambda x: (torch.einsum("abc,adc->bd", x, x), torch.div(x, 2, rounding_mode="floor")),
    "lists with None": lambda x: (x[:, None, torch.tensor([0, 2])], x[..., torch.tensor([True, False, True, False])]),
    "empty lists": lambda x: (
        x.sum(dim=[]),
        x.sum().permute([]),
        torch.zeros([]),
        x.new_empty([0]),
        x[0, 0, 0].view([]),
    ),
    "bools": lambda x: (x.std(0, unbiased=False, keepdim=True), torch.full((2,), True)),
    "nested output": lambda x: {"a": [x + 1, None, 3], "b": (2.5, "text", {"c": math.inf, 4: -0.0})},
    "no elements": lambda x: (x[:0] + 1, torch.cat([x[:0], x]), x[:, :0].sum(1), torch.zeros(0, 3) @ torch.zeros(3, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_attributes_survive(name: str, tmp_path: Path) -> None:
    """Every kind of argument round-trips through the file."""
    check_same(Call(CALLS[name]), tmp_path, X)


SCHEMA = "(Tensor x, str text, str[] words, float[] numbers, bool[] flags) -> Tensor"


@torch.library.custom_op("survival::tell", mutates_args=(), schema=SCHEMA)
def tell(x: torch.Tensor, text: str, words: list[str], numbers: list[float], flags: list[bool]) -> torch.Tensor:
    """Describe its arguments."""
    return x + len(text) + sum(map(len, words)) + sum(numbers) + sum(flags)


@tell.register_fake
def _(x: torch.Tensor, text: str, words: list[str], numbers: list[float], flags: list[bool]) -> torch.Tensor:
    return torch.empty_like(x)


TEXT = '"quoted" \\ / \b\f\n\r\t \x00\x1f\x7f \u2028 é 漢字 😀 $dtype {"$float": "nan"}'


def test_text_of_any_kind_survives(tmp_path: Path) -> None:
    """Quotes, escapes, control characters and all of Unicode; lists of text, empty ones too."""
    ir = check_same(Call(lambda x: tell(x, TEXT, ["", TEXT, "$expr"], [-0.0, math.inf], [True])), tmp_path, X)
    attrs = ir.node("tell").attrs
    assert attrs["text"] == TEXT
    assert attrs["words"] == ["", TEXT, "$expr"]
    assert repr(attrs["numbers"]) == "[-0.0, inf]"
    check_same(Call(lambda x: tell(x, "", [], [], [])), tmp_path, X)


def test_tensors_of_no_dimension_and_of_no_element_survive(tmp_path: Path) -> None:
    """As inputs, as constants and as weights."""
    for held in (torch.tensor(math.nan), torch.tensor(True), torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int8)):
        check_same(Call(lambda x: (x.clone(), x.shape[0] if x.dim() else 0)), tmp_path, held)
        for as_buffer in (False, True):
            check_same(Held(held, torch.clone, as_buffer), tmp_path, X)


# -- strides and layouts ----------------------------------------------------------------------------------------------

LAID_OUT = {
    "row-major": torch.arange(96.0).reshape(2, 3, 4, 4),
    "transposed": torch.arange(96.0).reshape(2, 4, 4, 3).transpose(1, 3),
    "channels last": torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": torch.arange(8.0).reshape(2, 1, 1, 4).expand(2, 3, 4, 4),
    "stepped": torch.arange(192.0).reshape(2, 3, 4, 8)[..., ::2],
    "with an offset": torch.arange(144.0).reshape(3, 3, 4, 4)[1:],
}
CAPTURED = ("row-major", "transposed", "stepped")
READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: x.view(2, -1),
    "view as it lies": lambda x: x.transpose(1, 3).view(2, -1),
    "reshape": lambda x: (x.reshape(2, -1), x.flatten(1), x.transpose(1, 2).reshape(-1)),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)) * 1,
    "elementwise": lambda x: (x + 1, x.relu(), torch.empty_like(x).fill_(1), x.clone()),
    "convolution": lambda x: torch.nn.functional.conv2d(x, torch.ones(2, 3, 3, 3)),
    "view of another dtype": lambda x: x.view(torch.int32) * 1,
}


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    try:
        return function(x)
    except (RuntimeError, ExecutionError):
        return "refused"


@pytest.mark.parametrize("reader", READERS)
def test_other_strides_than_captured_give_what_the_model_gives(reader: str, tmp_path: Path) -> None:
    """On any other layout, the graph computes what the model computes, or raises where the model does."""
    function = READERS[reader]
    graphs = 0
    for captured in (LAID_OUT[name] for name in CAPTURED):
        if outcome(function, captured) == "refused":
            with pytest.raises(TorchIRError):
                extract_ir(Call(function).eval(), (captured,), strict=False)
            continue
        graphs += 1
        ir = through_a_file(extract_ir(Call(function).eval(), (captured,), strict=False), tmp_path)
        run = IRExecutor(ir, {})
        for x in LAID_OUT.values():
            assert_same(outcome(run, x), outcome(function, x))
    assert graphs


ASKING: dict[str, Callable[[torch.Tensor], Any]] = {
    "is_contiguous": lambda x: x + 1 if x.is_contiguous() else x - 1,
    "of a format": lambda x: x * 2 if x.is_contiguous(memory_format=torch.channels_last) else x * 3,
    "stride": lambda x: x + x.stride(0),
    "strides of another": lambda x: (x * 2) + sum((x * 2).stride()),
}


@pytest.mark.parametrize("question", ASKING)
def test_a_model_that_asks_for_strides_takes_those_of_the_capture(question: str, tmp_path: Path) -> None:
    """The strides that it read are fixed in the graph: the same layout works, others are rejected."""
    function = ASKING[question]
    for captured in (LAID_OUT[name] for name in CAPTURED):
        ir = check_same(Call(function), tmp_path, captured)
        assert ir.fixed_layout.startswith("tests/test_survival.py:")
        run = IRExecutor(ir.clone(), {})
        for x in LAID_OUT.values():
            if x.stride() == captured.stride():
                assert_same(run(x), function(x))
            else:
                with pytest.raises(ExecutionError, match=f"{ir.fixed_layout} depends on strides and was captured"):
                    run(x)


def test_strides_of_dimensions_of_one_do_not_matter(tmp_path: Path) -> None:
    """Nothing can be stepped over there, nor in a tensor without elements."""
    run = IRExecutor(check_same(Call(ASKING["is_contiguous"]), tmp_path, torch.ones(2, 1, 3)), {})
    assert_same(run(torch.ones(2, 3, 1).transpose(1, 2)), torch.ones(2, 3, 1).transpose(1, 2) + 1)


def test_strides_may_vary_with_sizes(tmp_path: Path) -> None:
    """Row-major and captured strides follow the sizes of the call."""
    sizes = {"dynamic_shapes": ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},), "strict": False}
    for x, y in ((torch.ones(4, 3), torch.ones(6, 5)), (torch.ones(3, 4).t(), torch.ones(5, 6).t())):
        ir = through_a_file(extract_ir(Call(ASKING["is_contiguous"]).eval(), (x,), **sizes), tmp_path)
        assert_same(IRExecutor(ir, {})(y), ASKING["is_contiguous"](y))
        with pytest.raises(ExecutionError, match="depends on strides"):
            IRExecutor(ir, {})(y.t().contiguous().t() if y.is_contiguous() else y.contiguous())


@pytest.mark.parametrize("as_buffer", [False, True])
@pytest.mark.parametrize("layout", LAID_OUT)
def test_strides_of_constants_and_weights_survive(layout: str, as_buffer: bool, tmp_path: Path) -> None:
    """Constants and weights keep their strides, so that views of them are the same; gaps are not kept."""
    held = LAID_OUT[layout]
    inside = {name: reader for name, reader in READERS.items() if (layout, name) != ("stepped", "as_strided")}
    functions = [function for function in inside.values() if outcome(function, held) != "refused"]
    check_same(Held(held, lambda t: [function(t) for function in functions], as_buffer), tmp_path, X)


def test_a_conjugate_or_negated_view_survives_as_its_values(tmp_path: Path) -> None:
    """Lazily conjugated and negated constants are stored as their values."""
    number = torch.tensor([1 + 2j, complex(math.nan, -0.0)])
    check_same(Held(number.conj(), lambda t: t + 0, False), tmp_path, X)
    check_same(Held(number.conj().imag, lambda t: t + 0, False), tmp_path, X)


def test_sparse_inputs_and_weights_run(tmp_path: Path) -> None:
    """Sparse inputs of every kind, and sparse weights of coordinates."""
    eye = torch.eye(4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # torch about its own state of work
        for sparse in (eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr((2, 2))):
            check_same(Call(lambda x: x.to_dense() + 1), tmp_path, sparse)
        check_same(Held(eye.to_sparse(), lambda t: t.to_dense(), True), tmp_path, X)


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    """Quantised and nested tensors, compressed weights and packed weights: one sentence with the name and a way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about its own state of work
        quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        packed = nn.Sequential(torch.ao.nn.quantized.Linear(4, 4))
        compressed = torch.eye(3).to_sparse_csr()

    def refusal(model: nn.Module, *inputs: torch.Tensor) -> str:
        with pytest.raises(TorchIRError) as caught:
            extract_ir(model.eval(), inputs, strict=False)
        return str(caught.value)

    def held(tensor: torch.Tensor, as_buffer: bool = True) -> str:
        return refusal(Held(tensor, torch.clone, as_buffer), X)

    way_out = "which cannot be traced; dequantise it, or quantise the model with torchao"
    assert refusal(Call(torch.neg), quantised) == f"input[0] is a quantised tensor (torch.qint8), {way_out}"
    assert held(quantised) == held(quantised, False) == f"'held' is a quantised tensor (torch.qint8), {way_out}"
    assert held(nested).startswith("'held' is a nested tensor")
    assert refusal(Call(torch.neg), nested).startswith("input[0] is a nested tensor")
    assert held(compressed) == held(compressed, False)
    assert held(compressed).startswith("'held' has the layout torch.sparse_csr, which cannot be traced as a weight")
    assert "a constant cannot have layout torch.sparse_coo" in held(torch.eye(3).to_sparse(), False)
    assert refusal(packed, torch.ones(2, 4)).startswith("'0._packed_params._packed_params' is a LinearPackedParamsBase")
