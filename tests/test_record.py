"""Recording: a model that runs gives a graph, and the graph says where it does not hold and where data left torch."""

import copy
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from catalogue import Entry, entries
from tests.hard_models import cases
from tests.hard_models_table import outcome, page
from tests.proof import line_of, module, ops, to_meta, verdict
from torch_ir import IR, CaptureWarning, ExecutionError, ExportError, GuardError, IRExecutor, extract_ir
from torch_ir.ops import register_executor
from torch_ir.ops.registry import unregister

X = torch.arange(12.0).reshape(3, 4) / 10 - 0.3
pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")


def recorded(model: nn.Module, *inputs: Any, **options: Any) -> IR:
    """The graph of one run on real tensors, as a reader of its file gets it."""
    return IR.from_json(extract_ir(model, inputs, strict=False, capture="record", **options).to_json())


@pytest.fixture
def executor() -> Iterator[Any]:
    """`executor(op_type, function)` registers until the test ends."""
    names = []

    def register(op_type: str, function: Any) -> None:
        names.append(op_type)
        register_executor(op_type)(function)

    yield register
    for name in names:
        unregister(name)


# -- hard models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases())
def test_a_hard_model_gives_a_graph(name: str) -> None:
    """Never an exception: a graph that proves itself, or one whose gaps have names; and the page says which."""
    row = outcome(cases()[name])
    assert "differs" not in row
    assert f"{row}\n" in page()


def entry_names(entry: Entry) -> str:
    return entry.name


_SAMPLE = [entry for index, entry in enumerate(entries()) if index % 6 == 0]


@pytest.mark.parametrize("entry", _SAMPLE, ids=entry_names)
def test_a_recording_is_the_exported_graph(entry: Entry) -> None:
    """On fake tensors, operator for operator; what torch.export asserts beside is left out of the comparison."""
    check_recording(entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(), ids=entry_names)
def test_every_recording_is_the_exported_graph(entry: Entry) -> None:
    check_recording(entry)


def check_recording(entry: Entry) -> None:
    torch.manual_seed(0)
    model, args, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    bare, (meta_args, meta_kwargs) = copy.deepcopy(model).to("meta"), to_meta((args, kwargs))
    graphs = [extract_ir(bare, meta_args, kwargs=meta_kwargs, capture=how) for how in ("export", "record")]
    if entry.category != "control":  # a recording goes one way, or every way, as Python does
        found = [[op for op in ops(ir) if op not in _BESIDE] for ir in graphs]
        assert found[0] == found[1]
    for ir in (graphs[1], extract_ir(model, args, kwargs=kwargs, strict=False, capture="record")):
        report = verdict(IR.from_json(ir.to_json()), model, *args, kwargs=kwargs)
        assert report.is_valid, f"{report}\n{ir}"


# torch.export asserts the dtype of what is cast; and NumPy-like copies are seen by one of the two only
_BESIDE = ("aten._assert_tensor_metadata.default", "aten.detach.default", "aten.alias.default", "aten.clone.default")


# -- decisions --------------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.sum() > 0:  # decision
            self.count.add_(1)
            y = self.linear(x)
        else:
            y = x.t().contiguous().t() * torch.tensor(3.0)
        if y.max() > 1:
            y = y * 2
        return y, self.count + 1


def agrees_everywhere(ir: IR, model: nn.Module) -> None:
    """On inputs that go every way, with what the model changes among the results."""
    torch.manual_seed(0)
    for _ in range(24):
        x = torch.randn(3, 4) * 2
        run, witness = IRExecutor(ir, model.state_dict()), copy.deepcopy(model)
        outcome = run.run((x,))
        wanted = [*witness(x), witness.count]
        torch.testing.assert_close([*outcome.outputs, *outcome.mutations.values()], wanted, rtol=0, atol=0)


def test_a_decision_says_what_was_assumed_and_replay_checks_it() -> None:
    """The graph of one run holds where the data leads the same way, and says so elsewhere."""
    model = Branching().eval()
    ir = recorded(model, torch.ones(3, 4))
    decision = next(node for node in ir.nodes if node.op_type == "torch_ir.decision.default")
    assert (decision["assumed"], decision["place"]) == (True, line_of(__file__, "decision"))
    assert str(decision["value"].producer) in str(ir.node("gt"))
    torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X + 1), model(X + 1))
    with pytest.raises(GuardError, match="decides on data: the graph was captured where the value is True, and"):
        IRExecutor(ir, model.state_dict())(-torch.ones(3, 4))


