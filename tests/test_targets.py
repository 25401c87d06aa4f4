"""Lowering to the user's own IR: the most specific handler first, a placeholder where none is left, never an error."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F

import catalogue
from tests.graphs import chain, everything, mlp
from torch_ir import (
    IR,
    Declined,
    IRExecutor,
    Lowered,
    OpNode,
    Placeholder,
    Target,
    TensorMeta,
    extract_ir,
    meta_init,
    op,
    render,
)  # fmt: skip
from torch_ir.errors import RegistryError
from torch_ir.ir.levels import at_level, fold, public_name
from torch_ir.ops.names import to_torch
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.ops.tensor_data import to_tensor
from torch_ir.targets.rules import Rule


def capture(model: nn.Module, *inputs: Tensor, **kwargs: Any) -> IR:
    return extract_ir(model.to("meta").eval(), tuple(x.to("meta") for x in inputs), kwargs=kwargs)


def accepting(*what: Any) -> Target:
    """A target that takes all of these, and says for each layer which node it was."""
    target = Target("npu")
    target.lowers(*what)(lambda node: node.op_type)
    return target


def kinds(lowered: Lowered) -> list[str]:
    return [layer.kind for layer in lowered]


# -- one handler -------------------------------------------------------------------------------------------------------


def test_a_layer_is_what_the_handler_returns() -> None:
    """Around it stand the names of tensors, and the keys of weights under the names of their arguments."""
    npu = Target("npu")

    @npu.lowers("aten.linear.default")
    def gemm(node: OpNode) -> tuple[str, ...]:
        return ("gemm", node["weight"].key)

    lowered = npu.lower(mlp())
    first = lowered.layers[0]
    assert (first.name, first.kind, first.value) == ("linear", "aten.linear.default", ("gemm", "fc1.weight"))
    assert (first.inputs, first.outputs) == (("x",), ("linear",))
    assert first.weights == {"weight": "fc1.weight", "bias": "fc1.bias"}
    assert [layer.is_placeholder for layer in lowered] == [False, True, False]
    assert not lowered.is_complete


def test_what_nobody_takes_is_a_placeholder_and_a_row_of_the_work_list() -> None:
    lowered = accepting("aten.linear").lower(mlp())
    assert lowered.placeholders == ["relu"]
    assert isinstance(lowered.layers[1].value, Placeholder)
    assert lowered.layers[1].value.why == ("no lowering",)
    (row,) = lowered.missing
    assert str(row) == "aten.relu.default  1x8 -> 1x8  (no lowering)"
    assert (row.count, row.modules, row.nodes) == (1, ["relu"], ["relu"])


def test_rows_are_counted_by_operator_and_shapes() -> None:
    ir = chain("aten.neg.default", "aten.relu.default", "aten.abs.default", "aten.exp.default")
    ir.nodes[3].op_type = "aten.neg.default"
    rows = Target("npu").lower(ir).missing
    assert [str(row) for row in rows] == [
        "aten.neg.default  2x3 -> 2x3 x2  (no lowering)",
        "aten.relu.default  2x3 -> 2x3  (no lowering)",
        "aten.abs.default  2x3 -> 2x3  (no lowering)",
    ]


def test_the_report_names_the_missing_operators() -> None:
    assert accepting("aten.linear", "aten.relu").lower(mlp()).report() == "npu: all 3 layers are lowered."
    assert accepting("aten.linear").lower(mlp()).report() == (
        "npu: 2 of 3 layers are lowered.\n"
        "The following ops are not supported by npu yet:\n"
        "  aten.relu.default  1x8 -> 1x8  (no lowering)\n"
        "They are placeholders, red in the picture."
    )


def test_a_handler_declines_with_a_reason() -> None:
    """`Declined` says why, None says nothing, an exception is told in one line; the next coarser name is tried."""
    npu = Target("npu")

    @npu.lowers("aten.relu.default")
    def exact(node: OpNode) -> Any:
        return Declined("only\n4-D")

    @npu.lowers("aten.relu")
    def any_overload(node: OpNode) -> Any:
        raise ValueError("first\nsecond")

    @npu.lowers("aten.linear")
    def nothing(node: OpNode) -> Any:
        return None

    lowered = npu.lower(mlp())
    reasons = [layer.value.why for layer in lowered]
    assert reasons[1] == ("exact: only 4-D", "any_overload raised ValueError: first")
    assert reasons[0] == reasons[2] == ("nothing: it returned None",)


def test_the_exact_name_comes_before_the_base_name() -> None:
    npu = accepting("aten.relu")
    npu.lowers("aten.relu.default")(lambda node: "exact")
    assert npu.lower(chain("aten.relu.default")).layers[0].value == "exact"


# -- registering -------------------------------------------------------------------------------------------------------


def test_a_name_has_one_holder() -> None:
    """A second function is refused with the name of the first; the same one, defined again, is not a second."""
    npu = Target("npu")

    def define() -> None:
        @npu.lowers("aten.relu.default", op("aten.neg.default"))
        def relu(node: OpNode) -> str:
            return "relu"

    define()
    define()
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.relu\.default' with .*define.<locals>.relu"):
        npu.lowers("aten.relu.default")(lambda node: None)
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.neg\.default\(\)' with"):
        npu.lowers(op("aten.neg.default"))(lambda node: None)
    assert npu.lower(chain("aten.relu.default")).is_complete


@pytest.mark.parametrize("names", [("torch.nn.modules.conv.Conv2d",), ("torch.nn.Conv2d",), (nn.Conv2d,)])
def test_a_class_and_its_names_are_one(names: tuple[Any, ...]) -> None:
    npu = accepting(nn.Conv2d)
    with pytest.raises(RegistryError, match=r"already lowers 'torch\.nn\.Conv2d'"):
        npu.lowers(*names)(lambda node: None)


def test_any_callable_may_be_a_handler() -> None:
    """A partial has no name of its own; it is shown as Python shows it."""
    npu = Target("npu")
    npu.lowers("aten.relu")(functools.partial(getattr, name="op_type"))
    npu.lowers("aten.neg")(str)
    with pytest.raises(RegistryError, match=r"npu already lowers 'aten\.relu' with functools\.partial\("):
        npu.lowers("aten.relu")(str)
    reason, text = [layer.value for layer in npu.lower(chain("aten.relu.default", "aten.neg.default"))]
    assert reason.why == ("partial raised TypeError: getattr() takes no keyword arguments",)
    assert text == "OpNode('neg', 'aten.neg.default')"


@pytest.mark.parametrize("thing", [3, None, [nn.Conv2d]])
def test_what_cannot_be_lowered_is_refused(thing: Any) -> None:
    with pytest.raises(RegistryError, match="is no operator name, module class, torch function or pattern"):
        Target("npu").lowers(thing)


def test_lowers_needs_something() -> None:
    with pytest.raises(RegistryError, match="is told nothing to lower"):
        Target("npu").lowers()


def test_a_handler_that_asks_for_what_is_not_captured_is_refused() -> None:
    npu = Target("npu")
    with pytest.raises(RegistryError, match=r"asks for 'weigth', which .* does not give; did you mean 'weight'"):

        @npu.lowers(op("aten.linear.default", weight="weight"))
        def linear(node: OpNode, weigth: Any) -> None:
            raise AssertionError

    with pytest.raises(RegistryError, match=r"asks for 'extra', which 'aten\.relu' does not give"):
        npu.lowers("aten.relu")(lambda node, extra: None)


def test_torch_is_not_imported_by_a_target() -> None:
    """A module of handlers, and lowering itself, run on a machine that has no torch."""
    program = """
