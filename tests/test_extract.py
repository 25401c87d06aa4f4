"""extract_ir: the documented call, the facts of a model that are kept, and the warnings."""

import base64
import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.proof import captured, line_of, module, proved, verdict
from torch_ir import (
    IR,
    CaptureWarning,
    ConversionError,
    ExportError,
    IRExecutor,
    convert_exported_program,
    export_model,
    extract_ir,
    meta_init,
)
from torch_ir.capture.build_on_meta import real_init
from torch_ir.ir import Device
from torch_ir.ops.tensor_data import from_tensor

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
ON_META = torch.empty(3, 4, device="meta")


class Mlp(nn.Module):
    """The model of the README."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.relu(self.fc1(x)))


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make().eval()


# -- the documented call ---------------------------------------------------------------------------------------------


def test_readme_example() -> None:
    """The model of the README produces the JSON of the README."""
    document = extract_ir(on_meta(Mlp), (torch.randn(1, 4, device="meta"),)).to_dict()
    assert document["model_name"] == "Mlp"
    assert document["graph_inputs"] == [{"name": "x", "shape": [1, 4], "dtype": "float32"}]
    assert document["graph_outputs"] == [{"name": "linear_1", "shape": [1, 2], "dtype": "float32"}]
    assert document["weight_name_mapping"]["p_fc1_weight"] == "fc1.weight"
    assert [(weight["name"], weight["shape"]) for weight in document["weights"]] == [
        ("fc1.weight", [8, 4]),
        ("fc1.bias", [8]),
        ("fc2.weight", [2, 8]),
        ("fc2.bias", [2]),
    ]
    assert [node["op_type"] for node in document["nodes"]] == [
        "aten.linear.default",
        "aten.relu.default",
        "aten.linear.default",
    ]
    assert [tensor["name"] for tensor in document["nodes"][0]["inputs"]] == ["x", "p_fc1_weight", "p_fc1_bias"]


def test_model_name() -> None:
    """The default is the class name; an empty name is allowed."""
    model = on_meta(Mlp)
    assert extract_ir(model, (ON_META,)).model_name == "Mlp"
    assert extract_ir(model, (ON_META,), model_name="tiny").model_name == "tiny"
    assert extract_ir(model, (ON_META,), model_name="").model_name == ""


def test_strict_refuses_real_parameters() -> None:
    """By default a real parameter is an error that names it and lists three remedies."""
    with pytest.raises(ExportError, match=r"Model must be on meta device .*'fc1\.weight'.*strict=False") as caught:
        extract_ir(Mlp().eval(), (ON_META,))
    assert "torch.device('meta')" in str(caught.value)
    assert "model.to('meta')" in str(caught.value)


def test_strict_refuses_real_inputs() -> None:
    """By default a real example input is an error that names it, however deeply nested."""
    with pytest.raises(ExportError, match=r"Example inputs must be on meta device: input\[0\] is on cpu.*'meta'"):
        extract_ir(on_meta(Mlp), (X,))
    model = on_meta(lambda: module(lambda self, x, *, extra: x + extra["y"][0]))
    with pytest.raises(ExportError, match=r"input\['extra'\]\['y'\]\[0\] is on cpu"):
        extract_ir(model, (ON_META,), kwargs={"extra": {"y": [X]}})


def test_real_model_is_left_as_it_was() -> None:
    """With strict=False parameters may be real: each is the same object with the same values afterwards."""
    model = Mlp().eval()
    model.register_buffer("steps", torch.zeros(()))
    before = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    ir = extract_ir(model, (X,), strict=False)
    for name, value in model.state_dict(keep_vars=True).items():
        original, values = before[name]
        assert value is original
        assert torch.equal(value, values)
    assert ir.constants == {}
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_model_is_left_as_it_was_when_forward_raises() -> None:
    """Even if forward fails midway, every attribute of the model is restored."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.layer(x) * self.scale * self.table["rows"][0]
        raise ValueError("no further")

    model = on_meta(
        lambda: module(
            forward, layer=nn.Linear(4, 4), scale=torch.ones(4), table={"rows": [torch.ones(4)]}, buffers={"b": ON_META}
        )
    )
    before = {name: dict(vars(part)) for name, part in model.named_modules()}
    tables = {name: (dict(part._parameters), dict(part._buffers)) for name, part in model.named_modules()}
    with pytest.raises(ExportError, match="no further"):
        extract_ir(model, (ON_META,))
    for name, part in model.named_modules():
        assert list(vars(part)) == list(before[name])
        assert all(vars(part)[key] is value for key, value in before[name].items())
        for table, old in zip((part._parameters, part._buffers), tables[name], strict=True):
            assert list(table) == list(old)
            assert all(table[key] is value for key, value in old.items())


