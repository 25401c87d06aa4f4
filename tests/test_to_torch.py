"""A graph as an nn.Module: it computes the same as the model, and torch exports the same graph from it."""

import copy
import inspect
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim
from torch.utils import _pytree as pytree

import catalogue
import torch_ir
from catalogue import Entry
from tests.proof import module
from torch_ir import IR, OpNode, TensorMeta, diff, extract_ir, to_torch
from torch_ir.errors import CaptureWarning, ConversionError, ExecutionError, TorchIRError, WeightLoadError
from torch_ir.ir import Param
from torch_ir.ir.graph.io_tree import Record
from torch_ir.ops.registry import unregister
from torch_ir.targets import dynamic_shapes_of

ENTRIES = catalogue.entries()
CHOSEN = ("buffer_mutation", "constants", "control_flow", "inplace", "nested_inputs", "shared_weights", "while_loop")

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", CaptureWarning)
        warnings.filterwarnings("ignore", module=r"torch\..*")
        torch.manual_seed(0)
        yield


def captured(model: nn.Module, *inputs: Any, dynamic: Any = None, **kwargs: Any) -> IR:
    return extract_ir(model, inputs, kwargs=kwargs, strict=False, dynamic_shapes=dynamic)


def assert_same(got: Any, wanted: Any) -> None:
    """The same nesting, and numbers as near as two kernels for one operator are."""
    found, spec = pytree.tree_flatten(got)
    expected, wanted_spec = pytree.tree_flatten(wanted)
    assert spec == wanted_spec
    torch.testing.assert_close(found, expected, equal_nan=True)


def assert_exports_the_graph(entry: Entry) -> None:
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = captured(model, *inputs, **kwargs)
    filled = to_torch(ir)
    filled.load_state_dict(model.state_dict(), assign=True)
    program = torch.export.export(filled, *copy.deepcopy((inputs, kwargs)))
    assert str(diff(ir, torch_ir.convert_exported_program(program))) == "the graphs are equal"
    assert str(diff(ir, captured(to_torch(ir), *inputs, **kwargs))) == "the graphs are equal"


def assert_computes_the_same(entry: Entry, compiler: str | None = None) -> None:
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    same = to_torch(captured(model, *inputs, **kwargs), model.state_dict())
    before = copy.deepcopy(model.state_dict())
    given, given_kwargs = copy.deepcopy((inputs, kwargs))
    call = same if compiler is None else torch.compile(same, backend=compiler, fullgraph=True)
    with torch.no_grad():
        torch.manual_seed(1)
        got = call(*given, **given_kwargs)
        assert_same(model.state_dict(), before)
        torch.manual_seed(1)
        assert_same(got, model(*inputs, **kwargs))
    assert_same((given, given_kwargs), (inputs, kwargs))
    assert_same(dict(sorted(same.state_dict().items())), dict(sorted(model.state_dict().items())))


@pytest.mark.parametrize("name", CHOSEN)
def test_torch_exports_the_graph_that_the_module_was_made_of(name: str) -> None:
    """With weights through torch.export, and with none at all through extract_ir."""
    assert_exports_the_graph(catalogue.find(name))


@pytest.mark.slow
@every_entry
def test_the_catalogue_exports_the_same_graphs(entry: Entry) -> None:
    """All of it; there are no exceptions."""
    assert_exports_the_graph(entry)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_module_computes_what_the_model_computes(name: str) -> None:
    """Results, changed inputs and changed state; the given weights are not written to."""
    assert_computes_the_same(catalogue.find(name))


@pytest.mark.slow
@every_entry
def test_the_catalogue_computes_the_same(entry: Entry) -> None:
    assert_computes_the_same(entry)


@pytest.mark.parametrize("name", ["buffer_mutation", "while_loop"])
def test_a_compiler_takes_the_module_whole(name: str) -> None:
    """Without a graph break, structure and control flow included."""
    torch.compiler.reset()
    assert_computes_the_same(catalogue.find(name), "aot_eager")