@pytest.mark.parametrize("how", ["record", "export"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_way_that_a_model_can_go_is_one_graph(how: str, device: str) -> None:
    """Branches with their writes to buffers, joined; no values are needed."""
    model = Branching().eval()
    given = copy.deepcopy(model).to(device)
    ir = extract_ir(given, (X.to(device),), strict=False, capture=how, explore=8)
    ir = IR.from_json(ir.to_json())
    assert "torch_ir.decision.default" not in [node.op_type for node in ir.all_nodes()]
    assert ops(ir) == ["aten.sum.default", "aten.gt.Scalar", "higher_order.cond"]
    agrees_everywhere(ir, model)


def test_each_way_keeps_sizes_that_vary() -> None:
    """What torch.export is told to do, it does for sizes that vary as well."""
    model = module(lambda self, x: torch.cat([x, x]) if x.sum() > 0 else torch.cat([-x, x]))
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    ir = IR.from_json(extract_ir(model, (X,), strict=False, dynamic_shapes=shapes, explore=4).to_json())
    assert ir.graph_outputs[0].shape == ("2 * batch", 4)
    for size in (1, 2, 7):
        for sign in (1, -1):
            x = sign * torch.ones(size, 4)
            assert torch.equal(IRExecutor(ir)(x), model(x))


def test_the_bound_on_exploration_is_said_and_guarded() -> None:
    """A loop has no end when it is told to go on: what lies beyond the bound is guarded."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        while x.norm() > 1:
            x = x / 2
        return x

    model = module(forward)
    with pytest.warns(CaptureWarning, match="4 ways were explored and there are more"):
        ir = extract_ir(model, (X,), strict=False, capture="record", explore=4)
    for scale in (0.1, 1.0, 3.0):
        assert torch.equal(IRExecutor(ir)(X * scale), model(X * scale))
    with pytest.raises(GuardError):
        IRExecutor(ir)(X * 1000)


def test_a_way_that_raises_is_left_out_and_guarded() -> None:
    """An assertion of the model is an assertion of the graph."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(x).all():
            raise ValueError("not finite")
        return x * 2

    with pytest.warns(CaptureWarning, match="forward raises ValueError: not finite"):
        ir = extract_ir(module(forward), (X,), strict=False, capture="record", explore=4)
    assert torch.equal(IRExecutor(ir)(X), X * 2)
    with pytest.raises(GuardError):
        IRExecutor(ir)(X / 0)


def test_ways_that_return_different_forms_cannot_be_joined() -> None:
    model = module(lambda self, x: x if x.sum() > 0 else x[0])
    with pytest.raises(ExportError, match="cannot capture"):
        extract_ir(model.to("meta"), (X.to("meta"),), capture="export", explore=4)
    with pytest.raises(Exception, match=r"another form with another outcome: float32\[4\] and float32\[3, 4\]"):
        extract_ir(model, (X - 9,), strict=False, capture="record", explore=4)


def test_the_same_question_is_asked_once() -> None:
    model = module(lambda self, x: (x + 1 if (p := x.sum() > 0) else x) * (2 if p else 3))
    assert ops(recorded(model, X)).count("torch_ir.decision.default") == 1


def test_a_number_is_guarded_as_it_was() -> None:
    """What Python made of it is in the graph, which therefore holds for that number only."""
    model = module(lambda self, x: x * round(float(x[0, 0]), 2) + x.shape[0])
    ir = recorded(model, X)
    assert torch.equal(IRExecutor(ir)(X), model(X))
    with pytest.raises(GuardError, match=r"the value is -0\.3"):
        IRExecutor(ir)(X + 1)


def test_a_size_made_of_data_is_guarded() -> None:
    model = module(lambda self, x: x[x > 0.5].sum() * x[x > 0.5].shape[0])
    ir = recorded(model, X)
    assert torch.equal(IRExecutor(ir)(X), model(X))
    with pytest.raises(GuardError, match=r"the shape is \[3\], and here it is \[12\]"):
        IRExecutor(ir)(X + 1)


def test_what_is_made_of_strides_holds_for_those_strides() -> None:
    model = module(lambda self, x: x + 1 if x.is_contiguous() else x - 1)  # strides
    ir = recorded(model, X)
    assert ir.fixed_layout == line_of(__file__, "strides")
    with pytest.raises(ExecutionError, match=r"what .* makes of strides was decided"):
        IRExecutor(ir)(X.t().contiguous().t())


def test_a_number_that_nobody_has_is_refused_with_the_remedy() -> None:
    model = module(lambda self, x: x * [1, 2, 3][int(x.sum())])  # number
    with pytest.raises(ExportError, match=r"without values.*strict=False") as caught:
        extract_ir(model.to("meta"), (X.to("meta"),), capture="record")
    assert line_of(__file__, "number") in str(caught.value)


# -- data that leaves torch -------------------------------------------------------------------------------------------


class Detour(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh((x * 2).numpy())) + 1  # detour


def test_what_comes_back_is_the_result_of_a_placeholder(executor: Any) -> None:
    """It knows the place, its inputs and the shape of its result; with an executor, the graph runs."""
    ir = recorded(Detour().eval(), X)
    node = next(node for node in ir.nodes if node.op_type == "opaque.Detour")
    assert node["place"] == line_of(__file__, "detour")
    assert [tensor.name for tensor in node.inputs] == ["mul"]
    assert (node.output.shape, node.output.dtype) == ((3, 4), "float32")
    executor("opaque.Detour", lambda inputs, attrs: [torch.from_numpy(np.tanh(inputs[0].numpy()))])
    assert torch.equal(IRExecutor(ir)(X + 1), Detour()(X + 1))


def test_a_placeholder_needs_no_values() -> None:
    ir = extract_ir(Detour().eval(), (X.to("meta"),), capture="record")
    assert ops(ir) == ops(recorded(Detour().eval(), X))


def test_fake_tensors_of_ones_own_are_as_good_as_meta() -> None:
    """A model that was built under a mode of the user's, or inputs of such a mode, are recorded like those on meta."""
    with FakeTensorMode():
        fake, x = Branching().eval(), torch.empty(3, 4)
    wanted = ops(extract_ir(Branching().eval().to("meta"), (X.to("meta"),), capture="record"))
    for model in (fake, Branching().eval()):
        assert ops(extract_ir(model, (x,), strict=False, capture="record")) == wanted


def test_data_that_never_comes_back_has_its_place_too(executor: Any) -> None:
    """Nobody can say what Python made of it; an executor that gives nothing says that it does not matter."""
    model = module(lambda self, x: x + 1 if np.median((x * 2).numpy()) > 9 else x - 1)
    ir = recorded(model, X)
    assert ops(ir) == ["aten.mul.Tensor", "aten.sub.Tensor", "opaque.Model"]
    with pytest.raises(ExecutionError, match=r"no executor for opaque\.Model"):
        IRExecutor(ir)(X)
    executor("opaque.Model", lambda inputs, attrs: [])
    assert torch.equal(IRExecutor(ir)(X), X - 1)


def test_code_outside_may_write_to_what_it_is_given() -> None:
    """What it wrote to is no longer what torch computed."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.numpy()[0] += 1
        return y + x

    ir = recorded(module(forward), X)
    add = ir.node("add")
    assert add["self"].producer is not None
    assert add["self"].producer.op_type == "opaque.Model"


def test_what_leaves_is_what_was_there_then(executor: Any) -> None:
    """A later write in place does not change what code outside has seen."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        array = np.array(y.tolist(), dtype=np.float32)
        y.add_(100)
        return torch.from_numpy(array) + y

    ir = recorded(module(forward), X)
    executor("opaque.Model", lambda inputs, attrs: [inputs[0] * 1])
    assert torch.equal(IRExecutor(ir)(X), forward(nn.Module(), X))


def test_what_another_thread_computes_is_no_constant() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(x * 2))
        thread.start()
        thread.join()
        return found[0] + 1

    assert ops(recorded(module(forward), X)) == ["opaque.Model", "aten.add.Tensor"]


def test_printing_and_literals_leave_nothing() -> None:
    """Looking at a tensor is no decision, and a literal is a constant."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        print(x, f"{x.sum():.1f}")
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.from_numpy(np.ones(4, np.float32))

    ir = recorded(module(forward), X)
    assert not [op for op in ops(ir) if not op.startswith("aten.")]
    assert len(ir.constants) == 2
    assert torch.equal(IRExecutor(ir)(X), forward(nn.Module(), X))


# -- the model and the process are left alone -------------------------------------------------------------------------


def test_a_recording_leaves_model_and_inputs_as_they_were() -> None:
    """What forward writes to holds what it held, be it buffer, parameter or input; the graph says what changes."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        self.linear.weight.data.clamp_(-0.1, 0.1)
        self.norm.train()
        self.extra = x
        return self.norm(self.linear(x))

    model = module(forward, linear=nn.Linear(4, 4), norm=nn.BatchNorm1d(4))
    before, given = copy.deepcopy(model.state_dict()), X.clone()
    ir = recorded(model, given)
    assert torch.equal(given, X)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not hasattr(model, "extra")
    written = {target.key or target.name for target, _ in ir.mutations}
    assert written == {"x", "linear.weight", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_hooks_and_modes_are_gone_after_a_failure() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("missing")

    with pytest.raises(ExportError, match="forward raises KeyError: 'missing'"):
        recorded(module(forward), X)
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


def test_where_a_node_came_from() -> None:
    """Module path, which call of it, its class, the line, and the torch function that the model called."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = module(lambda self, x: nn.functional.gelu(self.layer(self.layer(x))), layer=layer)  # called
    ir = recorded(model, X)
    assert [tuple(node.origin) for node in ir.nodes] == [
        ("layer.0", 0, "Linear", line_of(__file__, "called"), (), "torch.nn.functional.linear@0"),
        ("layer.1", 0, "ReLU", line_of(__file__, "called"), (), "torch.nn.functional.relu@0"),
        ("layer.0", 1, "Linear", line_of(__file__, "called"), ("layer@1",), "torch.nn.functional.linear@1"),
        ("layer.1", 1, "ReLU", line_of(__file__, "called"), ("layer@1",), "torch.nn.functional.relu@1"),
        ("", 0, "Model", line_of(__file__, "called"), (), "torch.nn.functional.gelu@0"),
    ]
    assert ir.modules["layer.0"] == "torch.nn.modules.linear.Linear"


# -- levels -----------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh((x * self.scale).detach().numpy()))


def layered() -> nn.Module:
    parts = {"linear": nn.Linear(4, 4), "scaled": Scaled()}
    return module(lambda self, x: nn.functional.normalize(self.scaled(self.linear(x)).flatten(1)), **parts)


def test_a_node_is_what_the_level_says() -> None:
    """A layer, a torch function that the model calls, or an operator; what left torch is seen at each."""
    names = {
        level: [
            op.rpartition(".")[2] if op.startswith("torch.") else op for op in ops(recorded(layered(), X, level=level))
        ]
        for level in ("module", "function")
    }
    assert names["module"][0] == "Linear"
    assert [name for name in names["module"] if "Scaled" in name] == [
        "tests.test_record.Scaled[0]", "opaque.Scaled", "tests.test_record.Scaled[1]",
    ]  # fmt: skip
    assert names["function"] == [
        "linear", "mul", "detach", "opaque.Scaled", "aten.lift_fresh_copy.default", "flatten", "normalize",
    ]  # fmt: skip


def test_functions_and_layers_compute_what_operators_compute() -> None:
    parts = {"attention": nn.MultiheadAttention(4, 2, batch_first=True)}
    model = module(lambda self, x: nn.functional.gelu(self.attention(x, x, x)[0]), **parts)
    for level in ("module", "function", "aten"):
        ir = recorded(model, X[None], level=level)
        assert torch.equal(IRExecutor(ir, model.state_dict())(X[None]), model(X[None]))


def test_an_operator_that_the_model_calls_as_such_stays_one() -> None:
    model = module(lambda self, x: torch.ops.aten.relu.default(x) + 1)
    ir = recorded(model, X, level="function")
    assert ops(ir) == ["aten.relu.default", "torch.Tensor.add"]
    assert torch.equal(IRExecutor(ir)(X), model(X))


def test_a_layer_of_ones_own_is_one_node_whatever_is_inside(executor: Any) -> None:
    """With a body if it can run; else an executor for the layer runs it."""
    model = layered()
    ir = recorded(model, X, leaf=[Scaled])
    node = next(node for node in ir.nodes if node.op_type.endswith("Scaled"))
    assert (node.op_type, node.args) == ("tests.test_record.Scaled", ("input", "scale"))
    with pytest.raises(ExecutionError, match=r"no executor for tests\.test_record\.Scaled"):
        IRExecutor(ir, model.state_dict())(X)
    executor(node.op_type, lambda inputs, attrs: [torch.tanh(inputs[0] * inputs[1])])
    torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X + 1), model(X + 1))


def test_an_executor_for_one_layer_is_none_for_its_neighbour(executor: Any) -> None:
    """Classes of one file share all of their names but the last word."""
    model = layered()
    ir = recorded(model, X, leaf=[Scaled])
    executor("tests.test_record.Detour", lambda inputs, attrs: [inputs[0]])
    with pytest.raises(ExecutionError, match=r"no executor for tests\.test_record\.Scaled"):
        IRExecutor(ir, model.state_dict())(X)


# -- requests that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"capture": "recrod"}, "capture='recrod' is none of auto, export, record; did you mean 'record'?"),
        ({"explore": 0}, "explore=0 must be a whole number from 1"),
        ({"explore": "all"}, "explore='all' must be a whole number from 1"),
        ({"level": "layer"}, "'layer' is no level"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Exception, match=told.replace("?", r"\?")):
        extract_ir(nn.Linear(4, 4).eval(), (X,), strict=False, **options)


def test_falling_back_is_said_once_with_the_reason() -> None:
    """Which step captured the model, what torch.export said, and where the graph is bound to the data."""
    model = module(lambda self, x: x + 1 if x.sum() > 0 else x - 1)  # branch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ir = extract_ir(model, (X,), strict=False)
    told = [str(warning.message) for warning in caught if warning.category is CaptureWarning]
    assert len(told) == 2
    assert told[0].startswith("captured by recording, because torch.export cannot capture Model: ")
    assert all(line_of(__file__, "branch") in text for text in told)
    assert ir.extensions["captured_by"] == "recording"
