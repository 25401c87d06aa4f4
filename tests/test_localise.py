"""Localisation: the broken node is the one that is named, and limitations are reported."""

import itertools
import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catalogue
from tests import localising
from tests.localising import TWICE, X, localised
from tests.proof import captured, line_of, module, verdict
from torch_ir import IR, ExecutionError, IRExecutor, verify_ir, verify_ir_with_state_dict
from torch_ir.cli import main
from torch_ir.ir.regroup.functions import outline

# -- kinds of mistakes ------------------------------------------------------------------------------------------------


def test_everything_about_the_place_is_said() -> None:
    """Node, operator, module, call, class, source line, difference, and the inputs that are right."""
    ir = captured(TWICE, X)
    ir.node("linear_2").inputs = (ir.node("relu").output, *ir.node("linear_2").inputs[1:])
    found, report = localised(ir, TWICE, X)
    assert (found.node, found.op_type, found.output) == ("linear_2", "aten.linear.default", "linear_2")
    assert (found.module, found.call, found.module_class) == ("one", 1, "Linear")
    assert found.source == line_of(localising.__file__, "sum")
    assert found.agreed == ("relu", "p_one_weight", "p_one_bias")
    assert found.suspects == ()
    assert 0 < found.max_diff < 10
    lines = str(report).splitlines()
    assert lines[0] == "Verification FAILED"
    assert "  first difference: node 'linear_2' (aten.linear.default), output 'linear_2'" in lines
    assert f"    in module one (Linear, call 1), {found.source}" in lines


def test_a_right_graph_has_no_divergence() -> None:
    """Nothing is looked for where nothing is wrong."""
    report = verdict(captured(TWICE, X), TWICE, X, localise=True)
    assert report.is_valid
    assert report.divergence is None


def test_without_being_asked_nothing_is_localised() -> None:
    """Localisation needs further runs, so it is optional."""
    ir = captured(TWICE, X)
    ir.node("tanh").op_type = "aten.sin.default"
    assert verdict(ir, TWICE, X).divergence is None


def test_a_wrong_weight_leads_to_its_first_reader(tmp_path) -> None:
    """A weight that is not the model's is named by its key, with the node that reads it first."""
    weights = {key: value.clone() for key, value in TWICE.state_dict().items()}
    weights["two.weight"][0, 0] += 1
    torch.save(weights, tmp_path / "w.pt")
    report = verify_ir(captured(TWICE, X), tmp_path / "w.pt", TWICE, (X,), localise=True)[1]
    assert report.divergence is not None
    assert (report.divergence.node, report.divergence.weight) == ("linear_1", "two.weight")
    assert "1 of 16 elements differ" in report.divergence.reason
    assert report.divergence.max_diff == pytest.approx(1)


def test_a_weight_read_in_the_wrong_place() -> None:
    """Weights that are all right, but exchanged, lead to the node that reads the wrong one."""
    ir = captured(TWICE, X)
    swapped = ir.node("linear_1")
    swapped.inputs = (swapped.inputs[0], ir.node("linear")["weight"], swapped.inputs[2])
    assert localised(ir, TWICE, X)[0].node == "linear_1"


def test_a_wrong_constant() -> None:
    """A wrong constant without a name in the model is reported at its consumer."""
    model = module(lambda self, x: x.relu() * torch.tensor([1.0, 2.0, 3.0, 4.0]))
    ir = IR.from_json(captured(model, X).to_json())
    param = next(param for param in ir.params)
    raw = bytearray(param.param.data.raw)
    raw[3] ^= 0x40
    param.param = type(param.param)(param.param.keys, "constant", type(param.param.data)((4,), "float32", bytes(raw)))
    assert localised(ir, model, X)[0].node == param.consumers[0].name


def test_a_wrong_operator() -> None:
    """The report names the original's operator."""
    ir = captured(TWICE, X)
    ir.node("tanh").op_type = "aten.sin.default"
    found, report = localised(ir, TWICE, X)
    assert (found.node, found.original) == ("tanh", "aten.tanh.default")
    assert "the original calls aten.tanh.default there" in str(report)


def test_a_missing_node() -> None:
    """The first consumer of an omitted value is the first that differs."""
    ir = captured(TWICE, X)
    relu = ir.node("relu")
    relu.output.replace_all_uses_with(relu["self"])
    relu.inputs = ()
    ir.nodes.remove(relu)
    found, _ = localised(ir, TWICE, X)
    assert (found.node, found.agreed) == ("add", ("linear_1", "linear_2"))


