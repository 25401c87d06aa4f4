"""extract_ir: what a model may be, what is kept of it, and what a user is told."""

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.nn.attention.flex_attention import flex_attention
from torch.utils import _pytree as pytree

from tests.proof import captured, module, ops, proved, verdict
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
from torch_ir.ir import Device, Dtype, Layout, MemoryFormat
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


# -- the documented call ----------------------------------------------------------------------------------------------


def test_readme_example() -> None:
    """The model of the README gives the JSON of the README."""
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
    """The name is the class's, unless another is given; an empty one is a name too."""
    model = on_meta(Mlp)
    assert extract_ir(model, (ON_META,)).model_name == "Mlp"
    assert extract_ir(model, (ON_META,), model_name="tiny").model_name == "tiny"
    assert extract_ir(model, (ON_META,), model_name="").model_name == ""


def test_strict_refuses_real_parameters() -> None:
    """By default a real parameter is an error that names it and says three ways out."""
    with pytest.raises(ExportError, match=r"Model must be on meta device .*'fc1\.weight'.*strict=False") as caught:
        extract_ir(Mlp().eval(), (ON_META,))
    assert "torch.device('meta')" in str(caught.value)
    assert "model.to('meta')" in str(caught.value)


def test_strict_refuses_real_inputs() -> None:
    """By default a real example input is an error that says which, however deep it is nested."""
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
    """Also where forward fails half-way, every attribute of the model is what it was."""

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
    """A weight's values are nowhere in the JSON, also when the model and the exported program hold them."""
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
    """A model and inputs on meta are traced as if on cpu: no attribute says meta, and literals run."""

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


# -- what is in no state dict -----------------------------------------------------------------------------------------


class Constants(nn.Module):
    """Values of every kind that no state dict holds."""

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
    """Built wholly on meta, what no state dict holds is lost: a warning names it, verification asks the real model."""
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
    """Constants that the graph lacks are given by name; without them the error says so."""
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
    """A constant comes back bit for bit: any dtype, any number of dimensions, empty, strided, conjugated."""
    ir = captured(module(lambda self, x: (self.value.clone(), x), value=value), X)
    got = IRExecutor(ir, {})(X)[0]
    assert from_tensor(got) == from_tensor(value)


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


# -- inputs and outputs -----------------------------------------------------------------------------------------------


def test_keyword_and_nested_inputs() -> None:
    """Inputs may be keywords, dicts, lists and tuples of tensors; numbers, strings, flags and None are fixed."""

    def forward(self: Any, d: Any, pair: Any, flag: bool, *, scale: Tensor, mode: str, n: int, rest: Any) -> Tensor:
        y = d["a"] + d["b"][0] * pair[1] - pair[0]
        return (y * scale if flag and mode == "scale" else y) * n

    inputs = ({"a": X, "b": (X,)}, [X * 2, X * 3], True)
    kwargs = {"scale": X * 4, "mode": "scale", "n": 3, "rest": None}
    ir = proved(module(forward), *inputs, kwargs=kwargs)
    assert [tensor.name for tensor in ir.graph_inputs] == ["d_a", "d_b_0", "pair_0", "pair_1", "scale"]
    executor = IRExecutor(ir, {})
    assert torch.equal(executor(*inputs, **kwargs), module(forward)(*inputs, **kwargs))
    with pytest.raises(Exception, match=r"'n'\] is 4, but the graph was captured for 3"):
        executor(*inputs, **{**kwargs, "n": 4})
    with pytest.raises(Exception, match=r"expected a dict with keys \['a', 'b'\]"):
        executor({"a": X, "c": (X,)}, *inputs[1:], **kwargs)


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Result:
    logits: Tensor
    extra: Any


pytree.register_dataclass(Result)