def test_no_weight_value_in_the_file() -> None:
    """Weight values are nowhere in the JSON, even if the model and the exported program have them."""
    model = module(lambda self, x: self.layer(x), layer=nn.Linear(4, 4))
    nn.init.constant_(model.layer.weight, 0.123456789)
    texts = [
        extract_ir(model, (X,), strict=False).to_json(),
        convert_exported_program(torch.export.export(model, (X,))).to_json(),
    ]
    raw = base64.b64encode(from_tensor(model.layer.weight).raw).decode()
    for text in texts:
        assert "0.1234" not in text
        assert raw not in text
        assert json.loads(text).get("constants") is None


def test_graph_speaks_of_cpu() -> None:
    """A model and inputs on meta are traced as if on cpu: no attribute is meta, and literals run."""

    def forward(self: Any, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0], device=x.device)
        return self.embed(positions) + x.new_zeros(4) + torch.zeros(3, 4, device=x.device) + torch.ones_like(x)

    model = on_meta(lambda: module(forward, embed=nn.Embedding(8, 4)))
    ir = extract_ir(model, (ON_META,))
    devices = [value for node in ir.nodes for value in node.attrs.values() if isinstance(value, Device)]
    assert set(devices) == {"cpu"}
    assert "meta" not in ir.to_json()
    proved(module(forward, embed=nn.Embedding(8, 4)), X)


