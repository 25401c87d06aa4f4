"""Recording: every model that runs is captured, and the graph marks where data left torch."""

import copy
import gc
import random
import threading
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from catalogue import Entry, entries, find
from tests.hard_models import cases
from tests.hard_models_table import outcome, page
from tests.proof import captured, line_of, module, ops, to_meta, verdict
from torch_ir import IR, CaptureWarning, ExecutionError, ExportError, IRExecutor, extract_ir

X = torch.arange(12.0).reshape(3, 4) / 10 - 0.3
pytestmark = pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")


def recorded(model: nn.Module, *inputs: Any, **options: Any) -> IR:
    """The graph of one run on real tensors, as a reader of its file gets it."""
    return IR.from_json(extract_ir(model, inputs, strict=False, capture="record", **options).to_json())


# -- hard models ------------------------------------------------------------------------------------------------------


# without a model whose kernels take ten seconds to compile; the test below has it with another back end
_CHOSEN = {*random.Random(0).sample(sorted(cases()), len(cases()) // 3)} - {"Compiled"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _CHOSEN else pytest.mark.slow) for name in cases()]
)
def test_a_hard_model_gives_a_graph(name: str) -> None:
    """Never an exception: a graph that verifies, or one with named placeholders, as on the page."""
    row = outcome(cases()[name])
    assert "differs" not in row
    assert f"{row}\n" in page()


def test_a_part_that_torch_compile_runs_gives_the_same_row_without_inductor() -> None:
    hard = cases()["Compiled"]
    row = outcome(replace(hard, model=lambda: hard.model("aot_eager")))
    assert f"{row}\n" in page()


def entry_names(entry: Entry) -> str:
    return entry.name


_SAMPLE = [entry for index, entry in enumerate(entries()) if index % 6 == 0]


@pytest.mark.parametrize("entry", _SAMPLE, ids=entry_names)
def test_a_recording_is_the_exported_graph(entry: Entry) -> None:
    """On fake tensors, operator for operator; assertions of torch.export are not compared."""
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
    if entry.category != "control":  # a recording takes one path, or all paths, as Python does
        found = [[op for op in ops(ir) if op not in _BESIDE] for ir in graphs]
        assert found[0] == found[1]
    for ir in (graphs[1], extract_ir(model, args, kwargs=kwargs, strict=False, capture="record")):
        report = verdict(IR.from_json(ir.to_json()), model, *args, kwargs=kwargs)
        assert report.is_valid, f"{report}\n{ir}"


# torch.export asserts the dtype of casts; and NumPy-like copies are seen by only one of the two
_BESIDE = ("aten._assert_tensor_metadata.default", "aten.detach.default", "aten.alias.default", "aten.clone.default")


# -- data that leaves torch -------------------------------------------------------------------------------------------


class Detour(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.tanh((x * 2).numpy())) + 1  # detour


def test_what_comes_back_is_the_result_of_a_placeholder(executors: Any) -> None:
    """It has the source line, its inputs and the shape of its result; with an executor, the graph runs."""
    ir = recorded(Detour().eval(), X)
    node = next(node for node in ir.nodes if node.op_type == "opaque.Detour")
    assert node["place"] == line_of(__file__, "detour")
    assert [tensor.name for tensor in node.inputs] == ["mul"]
    assert (node.output.shape, node.output.dtype) == ((3, 4), "float32")
    executors("opaque.Detour", lambda inputs, attrs: [torch.from_numpy(np.tanh(inputs[0].numpy()))])
    assert torch.equal(IRExecutor(ir)(X + 1), Detour()(X + 1))


def test_a_placeholder_needs_no_values() -> None:
    ir = extract_ir(Detour().eval(), (X.to("meta"),), capture="record")
    assert ops(ir) == ops(recorded(Detour().eval(), X))


def test_a_recording_holds_no_tensor_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that left torch is forgotten at the end, or the capture would search every object of the process for it."""
    searched: list[Any] = []
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: searched.append(objects) or [])
    recorded(Detour().eval(), X)
    assert searched == []


def test_few_objects_are_searched_for_in_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps more than a hundred objects around the tensors of a branch, to which hardly anything else refers."""
    sought: list[int] = []
    search = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: (sought.append(len(objects)), search(*objects))[1])
    entry = find("control_flow")
    captured(entry.build(), *entry.inputs(), kwargs=entry.kwargs())
    assert max(sought, default=0) < 10


def test_data_that_never_comes_back_has_its_place_too(executors: Any) -> None:
    """Its use in Python is unknown; an executor without results declares it irrelevant."""
    model = module(lambda self, x: x + 1 if np.median((x * 2).numpy()) > 9 else x - 1)
    ir = recorded(model, X)
    assert ops(ir) == ["aten.mul.Tensor", "aten.sub.Tensor", "opaque.Model"]
    with pytest.raises(ExecutionError, match=r"no executor for opaque\.Model .*; data left torch there"):
        IRExecutor(ir)(X)
    executors("opaque.Model", lambda inputs, attrs: [])
    assert torch.equal(IRExecutor(ir)(X), X - 1)


def test_code_outside_may_write_to_what_it_is_given() -> None:
    """A tensor that it wrote to no longer has the value that torch computed."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.numpy()[0] += 1
        return y + x

    ir = recorded(module(forward), X)
    add = ir.node("add")
    assert add["self"].producer is not None
    assert add["self"].producer.op_type == "opaque.Model"


def test_what_leaves_is_what_was_there_then(executors: Any) -> None:
    """A later in-place write does not change the value that left."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        array = np.array(y.tolist(), dtype=np.float32)
        y.add_(100)
        return torch.from_numpy(array) + y

    ir = recorded(module(forward), X)
    executors("opaque.Model", lambda inputs, attrs: [inputs[0] * 1])
    assert torch.equal(IRExecutor(ir)(X), forward(nn.Module(), X))


