"""Names, origins, modules and input trees are torch.export's, whichever path captures the model."""

import copy
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.naming_models import CASES, Block, Case, X, call
from tests.proof import line_of, to_meta
from torch_ir import IR, extract_ir
from torch_ir.capture.data_branches.decision_paths import Path
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.capture.record.recorded_program import record

ASSERTION = "aten._assert_tensor_metadata.default"


def names_of(ir: IR) -> dict[str, Any]:
    """All that must not depend on the path of capture."""
    # torch.export does not note the torch function; eager execution does not assert the dtype of what is cast
    nodes = [node for node in ir.nodes if node.op_type != ASSERTION]
    return {
        "inputs": [tensor.name for tensor in ir.graph_inputs],
        "weights": [(tensor.name, tensor.param.keys, tensor.param.kind) for tensor in ir.params if tensor.param],
        "nodes": [
            (node.name, node.op_type, [i.name for i in node.inputs], [o.name for o in node.outputs]) for node in nodes
        ],
        "origins": [node.origin._replace(function="") for node in nodes],
        "outputs": [tensor.name for tensor in ir.graph_outputs],
        "mutations": [(target.name, value.name) for target, value in ir.mutations],
        "modules": ir.modules,
        "trees": (ir.input_tree, ir.output_tree),
    }


def exported(built: Case) -> IR:
    model, args, kwargs = built
    return extract_ir(model, args, kwargs=kwargs, strict=False, capture="export")


def recorded(built: Case) -> IR:
    """The graph of a run on real tensors."""
    model, args, kwargs = built
    return extract_ir(model, args, kwargs=kwargs, strict=False, capture="record")


def recorded_without_values(build: Callable[[], Case]) -> IR:
    """The graph of a run on fake tensors; `extract_ir` would try the fast recorder first."""
    with torch.device("meta"):
        model, args, kwargs = build()
    return record(model, to_meta((args, kwargs)), Path())


# -- tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training mode, and values that are lost on meta
        yield


# a recording looks at every object of the process, of which there are many here
SAMPLE = sorted(random.Random(0).sample(sorted(CASES), len(CASES) // 3))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in CASES]
)
def test_recordings_have_the_names_of_torch_export(name: str) -> None:
    wanted = names_of(exported(CASES[name]()))
    assert names_of(recorded(CASES[name]())) == wanted
    assert names_of(recorded_without_values(CASES[name])) == wanted


@pytest.mark.parametrize("name", CASES)
def test_fast_capture_has_the_names_of_torch_export(name: str) -> None:
    wanted = names_of(exported(CASES[name]()))
    model, args, kwargs = CASES[name]()
    assert names_of(record_fast(model, args, kwargs)) == wanted


def test_names_in_full() -> None:
    """One example written out, so that a mistake on every path would show."""
    ir = recorded(CASES["colliding_names"]())
    assert [tensor.name for tensor in ir.graph_inputs] == ["x_0", "x_0_1", "p_a_weight", "add", "add_2", "max_1"]
    assert [tensor.name for tensor in ir.params] == ["p_a_weight_1", "p_a_bias"]
    assert [node.name for node in ir.nodes] == ["linear", "add_3", "add_1", "add_4", "add_5", "max_2", "add_6"]
    assert [tensor.name for tensor in recorded(CASES["constants"]()).params] == [
        "c_first_lifted_tensor_0", "c_first_lifted_tensor_1", "c_first_plain", "c_first_lifted_tensor_2",
        "c_second_lifted_tensor_3", "c_second_lifted_tensor_4", "c_second_plain", "c_lifted_tensor_5",
    ]  # fmt: skip


def test_a_shared_module_has_the_path_by_which_it_is_called() -> None:
    ir = recorded(CASES["shared_module"]())
    origins = [node.origin for node in ir.nodes if node.op_type == "aten.linear.default"]
    assert [(origin.module, origin.call, origin.outer) for origin in origins] == [
        ("b.c", 0, ()), ("b.d.0", 0, ()), ("a.c", 0, ()), ("a.d.0", 0, ()), ("b.c", 1, ("b@1",)),
        ("b.d.0", 1, ("b@1", "b.d@1")),
    ]  # fmt: skip
    assert {"a", "a.c", "b", "b.c"} <= ir.modules.keys()


def test_a_helpers_line_is_that_of_forward() -> None:
    """As torch.export notes it; where a decision was taken is the innermost line of the user's code."""
    ir = recorded(call(Deciding.forward, X))
    relu, decision = ir.nodes[-1], next(node for node in ir.nodes if "decision" in node.op_type)
    assert relu.origin.source == line_of(__file__, "in forward")
    assert decision["place"] == line_of(__file__, "in a helper")


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return positive(x)  # in forward


def positive(x: Tensor) -> Tensor:
    if x.sum() > 0:  # in a helper
        return x
    return x.relu()


def test_a_forward_without_a_signature() -> None:
    """torch.export refuses it; inputs are numbered."""
    model = nn.Module().eval()
    model.forward = torch.add
    assert [tensor.name for tensor in recorded((model, (X, X), {})).graph_inputs] == ["arg0", "arg1"]


# -- what recorders cannot know ---------------------------------------------------------------------------------------


def test_references_kept_in_variables() -> None:
    """torch.export passes a stand-in for each access, so that it knows; a recorder sees the one module."""

    def forward(self: Any, x: Tensor) -> Tensor:
        a, b = self.a, self.b
        return b(a(x))

    layer = nn.Linear(4, 4)
    built = call(forward, X, parts={"a": layer, "b": layer})
    assert [node.origin.module for node in exported(built).nodes] == ["a", "b"]
    assert [node.origin.module for node in recorded(built).nodes] == ["b", "a"]


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.block = Block()
        self.plain = [self.block]

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.plain[0](x))


def test_modules_in_a_plain_list() -> None:
    """torch.export drops the parent from the path where modules are shared; a recorder keeps it."""
    built: Case = (Listed().eval(), (X,), {})
    assert [node.origin.module for node in exported(built).nodes] == ["c", "d.0", "d.1", "a"]
    assert [node.origin.module for node in recorded(built).nodes] == ["block.c", "block.d.0", "block.d.1", "a"]


def test_tables_of_submodules_are_put_back() -> None:
    """Accesses are noted in tables that take the place of the model's own, until forward ends in any way."""

    def forward(self: Any, x: Tensor) -> Tensor:
        assert type(copy.deepcopy(self.a)._modules) is dict
        assert [*self._modules] == [name for name, _ in self._modules.items()] == ["a", "b"]
        assert self._modules.get("a") is self._modules["b"]
        assert self._modules.get("c") is None
        raise ValueError("on purpose")

    layer = nn.Sequential(nn.ReLU())
    model, args, kwargs = call(forward, X, parts={"a": layer, "b": layer})
    before = [(part._modules, dict(part._modules)) for part in model.modules()]
    for capture in (record_fast, lambda *built: record(built[0], built[1:], Path())):
        with pytest.raises(Exception, match="on purpose"):
            capture(model, args, kwargs)
        after = [(part._modules, dict(part._modules)) for part in model.modules()]
        assert before == after
        assert all(one is other for (one, _), (other, _) in zip(before, after, strict=True))