import sys
from torch_ir import IR, Target, op
npu = Target("npu")
npu.lowers("torch.nn.Linear", "torch.flatten", "aten.relu", op("aten.neg.default"))(lambda node: 1)
print(npu.lower(IR([], [], [])).report())
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


# -- patterns ----------------------------------------------------------------------------------------------------------


def test_a_pattern_makes_one_layer_of_several_nodes() -> None:
    """The handler gets the last node and what it asks for; weights are named after the captures."""
    npu = Target("npu")

    @npu.lowers(op("aten.relu.default", self=op("aten.linear.default", weight="w").named("gemm")))
    def gemm_relu(node: OpNode, gemm: OpNode, w: Any) -> Any:
        return node.name, gemm.name, w.key

    lowered = npu.lower(mlp())
    first = lowered.layers[0]
    assert (first.kind, first.inputs, first.outputs) == ("npu.gemm_relu", ("x",), ("relu",))
    assert first.value == ("relu", "linear", "fc1.weight")
    assert first.weights == {"w": "fc1.weight", "p_fc1_bias": "fc1.bias"}
    assert lowered.placeholders == ["linear_1"]
    assert lowered.ir.check().nodes[0].op_type == "npu.gemm_relu"


def test_a_larger_pattern_comes_first() -> None:
    npu = Target("npu")
    relu = op("aten.relu.default")
    npu.lowers(relu)(lambda node: "one")
    npu.lowers(op("aten.neg.default", self=relu))(lambda node: "two")
    npu.lowers(op("aten.abs.default", self=op("aten.neg.default", self=relu)))(lambda node: "three")
    lowered = npu.lower(chain("aten.relu.default", "aten.neg.default", "aten.abs.default", "aten.exp.default"))
    assert [layer.value for layer in lowered][:1] == ["three"]
    assert lowered.placeholders == ["exp"]