def test_outputs_in_the_wrong_order() -> None:
    """If every node is right, the outputs are wrong."""
    model = module(lambda self, x: (x + 1, x + 2))
    ir = captured(model, X)
    ir.graph_outputs = ir.graph_outputs[::-1]
    found, _ = localised(ir, model, X)
    assert found.node == "return"
    assert "every value agrees" in found.reason


def test_a_wrong_declaration() -> None:
    """A value that is not as declared is named even if its numbers are right."""
    ir = captured(TWICE, X)
    ir.node("tanh").output.dtype = "float64"
    found, _ = localised(ir, TWICE, X)
    assert found.node == "tanh"
    assert found.reason.endswith("is declared float64[3, 4], but is float32[3, 4]")


def test_a_node_that_cannot_run() -> None:
    """A graph that fails is localised at the failing node, with the reason."""
    model = module(lambda self, x: x.reshape(2, 6).sum(1))
    ir = captured(model, X)
    ir.node("reshape").attrs["shape"] = [5, 6]
    found, _ = localised(ir, model, X)
    assert found.node == "reshape"
    assert "it cannot be computed: shape '[5, 6]' is invalid" in found.reason


def test_the_node_that_fails_among_others_of_its_name() -> None:
    """Nodes of two functions have the same names; the error knows its own."""
    model = module(lambda self, x: (x.reshape(2, 6), x.reshape(2, 6).sum(1)))
    ir = captured(model, X)
    for name in ("reshape", "reshape_1"):
        outline(ir, [ir.node(name)], name)
    bodies = [*ir.functions.values()]
    for body in bodies:
        body.nodes[0].name = "reshape"
    bodies[1].nodes[0].attrs["shape"] = [5, 6]
    with pytest.raises(ExecutionError, match=r"^OpNode\('reshape', .*; in OpNode\('reshape_1'") as caught:
        IRExecutor(ir, {})(X)
    assert caught.value.node is bodies[1].nodes[0]


def test_a_mistake_that_only_other_inputs_show() -> None:
    """Zeros hide a wrong factor; it is found on the inputs that verification draws."""
    model = module(lambda self, x: (x * 2).sin())
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 3
    found, report = localised(ir, model, torch.zeros(3, 4))
    assert "on shuffled inputs" in report.error_message
    assert found.node == "mul"