def test_default_device_meta() -> None:
    """Extraction under `with torch.device("meta")` keeps the values of literals in forward."""
    with torch.device("meta"):
        model = module(lambda self, x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]))
        ir = extract_ir(model, (torch.empty(3, 4),))
    assert torch.equal(IRExecutor(ir, {})(torch.ones(3, 4))[0], torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_real_and_meta_give_the_same_graph() -> None:
    """Nothing in the graph depends on whether weights and inputs had values."""
    from_real = extract_ir(Mlp().eval(), (X,), strict=False)
    assert from_real.to_json() == extract_ir(on_meta(Mlp), (ON_META,)).to_json()


def test_export_model_gives_the_exported_program() -> None:
    """The extension guide's debugging call: an ExportedProgram whose graph can be printed."""
    exported = export_model(Mlp().eval(), (X,), strict=False)
    assert [str(node.target) for node in exported.graph_module.graph.nodes if node.op == "call_function"] == [
        "aten.linear.default",
        "aten.relu.default",
        "aten.linear.default",
    ]


@pytest.mark.parametrize("functional", [True, False])
def test_convert_exported_program(functional: bool) -> None:
    """A plain ExportedProgram converts too, with real weights, functional or not; it is not changed."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = F.dropout(self.layer(x), 0.5, self.training)
        if not functional:
            y[0] = 0
        return y

    model = module(forward, layer=nn.Linear(4, 4))
    exported = torch.export.export(model, (X,))
    before = str(exported.graph)
    ir = IR.from_json(convert_exported_program(exported, "plain").to_json())
    assert str(exported.graph) == before
    assert ir.model_name == "plain"
    report = verdict(ir, model, X)
    assert report.is_valid, report


# -- what is in no state dict ----------------------------------------------------------------------------------------


class Constants(nn.Module):
    """Values of every kind that are in no state dict."""

    offsets: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.gain = nn.Parameter(torch.ones(4))
        self.scale = torch.tensor([0.5, 1.0, 2.0, -4.0])
        self._order = torch.tensor([3, 1, 0, 2])
        self.tables = [torch.arange(4.0), {"half": torch.full((4,), 0.5, dtype=torch.bfloat16)}]
        self.register_buffer("offsets", torch.linspace(-1, 1, 4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) * self.gain * self.scale + self.offsets
        x = x[:, self._order] + self.tables[0] * self.tables[1]["half"]
        return x[:, [0, 2]] + torch.tensor([10.0, 20.0]), x[torch.tensor([True, False, True])]


def test_values_are_kept_when_known() -> None:
    """Built under meta_init, or real: attributes, literals, masks and non-persistent buffers keep their values."""
    real = Constants().eval()
    with meta_init():
        bare = Constants().eval()
    assert all(parameter.is_meta for parameter in bare.parameters())
    for model, inputs, strict in [(bare, (ON_META,), True), (copy.deepcopy(real), (X,), False)]:
        ir = IR.from_json(extract_ir(model, inputs, strict=strict).to_json())
        assert {"scale", "_order", "offsets"} <= ir.constants.keys()
        assert not {"layer.weight", "layer.bias", "gain"} & ir.constants.keys()
        executor = IRExecutor(ir, real.state_dict())
        for got, wanted in zip(executor(X), real(X), strict=True):
            assert torch.allclose(got, wanted)


def test_values_lost_on_meta_are_named() -> None:
    """Values outside the state dict are lost on meta: a warning names them, and verification uses the model's."""
    with pytest.warns(CaptureWarning, match="are unknown: they were built on meta") as caught:
        ir = extract_ir(on_meta(Constants), (ON_META,))
    message = str(caught[0].message)
    for name in ("scale", "_order", "offsets", "tables.0", "tables.1.half"):
        assert f"{name!r}" in message
    assert "meta_init" in message
    assert not {"scale", "offsets"} & ir.constants.keys()
    real = Constants().eval()
    report = verdict(IR.from_json(ir.to_json()), real, X)
    assert report.is_valid, report


def test_lost_values_can_be_given() -> None:
    """Constants that the graph lacks are passed by name; without them, the error says so."""
    with pytest.warns(CaptureWarning):
        ir = extract_ir(on_meta(lambda: module(lambda self, x: x * self.scale, scale=torch.ones(4))), (ON_META,))
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(IRExecutor(ir, {}, {"scale": scale})(X), X * scale)
    with pytest.raises(Exception, match=r"'scale' is missing.*constants=\{'scale'"):
        IRExecutor(ir, {})


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, float("inf"), float("-inf"), float("nan")]),
        torch.tensor([0.1, 2.0, 3.0, -4.0], dtype=torch.bfloat16),
        torch.tensor([1, -2, 3, 4], dtype=torch.int8),
        torch.tensor([True, False, True, True]),
        torch.tensor([1 + 2j, 3.0, 4.0, -5j]),
        torch.tensor([1.5, 2.0, -3.0, 0.0]).to(torch.float8_e4m3fn),
        torch.tensor(7),
        torch.empty(0, 4),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12)[2:10:2],
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
    ],
    ids=lambda value: f"{value.dtype}{list(value.shape)}",
)
def test_constants_of_every_kind(value: Tensor) -> None:
    """A constant round-trips bit for bit: any dtype, any number of dimensions, empty, strided, conjugated."""
    ir = captured(module(lambda self, x: (self.value.clone(), x), value=value), X)
    got = IRExecutor(ir, {})(X)[0]
    assert from_tensor(got) == from_tensor(value)


def test_meta_init_leaves_other_threads_alone() -> None:
    """What another thread builds meanwhile has its weights."""
    with meta_init(), ThreadPoolExecutor(1) as pool:
        other = pool.submit(nn.Linear, 2, 2).result()
        own = nn.Linear(2, 2)
    assert (own.weight.device.type, other.weight.device.type) == ("meta", "cpu")


