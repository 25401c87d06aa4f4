"""Whole models at every level: the same results, the same graph with and without weights, and the savings."""

from collections import Counter

import pytest
import torch
from torch import nn

import catalogue
import torch_ir
from catalogue import Entry
from tests.architectures import NOT_CAPTURED, architectures
from torch_ir import IR, extract_ir, optimize
from torch_ir.passes.random_check import prove
from torch_ir.run.executor import flatten_call

ENTRIES = {entry.name: entry for entry in catalogue.entries()}
ARCHITECTURES = {each.name: each for each in architectures() if each.name not in NOT_CAPTURED}
# Random offsets are out of order for one, random indices out of range for another; the root of a negative sum of
# random links is NaN, and so would be every result of the third.
WITH_OWN_INPUTS = ("embedding_bag", "message_passing", "graph_conv")
SAMPLE = (
    "bert",
    "cnn",
    "constants",
    "control_flow",
    "inplace",
    "llama",
    "mobilenet_v2",
    "multi_output",
    "vit",
)


def graph_of(entry: Entry, *, meta: bool) -> IR:
    """The graph of a model that has no weights, or has them."""
    torch.manual_seed(0)
    inputs, kwargs = entry.inputs(), entry.kwargs()
    if not meta:
        return extract_ir(entry.build(), inputs, kwargs=kwargs, strict=False)
    with torch_ir.meta_init():
        model = entry.build()
    return extract_ir(model, inputs, kwargs=kwargs, strict=False)


def proved_at_every_level(entry: Entry) -> None:
    ir = graph_of(entry, meta=True)
    torch.manual_seed(0)
    flat = flatten_call(ir, entry.inputs(), entry.kwargs()) if entry.name in WITH_OWN_INPUTS else None
    for level in ("clean", "basic", "full"):
        better, report = optimize(ir, level)
        proof = prove(ir, better, inputs=flat, trials=1, changes=report.changes)
        assert proof.is_valid, f"{level}: {proof}"
        assert level != "clean" or proof.max_diff == 0.0
        assert len(IR.from_json(better.to_json()).nodes) == len(better.nodes)


@pytest.mark.parametrize("name", SAMPLE)
def test_models_compute_the_same(name: str) -> None:
    """At every level, and at `clean` to the last bit; the file of the better graph loads."""
    proved_at_every_level(ENTRIES[name])


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalogue.entries(), ids=lambda entry: entry.name)
def test_every_model_of_the_catalogue_computes_the_same(entry: Entry) -> None:
    """All of them."""
    proved_at_every_level(entry)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch_ir.CaptureWarning")
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_every_architecture_is_optimised(name: str) -> None:
    """Every tiny model of `transformers` that can be captured computes the same after level full, on its own inputs."""
    each = ARCHITECTURES[name]
    torch.manual_seed(0)
    inputs = each.inputs()
    model = each.build()
    ir = extract_ir(model, (), kwargs=inputs, strict=False)
    better, report = optimize(ir, "full")
    assert report.after.nodes <= report.before.nodes
    flat = flatten_call(ir, (), inputs)
    proof = prove(ir, better, inputs=flat, weights=model.state_dict(), trials=1, changes=report.changes)
    assert proof.is_valid, proof


@pytest.mark.parametrize("name", ["resnet18", "llama", "vit", "transposed_conv"])
def test_weights_do_not_matter(name: str) -> None:
    """A model without weight values has the same optimised graph as one with values, byte for byte."""
    graphs = [optimize(graph_of(ENTRIES[name], meta=meta), "full")[0] for meta in (True, False)]
    assert graphs[0].to_json() == graphs[1].to_json()


def test_no_batch_norm_is_left_in_a_resnet() -> None:
    """49 operators, as the best of the ONNX optimisers, and 24 calls with fused layers."""
    ir = graph_of(ENTRIES["resnet18"], meta=True)
    report = optimize(ir)[1]
    assert (report.before.nodes, report.after.nodes) == (69, 49)
    assert report.after.bytes < report.before.bytes
    fused, report = optimize(ir, "full")
    assert report.after.nodes == 24
    assert Counter(node.op_type for node in fused.nodes if node.is_call) == {
        "fused.conv2d_relu": 9,
        "fused.conv2d_add_relu": 8,
    }


def test_a_checkpoint_fits_the_better_graph() -> None:
    """A graph extracted on meta and optimised returns the model's results with the model's weights."""
    torch.manual_seed(0)
    model = ENTRIES["mobilenet_v2"].build()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 1.5)
    better, _ = optimize(graph_of(ENTRIES["mobilenet_v2"], meta=True), "full")
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        wanted = model(image)
    torch.testing.assert_close(torch_ir.IRExecutor(better, model.state_dict())(image), wanted, rtol=1e-3, atol=1e-4)