def test_a_pattern_does_not_swallow_what_others_read() -> None:
    """A value inside a match that is read elsewhere would be lost, so the match is refused with the reason."""
    ir = chain("aten.neg.default", "aten.relu.default")
    ir.graph_outputs = [ir.nodes[1].output, ir.nodes[0].output]
    npu = Target("npu")

    @npu.lowers(op("aten.relu.default", self=op("aten.neg.default")))
    def both(node: OpNode) -> str:
        return "both"

    lowered = npu.lower(ir)
    assert lowered.layers[1].value.why == ("no lowering", "both: 'neg' is also read by 'return'")


def test_a_refused_pattern_leaves_its_nodes_to_finer_handlers() -> None:
    npu = accepting("aten.neg", "aten.relu")
    npu.lowers(op("aten.relu.default", self=op("aten.neg.default")))(lambda node: Declined("no"))
    lowered = npu.lower(chain("aten.neg.default", "aten.relu.default"))
    assert kinds(lowered) == ["aten.neg.default", "aten.relu.default"]


# -- modules and functions ---------------------------------------------------------------------------------------------


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.last = Gate(), Gate()

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.last(self.shared(self.shared(x))), 1)


@pytest.fixture(scope="module")
def gates() -> IR:
    return capture(Gates(), torch.ones(2, 3, 4))


both_levels = pytest.mark.parametrize("level", ["aten", "module"])


@both_levels
def test_a_module_class_takes_whole_calls(gates: IR, level: str) -> None:
    """Each call is one layer, a module that is called twice is two, and `body` is the graph inside."""
    npu = accepting("aten.flatten")

    @npu.lowers(Gate)
    def gate(node: OpNode, body: IR) -> Any:
        return [step.op_type for step in body.nodes], node["up_weight"].key

    lowered = npu.lower(at_level(gates, level))
    assert lowered.is_complete
    assert [layer.name for layer in lowered] == ["shared", "shared_1", "last", "flatten"]
    assert [layer.value[1] for layer in lowered.layers[:3]] == [
        "shared.up.weight",
        "shared.up.weight",
        "last.up.weight",
    ]
    assert lowered.layers[2].weights["down_bias"] == "last.down.bias"
    inside = ["aten.linear.default", "aten.gelu.default", "aten.linear.default", "aten.add.Tensor"]
    assert lowered.layers[0].value[0] == inside


@both_levels
def test_the_outermost_module_comes_first_and_finer_ones_when_it_declines(gates: IR, level: str) -> None:
    npu = accepting("aten.flatten", "aten.add", "aten.gelu", nn.Linear)

    @npu.lowers(Gate)
    def gate(node: OpNode) -> Any:
        return "gate" if node.origin.module == "shared" else Declined("not the last")

    lowered = npu.lower(at_level(gates, level))
    assert lowered.is_complete
    own = f"{Gate.__module__}.Gate"
    finer = ["torch.nn.Linear", "aten.gelu.default", "torch.nn.Linear", "aten.add.Tensor", "aten.flatten.using_ints"]
    assert kinds(lowered) == [own, own, *finer]


def test_a_module_gives_only_what_it_returns() -> None:
    """A cast to the same dtype gives its input back; what others read of it is no output of the layer."""
    lowered = accepting("catalogue.llama.RMSNorm").lower(_graph_of("llama"))
    norms = [layer for layer in lowered if layer.kind == "catalogue.llama.RMSNorm"]
    assert norms
    assert all(len(layer.outputs) == 1 for layer in norms)
    _assert_joined(lowered)


def test_the_reason_of_a_module_stays_with_its_nodes(gates: IR) -> None:
    npu = accepting("aten.linear", "aten.add", "aten.flatten")

    @npu.lowers(Gate)
    def gate(node: OpNode) -> Any:
        return Declined("too wide")

    (row,) = npu.lower(gates).missing
    assert str(row) == "aten.gelu.default  2x3x8 -> 2x3x8 x3  (no lowering; gate: too wide)"


