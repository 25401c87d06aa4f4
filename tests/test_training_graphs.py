"""Graphs of training steps: entry points, files, passes, costs, recomputation, and what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import catalogue
from tests.command_line import failure
from tests.test_liveness import bytes_of_run
from tests.trained_models import LABELS, Layer, X, adamw, layers, net, on_meta, squares
from torch_ir import (
    IR,
    ExportError,
    GraphError,
    IRExecutor,
    cost,
    extract_training,
    liveness,
    load_ir,
    optimize,
    optimizer_state,
    recompute,
)
from torch_ir.analysis.cost_model.flop_formulas import macs
from torch_ir.cli import main
from torch_ir.errors import TorchIRError


def captured(**options: Any) -> IR:
    model = layers().train().to("meta")
    options.setdefault("optimizer", torch.optim.AdamW(model.parameters()))
    return extract_training(
        model, on_meta((X,)), targets=on_meta((LABELS,)), loss=F.cross_entropy, model_name="Layers", **options
    )


def run_steps(ir: IR, count: int = 2) -> dict[str, Tensor]:
    step = IRExecutor(ir, {**copy.deepcopy(layers().state_dict()), **optimizer_state(ir)})
    for seed in range(count):
        torch.manual_seed(seed)
        step(X, LABELS)
    return step.state


def test_the_entry_points_and_their_keys() -> None:
    ir = captured()
    assert list(ir.functions) == ["forward", "backward"]
    assert [body.output_tree.keys for body in (*ir.functions.values(), ir)] == [
        ("outputs", "loss"),
        ("loss", "gradients"),
        ("loss",),
    ]
    changed = {target.key for target, _ in ir.mutations}
    assert {"0.inner.weight", "optimizer.step.0.inner.weight", "optimizer.exp_avg.3.bias"} <= changed
    assert not any((param.key or "").startswith("optimizer.") for param in ir.functions["backward"].params)
    parts = {node.origin.module.partition(".")[0] for node in ir.nodes}
    assert parts >= {"0", "backward", "optimizer"}
    inner = {node.origin.module for node in ir.nodes if node.op_type == "aten.native_layer_norm_backward.default"}
    assert inner == {"backward.0.norm", "backward.1.norm", "backward.2.norm"}


@pytest.mark.parametrize("blocks", ["inline", "function"])
def test_a_step_from_a_file(tmp_path: Path, blocks: str) -> None:
    """Save, load with the checks of untrusted files, optimise, run: bit-equal to the captured graph."""
    ir = captured(blocks=blocks)
    wanted = run_steps(ir)
    path = tmp_path / "step.json"
    ir.save(path)
    loaded = load_ir(path)
    assert loaded.to_json() == ir.to_json()
    assert IR.parse(ir.to_text()).to_text() == ir.to_text()
    cleaned, _ = optimize(loaded, "clean")
    assert sum(1 for _ in cleaned.all_nodes()) < sum(1 for _ in ir.all_nodes())
    for graph in (loaded, cleaned):
        got = run_steps(graph)
        assert all(torch.equal(got[key], value) for key, value in wanted.items())


@pytest.mark.parametrize("name", ["conv1d", "causal_attention", "mlp"])
def test_the_flops_of_backward_are_those_that_torch_counts(name: str) -> None:
    """Of linear layers, convolutions and products of attention."""
    entry = catalogue.find(name)
    torch.manual_seed(0)
    model, inputs = entry.build().train(), entry.inputs()
    ir = extract_training(model, inputs, loss=squares, strict=False)
    with FlopCounterMode(display=False) as counter:
        squares(model(*inputs)).backward()
    assert cost(ir).flops == counter.get_total_flops() > 0


def test_the_flops_of_fused_attention() -> None:
    """Two products in forward, five in backward, which computes the scores again."""
    entry = catalogue.find("sdpa_attention")
    ir = extract_training(entry.build(), entry.inputs(), loss=squares, strict=False)
    one, other = (macs(node) for node in ir.nodes if "scaled_dot_product" in node.op_type)
    assert 5 * one == 2 * other > 0


def deep(count: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(count)], nn.Linear(8, 4))


def test_recomputed_layers_fit_a_limit_of_memory() -> None:
    """The peak is that of a run, to the byte; the results are bit-equal, with the same dropout masks."""
    model = deep().train()
    x, labels = torch.randn(64, 8), torch.arange(64) % 4
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    ir = extract_training(model, (x,), targets=(labels,), loss=F.cross_entropy, optimizer=sgd, strict=False)
    limit = int(liveness(ir).peak * 0.75)
    changed, report = recompute(ir, limit)
    assert report.peak_before > limit >= report.peak_after == liveness(changed).peak
    assert report.layers == tuple(str(number) for number in range(len(report.layers)))
    assert report.flops_after > report.flops_before
    states = []
    for graph in (ir, changed):
        step = IRExecutor(graph, model.state_dict())
        torch.manual_seed(1)
        step(x, labels)
        states.append(step.state)
    assert all(torch.equal(states[1][key], value) for key, value in states[0].items())
    for graph, peak in ((ir, report.peak_before), (changed, report.peak_after)):
        assert max(bytes_of_run(graph, model.state_dict(), (x, labels), {}).values()) == peak
    _, cheap = recompute(ir, 45_000, keep=("aten.addmm.default",))
    assert (cheap.peak_after <= 45_000, cheap.flops_after) == (True, report.flops_before)


def test_limits_that_recomputation_cannot_meet() -> None:
    ir = captured()
    with pytest.raises(GraphError, match=r"the activations take .* bytes, and .* with every layer computed again"):
        recompute(ir, 100)
    with pytest.raises(GraphError, match="no repeated layers that backward reads"):
        recompute(ir.functions["forward"], 100)
    with pytest.raises(
        GraphError, match=r"keep: unknown operator 'aten.admm.default'; did you mean 'aten.addmm.default'"
    ):
        recompute(ir, 45_000, keep=["aten.admm.default"])
    with pytest.raises(GraphError, match=r"keep takes a list of operators; write keep=\['aten.mm.default'\]"):
        recompute(ir, 45_000, keep="aten.mm.default")


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, "the loss must be a tensor with one element, but it is of shape (6, 4); pass loss="),
        ({"loss": "mean"}, "loss='mean' must be a function of outputs and targets, 'seed', or None"),
        ({"micro_batches": 4}, "an input of shape (6, 8) cannot be split into 4 micro-batches"),
        ({"clip_norm": -1.0}, "clip_norm must be positive, not -1.0"),
        ({"blocks": "fold"}, "unknown blocks 'fold'; expected one of inline, function"),
        ({"optimizer": "adamw"}, "optimizer must be one of torch.optim"),
        ({"loss": lambda output, *_: output.detach().sum()}, "the loss does not depend on a parameter"),
    ],
)
def test_what_cannot_be_captured(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TorchIRError) as raised:
        extract_training(layers(), (X,), **{"loss": squares, "strict": False, **options})
    assert message in str(raised.value)


def test_optimisers_that_are_refused() -> None:
    model = layers()
    for optimizer, message in (
        (torch.optim.ASGD(model.parameters()), "the state of ASGD does not start as zeros; supported: Adadelta"),
        (torch.optim.SGD(model.parameters(), momentum=0.9, dampening=0.1), "SGD with dampening treats its first step"),
        (torch.optim.SGD(nn.Linear(2, 2).parameters()), r"of shape \(2, 2\) that is not one of the model"),
    ):
        with pytest.raises(ExportError, match=message):
            extract_training(model, (X,), loss=squares, optimizer=optimizer, strict=False)


def test_a_graph_without_optimiser_state() -> None:
    ir = captured(optimizer=None)
    assert ir.model_name == "Layers.backward"
    del ir.extensions["training"]
    with pytest.raises(GraphError, match="the graph is not a training step; extract_training makes one"):
        optimizer_state(ir)


def test_the_model_is_left_as_it_was() -> None:
    model = net()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    names = [name for name, _ in model.named_modules()]
    extract_training(model, (X,), loss=squares, optimizer=adamw(model.parameters()), strict=False)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [name for name, _ in model.named_modules()] == names
    assert all(parameter.grad is None for parameter in model.parameters())


# -- the command line -------------------------------------------------------------------------------------------------

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x)
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Capture, check and cost a step; the file computes what torch.optim does."""
    (tmp_path / "net.py").write_text(MODEL)
    path = str(tmp_path / "step.json")
    given = [f"{tmp_path}/net.py:Net", "-i", "6x8", "--target", "i64[6]<4", "--loss", "cross_entropy"]
    assert main(["train-step", *given, "--optimizer", "sgd", "--lr", "0.5", "-o", path]) == 0
    assert "Net: 18 nodes, 2 weights, 36 parameters" in capsys.readouterr().out
    assert main(["check", path]) == 0
    model = nn.Linear(8, 4)
    step = IRExecutor(load_ir(path), {f"fc.{key}": value.clone() for key, value in model.state_dict().items()})
    step(X, LABELS)
    F.cross_entropy(model(X), LABELS).backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    assert torch.equal(step.state["fc.weight"], model.weight)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "0.1"], "--lr needs --optimizer"),
        (["--optimizer", "adamv"], "unknown optimiser 'adamv'; expected one of sgd, adam, adamw, adafactor, muon"),
        (["--optimizer", "adamw", "--momentum", "0.9"], "torch.optim cannot make adamw with {'momentum': 0.9}"),
        (["--loss", "cross_entrpy"], "torch.nn.functional has no 'cross_entrpy'; did you mean 'cross_entropy'?"),
        (["--micro-batches", "5"], "an input of shape (6, 8) cannot be split into 5 micro-batches"),
    ],
)
def test_what_the_command_refuses(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    path = tmp_path / "step.json"
    given = [f"{tmp_path}/net.py:Net", "-i", "6x8", "--target", "6x4", "--loss", "mse_loss", "-o", str(path)]
    assert message in failure(capsys, "train-step", *given, *words)
    assert not path.exists()