def test_any_number_of_arguments_and_a_write_that_torch_functionalises() -> None:
    """Arguments of `*xs` and `**more` are named one by one, as in torch.export."""

    def forward(self: nn.Module, *xs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        y = xs[0].clone()
        y.as_strided((2, 2), (2, 1)).mul_(3)
        return y + xs[1] if xs[0].sum() > -9 else y * more["z"]

    model = module(forward)
    ir = recorded(model, X, X + 1, kwargs={"z": X * 2})
    assert [tensor.name for tensor in ir.graph_inputs] == ["xs_0", "xs_1", "z"]
    assert torch.equal(IRExecutor(ir)(X, X + 1, z=X * 2), model(X, X + 1, z=X * 2))


def test_objects_that_the_user_has_frozen_are_constants_too() -> None:
    """Servers freeze what they have loaded before they fork, so that the garbage collector does not show it."""
    table = torch.arange(4.0)
    model = module(lambda self, x: x * table if x.sum() > 0 else x + table)
    gc.freeze()
    try:
        ir = recorded(model, X)
    finally:
        gc.unfreeze()
    assert not [node for node in ir.nodes if node.op_type.startswith("opaque")]
    assert torch.equal(IRExecutor(ir, {})(X), model(X))


def test_what_another_thread_computes_is_no_constant() -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(x * 2))
        thread.start()
        thread.join()
        return found[0] + 1

    assert ops(recorded(module(forward), X)) == ["opaque.Model", "aten.add.Tensor"]


def test_printing_and_literals_leave_nothing() -> None:
    """Printing a tensor is not a decision, and a literal is a constant."""

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        print(x, f"{x.sum():.1f}")
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.from_numpy(np.ones(4, np.float32))

    ir = recorded(module(forward), X)
    assert not [op for op in ops(ir) if not op.startswith("aten.")]
    assert len(ir.constants) == 2
    assert torch.equal(IRExecutor(ir)(X), forward(nn.Module(), X))


# -- the model and the process are left alone -------------------------------------------------------------------------


def test_a_recording_leaves_model_and_inputs_as_they_were() -> None:
    """Buffers, parameters and inputs that forward writes to are restored; the graph contains the changes."""

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

    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.layer(self.layer(x)))  # called

    ir = recorded(module(forward, layer=nn.Sequential(nn.Linear(4, 4), nn.ReLU())), X)
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
    """A layer, a torch function that the model calls, or an operator; placeholders are visible at each level."""
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


def test_a_layer_of_ones_own_is_one_node_whatever_is_inside(executors: Any) -> None:
    """With a body if it can run; else an executor for the layer runs it."""
    model = layered()
    ir = recorded(model, X, leaf=[Scaled])
    node = next(node for node in ir.nodes if node.op_type.endswith("Scaled"))
    assert (node.op_type, node.args) == ("tests.test_record.Scaled", ("input", "scale"))
    with pytest.raises(ExecutionError, match=r"no executor for tests\.test_record\.Scaled"):
        IRExecutor(ir, model.state_dict())(X)
    executors(node.op_type, lambda inputs, attrs: [torch.tanh(inputs[0] * inputs[1])])
    torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X + 1), model(X + 1))


def test_an_executor_for_one_layer_is_none_for_its_neighbour(executors: Any) -> None:
    """Classes of one file share all of their qualified name but the last part."""
    model = layered()
    ir = recorded(model, X, leaf=[Scaled])
    executors("tests.test_record.Detour", lambda inputs, attrs: [inputs[0]])
    with pytest.raises(ExecutionError, match=r"no executor for tests\.test_record\.Scaled"):
        IRExecutor(ir, model.state_dict())(X)


def _in_a_region(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y: torch.Tensor = self.layer(x)
    return y * 2 if y.requires_grad else y + 3


@torch.set_grad_enabled(True)
def _in_a_decorated_function(self: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = self.layer(x)
    return y * 2 if y.requires_grad else y + 3


@pytest.mark.parametrize("forward", [_in_a_region, _in_a_decorated_function])
def test_gradients_that_forward_switches_on_are_there(forward: Any) -> None:
    """`requires_grad` of a tensor is that of eager."""
    model = module(forward, layer=nn.Linear(4, 4)).eval()
    for given in (X, X.to("meta")):
        ir = extract_ir(model, (given,), strict=False, capture="record")
        with torch.no_grad():
            torch.testing.assert_close(IRExecutor(ir, model.state_dict())(X), model(X))


# -- requests that make no sense --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"capture": "recrod"},
            "unknown capture 'recrod'; expected one of auto, export, record; did you mean 'record'?",
        ),
        ({"explore": 0}, "explore=0 must be a positive integer"),
        ({"explore": "all"}, "explore='all' must be a positive integer"),
        ({"level": "layer"}, "unknown level 'layer'"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Exception, match=told.replace("?", r"\?")):
        extract_ir(nn.Linear(4, 4).eval(), (X,), strict=False, **options)


def test_falling_back_is_said_once_with_the_reason() -> None:
    """The capture method, torch.export's reason, and where the graph depends on data."""
    model = module(lambda self, x: [x + 1, x - 1][int(x.sum()) % 2])  # choice
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ir = extract_ir(model, (X,), strict=False)
    told = [str(warning.message) for warning in caught if warning.category is CaptureWarning]
    assert len(told) == 2
    assert told[0].startswith("captured by recording, because torch.export cannot capture Model: ")
    assert all(line_of(__file__, "choice") in text for text in told)
    assert ir.extensions["captured_by"] == "recording"