@both_levels
def test_a_pattern_comes_before_a_module(gates: IR, level: str) -> None:
    """A module of which a pattern took a part is no longer whole, and its handler is not asked."""
    npu = accepting("aten.linear", "aten.add", "aten.flatten", Gate)

    @npu.lowers(op("aten.gelu.default", self=op("aten.linear.default")))
    def linear_gelu(node: OpNode) -> str:
        return "fused"

    lowered = npu.lower(at_level(gates, level))
    assert kinds(lowered)[:3] == ["npu.linear_gelu", "aten.linear.default", "aten.add.Tensor"]
    assert lowered.is_complete


@pytest.mark.parametrize("function", [torch.flatten, "torch.flatten", torch.Tensor.flatten])
def test_a_torch_function_takes_the_operator_of_its_name(gates: IR, function: Any) -> None:
    npu = accepting("aten.flatten")
    npu.lowers(function)(lambda node: node["start_dim"])
    npu.lowers(F.gelu)(lambda node: "gelu")
    values = [layer.value for layer in npu.lower(gates) if not layer.is_placeholder]
    assert values == ["gelu"] * 3 + [1]


class Pairs(nn.Module):
    """Calls a torch function that is several operators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.cosine_similarity(x, F.normalize(x, dim=1)).neg()


@pytest.mark.parametrize("level", ["aten", "function", "module"])
def test_a_recorded_function_of_several_operators_is_one_layer(level: str) -> None:
    """A recorded graph knows which torch function each node came from, at any level; else its operators are tried."""
    ir = extract_ir(Pairs().eval(), (torch.empty(2, 3, device="meta"),), capture="record").at_level(level)
    npu = accepting(F.normalize, "aten.cosine_similarity", "aten.neg")
    lowered = npu.lower(ir)
    assert kinds(lowered) == ["torch.nn.functional.normalize", "aten.cosine_similarity.default", "aten.neg.default"]
    declining = accepting("aten.neg")
    declining.lowers(F.normalize)(lambda node: Declined("no"))
    assert "lambda: no" in declining.lower(ir).missing[0].reasons


def test_a_recorded_function_is_taken_by_its_name_or_looked_into(gates: IR) -> None:
    ir = gates.clone()
    fold(ir, [ir.node("flatten")], "flat", "torch.flatten")
    assert accepting("torch.flatten").lower(ir).layers[-1].kind == "torch.flatten"
    assert accepting("aten.flatten").lower(ir).layers[-1].kind == "aten.flatten.using_ints"


def test_a_call_without_handler_is_looked_into() -> None:
    """Repeated blocks, fused operators and recorded functions count as the nodes inside them."""
    ir = everything()
    lowered = accepting("aten.neg", "aten.relu").lower(ir)
    assert kinds(lowered) == ["aten.mm.default", "aten.max.dim", "aten.add.Tensor", "aten.neg.default",
                              "aten.relu.default", "aten.cat.default"]  # fmt: skip
    assert kinds(accepting("call").lower(ir))[3] == "call"
    declining = Target("npu")
    declining.lowers("call")(lambda node: None)
    assert kinds(declining.lower(ir))[3:5] == ["aten.neg.default", "aten.relu.default"]


def test_the_lowered_graph_computes_the_same(gates: IR) -> None:
    """Whatever was folded is a call of what it folded, so the graph beside the layers runs."""
    torch.manual_seed(0)
    model = Gates().eval()
    npu = accepting(Gate)
    npu.lowers(op("aten.flatten.using_ints", self="x"))(lambda node: "flat")
    lowered = npu.lower(gates)
    x = torch.randn(2, 3, 4)
    out = IRExecutor(lowered.ir, model.state_dict())(x)
    torch.testing.assert_close(out, model(x))


def test_placeholders_are_red_in_the_picture(gates: IR, tmp_path: Path) -> None:
    lowered = accepting(Gate).lower(gates)
    render(lowered.ir, tmp_path / "gates.mmd", placeholders=lowered.placeholders)
    styled = [line for line in (tmp_path / "gates.mmd").read_text().splitlines() if "#c62828" in line]
    assert [line.split()[1] for line in styled if "op_" in line] == ["op_flatten"]


def test_control_flow_gives_its_branches_by_name() -> None:
    npu = Target("npu")

    @npu.lowers("higher_order.cond")
    def cond(node: OpNode, true_fn: IR, false_fn: IR) -> Any:
        return len(true_fn.nodes), len(false_fn.nodes)

    lowered = npu.lower(_graph_of("control_flow"))
    assert any(layer.kind == "higher_order.cond" and not layer.is_placeholder for layer in lowered)


# -- splitting by torch ------------------------------------------------------------------------------------------------


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) + F.silu(x + 1)


def test_decompose_splits_what_has_no_handler() -> None:
    """All layers of a split node are there, joined to the names around it; handlers see ordinary nodes."""
    npu = accepting("aten.sigmoid", "aten.mul", "aten.add")
    ir = capture(Swish(), torch.ones(2, 3))
    assert npu.lower(ir).placeholders == ["silu", "silu_1"]
    lowered = npu.lower(ir, decompose=True)
    assert lowered.is_complete
    _assert_joined(lowered)
    names = ["aten.sigmoid.default", "aten.mul.Tensor"]
    assert kinds(lowered) == [*names, "aten.add.Tensor", *names, "aten.add.Tensor"]
    assert [layer.name for layer in lowered][:2] == ["silu.sigmoid", "silu.mul"]


class Interpreter(Target):
    """Takes every operator but some, and makes of each a function that computes it with torch."""

    def __init__(self, denied: set[str]) -> None:
        super().__init__("interpreter")
        self.denied = denied

    def rules_for(self, op_type: str) -> Iterator[Rule]:
        if op_type.startswith("aten.") and op_type.split(".")[1] not in self.denied:
            yield Rule("any", _computed, ())


def _computed(node: OpNode) -> Callable[[dict[str, Any]], Any]:
    operator = find_operator(node.op_type)
    assert operator is not None
    names = [argument.name for argument in arguments(operator)]
    given = {name: node[name] if name in (*node.args, *node.attrs) else node.elements(name) for name in names}

    def value_of(argument: Any, values: dict[str, Any]) -> Any:
        if isinstance(argument, TensorMeta):
            return values[argument.key or argument.name]
        return [value_of(item, values) for item in argument] if isinstance(argument, list) else to_torch(argument)

    return lambda values: operator(**{name: value_of(argument, values) for name, argument in given.items()})


SPLIT = {"linear", "conv2d", "layer_norm", "silu", "gelu", "batch_norm", "softmax", "scaled_dot_product_attention",
         "adaptive_avg_pool2d", "flatten", "rms_norm", "hardswish", "dropout"}  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "squeeze_excite", "transformer_encoder", "llama"])
def test_split_layers_compute_what_the_model_does(name: str) -> None:
    """Run layer by layer, with the operators that torch can split denied to the target."""
    torch.manual_seed(0)
    entry = catalogue.find(name)
    model, inputs = entry.build(), entry.inputs()
    lowered = Interpreter(SPLIT).lower(_graph_of(name), decompose=True)
    assert lowered.is_complete, lowered.report()
    assert any("." in layer.name for layer in lowered)
    values: dict[str, Any] = {**model.state_dict(), **dict(model.named_buffers())}
    values |= {key: to_tensor(data) for key, data in lowered.ir.constants.items()}
    values |= {tensor.name: x for tensor, x in zip(lowered.ir.graph_inputs, inputs, strict=True)}
    with torch.no_grad():
        for layer in lowered:
            made = layer.value(values)
            if layer.outputs:
                several = made if isinstance(made, (list, tuple)) else [made]
                rows = [value.contiguous() for value in several]  # a split operator may lay its result out otherwise
                values.update(zip(layer.outputs, rows, strict=True))
        wanted = model(*inputs)
    torch.testing.assert_close(values[lowered.ir.graph_outputs[0].name], wanted, rtol=1e-4, atol=1e-5)


def test_decompose_is_all_or_nothing() -> None:
    lowered = accepting("aten.mul", "aten.add").lower(capture(Swish(), torch.ones(2, 3)), decompose=True)
    assert [str(row) for row in lowered.missing] == [
        "aten.silu.default  2x3 -> 2x3 x2  (no lowering; split by torch, it lacks aten.sigmoid.default)"
    ]


def test_decompose_says_why_not_where_sizes_vary() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    ir = extract_ir(Swish().eval(), (torch.empty(4, 3, device="meta"),), dynamic_shapes=({0: batch},))
    npu = accepting("aten.sigmoid", "aten.mul", "aten.add")
    assert "not split: its sizes vary: batch" in str(npu.lower(ir, decompose=True).missing[0])
    assert npu.lower(ir.specialize(batch=3), decompose=True).is_complete


# -- never an error ----------------------------------------------------------------------------------------------------


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even my text fails")


class _Hostile:
    """A value that refuses every question."""

    @property
    def __class__(self) -> Any:
        raise ValueError

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __bool__(self) -> bool:
        raise ValueError

    __hash__ = None


def _raises(error: BaseException) -> Callable[[OpNode], Any]:
    def handler(node: OpNode) -> Any:
        raise error

    return handler


def _destroys(node: OpNode) -> None:
    for reader in [reader for output in node.outputs for reader in output.consumers]:
        reader.inputs, reader.attrs, reader.origin = (), None, None  # type: ignore[assignment]
    node.inputs, node.outputs, node.name, node.op_type = (), (), "", "destroyed"
    node.attrs.clear()


def _recurses(node: OpNode) -> Any:
    return _recurses(node)


HANDLERS: list[Callable[..., Any]] = [
    *map(
        _raises,
        [ValueError("a\nb"), KeyError("x"), AssertionError(), _UnprintableError(), MemoryError(), StopIteration()],
    ),
    _destroys,
    _recurses,
    lambda node: Declined(_Hostile()),  # type: ignore[arg-type]
    lambda node: _Hostile(),
    lambda: None,
    lambda node, **everything: everything["body"].nodes,
    lambda node: node["no such argument"],
]


def _graph_of(name: str) -> IR:
    entry = catalogue.find(name)
    with meta_init():
        model = entry.build()
    given = pytree.tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (entry.inputs(), entry.kwargs()))
    return extract_ir(model, given[0], kwargs=given[1])


def _wild_target(ir: IR, seed: int) -> Target:
    """Handlers of every kind for a random half of what a graph holds."""
    chance = random.Random(seed)
    target = Target("wild")
    names = dict.fromkeys([*(node.op_type for node in ir.nodes), *map(public_name, ir.modules.values())])
    for name in names:
        if chance.random() < 0.5:
            target.lowers(name)(chance.choice(HANDLERS))
    for node in ir.nodes:
        made = [(arg, t.producer.op_type) for arg, t in zip(node.args, node.inputs, strict=True) if t.producer]
        if made and chance.random() < 0.3:
            arg, op_type = chance.choice(made)
            pattern = op(node.op_type, **{arg: op(op_type).named(f"n{len(target.patterns)}")})
            target.lowers(pattern)(chance.choice(HANDLERS))
    return target


def _assert_joined(lowered: Lowered) -> None:
    """Every layer reads what is given or made before it, nothing is made twice, and the outputs are made."""
    made = {tensor.name for tensor in lowered.ir.graph_inputs}
    for layer in lowered:
        assert made.issuperset(layer.inputs)
        assert made.isdisjoint(layer.outputs)
        made.update(layer.outputs)
    assert made.issuperset(tensor.name for tensor in lowered.ir.graph_outputs if tensor.param is None)


def _assert_survives(ir: IR, decompose: bool) -> None:
    before = ir.to_json()
    for seed in range(4):
        lowered = _wild_target(ir, seed).lower(ir, decompose=decompose)
        assert ir.to_json() == before
        lowered.ir.check()
        _assert_joined(lowered)
        assert lowered.report()


NAMES = [entry.name for entry in catalogue.entries()]
SAMPLE = random.Random(0).sample(NAMES, 8)


@pytest.mark.parametrize("name", SAMPLE)
def test_no_handler_can_break_lowering(name: str) -> None:
    """Whatever handlers raise, return or destroy: a result comes back, it holds together, the graph is as it was."""
    _assert_survives(_graph_of(name), decompose=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_handler_can_break_lowering_anywhere(name: str) -> None:
    """The same on every model, with nodes split by torch as well."""
    ir = _graph_of(name)
    _assert_survives(ir, decompose=True)
    _assert_survives(at_level(ir, "module"), decompose=False)


def test_an_interrupt_is_not_swallowed() -> None:
    npu = Target("npu")
    npu.lowers("aten.relu")(_raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        npu.lower(chain("aten.relu.default"))


def test_handlers_cannot_hurt_the_graph() -> None:
    """A handler that tears its node apart harms neither the lowered graph nor the layers around it."""
    npu = accepting("aten.relu")

    @npu.lowers("aten.linear")
    def linear(node: OpNode) -> str:
        _destroys(node)
        return "done"

    lowered = npu.lower(mlp())
    assert lowered.ir.check().nodes[0].op_type == "aten.linear.default"
    assert [layer.inputs for layer in lowered] == [("x",), ("linear",), ("relu",)]