def test_outputs_keep_their_structure() -> None:
    """Dicts, named tuples, dataclasses, lists, None, numbers and strings come back where the model puts them."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return {"pair": Pair(y, x * 2), "result": Result(y, [None, 3, "text", 2.5, True]), "empty": (), "x": x}

    ir = proved(module(forward), X)
    got = IRExecutor(ir, {})(X)
    assert list(got) == ["pair", "result", "empty", "x"]
    assert torch.equal(got["pair"].second, X * 2)
    assert torch.equal(got["result"].logits, X + 1)
    assert got["result"].extra == [None, 3, "text", 2.5, True]
    assert got["empty"] == ()
    assert got["x"] is X


def test_model_output_of_transformers() -> None:
    """A transformers ModelOutput is read by its fields; absent fields are absent."""
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.BaseModelOutput
    model = module(lambda self, x: output(last_hidden_state=self.layer(x)), layer=nn.Linear(4, 4))
    got = IRExecutor(proved(model, X), model.state_dict())(X)
    assert list(got) == ["last_hidden_state"]
    assert torch.equal(got.last_hidden_state, model(X).last_hidden_state)


def test_an_output_that_is_an_input() -> None:
    """A model may return its input; the graph then has no node."""
    ir = proved(module(lambda self, x: x), X)
    assert (ops(ir), ir.graph_outputs) == ([], ir.graph_inputs)


def test_an_output_twice() -> None:
    """The same tensor may be returned several times; it is one tensor with several readers."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return y, [y], y

    ir = proved(module(forward), X)
    assert [tensor.name for tensor in ir.graph_outputs] == ["add", "add", "add"]
    first, [second], third = IRExecutor(ir, {})(X)
    assert first is second is third


def test_a_model_that_returns_none() -> None:
    """A model that only changes its buffer returns None, and so does the graph."""

    def forward(self: Any, x: Tensor) -> None:
        self.total.add_(x.sum(0))

    model = module(forward, buffers={"total": torch.zeros(4)})
    ir = proved(model, X)
    executor = IRExecutor(ir, {"total": torch.zeros(4)})
    assert executor(X) is None
    assert torch.allclose(executor.state["total"], X.sum(0))


def test_names_never_collide() -> None:
    """Inputs may be called like torch's results; outputs of one node are told apart by number."""

    def forward(self: Any, split_1: Tensor, add: Tensor) -> Any:
        left, right = split_1.split(2, 1)
        return left + right, add + 1, split_1

    ir = proved(module(forward), X, X)
    names = [tensor.name for tensor in ir.tensors()]
    assert names[:3] == ["split_1", "add", "split_0"]
    assert len(set(names)) == len(names)


def test_several_outputs_without_getitem() -> None:
    """An operator with several results has several outputs; reading one takes no node of its own."""
    ir = proved(module(lambda self, x: (x.topk(2), torch.var_mean(x, 1)[0], x.chunk(2, 1)[1], x.max(1).indices)), X)
    assert ops(ir) == ["aten.topk.default", "aten.var_mean.dim", "aten.chunk.default", "aten.max.dim"]
    assert [[tensor.name for tensor in node.outputs] for node in ir.nodes] == [
        ["topk_0", "topk_1"],
        ["var_mean_0", "var_mean_1"],
        ["chunk_0", "chunk_1"],
        ["max_1_0", "max_1_1"],
    ]
    assert ir.nodes[0].outputs[1].dtype == "int64"


# -- writing ----------------------------------------------------------------------------------------------------------


def views(self: Any, x: Tensor) -> Any:
    y = x * 2
    y[1:3] = 5.0
    y[:, 0].mul_(3)
    y.t()[1].add_(1)
    y[0, 2] += 1
    return y


def masked(self: Any, x: Tensor) -> Any:
    y = x.clone()
    y.masked_fill_(y > 0, -1.0)
    y[y < -0.5] = 7.0
    return y


def two_views(self: Any, x: Tensor) -> Any:
    y = x * 1
    a, b = y[:2], y[1:]
    a.add_(1)
    b.mul_(2)
    a.sub_(3)
    b.add_(a.sum())
    return y, a, b


