"""Localisation: the node that was broken is the node that is named, and what limits the answer is said."""

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import catalogue
from tests.corruptions import Corruption, corruptions
from tests.proof import captured, line_of, module, verdict
from torch_ir import IR, Divergence, OpNode, VerificationReport, verify_ir, verify_ir_with_state_dict
from torch_ir.cli import main
from torch_ir.errors import TorchIRError
from torch_ir.ir.functions import outline
from torch_ir.ops.runnable import check_operators

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
# of every family one; in-place writes leave the most values without a counterpart in the original
SAMPLED = (
    "buffer_mutation", "cnn", "control_flow", "decoder_kv_cache", "detection_head", "fft", "gru", "inplace",
    "multi_output", "shared_weights", "transformer_encoder",
)  # fmt: skip
LARGE = ("resnet50",)
FRAGILE = ("lstm",)  # torch's kernel reads beyond its weights when its arguments are wrong


def localised(ir: IR, model: nn.Module, *inputs: Any, **options: Any) -> tuple[Divergence, VerificationReport]:
    """Where a broken graph differs from its model."""
    report = verdict(ir, model, *inputs, localise=True, **options)
    assert not report.is_valid
    assert report.divergence is not None, report
    return report.divergence, report


# -- every node in turn -----------------------------------------------------------------------------------------------


def judge(name: str, limit: int) -> list[str]:
    """Break a model's graph in many ways; `exact` for each that was found exactly, else what was named instead."""
    entry = catalogue.find(name)
    torch.manual_seed(0)
    model, inputs, kwargs = entry.build(), entry.inputs(), entry.kwargs()
    broken = list(corruptions(captured(model, *inputs, kwargs=kwargs)))
    random.Random(1).shuffle(broken)
    reports = (
        (one, verdict(one.ir, model, *inputs, kwargs=kwargs, probe=False, localise=True))
        for one in filter(is_whole, broken)
    )
    wrong = ((one, report) for one, report in reports if not report.is_valid)
    return [told(one, report.divergence) for one, report in itertools.islice(wrong, limit)]


def is_whole(corruption: Corruption) -> bool:
    """Whether the broken graph is still one that may run."""
    try:
        check_operators(corruption.ir.check())
    except TorchIRError:
        return False
    return True


def told(corruption: Corruption, found: Divergence | None) -> str:
    assert found is not None, corruption
    node = corruption.ir.node(corruption.node)
    assert found.module == node.origin.module, f"{corruption}\n{found}"
    assert corruption.node in (found.node, *found.suspects) or "cannot be computed" in found.reason, found
    return "exact" if found.node == node.name and not found.suspects else f"{corruption.node}: {found}"


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Small tensors are not worth a second thread, least of all beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", SAMPLED)
def test_the_broken_node_is_named(name: str) -> None:
    """Of the nodes broken one at a time, 95 % are named alone, and the module is always right."""
    answers = judge(name, 10)
    assert answers.count("exact") >= (0.75 if name == "inplace" else 0.95) * len(answers), answers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.usefixtures("_one_thread")
def test_broken_nodes_of_the_whole_catalogue() -> None:
    """The same for every model, in a hundred ways each."""
    names = [entry.name for entry in catalogue.entries() if entry.name not in (*LARGE, *FRAGILE)]
    answers = [answer for name in names for answer in judge(name, 100)]
    print(f"{answers.count('exact')} of {len(answers)} exact")
    assert answers.count("exact") >= 0.95 * len(answers), [answer for answer in answers if answer != "exact"]


# -- kinds of mistakes ------------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.one(x))  # tanh
        return self.two(x).relu() + self.one(x)  # sum


TWICE = Twice().eval()


def test_everything_about_the_place_is_said() -> None:
    """Node, operator, module, call, class, source line, difference, and the inputs that are right."""
    ir = captured(TWICE, X)
    ir.node("linear_2").inputs = (ir.node("relu").output, *ir.node("linear_2").inputs[1:])
    found, report = localised(ir, TWICE, X)
    assert (found.node, found.op_type, found.output) == ("linear_2", "aten.linear.default", "linear_2")
    assert (found.module, found.call, found.module_class) == ("one", 1, "Linear")
    assert found.source == line_of(__file__, "sum")
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
    """Localisation costs further runs, so it is asked for."""
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
    """A constant that the graph holds itself and that has no name in the model leads to the node that reads it."""
    model = module(lambda self, x: x.relu() * torch.tensor([1.0, 2.0, 3.0, 4.0]))
    ir = IR.from_json(captured(model, X).to_json())
    param = next(param for param in ir.params)
    raw = bytearray(param.param.data.raw)
    raw[3] ^= 0x40
    param.param = type(param.param)(param.param.keys, "constant", type(param.param.data)((4,), "float32", bytes(raw)))
    assert localised(ir, model, X)[0].node == param.consumers[0].name


