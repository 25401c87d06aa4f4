"""A graph as Python source: the written class computes the same, and text of a graph never becomes code."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.export import Dim
from torch.utils import _pytree as pytree

import catalogue
from catalogue import Entry
from tests.proof import module
from torch_ir import IR, IRExecutor, OpNode, TensorMeta, extract_ir, optimize, register_executor
from torch_ir.errors import CaptureWarning, ConversionError, SerializationError, TorchIRError
from torch_ir.ir import Branch, Dtype, FunctionRef, Origin, Param, Slot, TensorData
from torch_ir.ir.graph.io_tree import Record
from torch_ir.ops.registry import unregister
from torch_ir.targets import to_python

CHOSEN = (
    "buffer_mutation", "constants", "control_flow", "embedding_bag", "inplace", "instance_norm", "lstm",
    "nested_inputs", "shared_weights", "while_loop",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore", CaptureWarning)
        torch.manual_seed(0)
        yield


def captured(model: nn.Module, *inputs: Any, dynamic: Any = None, **kwargs: Any) -> IR:
    return extract_ir(model, inputs, kwargs=kwargs, strict=False, dynamic_shapes=dynamic)


def executed(source: str, weights: Mapping[str, Tensor], is_whole: bool = True) -> nn.Module:
    """Return the class of a written text, in a separate namespace, with weights."""
    namespace: dict[str, Any] = {"__name__": "written"}
    exec(compile(source, "written.py", "exec"), namespace)
    net: nn.Module = namespace["Net"]().eval()
    net.load_state_dict({key: value.clone() for key, value in weights.items()}, assign=True, strict=is_whole)
    return net


def assert_same(got: Any, wanted: Any) -> None:
    """The same nesting and the same numbers, bit for bit; objects and named tuples by their content."""
    found, expected = map(plain, (got, wanted))
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def assert_computes_the_graph(ir: IR, weights: Mapping[str, Tensor], inputs: Any, kwargs: Any) -> None:
    net = executed(to_python(ir), weights, is_whole=False)
    given, given_kwargs = copy.deepcopy((inputs, kwargs))
    torch.manual_seed(1)
    got = net(*given, **given_kwargs)
    executor = IRExecutor(ir, weights)
    torch.manual_seed(1)
    assert_same(got, executor(*inputs, **kwargs))
    assert_same((given, given_kwargs), (inputs, kwargs))


def check(entry: Entry) -> None:
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = captured(model, *inputs, **kwargs)
    for graph in (ir, ir.fold_blocks(), optimize(ir, "full")[0]):
        assert_computes_the_graph(graph, model.state_dict(), *copy.deepcopy((inputs, kwargs)))
    net = executed(to_python(ir), model.state_dict())
    torch.manual_seed(1)
    net(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))
    torch.manual_seed(1)
    model(*inputs, **kwargs)
    assert_same(dict(sorted(net.state_dict().items())), dict(sorted(model.state_dict().items())))


@pytest.mark.parametrize("name", CHOSEN)
def test_the_source_computes_what_the_graph_computes(name: str) -> None:
    """As it is, with repeated blocks as functions, and optimised; state changes as the model's does."""
    check(catalogue.find(name))


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_the_catalogue_computes_the_same(entry: Entry) -> None:
    check(entry)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.register_buffer("shift", torch.tensor([1.0, float("inf")]), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        y = self.layers[1](torch.relu(self.layers[0](x))) * scale
        best, _ = y.max(dim=0)
        return {"first": y[:, 1:3].reshape(x.shape[0] * 2), "shift": self.shift, "best": best}


def test_what_is_written() -> None:
    """Weights by their keys, modules and shapes as comments, sizes read off inputs, keywords, nested outputs."""
    model, x, scale = Block().eval(), torch.randn(3, 4), torch.randn(4)
    ir = captured(model, x, scale=scale, dynamic={"x": {0: Dim("batch")}, "scale": None})
    source = to_python(ir)
    assert source[source.index("class Net") :] == EXPECTED
    same = executed(source, model.state_dict())
    assert_same(same(x, scale=scale), model(x, scale=scale))
    assert_same(same(x[:2], scale=scale), model(x[:2], scale=scale))
    assert_same(same.state_dict()["calls"], torch.tensor(2))


EXPECTED = """\
class Net(Part):
    def __init__(self, device="meta"):
        super().__init__()
        parameter(self, torch.empty((4, 4), device=device), 'layers.0.weight')
        parameter(self, torch.empty((4,), device=device), 'layers.0.bias')
        parameter(self, torch.empty((4,), device=device), 'layers.1.weight')
        parameter(self, torch.empty((4,), device=device), 'layers.1.bias')
        buffer(
            self,
            torch.tensor([1.0, float("inf")], dtype=torch.float32, device='cpu'),
            'shift',
            persistent=False,
        )
        buffer(self, torch.empty((), dtype=torch.int64, device=device), 'calls')

    def forward(self, x, *, scale):
        batch = x.shape[0]
        given(x, torch.float32, (batch, 4))
        given(scale, torch.float32, (4,))
        add = aten.add.Tensor(self.calls, other=1)  # int64[]
        # layers.0: Linear
        linear = aten.linear.default(x, self.layers[0].weight, self.layers[0].bias)  # float32[batch, 4]
        # the model itself: Block
        relu = aten.relu.default(linear)  # float32[batch, 4]
        # layers.1: LayerNorm
        layer_norm = aten.layer_norm.default(
            relu,
            normalized_shape=[4],
            weight=self.layers[1].weight,
            bias=self.layers[1].bias,
            cudnn_enable=False,
        )  # float32[batch, 4]
        # the model itself: Block
        mul = aten.mul.Tensor(layer_norm, scale)  # float32[batch, 4]
        max_1_0, _ = aten.max.dim(mul, dim=0)  # float32[4], int64[4]
        slice_1 = aten.slice.Tensor(mul, start=0, end=9223372036854775807)  # float32[batch, 4]
        slice_2 = aten.slice.Tensor(slice_1, dim=1, start=1, end=3)  # float32[batch, 2]
        reshape = aten.reshape.default(slice_2, shape=[2 * batch])  # float32[2 * batch]
        # tensors that the model changes
        aten.copy_.default(self.calls, add)
        return {'first': reshape, 'shift': self.shift, 'best': max_1_0}
"""


def test_repeated_blocks_are_one_function() -> None:
    """A folded graph has one function for all layers, and a call for each with its own weights."""
    entry = catalogue.find("gpt")
    model, inputs = entry.build(), entry.inputs()
    ir = captured(model, *inputs).fold_blocks()
    (name,) = ir.functions
    source = to_python(ir)
    assert source.count(f"def {name}(") == 1
    assert source.count(f"= {name}(") == sum(node.is_call for node in ir.nodes) > 1
    assert_computes_the_graph(ir, model.state_dict(), inputs, {})


def test_sizes_in_functions() -> None:
    """A block that uses a size gets it as an argument; numbers are computed, and symbols are solved for."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).reshape(x.shape[0] * 2, -1).reshape(x.shape[0], -1) * max(x.shape[0], 3)

    layers = nn.Sequential(Layer(), Layer()).eval()
    ir = captured(layers, torch.randn(5, 4), dynamic={"input": {0: Dim("n", min=2, max=32)}}).fold_blocks()
    assert ir.functions
    assert_same(executed(to_python(ir), {})(torch.ones(7, 4)), layers(torch.ones(7, 4)))
    odd = module(lambda self, x: x[: (x.shape[0] - 1) // 2] * x.shape[0])
    ir = captured(odd, torch.randn(9), dynamic={"x": {0: 2 * Dim("n", min=2, max=32) + 1}})
    assert_same(executed(to_python(ir), {})(torch.arange(13.0)), odd(torch.arange(13.0)))


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return carry @ self.weight + row, carry * 2

        last, rows = scan(step, torch.zeros(4), x, dim=0)
        return last, rows


def test_bodies_of_loops_are_functions() -> None:
    """Over a size that varies."""
    model = Loops().eval()
    ir = captured(model, torch.randn(5, 4), dynamic={"x": {0: Dim("n", max=50)}})
    same = executed(to_python(ir), model.state_dict())
    assert_same(same(torch.ones(9, 4)), model(torch.ones(9, 4)))


class Pair(NamedTuple):
    first: Tensor
    rest: list[Tensor]


def test_structure_comes_back() -> None:
    """Named tuples have their fields, objects are records, and fixed arguments must have their captured values."""
    ir = captured(module(lambda self, x, flag: (Pair(x + 1, [x - 1]), None, 7)), torch.ones(2), True)
    same = executed(to_python(ir), {})
    pair, nothing, seven = same(torch.ones(2), True)
    assert_same((pair.first, pair.rest), (torch.full((2,), 2.0), [torch.zeros(2)]))
    assert (type(pair).__name__, nothing, seven) == ("Pair", None, 7)
    with pytest.raises(ValueError, match="an argument is False, but the model was captured for True"):
        same(torch.ones(2), False)
    ir.output_tree = Branch("object", (Slot(0), Slot(1)), ("scores", "others"), "somewhere.Output")
    made = executed(to_python(ir), {})(torch.ones(2), True)
    assert_same((made.scores, made["others"]), (torch.full((2,), 2.0), torch.zeros(2)))


def test_objects_that_come_in() -> None:
    """An input of a registered pytree class is flattened as torch does."""
    x, y, z = (TensorMeta(name, (2,), "float32") for name in ("x", "y", "z"))
    ir = IR([OpNode("z", "aten.sub.Tensor", [x, y], [z], args=["self", "other"])], [x, y], [z])
    past = Branch("object", (Slot(0), Slot(1)), ("key", "value"), "somewhere.Cache")
    ir.input_tree = Branch("tuple", (Branch("tuple", (past,)), Branch("dict", ())))
    given = Record(key=torch.full((2,), 3.0), value=torch.ones(2))
    assert_same(executed(to_python(ir), {})(given), (torch.full((2,), 2.0),))


# -- constants --------------------------------------------------------------------------------------------------------


def holding(*constants: Tensor) -> IR:
    """A graph that adds constants to its input."""
    tables = [f"table_{index}" for index in range(len(constants))]

    def forward(self: Any, x: Tensor) -> Tensor:
        for name in tables:
            x = x + getattr(self, name).to(x.dtype)
        return x

    model = module(forward)
    for name, constant in zip(tables, constants, strict=True):
        model.register_buffer(name, constant, persistent=False)
    return captured(model, torch.zeros(()))


CONSTANTS = (
    torch.tensor([[1.5, float("-inf")], [float("nan"), -0.0]]),
    torch.arange(6, dtype=torch.int16).view(2, 3).t()[:2, :2],
    torch.randn(40, 2, 2),
    torch.randn(40, 1).to(torch.float8_e4m3fn).expand(40, 2).unsqueeze(1),
)


def test_constants_in_the_text() -> None:
    """Few numbers as numbers, many as bytes, with the strides that they had."""
    ir = holding(*CONSTANTS)
    assert_same(executed(to_python(ir), {})(torch.ones(())), IRExecutor(ir, {})(torch.ones(())))


def test_a_file_needs_nothing_but_torch(tmp_path: Path) -> None:
    """Large constants are next to it; a process without torch_ir imports and runs it."""
    ir = holding(*CONSTANTS)
    source = to_python(ir, tmp_path / "deep" / "net.py")
    assert (tmp_path / "deep" / "net.py").read_text() == source
    assert len(list((tmp_path / "deep").glob("net.py.constants-*.safetensors"))) == 1
    assert "base64" not in source
    program = (
        "import sys; sys.modules['torch_ir'] = None; import torch, net\n"
        "torch.save(net.Net()(torch.ones(())), 'result.pt')"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "deep", check=True)
    assert_same(torch.load(tmp_path / "deep" / "result.pt"), IRExecutor(ir, {})(torch.ones(())))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """One sentence, and nothing beside it."""
    (tmp_path / "net.py").mkdir()
    with pytest.raises(SerializationError, match="cannot write"):
        to_python(holding(*CONSTANTS), tmp_path / "net.py")
    assert [path.name for path in tmp_path.iterdir()] == ["net.py"]


# -- nothing becomes code ---------------------------------------------------------------------------------------------

TRAP = "raise SystemExit('code ran')"
HOSTILE = (
    f"x = {TRAP}", f"a;{TRAP}", f"a\n    {TRAP}  #", f"a'), {TRAP}, ('", f'a"""\n{TRAP}\n"""', "class", "None", "torch",
    "self", "aten", "__import__", "isinstance", "super", "stored", "_", "1st", "\ufb01", "\uff54orch",
    "a\u2028b", "a\\", "{x}", "Net", "",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_of_a_graph_becomes_code(text: str) -> None:
    """Names, keys, paths, types and strings: refused where a graph or a module cannot have them, else harmless."""
    places = ("input", "value", "key", "module", "class", "function", "field", "type", "string", "model")
    written = 0
    for place in places:
        try:
            source = to_python(hostile(place, text))
        except TorchIRError:
            continue
        written += 1
        net = executed(source, {said_key(place, text): torch.ones(2)})
        assert_same(pytree.tree_leaves(net(torch.ones(2)))[0], torch.full((2,), -2.0))
    assert written > 2


def said_key(place: str, text: str) -> str:
    return text if place == "key" else "weight"


def hostile(place: str, text: str) -> IR:
    """-(x + weight) through a function, with a text in one place of it."""
    said = {place: text}
    x, total, negated, weight, inner, result = (
        TensorMeta(name, (2,), "float32")
        for name in (said.get("input", "x"), said.get("value", "total"), "negated", "w", "inner", "result")
    )
    weight.param = Param((said_key(place, text),))
    function = said.get("function", "negate")
    origin = Origin(said.get("module", "layers.0"), 0, said.get("class", "Layer"))
    check_ = OpNode(
        "note", "aten._assert_scalar.default", [], [], {"self": True, "assert_msg": said.get("string", "fine")}
    )
    body = IR([OpNode("inner", "aten.neg.default", [inner], [result], args=["self"])], [inner], [result])
    nodes = [
        check_,
        OpNode("add", "aten.add.Tensor", [x, weight], [total], {"alpha": 1}, args=["self", "other"], origin=origin),
        OpNode("call", "call", [total], [negated], {"function": FunctionRef(function)}, args=["inner"]),
    ]
    tree = Branch("tuple", (Slot(0),), (said.get("field", "scores"),), said.get("type", "somewhere.Output"))
    return IR(
        nodes, [x], [negated], params=[weight], functions={function: body}, output_tree=tree,
        model_name=said.get("model", "Model"),
    )  # fmt: skip


def test_what_cannot_be_written() -> None:
    """A one-line error for operators that only this process can compute, and for keywords that would shadow torch."""
    register_executor("mine.scale")(lambda inputs, attrs: [inputs[0] * attrs["by"]])
    try:
        x, y = TensorMeta("x", (2,), "float32"), TensorMeta("y", (2,), "float32")
        ir = IR([OpNode("y", "mine.scale", [x], [y], {"by": 3})], [x], [y])
        with pytest.raises(ConversionError, match=r"a registered executor computes mine\.scale \(node 'y'\)"):
            to_python(ir)
    finally:
        unregister("mine.scale")
    x, y = TensorMeta("x", (2,), "float32"), TensorMeta("y", (2,), "float32")
    ir = IR([OpNode("y", "aten.neg.default", [x], [y], args=["self"])], [x], [y])
    ir.input_tree = Branch("tuple", (Branch("tuple", ()), Branch("dict", (Slot(0),), ("torch",))))
    with pytest.raises(ConversionError, match="keyword 'torch', which cannot be an argument"):
        to_python(ir)


def test_every_kind_of_value() -> None:
    """Typed names, numbers that have no literal, and operators and arguments whose names Python keeps for itself."""
    x, y, z = (TensorMeta(name, (2,), "float32") for name in ("x", "y", "z"))
    full = OpNode(
        "y", "aten.full_like.default", [x], [y], {"fill_value": float("inf"), "dtype": Dtype("float32")}, args=["self"]
    )
    draw = OpNode("z", "aten.random.from", [y], [z], {"from": 3, "to": 4}, args=["self"])
    source = to_python(IR([full, draw], [x], [z]))
    assert 'aten.full_like.default(x, fill_value=float("inf"), dtype=torch.float32)' in source
    assert "getattr(aten.random, 'from')(y, 3, to=4)" in source
    assert_same(executed(source, {})(torch.ones(2)), (torch.full((2,), 3.0),))


def test_an_operator_that_writes_gets_copies() -> None:
    """A custom operator that is used functionally does not change its operands."""
    x, out, copy_ = (TensorMeta(name, (2,), "float32") for name in ("x", "out", "copy"))
    node = OpNode("add", "aten.add_.Tensor", [x, x], [out, copy_], {"alpha": 1}, args=["self", "other"])
    given = torch.ones(2)
    first, second = executed(to_python(IR([node], [x], [out, copy_])), {})(given)
    assert_same((given, first, second), (torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 2.0)))


def test_weights_of_every_kind() -> None:
    """Tied weights have all their keys; strides are kept; without values nothing is allocated."""
    layer = nn.Linear(3, 3)
    layer.weight = nn.Parameter(torch.randn(3, 3).t())
    model = module(lambda self, x: self.a(self.b(x)), a=layer, b=layer)
    ir = captured(model, torch.randn(2, 3))
    same = executed(to_python(ir), model.state_dict())
    assert_same(same(torch.ones(2, 3)), model(torch.ones(2, 3)))
    namespace: dict[str, Any] = {}
    exec(to_python(ir), namespace)
    empty = namespace["Net"]()
    assert all(weight.is_meta for weight in empty.parameters())
    assert empty.get_parameter("a.weight") is empty.get_parameter("b.weight")
    assert not namespace["Net"]("cpu").get_parameter("a.weight").is_meta


def test_a_constant_without_values() -> None:
    """Unknown values stay on meta, so that nothing is computed from them."""
    x, y, lost = (TensorMeta(name, (2,), "float32") for name in ("x", "y", "lost"))
    lost.param = Param(("lost",), "temporary")
    ir = IR([OpNode("y", "aten.add.Tensor", [x, lost], [y], args=["self", "other"])], [x], [y], params=[lost])
    with pytest.raises(RuntimeError, match="meta"):
        executed(to_python(ir), {})(torch.ones(2))
    lost.param = Param(("lost",), "temporary", TensorData((2,), "float32", bytes(8)))
    assert_same(executed(to_python(ir), {})(torch.ones(2)), (torch.ones(2),))


def test_sizes_outside_of_ranges_and_constraints_are_refused() -> None:
    """The source checks what the executor checks of dynamic sizes."""

    class ByRows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:2] * 2 if x.shape[0] > 2 and x.shape[0] % 2 == 0 else x + 1

    model = ByRows().eval()
    ir = extract_ir(model, (torch.ones(6, 4),), strict=False, dynamic_shapes=({0: Dim.AUTO},))
    space: dict[str, Any] = {"__name__": "written"}
    exec(compile(to_python(ir), "written.py", "exec"), space)
    net = space["Net"]()
    assert torch.equal(net(torch.ones(8, 4)), model(torch.ones(8, 4)))
    for rows in (0, 1, 2, 5, 7):
        with pytest.raises(ValueError, match="the model was captured for inputs with"):
            net(torch.ones(rows, 4))