def test_a_mistake_that_only_a_second_call_shows() -> None:
    """A buffer of zeros hides a missing factor; both sides run in the state that the first call left."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.total.mul_(0.5).add_(x.sum(0))
        return x - self.total

    model = module(forward, buffers={"total": torch.zeros(4)})
    ir = captured(model, X)
    ir.node("add").inputs = (ir.params[0], *ir.node("add").inputs[1:])
    found, report = localised(ir, model, X, probe=False)  # which draws other values for the buffer
    assert "on a second call" in report.error_message
    assert (found.node, found.agreed) == ("add", ("b_total", "sum_1"))
    assert model.total.equal(torch.zeros(4))


def test_a_small_mistake() -> None:
    """A value that differs within the tolerance before the first wrong one is reported."""
    model = module(lambda self, x: F.layer_norm(x.sin(), (4,)).cos() * 2)
    ir = captured(model, X)
    ir.node("layer_norm").attrs["eps"] = 1.2e-5
    found, report = localised(ir, model, X)
    assert found.node == "layer_norm" or "'layer_norm' before it is within the tolerance but not equal" in report.notes
    assert 0 < found.max_diff < 1e-4


def test_sizes_that_vary() -> None:
    """A graph with symbolic sizes is localised at any of them."""
    ir = captured(TWICE, X, dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}})
    ir.node("tanh").op_type = "aten.sin.default"
    assert localised(ir, TWICE, torch.randn(7, 4))[0].node == "tanh"


# -- what is said, not hidden -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*training mode")
def test_random_numbers_are_drawn_alike() -> None:
    """Dropout in training has the same mask on both sides, and a note mentions randomness."""
    model = module(lambda self, x: F.dropout(x.sin(), 0.5, True).cos() * 2)
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 3
    found, report = localised(ir, model, X)
    assert found.node == "mul"
    assert any("random numbers; both sides had the same seed" in note for note in report.notes)


@pytest.mark.filterwarnings("ignore:forward changes state")  # the subject of the test
def test_a_model_that_varies() -> None:
    """If the model itself returns another value each time, the note says so."""
    count = itertools.count(1)
    model = module(lambda self, x: (x.sin() * torch.full((), float(next(count)))).cos())
    ir = captured(model, X)
    found, report = localised(ir, model, X)
    assert found.node in ("full", "mul")
    assert any("when it runs again" in note for note in report.notes)


@pytest.mark.filterwarnings("ignore:forward changes state")  # the subject of the test
def test_a_model_that_takes_other_ways() -> None:
    """A model that calls other operators each time cannot be aligned, which is reported instead of a node."""
    count = itertools.count()

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        for _ in range(next(count) % 5):
            x = x.sin()
        return x.cos()

    model = module(forward)
    ir = captured(model, X)
    report = verdict(ir, model, X, localise=True, probe=False)
    assert report.divergence is None
    assert any("calls different operators" in note for note in report.notes)


def test_control_flow() -> None:
    """An error in a branch is reported at the branching node, with a note that bodies were not compared."""
    entry = catalogue.find("control_flow")
    torch.manual_seed(0)
    model, inputs = entry.build(), entry.inputs()
    ir = captured(model, *inputs)
    for body in ir.functions.values():
        for node in body.nodes:
            if node.op_type == "aten.relu.default":
                node.op_type = "aten.sin.default"
    found, report = localised(ir, model, *(x.abs() + 1 for x in inputs))
    assert found.op_type == "higher_order.cond"
    assert any("the nodes of its functions are not compared" in note for note in report.notes)
    assert model(*inputs) is not None  # torch can still compile the recording


# -- cost -------------------------------------------------------------------------------------------------------------


MEMORY = """
import resource, torch, torch_ir
from torch import nn

def make():
    return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).eval()

with torch.device("meta"):
    ir = torch_ir.extract_ir(make(), (torch.empty(1, 4096),))
ir.node("linear_2").attrs["bias"] = None
ir.node("linear_2").set_inputs(ir.node("linear_2").inputs[:2], ["input", "weight"])
with torch.device("meta"):
    model = make()
model.to_empty(device="cpu")
for parameter in model.parameters():
    parameter.data.uniform_(-0.02, 0.02)
x = torch.randn(1, 4096)
small = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
warm_up = torch_ir.extract_ir(small, (torch.ones(1, 4),), strict=False)
warm_up.node("relu").op_type = "aten.sin.default"  # a search imports the compiler, which is not counted
torch_ir.verify_ir_with_state_dict(warm_up, small.state_dict(), small, (torch.ones(1, 4),), localise=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = torch_ir.verify_ir_with_state_dict(ir, model.state_dict(), model, (x,), probe=False, localise=True)[1]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = sum(parameter.nbytes for parameter in model.parameters())
print(report.divergence.node, weights, (after - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only")
def test_the_model_is_in_memory_once() -> None:
    """Graph and model share their weights, and references are in a file, so weights are not duplicated."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    node, weights, growth = done.stdout.split()
    assert node == "linear_2"
    assert int(growth) < int(weights) / 4


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    """`--localise` prints the node, and `--json` contains it."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n"
        "    def __init__(self):\n        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["extract", "net.py:Net", "--input", "3x4", "-o", "net.json"]) == 0
    ir = IR.load("net.json")
    ir.node("tanh").op_type = "aten.sin.default"
    ir.save("net.json")
    capsys.readouterr()
    assert main(["verify", "net.json", "net.py:Net", "--localise"]) == 3
    assert "first difference: node 'tanh' (aten.sin.default)" in capsys.readouterr().out
    assert main(["verify", "net.json", "net.py:Net", "--localise", "--json"]) == 3
    record = json.loads(capsys.readouterr().out)
    assert (record["divergence"]["node"], record["divergence"]["module"]) == ("tanh", "1")


def test_state_dict_form() -> None:
    """The keyword is the same for weights from memory."""
    ir = captured(TWICE, X)
    ir.node("tanh").op_type = "aten.sin.default"
    report = verify_ir_with_state_dict(ir, TWICE.state_dict(), TWICE, (X,), localise=True)[1]
    assert report.divergence is not None
    assert report.divergence.node == "tanh"