def test_a_wrong_operator() -> None:
    """What the original calls instead is said."""
    ir = captured(TWICE, X)
    ir.node("tanh").op_type = "aten.sin.default"
    found, report = localised(ir, TWICE, X)
    assert (found.node, found.original) == ("tanh", "aten.tanh.default")
    assert "the original calls aten.tanh.default there" in str(report)


def test_a_missing_node() -> None:
    """The first reader of what the graph leaves out is the first that differs."""
    ir = captured(TWICE, X)
    relu = ir.node("relu")
    relu.output.replace_all_uses_with(relu["self"])
    relu.inputs = ()
    ir.nodes.remove(relu)
    found, _ = localised(ir, TWICE, X)
    assert (found.node, found.agreed) == ("add", ("linear_1", "linear_2"))


def test_outputs_in_the_wrong_order() -> None:
    """Where every node is right, what is returned is at fault."""
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
    """A graph that stops is localised where it stops, and says why."""
    model = module(lambda self, x: x.reshape(2, 6).sum(1))
    ir = captured(model, X)
    ir.node("reshape").attrs["shape"] = [5, 6]
    found, _ = localised(ir, model, X)
    assert found.node == "reshape"
    assert "it cannot be computed: shape '[5, 6]' is invalid" in found.reason


def test_a_mistake_that_only_other_inputs_show() -> None:
    """Zeros hide a wrong factor; it is found on the inputs that verification draws."""
    model = module(lambda self, x: (x * 2).sin())
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 3
    found, report = localised(ir, model, torch.zeros(3, 4))
    assert "on shuffled inputs" in report.error_message
    assert found.node == "mul"


def test_a_small_mistake() -> None:
    """A value that is not equal, but within the tolerance, is said where it comes before the first that is not."""
    model = module(lambda self, x: F.layer_norm(x.sin(), (4,)).cos() * 2)
    ir = captured(model, X)
    ir.node("layer_norm").attrs["eps"] = 1.2e-5
    found, report = localised(ir, model, X)
    assert found.node == "layer_norm" or "'layer_norm' before it is within the tolerance, but not equal" in report.notes
    assert 0 < found.max_diff < 1e-4


def test_sizes_that_vary() -> None:
    """A graph with symbolic sizes is localised at any of them."""
    ir = captured(TWICE, X, dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}})
    ir.node("tanh").op_type = "aten.sin.default"
    assert localised(ir, TWICE, torch.randn(7, 4))[0].node == "tanh"


# -- graphs that are not as captured ----------------------------------------------------------------------------------


def with_split_linear() -> IR:
    """TWICE with its second layer as transpose, product and sum, none of which the model calls."""
    ir = captured(TWICE, X)
    linear = ir.node("linear_1")
    x, weight, bias = linear.inputs
    turned, product = weight.copy("turned"), x.copy("product")
    turned.param = None
    names = ["self", "mat2"]
    nodes = [
        OpNode("turned", "aten.t.default", [weight], [turned], args=["self"], origin=linear.origin),
        OpNode("product", "aten.mm.default", [x, turned], [product], args=names, origin=linear.origin),
        OpNode("sum", "aten.add.Tensor", [product, bias], linear.outputs, {"alpha": 1}, args=["self", "other"],
               origin=linear.origin),
    ]  # fmt: skip
    linear.inputs = ()
    at = ir.nodes.index(linear)
    ir.nodes[at : at + 1] = nodes
    assert verdict(ir.check(), TWICE, X).is_valid
    return ir


def test_rewritten_nodes_are_not_blamed() -> None:
    """Nodes that the original does not have are no difference as long as their results are the original's."""
    ir = with_split_linear()
    ir.node("relu").op_type = "aten.sin.default"
    found, _ = localised(ir, TWICE, X)
    assert (found.node, found.suspects) == ("relu", ())


def test_rewritten_nodes_are_suspected() -> None:
    """A mistake among nodes without counterparts shows at the first value that can be compared; they are listed."""
    ir = with_split_linear()
    ir.node("sum").attrs["alpha"] = 2
    found, report = localised(ir, TWICE, X)
    assert "sum" in (found.node, *found.suspects)
    assert any("of 8 values were compared" in note for note in report.notes)