def same_view(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.view(3, 4).add_(1)
    z = y.detach()
    z.mul_(2)
    return y, z


def expanded(self: Any, x: Tensor) -> Any:
    y = x[:1] + 1
    wide = y.expand(3, 4)
    y.add_(1)
    return wide * 1


def idle_dropout(self: Any, x: Tensor) -> Any:
    y = x + 1
    z = F.dropout(y, 0.5, training=False)
    z.add_(1)
    return y, z


def idle_dropout_of_input(self: Any, x: Tensor) -> Any:
    F.dropout(x, 0.5, training=False).add_(1)
    return x * 2


def promotion(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.add_(torch.full((4,), 0.1, dtype=torch.float64))
    n = torch.arange(4)
    n *= 2
    return y, n


def augmented(self: Any, x: Tensor) -> Any:
    y = x * 2
    y += 1
    y *= 2
    y /= 3
    y -= 1
    y **= 2
    y //= 2
    return y


def reshaping(self: Any, x: Tensor) -> Any:
    y = x + 1
    y.transpose_(0, 1).add_(1)
    y.unsqueeze_(0)
    y.squeeze_()
    return y


def chunks(self: Any, x: Tensor) -> Any:
    y = x + 1
    a, b = y.chunk(2, 1)
    a.add_(1)
    b.copy_(a)
    first, *_ = y.unbind(0)
    first.relu_()
    return y, a


def out_argument(self: Any, x: Tensor) -> Any:
    out = torch.empty(3, 4)
    torch.add(x, 1, out=out)
    return out


def complex_parts(self: Any, x: Tensor) -> Any:
    y = torch.complex(x, x * 2)
    y.real.add_(1)
    torch.view_as_real(y)[..., 1].mul_(2)
    return y, y.conj(), y.conj().imag


def input_written(self: Any, x: Tensor) -> Any:
    x.add_(1)
    x[0].mul_(2)
    return x * 2


def input_written_and_returned(self: Any, x: Tensor) -> Any:
    return x.relu_()


@pytest.mark.parametrize(
    "forward",
    [
        views,
        masked,
        two_views,
        same_view,
        expanded,
        idle_dropout,
        idle_dropout_of_input,
        promotion,
        augmented,
        reshaping,
        chunks,
        out_argument,
        complex_parts,
        input_written,
        input_written_and_returned,
    ],
    ids=lambda forward: forward.__name__,
)
def test_in_place_code(forward: Callable[..., Any]) -> None:
    """Code that writes in place becomes a graph that writes to nothing and leaves the same values behind."""
    ir = proved(module(forward), X)
    assert not [node for node in ir.nodes if node.op_type.split(".")[1].endswith("_")]


def test_in_place_keeps_operators_whole() -> None:
    """`relu_` after a convolution is `relu`: one node, no copies, and nothing else is taken apart."""
    model = module(
        lambda self, x: self.norm(self.act(self.conv(x))),
        conv=nn.Conv2d(3, 4, 3),
        act=nn.ReLU(inplace=True),
        norm=nn.BatchNorm2d(4),
    )
    assert ops(proved(model, torch.randn(1, 3, 8, 8))) == [
        "aten.conv2d.default",
        "aten.relu.default",
        "aten.batch_norm.default",
    ]


def test_inputs_that_are_written_are_said() -> None:
    """An input that the model changes is in `mutations`; running the graph leaves the caller's input alone."""
    ir = proved(module(input_written), X)
    assert [(target.name, value.producer_node) for target, value in ir.mutations] == [("x", "select_scatter")]
    given = torch.ones(3, 4)
    IRExecutor(ir, {})(given)
    assert torch.equal(given, torch.ones(3, 4))


def test_buffers_that_are_written() -> None:
    """Buffers may be added to, sliced into, assigned anew; the graph says their new values."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.count += 1
        self.mean[1:3] = x[0, 1:3]
        self.total = self.total + x.sum(0)
        return x * self.count + self.mean + self.total

    model = module(forward, buffers={"count": torch.tensor(0), "mean": torch.zeros(4), "total": torch.zeros(4)})
    ir = proved(model, X)
    assert [target.key for target, _ in ir.mutations] == ["count", "mean", "total"]


def test_buffers_that_share_memory() -> None:
    """A buffer that shows in another may be read; where one is written to, torch would miss it, and it is refused."""

    def reading(self: Any, x: Tensor) -> Tensor:
        return x + self.whole + self.part.sum()

    def writing(self: Any, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return x + self.part.sum()

    whole = torch.ones(4)
    buffers = {"whole": whole, "part": whole[1:]}
    model = module(reading, buffers=buffers)
    assert verdict(extract_ir(model, (X,), strict=False), model, X).is_valid
    with pytest.raises(ConversionError, match="forward writes to 'whole', which shares its memory with 'part'"):
        extract_ir(module(writing, buffers=buffers), (X,), strict=False)
    extract_ir(module(writing, buffers={**buffers, "part": whole[1:].clone()}), (X,), strict=False)


def test_batch_norm_in_training() -> None:
    """In training a warning is given, batch statistics are used, and running statistics are updated."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.instance(self.norm(self.norm(x)))

    model = module(
        forward, norm=nn.BatchNorm1d(4), instance=nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    ).train()
    with pytest.warns(CaptureWarning, match=r"Model is in training mode.*call model.eval\(\)"):
        ir = captured(model, torch.randn(2, 4, 3))
    report = verdict(ir, model, torch.randn(2, 4, 3))
    assert report.is_valid, report
    assert {item["name"] for item in report.output_details} >= {
        "norm.running_mean afterwards",
        "norm.num_batches_tracked afterwards",
        "instance.running_var afterwards",
    }
    assert report.output_details[0]["name"] == "output"


# -- regions, custom operators, control flow --------------------------------------------------------------------------


def test_autocast_and_grad_regions_dissolve() -> None:
    """Autocast becomes explicit casts; no_grad and enable_grad leave no trace."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.layer(x)
        with torch.enable_grad():
            x = self.layer(x)
            x.add_(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layer(x)
            x.relu_()
        return x

    ir = proved(module(forward, layer=nn.Linear(4, 4)), X)
    assert ir.functions == {}
    assert ir.graph_outputs[0].dtype == "bfloat16"
    assert not [op for op in ops(ir) if op.startswith("higher_order.")]


@torch.library.custom_op("torch_ir_tests::gate", mutates_args=())
def gate(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.sigmoid(x) * y * k


@gate.register_fake
def _(x: Tensor, y: Tensor, k: float = 2.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torch_ir_tests::bump", mutates_args={"x"})
def bump(x: Tensor, by: float) -> Tensor:
    x.add_(by)
    return x.sum()


@bump.register_fake
def _(x: Tensor, by: float) -> Tensor:
    return x.new_empty(())


@torch.library.custom_op("torch_ir_tests::stack", mutates_args=())
def stack(tensors: list[Tensor], scale: Tensor | None = None, n: int = 3) -> list[Tensor]:
    return [tensor * n for tensor in tensors]


@stack.register_fake
def _(tensors: list[Tensor], scale: Tensor | None = None, n: int = 3) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


def test_custom_operators() -> None:
    """An operator of torch.library is one node with its arguments by name, and runs with nothing registered."""
    ir = proved(module(lambda self, x: stack([gate(x, x + 1, 3.0), x])[0]), X)
    assert ops(ir) == ["aten.add.Tensor", "torch_ir_tests.gate.default", "torch_ir_tests.stack.default"]
    assert ir.nodes[1]["k"] == 3.0
    assert [tensor.name for tensor in ir.nodes[2]["tensors"]] == ["gate", "x"]
    assert (ir.nodes[2]["scale"], ir.nodes[2]["n"]) == (None, 3)


def test_custom_operator_that_writes() -> None:
    """An operator that writes is a function in the graph: after its results come the values that it would leave."""

    def forward(self: Any, x: Tensor) -> Any:
        y = x * 2
        total = bump(y, 1.0)
        bump(x[1:], 2.0)
        bump(self.seen, 3.0)
        return y, total, self.seen * 2

    ir = proved(module(forward, buffers={"seen": torch.zeros(2)}), X)
    calls = [node for node in ir.nodes if node.op_type == "torch_ir_tests.bump.default"]
    assert [len(node.outputs) for node in calls] == [2, 2, 2]
    assert calls[0].outputs[1].shape == (3, 4)
    assert [target.name for target, _ in ir.mutations] == ["b_seen", "x"]


def test_cond() -> None:
    """`torch.cond` keeps both branches as functions, nested ones inside; weights in closures become operands."""

    def forward(self: Any, x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 5, lambda x: self.layer(x), lambda x: x * self.scale, (x,))

        def small(x: Tensor) -> Tensor:
            y = x - 1
            y.relu_()
            return y

        return torch.cond(x.sum() > 0, large, small, (x,)) + 1

    model = module(forward, layer=nn.Linear(4, 4), buffers={"scale": torch.randn(4)})
    ir = proved(model, X)
    assert ops(ir)[-2:] == ["higher_order.cond", "aten.add.Tensor"]
    assert [len(body.functions) for body in ir.functions.values()] == [2, 0]
    for x in (torch.ones(3, 4) * 9, torch.ones(3, 4), -torch.ones(3, 4)):
        assert verdict(ir, model, x).is_valid


def test_cond_of_nested_results() -> None:
    """Branches may return nested results."""

    def forward(self: Any, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, {"k": x * 2}), lambda x: (x - 1, {"k": x * 1}), (x,))

    ir = proved(module(forward), X)
    assert verdict(ir, module(forward), -X).is_valid


def test_while_loop() -> None:
    """`while_loop` over tensors and over a Python number, with a weight in its closure."""

    def forward(self: Any, x: Tensor) -> Any:
        steps, x = while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, self.layer(x)), (torch.tensor(0), x))
        count, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))
        return steps, count, x

    assert ops(proved(module(forward, layer=nn.Linear(4, 4)), X)).count("higher_order.while_loop") == 2


def test_scan_and_map() -> None:
    """`scan`, `associative_scan` and `map` with closures."""

    def forward(self: Any, x: Tensor) -> Any:
        carried, rows = scan(lambda c, x: (c + self.layer(x), c * 2), torch.zeros(4), x)
        mapped = torch_map(lambda row, bias: self.layer(row) + bias, x, self.layer.bias * 2)
        summed = associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")
        return carried, rows, mapped, summed

    found = ops(proved(module(forward, layer=nn.Linear(4, 4)), X))
    assert {"higher_order.scan", "higher_order.map_impl"} <= set(found)


def test_vmap_and_checkpoint_dissolve() -> None:
    """`vmap` and activation checkpointing are computed, not kept."""

    def forward(self: Any, x: Tensor) -> Any:
        x = torch.utils.checkpoint.checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=False)
        return torch.vmap(lambda row: self.layer(row) * row.sum())(x)

    assert not [op for op in ops(proved(module(forward, layer=nn.Linear(4, 4)), X)) if not op.startswith("aten.")]


def test_flex_attention() -> None:
    """Flex attention keeps its score function."""

    def causal(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query >= key, score, -float("inf"))

    model = module(lambda self, q: flex_attention(q, q, q, score_mod=causal))
    q = torch.randn(1, 2, 16, 8)
    ir = IR.from_json(extract_ir(model, (q,), strict=False).to_json())
    report = verdict(ir, model, q)
    assert report.is_valid, report
    assert "higher_order.flex_attention" in ops(ir)


# -- arguments --------------------------------------------------------------------------------------------------------


def test_absent_optionals_are_none() -> None:
    """An optional tensor that is not given is None under its name, and those after it stay where they are."""
    ir = proved(
        module(lambda self, x, b: (F.layer_norm(x, (4,), None, b), x.clamp(max=b), F.linear(x, b.expand(4, 4)))),
        X,
        torch.randn(4),
    )
    norm, clamp, linear = ir.node("layer_norm"), ir.node("clamp"), ir.node("linear")
    assert (norm["weight"], norm["bias"].name, norm["normalized_shape"]) == (None, "b", [4])
    assert (clamp["min"], clamp["max"].name) == (None, "b")
    assert linear["bias"] is None


def test_keyword_only_arguments() -> None:
    """Arguments after omitted defaults are kept under their names, and the defaults are filled in."""

    def forward(self: Any, x: Tensor) -> Any:
        attended = F.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.1)
        return attended, x.std(1, correction=0), x.mean(dtype=torch.float64), torch.searchsorted(x[0], x[1])

    ir = proved(module(forward), X.sort().values)
    attention = ir.node("scaled_dot_product_attention")
    assert (attention["scale"], attention["attn_mask"], attention["dropout_p"]) == (0.1, None, 0.0)
    assert (ir.node("std")["correction"], ir.node("std")["dim"]) == (0, [1])
    assert ir.node("mean")["dtype"] == Dtype("float64")


def test_every_kind_of_attribute() -> None:
    """dtype, device, layout, memory format, complex, infinities, NaN, large ints, lists, strings: one spelling each."""

    def forward(self: Any, x: Tensor) -> Any:
        return (
            x.to(torch.bfloat16),
            x.contiguous(memory_format=torch.channels_last),
            torch.full((2,), float("-inf")),
            torch.full((2,), float("nan")),
            torch.full((2,), 1 + 2j),
            torch.full((2,), 2**62),
            torch.zeros(2, dtype=torch.int8, device="cpu", layout=torch.strided),
            torch.einsum("abcd->a", x),
            x.sum([1, 2]),
            F.pad(x, (1, 1, 1, 1), mode="reflect"),
            F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True),
            x[..., None, 0, [0, 1]],
            x.to_sparse().to_dense(),
        )

    ir = proved(module(forward), torch.randn(2, 3, 4, 4))
    found = {type(value) for node in ir.nodes for value in node.attrs.values()}
    assert {Dtype, Device, Layout, MemoryFormat, complex, float, int, bool, str, list, type(None)} <= found


# -- where it came from -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    def helper(self, x: Tensor) -> Tensor:
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.helper(x)  # block: helper
        return F.gelu(x)  # block: gelu


class Nested(nn.Module):
    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts
        self.block = Block()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        x = self.block(x)
        if self.counts:
            self.steps.add_(1)  # nested: count
        return self.layers[0](x)  # nested: linear


def line_of(mark: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"tests/test_extract.py:{next(i for i, text in enumerate(lines, 1) if text.endswith(f'# {mark}'))}"


@pytest.mark.parametrize("counts", [True, False], ids=["functionalised", "renamed"])
def test_provenance(counts: bool) -> None:
    """Each node knows its module, which call of it, the module's class and the user's line; no machine's folders."""
    ir = captured(Nested(counts).eval(), X)
    found = [(node.origin.module, node.origin.call, node.origin.module_class, node.origin.source) for node in ir.nodes]
    assert found == [
        ("block", 0, "Block", line_of("block: helper")),
        ("block", 0, "Block", line_of("block: gelu")),
        ("block", 1, "Block", line_of("block: helper")),
        ("block", 1, "Block", line_of("block: gelu")),
        *([("", 0, "Nested", line_of("nested: count"))] if counts else []),
        ("layers.0", 0, "Linear", line_of("nested: linear")),
    ]
    text = ir.to_json()
    assert os.path.dirname(__file__) not in text
    assert "site-packages" not in text


def test_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Two processes with different hash seeds write the same file."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch_ir\n"
        "from torch import nn\n"
        "from torch.export import Dim\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(4, 4)\n"
        "        self.register_buffer('seen', torch.zeros(4))\n"
        "        self.table = {'a': torch.arange(4.0), 'b': torch.ones(4)}\n"
        "    def forward(self, x, y):\n"
        "        self.seen.add_(x.sum(0))\n"
        "        x = torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * 2, (x,))\n"
        "        return {'out': x * self.table['a'] + self.table['b'], 'rows': (x + y)[x[:, 0] > 0], 'n': x.shape[0]}\n"
        "shapes = {'x': {0: Dim('batch', max=64)}, 'y': {0: Dim('batch', max=64)}}\n"
        "inputs = (torch.randn(3, 4), torch.randn(3, 4))\n"
        "ir = torch_ir.extract_ir(Model().eval(), inputs, strict=False, dynamic_shapes=shapes)\n"
        "sys.stdout.write(ir.to_json())\n"
    )
    texts = []
    for seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        texts.append(run.stdout)
    assert texts[0] == texts[1]
    assert IR.from_json(texts[0]).symbols.keys() == {"batch", "u0"}


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (lambda x: x, (ON_META,), "extract_ir takes an nn.Module, not <function"),
        (Mlp, (ON_META,), "extract_ir takes an nn.Module, not <class"),
        (Mlp().to("meta").eval(), ON_META, r"example_inputs is a tensor; wrap it in a tuple: \(tensor,\)"),
        (Mlp().to("meta").eval(), {"x": ON_META}, "example_inputs must be a tuple, not dict"),
    ],
    ids=["function", "class", "bare tensor", "dict"],
)
def test_wrong_arguments(model: Any, inputs: Any, message: str) -> None:
    """What cannot be captured at all is said in one sentence."""
    with pytest.raises(ExportError, match=message):
        extract_ir(model, inputs)


def test_a_forward_that_raises() -> None:
    """The error names the model, the line and the reason; the user's exception is its cause."""

    def forward(self: Any, x: Tensor) -> Tensor:
        raise KeyError("no such thing")  # raises

    with pytest.raises(ExportError) as caught:
        captured(module(forward), X)
    assert str(caught.value) == f"cannot capture Model: {line_of('raises')}: 'no such thing'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_data_dependent_branch_is_explained() -> None:
    """A Python branch on data cannot be captured; the error says where and what to use instead."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(ExportError, match=r"test_extract.py:\d+: Python branches on a value .* torch.cond"):
        captured(module(forward), X)


def test_functions_of_torch_that_capture_cannot_hold() -> None:
    """Where torch captures something that it cannot functionalise, the error is ours and keeps the cause."""
    model = module(lambda self, x: torch.func.grad(lambda a: (a**2).sum())(x))
    with pytest.raises(ConversionError, match="torch cannot functionalise the captured graph") as caught:
        captured(model, X)
    assert caught.value.__cause__ is not None