@pytest.mark.slow
@every_entry
def test_a_compiler_takes_the_catalogue_whole(entry: Entry) -> None:
    torch.compiler.reset()
    assert_computes_the_same(entry, "aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="Inductor needs a C++ compiler")
def test_inductor_runs_it() -> None:
    """torch.compile as users call it."""
    torch.compiler.reset()
    assert_computes_the_same(catalogue.find("mlp"), "inductor")


SAVED = ("buffer_mutation", "control_flow", "nested_inputs", "shared_weights")


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_program_comes_back(name: str, tmp_path: Path) -> None:
    """As a `.pt2` file: the loaded program computes the same, and yields the same graph, including ties."""
    entry = catalogue.find(name)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    ir = captured(model, *inputs, **kwargs)
    filled = to_torch(ir)
    filled.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    torch.export.save(torch.export.export(filled, *copy.deepcopy((inputs, kwargs))), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    assert str(diff(ir, torch_ir.convert_exported_program(loaded))) == "the graphs are equal"
    if not ir.tied_weights:  # only the program shows that two parameters of its module are tied
        assert str(diff(ir, captured(loaded.module(), *inputs, **kwargs))) == "the graphs are equal"
    with torch.no_grad():
        torch.manual_seed(1)
        got = loaded.module()(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))
        torch.manual_seed(1)
        assert_same(got, model(*inputs, **kwargs))


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(64, 64).tril(), persistent=False)

    def forward(self, x: Tensor, *, y: Tensor) -> dict[str, Any]:
        batch, length, width = x.shape
        flat = self.layer(x).reshape(batch * length, width)
        stacked = torch.cat([flat, flat]).view(2, batch, length, width)
        return {
            "z": stacked + self.mask[:length, :length].sum() * (length // 2),
            "n": 2 * batch + 1,
            "y": y * max(length, 3),
        }


def test_sizes_that_vary(tmp_path: Path) -> None:
    """Symbols are read off inputs, numbers are computed from them, and arguments keep their names for torch.export."""
    model, x, y = Sized().eval(), torch.randn(3, 6, 8), torch.randn(6)
    batch, length = Dim("batch", max=64), Dim("length", max=63)
    dynamic = {"x": {0: batch, 1: length}, "y": {0: length}}
    ir = captured(model, x, y=y, dynamic=dynamic)
    same = to_torch(ir)
    assert str(inspect.signature(same.forward)) == "(x, /, *, y)"
    same.load_state_dict(model.state_dict(), assign=True)
    asked = dynamic_shapes_of(ir)
    assert str(asked) == str(dynamic)
    program = torch.export.export(same, (x,), {"y": y}, dynamic_shapes=asked)
    assert str(diff(ir, torch_ir.convert_exported_program(program))) == "the graphs are equal"
    assert str(diff(ir, captured(to_torch(ir), x, y=y, dynamic=dynamic))) == "the graphs are equal"
    torch.export.save(program, tmp_path / "sized.pt2")
    loaded = torch_ir.convert_exported_program(torch.export.load(tmp_path / "sized.pt2"))
    other, others = torch.randn(5, 10, 8), torch.randn(10)
    with torch.no_grad():
        assert_same(same(other, y=others), model(other, y=others))
        assert_same(to_torch(loaded, model.state_dict())(other, y=others), model(other, y=others))


def test_a_size_that_is_never_alone() -> None:
    """A symbol that an input shows only as 2*n + 1 is solved for."""
    n, x = Dim("n", min=2, max=32), torch.randn(9)
    model = module(lambda self, x: x[: (x.shape[0] - 1) // 2] * x.shape[0])
    ir = captured(model, x, dynamic={"x": {0: 2 * n + 1}})
    assert ir.graph_inputs[0].shape == ("(2 * n) + 1",)
    assert_same(to_torch(ir)(torch.arange(13.0)), model(torch.arange(13.0)))


def test_the_sizes_that_torch_is_told_of() -> None:
    """In the nesting of the model's inputs; linear sizes of one symbol, and those left to torch."""
    n = Dim("n", min=2, max=32)
    model = module(lambda self, x, pair: x["a"][: pair[0].shape[0]] + pair[0] + pair[1])
    inputs = {"a": torch.randn(9)}, [torch.randn(4), torch.randn(1)]
    ir = captured(model, *inputs, dynamic={"x": {"a": {0: 2 * n + 1}}, "pair": [{0: n}, None]})
    asked = dynamic_shapes_of(ir)
    assert str(asked) == "{'arg0': {'a': {0: 2*n + 1}}, 'arg1': [{0: Dim('n', max=32)}, None]}"
    again = captured(to_torch(ir), *inputs, dynamic=asked)
    assert str(diff(ir, again)) == "the graphs are equal"
    ir.constraints = ["n % 2 == 0"]
    assert dynamic_shapes_of(ir) == {"arg0": {"a": {0: Dim.AUTO}}, "arg1": [{0: Dim.AUTO}, None]}
    ir.constraints = []
    ir.symbols["n"].min = ir.symbols["n"].max  # which a `Dim` cannot express
    assert dynamic_shapes_of(ir) == {"arg0": {"a": {0: Dim.AUTO}}, "arg1": [{0: Dim.AUTO}, None]}
    assert dynamic_shapes_of(captured(model, *inputs)) is None


def test_sizes_made_of_data() -> None:
    """A size that a node computes is known from there on; assertions stay."""

    def forward(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        count: Any = (x > 0).sum().item()
        torch._check(count >= 0)  # torch would add it where a size depends on it
        torch._check(count <= 100)
        return x.nonzero().float() * 2, torch.zeros(count + 1)

    model, x = module(forward), torch.randn(10)
    ir = captured(model, x)
    assert {symbol.tensor.producer is None for symbol in ir.symbols.values() if symbol.tensor} == {False}
    assert_same(to_torch(ir)(x), model(x))
    assert str(diff(ir, captured(to_torch(ir), x))) == "the graphs are equal"


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return carry @ self.weight + row, carry * 2

        last, rows = scan(step, torch.zeros(4), x, dim=0)
        return last, rows, torch_map(lambda row, weight: torch.relu(row) @ weight, x, self.weight)


def test_bodies_of_loops() -> None:
    """scan and map, over a size that varies: bodies are modules inside."""
    model, x, dynamic = Loops().eval(), torch.randn(5, 4), {"x": {0: Dim("n", max=50)}}
    ir = captured(model, x, dynamic=dynamic)
    same = to_torch(ir, model.state_dict())
    with torch.no_grad():
        assert_same(same(torch.ones(9, 4)), model(torch.ones(9, 4)))
    assert str(diff(ir, captured(to_torch(ir), x, dynamic=dynamic))) == "the graphs are equal"


def test_calls_of_functions_are_put_inline() -> None:
    """A folded graph has the module of the flat one."""
    entry = catalogue.find("gpt")
    model, inputs = entry.build(), entry.inputs()
    ir = captured(model, *inputs)
    for view in (ir.fold_blocks(), ir.at_level("module")):
        assert any(node.is_call for node in view.nodes)
        with torch.no_grad():
            assert_same(to_torch(view, model.state_dict())(*inputs), model(*inputs))
        assert str(diff(ir, captured(to_torch(view), *inputs))) == "the graphs are equal"
        assert any(node.is_call for node in view.nodes)


def relu(key: str, weight: str = "w", kind: str = "parameter") -> IR:
    """y = x + a weight of that key."""
    x, w, y = (TensorMeta(name, (2,), "float32") for name in ("x", weight, "y"))
    w.param = Param((key,), kind)
    return IR([OpNode("y", "aten.add.Tensor", [x, w], [y], {"alpha": 1}, args=["self", "other"])], [x], [y], params=[w])


def test_without_weights_nothing_takes_memory() -> None:
    """Parameters and buffers are on meta; constants are those of the graph."""
    same = to_torch(captured(module(lambda self, x: self.layer(x), layer=nn.BatchNorm1d(3)), torch.randn(2, 3)))
    held = [*same.parameters(), *same.buffers()]
    assert held
    assert all(tensor.is_meta for tensor in held)


@pytest.mark.parametrize("key", ['a"), print("hacked"), ("', "code", "class.if", "a b", "graph.weight"])
def test_any_key_that_a_module_can_have(key: str) -> None:
    """Keys come from files; none of them becomes code."""
    same = to_torch(relu(key), {key: torch.ones(2)})
    assert list(same.state_dict()) == [key]
    assert_same(same(torch.ones(2)), (torch.full((2,), 2.0),))


@pytest.mark.parametrize("key", ["a..b", "forward", "_tree", "training.x"])
def test_a_key_that_no_module_can_have(key: str) -> None:
    for kind in ("parameter", "buffer", "constant"):
        with pytest.raises(ConversionError, match="no module can hold a weight under"):
            to_torch(relu(key, kind=kind))


def test_names_that_are_no_names_in_python() -> None:
    """Tensors and nodes may have names that are reserved in Python."""
    assert_same(to_torch(relu("k", "class"), {"k": torch.ones(2)})(torch.ones(2)), (torch.full((2,), 2.0),))


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({}, "'layer.weight' has no values"),
        ({"layer.wieght": torch.ones(2)}, "'layer.weight' has no values; did you mean 'layer.wieght'?"),
        ({"layer.weight": torch.ones(3)}, r"'layer.weight' is float32\[3\], the graph needs float32\[2\]"),
        ({"layer.weight": torch.ones(2, dtype=torch.int64)}, r"'layer.weight' is int64\[2\]"),
        ({"layer.weight": torch.ones(2, device="meta")}, "'layer.weight' has no values"),
    ],
)
def test_weights_that_do_not_fit(weights: Mapping[str, Tensor], told: str) -> None:
    with pytest.raises(WeightLoadError, match=told):
        to_torch(relu("layer.weight"), weights)


def test_weights_that_the_graph_does_not_have_are_left_alone() -> None:
    assert list(to_torch(relu("k"), {"k": torch.ones(2), "more": torch.ones(1)}).state_dict()) == ["k"]


def test_tied_weights_stay_tied() -> None:
    """Under all of their keys, from any one of them, and after a state dict is assigned."""
    layer = nn.Linear(3, 3)
    model = module(lambda self, x: self.a(self.b(x)), a=layer, b=layer)
    ir = captured(model, torch.randn(2, 3))
    same = to_torch(ir, layer.state_dict(prefix="b."))
    assert same.get_parameter("a.weight") is same.get_parameter("b.weight")
    same.load_state_dict(model.state_dict(), assign=True)
    assert same.get_parameter("a.weight") is same.get_parameter("b.weight")


def folding() -> nn.Module:
    return module(lambda self, x: x @ (self.weight.t() * 2), weight=nn.Parameter(torch.randn(3, 3)))


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    """It is not part of a run, and is computed again when other weights are loaded."""
    model, x = folding(), torch.randn(2, 3)
    ir = captured(model, x)
    same = to_torch(ir, model.state_dict())
    assert [node.op_type for node in captured(same, x).nodes] == ["aten.matmul.default"]
    assert list(same.state_dict()) == ["weight"]
    other = folding()
    same.load_state_dict(other.state_dict())
    with torch.no_grad():
        assert_same(same(x), other(x))
        assert_same(copy.deepcopy(same)(x), other(x))


def test_weights_that_are_folded_can_be_trained() -> None:
    """Gradients pass through what is computed from weights alone, and an update changes it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).eval()
    x = torch.randn(4, 2, 2, 2)
    folded = torch_ir.optimize(extract_ir(model, (x,), strict=False), "basic")[0]
    assert "batch_norm" not in str([node.op_type for node in folded.nodes])
    trained = to_torch(folded, copy.deepcopy(model.state_dict())).requires_grad_()
    for each in (model, trained):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    for key, weight in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[key], weight)
    with torch.no_grad():
        torch.testing.assert_close(trained(x), model(x))


def test_a_value_that_is_returned_and_overwritten() -> None:
    """The graph defines which value is returned; a later update of the buffer is not visible."""
    x, seen, new = (TensorMeta(name, (2,), "float32") for name in ("x", "seen", "new"))
    seen.param = Param(("seen",), "buffer")
    add = OpNode("add", "aten.add.Tensor", [seen, x], [new], {"alpha": 1}, args=["self", "other"])
    same = to_torch(IR([add], [x], [seen, new], params=[seen], mutations=[(seen, new)]), {"seen": torch.zeros(2)})
    assert_same(same(torch.ones(2)), (torch.zeros(2), torch.ones(2)))
    assert_same(same(torch.ones(2)), (torch.ones(2), torch.full((2,), 2.0)))


class Pair(NamedTuple):
    first: Tensor
    rest: Any


class Single(NamedTuple):
    pair: Pair


def test_structure_comes_back() -> None:
    """Named tuples have their fields; numbers and None are unchanged."""
    model = module(lambda self, x, flag: (Pair(x + 1, [x - 1]), None, 7))
    ir = captured(model, torch.ones(2), True)
    (pair, nothing, seven) = to_torch(ir)(torch.ones(2), True)
    assert_same((pair.first, pair.rest), (torch.full((2,), 2.0), [torch.zeros(2)]))
    assert (nothing, seven) == (None, 7)
    with pytest.raises(ExecutionError, match=r"inputs\[1\] is False, but the graph was captured for True"):
        to_torch(ir)(torch.ones(2), False)


def test_named_tuples_come_back_at_any_depth() -> None:
    """In dicts, lists and other named tuples; also through a compiler."""
    model = module(lambda self, x: {"one": Pair(x + 1, [Single(Pair(x, 3))]), "two": [Pair(x - 1, {"z": x})]})
    filled = to_torch(captured(model, torch.ones(2)), {})
    for call in (filled, torch.compile(filled, backend="eager", fullgraph=True)):
        result = call(torch.ones(2))
        (single,), (two,) = result["one"].rest, result["two"]
        assert_same((result["one"].first, two.first), (torch.full((2,), 2.0), torch.zeros(2)))
        assert_same((single.pair.first, single.pair.rest, two.rest), (torch.ones(2), 3, {"z": torch.ones(2)}))


def test_objects_come_back_as_records() -> None:
    """A file cannot contain the class of a model's output; torch flattens the record like the object."""
    x, y = TensorMeta("x", (2,), "float32"), TensorMeta("y", (2,), "float32")
    tree = torch_ir.ir.Branch("object", (torch_ir.ir.Slot(0),), ("scores",), "somewhere.Output")
    ir = IR([OpNode("y", "aten.neg.default", [x], [y], args=["self"])], [x], [y], output_tree=tree)
    same = to_torch(ir)
    assert type(same(torch.ones(2))) is Record
    assert_same(same(torch.ones(2)).scores, -torch.ones(2))
    again = captured(same, torch.ones(2))
    assert again.output_tree.type_name == "torch_ir.ir.graph.io_tree.Record"
    assert diff(ir, again).differences == (f"output_tree: {ir.output_tree!r} / {again.output_tree!r}",)


def test_an_operator_of_the_user() -> None:
    """A registered executor is called instead, even if it has no name."""
    torch_ir.register_executor("mine.scale")(lambda inputs, attrs: [inputs[0] * attrs["by"]])
    try:
        x, y = TensorMeta("x", (2,), "float32"), TensorMeta("y", (2,), "float32")
        ir = IR([OpNode("y", "mine.scale", [x], [y], {"by": 3})], [x], [y])
        assert_same(to_torch(ir)(torch.ones(2)), (torch.full((2,), 3.0),))
    finally:
        unregister("mine.scale")
    with pytest.raises(TorchIRError, match=r"no executor for mine\.scale"):
        to_torch(ir)