class Masked(nn.Module):
    """As language models do: a mask where the graph is captured, and a flag instead of it in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x)[None]
        if torch.compiler.is_exporting():
            mask = torch.arange(3)[:, None] >= torch.arange(3)
            return self.out(F.scaled_dot_product_attention(q, q, q, mask))
        return self.out(F.scaled_dot_product_attention(q, q, q, is_causal=True))


def test_a_model_that_is_captured_in_another_way() -> None:
    """Nodes that the model does without in eager mode are suspected only where they may be at fault."""
    model = Masked().eval()
    ir = captured(model, X)
    assert verdict(ir, model, X, probe=False).is_valid
    wrong = ir.clone()
    wrong.node("linear_1").inputs = (*wrong.node("linear_1").inputs[:2], wrong.node("linear")["bias"])
    found, _ = localised(wrong, model, X)
    assert (found.node, found.suspects) == ("linear_1", ())
    ir.node("ge").op_type = "aten.le.Tensor"
    found, _ = localised(ir, model, X)
    assert found.op_type == "aten.scaled_dot_product_attention.default"
    assert found.agreed == ("unsqueeze",)
    assert "ge" in found.suspects


def test_a_file_without_modules() -> None:
    """Files of the documented format do not say where nodes came from; they are localised by operators alone."""
    document = captured(TWICE, X).to_dict()
    for node in document["nodes"]:
        for key in ("module", "module_class", "call", "source", "args"):
            node.pop(key, None)
    ir = IR.from_dict(document)
    ir.node("linear_2").inputs = (ir.node("relu").output, *ir.node("linear_2").inputs[1:])
    assert localised(ir, TWICE, X)[0].node == "linear_2"


def test_functions_are_looked_into() -> None:
    """A mistake inside a called function is found there, and it is said how its node is named."""
    ir = captured(TWICE, X)
    ir.node("relu").op_type = "aten.sin.default"
    outline(ir, [ir.node("linear_1"), ir.node("relu")], "block")
    found, report = localised(ir, TWICE, X)
    assert found.op_type == "aten.sin.default"
    assert any("put inline" in note for note in report.notes)


@torch.library.custom_op("torch_ir_tests::half", mutates_args=())
def half(x: Tensor, factor: float) -> Tensor:
    return x * factor


@half.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def test_operators_of_the_user() -> None:
    """An operator of torch.library is compared like any other."""
    model = module(lambda self, x: half(x.sin(), 0.5).cos())
    ir = captured(model, X)
    ir.node("half").attrs["factor"] = 0.25
    assert localised(ir, model, X)[0].node == "half"


# -- what is said, not hidden -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*training mode")
def test_random_numbers_are_drawn_alike() -> None:
    """Dropout in training gives the same mask on both sides, and the note says that there is randomness."""
    model = module(lambda self, x: F.dropout(x.sin(), 0.5, True).cos() * 2)
    ir = captured(model, X)
    ir.node("mul").attrs["other"] = 3
    found, report = localised(ir, model, X)
    assert found.node == "mul"
    assert any("random numbers, for which both sides were seeded alike" in note for note in report.notes)


def test_a_model_that_varies() -> None:
    """Where the model itself gives another value each time, the note says so."""
    count = itertools.count(1)
    model = module(lambda self, x: (x.sin() * torch.full((), float(next(count)))).cos())
    ir = captured(model, X)
    found, report = localised(ir, model, X)
    assert found.node in ("full", "mul")
    assert any("when it is run again" in note for note in report.notes)


def test_a_model_that_takes_other_ways() -> None:
    """A model that calls other operators each time cannot be followed, which is said instead of a node."""
    count = itertools.count()

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        for _ in range(next(count) % 5):
            x = x.sin()
        return x.cos()

    model = module(forward)
    ir = captured(model, X)
    report = verdict(ir, model, X, localise=True, probe=False)
    assert report.divergence is None
    assert any("does not call the same operators" in note for note in report.notes)


def test_control_flow() -> None:
    """A mistake in a branch shows at the node that branches, and it is said that its bodies were not compared."""
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
    assert model(*inputs) is not None  # torch can still compile what was recorded


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
small = nn.Linear(4, 4)
with torch.device("meta"):
    warm_up = torch_ir.extract_ir(nn.Linear(4, 4), (torch.empty(1, 4),))
torch_ir.verify_ir_with_state_dict(warm_up, nn.Linear(4, 4).state_dict(), small, (torch.ones(1, 4),), localise=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = torch_ir.verify_ir_with_state_dict(ir, model.state_dict(), model, (x,), probe=False, localise=True)[1]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = sum(parameter.nbytes for parameter in model.parameters())
print(report.divergence.node, weights, (after - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only")
def test_the_model_is_in_memory_once() -> None:
    """Graph and model share their weights, and references lie in a file: no second set of weights is made."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    node, weights, growth = done.stdout.split()
    assert node == "linear_2"
    assert int(growth) < int(weights) / 4


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    """`--localise` prints the place, and `--json` holds it."""
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
    assert main(["verify", "net.json", "net.py:Net", "--localise"]) == 1
    assert "first difference: node 'tanh' (aten.sin.default)" in capsys.readouterr().out
    assert main(["verify", "net.json", "net.py:Net", "--localise", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["divergence"]["node"], record["divergence"]["module"]) == ("tanh", "1")


def test_state_dict_form() -> None:
    """The keyword is the same for weights from memory."""
    ir = captured(TWICE, X)
    ir.node("tanh").op_type = "aten.sin.default"
    report = verify_ir_with_state_dict(ir, TWICE.state_dict(), TWICE, (X,), localise=True)[1]
    assert report.divergence is not None
    assert report.divergence.node == "tanh"