@pytest.mark.parametrize("outer", [meta_init, lambda: torch.device("meta")])
def test_real_init_builds_real_weights(outer: Callable[[], Any]) -> None:
    """A part of the library that needs real weights has them, whatever the user's code has set around it."""
    with outer():
        with real_init():
            real = nn.Linear(2, 2)
        blank = nn.Linear(2, 2)
    assert (real.weight.device.type, blank.weight.device.type) == ("cpu", "meta")


def test_meta_init_keeps_ties() -> None:
    """A parameter under two names is one weight under meta_init too, also when it was computed."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            shared = nn.Parameter(torch.ones(4))
            self.first = shared
            self.second = shared

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x)) * self.first + self.second

    with meta_init():
        model = Tied().eval()
    assert model.first is model.second
    assert extract_ir(model, (ON_META,)).tied_weights == [("first", "second"), ("a.weight", "b.weight")]
    assert not nn.Linear(2, 2).weight.is_meta  # nothing is left behind


def test_tied_weights_are_one_param() -> None:
    """Weights that are one tensor are one param with all their keys, whichever of them the model uses."""
    model = module(lambda self, x: self.b(self.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    model.b.weight = model.a.weight
    ir = IR.from_json(extract_ir(model, (X,), strict=False).to_json())
    assert verdict(ir, model, X).is_valid
    assert ir.tied_weights == [("a.weight", "b.weight")]
    assert [param.key for param in ir.params] == ["a.weight", "a.bias", "b.bias"]
    assert ir.nodes[0]["weight"] is ir.nodes[1]["weight"]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda x: x, (ON_META,), "extract_ir takes an nn.Module, not <function"),
        (Mlp, (ON_META,), "extract_ir takes an nn.Module, not <class"),
        (Mlp().to("meta").eval(), ON_META, r"example_inputs is a tensor; wrap it in a tuple: \(tensor,\)"),
        (Mlp().to("meta").eval(), {"x": ON_META}, r"must be a tuple, not dict; .*\(model, \(\), kwargs=inputs\)"),
    ],
    ids=["function", "class", "bare tensor", "dict"],
)
def test_wrong_arguments(model: Any, inputs: Any, message: str) -> None:
    """Invalid arguments raise a one-line error."""
    with pytest.raises(ExportError, match=message):
        extract_ir(model, inputs)


def test_a_forward_that_raises() -> None:
    """The error names the model, the line and the reason; the user's exception is its cause."""

    def forward(self: Any, x: Tensor) -> Tensor:
        raise KeyError("no such thing")  # raises

    with pytest.raises(ExportError) as caught:
        captured(module(forward), X)
    place = line_of(__file__, "raises")
    assert str(caught.value) == f"cannot capture Model: {place}: forward raises KeyError: 'no such thing'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_data_dependent_branch_is_explained() -> None:
    """torch.export alone cannot capture a Python branch on data; the error names the line and the alternatives."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ExportError, match=r"test_extract.py:\d+: Python branches on a value .* torch.cond"):
        extract_ir(module(forward), (X,), strict=False, capture="export")


def test_functions_of_torch_that_capture_cannot_hold() -> None:
    """Where torch captures something that it cannot functionalise, the error is ours and keeps the cause."""
    model = module(lambda self, x: torch.func.grad(lambda a: (a**2).sum())(x))
    with pytest.raises(ConversionError, match="torch cannot functionalise the captured graph") as caught:
        extract_ir(model, (X,), strict=False, capture="export")
    assert caught.value.__cause__ is not None


@pytest.mark.filterwarnings("ignore:captured by recording")
@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: torch.func.grad(lambda a: (a**2).sum())(x),
        lambda self, x: torch.vmap(lambda row: row * 2 + row.sum())(x),
        lambda self, x: torch.func.jacrev(torch.sin)(x[0]),
        lambda self, x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    ],
)
def test_a_recording_holds_transforms(forward: Any) -> None:
    model = module(forward)
    ir = extract_ir(model, (X,), strict=False, capture="record")
    assert verdict(ir, model, X).is_valid
