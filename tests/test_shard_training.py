"""Sharded training steps: the new weights and state of all ranks are those of eager mode."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.trained_models import IDS, LABELS, WORDS, Layer, X, decoder, of_words
from torch_ir import (
    IR,
    LocalRanks,
    ShardError,
    cost_report,
    extract_training,
    liveness,
    load_ir,
    optimize,
    optimizer_state,
    shard,
    verify_sharded,
)
from torch_ir.run.lockstep import left_in_lockstep
from torch_ir.sharding import gradient_rules, loss_rules
from torch_ir.sharding.local_ranks import whole
from torch_ir.sharding.placement_rules import RULES

TP = {
    **{f"blocks.*.{name}": "colwise" for name in ("q", "k", "v", "up")},
    **{f"blocks.*.{name}": "rowwise" for name in ("o", "down")},
    "head": "colwise_gather_output",
}
SP = {
    **TP,
    **{
        f"blocks.*.{name}": {"matrix": "shard(-1)", "inputs": "shard(-1)", "outputs": "shard(1)"}
        for name in ("o", "down")
    },
    **{f"blocks.*.{name}": "sequence_parallel" for name in ("first", "second")},
    "norm": "sequence_parallel",
}
ROWS = {"*": "shard(0)"}
OF_GRADIENTS = {
    name for name, rule in RULES.items() if rule.__module__ in (gradient_rules.__name__, loss_rules.__name__)
}
# axis -> plan and placement of inputs, one axis after the other
PARALLEL: dict[str, dict[str, tuple[dict[str, Any], dict[str, str]]]] = {
    "data": {"dp": ({}, ROWS)},
    "tensor": {"tp": (TP, {})},
    "sequence": {"tp": (SP, {})},
    "fsdp": {"dp": ({"**": "fsdp"}, ROWS)},
    "tensor and fsdp": {"tp": (TP, {}), "dp": ({"**": "fsdp"}, ROWS)},
}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Unlike Adam, it does not divide a gradient by its own size, which would magnify rounding."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1, eps=1e-2)


@functools.cache
def captured(optimizer: Any = sgd, **options: Any) -> IR:
    model = decoder().to("meta")
    ids, words = IDS.to("meta"), WORDS.to("meta")
    return extract_training(model, (ids,), targets=(words,), loss=of_words, optimizer=optimizer(model), **options)


def sharded(ir: IR, name: str) -> IR:
    for axis, (plan, inputs) in PARALLEL[name].items():
        ir = shard(ir, plan, {axis: 2}, inputs=inputs)
    return ir


def after_step(ir: IR, weights: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Run all ranks, and assemble what the step changes, by key."""
    left = left_in_lockstep(ir, inputs, weights)
    columns = list(zip(*left, strict=True))[len(ir.graph_outputs) :]
    targets = [target for target, _ in ir.mutations]
    return {str(target.key): whole(ir, target, list(each)) for target, each in zip(targets, columns, strict=True)}


def eager_step(model: nn.Module, optimizer: Any, words: Tensor, clip: float | None = None) -> dict[str, Tensor]:
    trained = optimizer(model)
    of_words(model(IDS), words).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    trained.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        *((name, "function") for name in PARALLEL),
        *(pytest.param(name, "inline", marks=pytest.mark.slow) for name in PARALLEL),
    ],
)
def test_the_ranks_compute_the_step_of_eager_mode(name: str, blocks: str) -> None:
    """With words that are ignored in one half of the batch, so that the mean of means would be wrong."""
    words = WORDS.clone()
    words[0, :5] = -100
    ir = captured(adamw, blocks=blocks)
    weights = {**decoder().state_dict(), **optimizer_state(ir)}
    got = after_step(sharded(ir, name), weights, (IDS, words))
    wanted = eager_step(decoder(), adamw, words)
    assert {key for key in got if not key.startswith("optimizer.")} == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-5)


def test_a_step_with_sizes_that_the_ranks_do_not_divide() -> None:
    """Four heads and 32 numbers inside on 3 ranks, with clipped gradients: padding is neither summed nor counted."""
    ir = captured(clip_norm=0.05)
    divided = shard(ir, TP, {"tp": 3})
    assert any("padded" in str(param.placement) for param in divided.params)
    got = after_step(divided, {**decoder().state_dict(), **optimizer_state(ir)}, (IDS, WORDS))
    for key, value in eager_step(decoder(), sgd, WORDS, clip=0.05).items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [pytest.param("tensor", marks=pytest.mark.slow), "fsdp"])
def test_clipping_uses_the_norm_of_all_shards(name: str) -> None:
    ir = captured(clip_norm=0.05)
    got = after_step(sharded(ir, name), {**decoder().state_dict(), **optimizer_state(ir)}, (IDS, WORDS))
    for key, value in eager_step(decoder(), sgd, WORDS, clip=0.05).items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-6)


def collectives(ir: IR) -> dict[str, int]:
    return {row.name.split(".")[1]: row.count for row in cost_report(ir).collectives}


def test_collectives_are_those_of_the_field() -> None:
    """Tensor parallel: two for each block in forward and in backward, and two for the head. FSDP: one gather of each
    weight in forward and in backward, one scatter of each gradient."""
    ir = captured()
    assert collectives(sharded(ir, "tensor")) == {"all_reduce": 2 * 2 * 2 + 1, "all_gather_into_tensor": 1}
    found = collectives(sharded(ir, "fsdp"))
    count = len(list(decoder().parameters()))
    assert found["reduce_scatter_tensor"] == count
    assert count < found["all_gather_into_tensor"] < 2 * count  # biases and the table are not read in backward


@functools.cache
def in_bfloat16() -> IR:
    model = decoder().to("meta", torch.bfloat16)
    ids, words = IDS.to("meta"), WORDS.to("meta")
    return extract_training(model, (ids,), targets=(words,), loss=of_words, optimizer=adamw(model))


def test_updates_in_bfloat16_stay_in_shards() -> None:
    """They compute in float32 and copy the result back."""
    assert collectives(sharded(in_bfloat16(), "tensor")) == collectives(sharded(captured(adamw), "tensor"))


def test_fsdp_stores_shards_and_frees_what_it_gathers() -> None:
    ir = captured(adamw)
    rank = sharded(ir, "fsdp")
    assert all(
        sum(param.shape) < sum(whole.shape) for param, whole in zip(rank.params, ir.params, strict=False) if whole.shape
    )
    assert liveness(rank).weights < 0.51 * liveness(ir).weights
    gathered = [
        node.output for node in rank.nodes if "all_gather" in node.op_type and not node.origin.module.startswith("b")
    ]
    parts = {tensor: {reader.origin.module.partition(".")[0] for reader in tensor.consumers} for tensor in gathered}
    assert not any("backward" in readers for readers in parts.values())


def test_gradients_stay_in_shards() -> None:
    """The backward entry point returns each gradient where its parameter is."""
    ir = captured()
    backward = sharded(ir, "fsdp").functions["backward"]
    placed = {tensor.placement for tensor in backward.graph_outputs[1:]}
    assert placed == {("shard(0)",)}
    is_valid, report = verify_sharded(
        backward, ir.functions["backward"], decoder().state_dict(), (IDS, WORDS), atol=1e-6
    )
    assert is_valid, report


def test_a_step_from_a_file_is_optimised_and_sharded(tmp_path: Path) -> None:
    ir = captured(blocks="function")
    ir.save(tmp_path / "step.json")
    better, _ = optimize(load_ir(tmp_path / "step.json"), "clean")
    sharded(better, "tensor").save(tmp_path / "rank.json")
    weights = {**decoder().state_dict(), **optimizer_state(ir)}
    is_valid, report = verify_sharded(load_ir(tmp_path / "rank.json"), ir, weights, (IDS, WORDS), atol=1e-6)
    assert is_valid, report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequence", "fsdp"])
def test_the_ranks_are_processes(name: str, ranks: LocalRanks) -> None:
    ir = captured()
    weights = {**decoder().state_dict(), **optimizer_state(ir)}
    is_valid, report = verify_sharded(sharded(ir, name), ir, weights, (IDS, WORDS), ranks=ranks, atol=1e-6)
    assert is_valid, report


def pooled(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: pool(x.reshape(4, 2, 8, 4) * w[:4])


def likelihood(x: Tensor, w: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(x * w, torch.arange(4) % 3, reduction=reduction)


def labels_in_a_plane(x: Tensor, w: Tensor) -> Tensor:
    planes = (x * w).reshape(4, 8, 4, 2)
    return F.cross_entropy(planes, torch.arange(32).reshape(4, 4, 2) % 8)


def masked(x: Tensor, w: Tensor) -> Tensor:
    """Words that are ignored in the first half of the batch only."""
    return F.cross_entropy(x * w, torch.tensor([-100, 3, 1, 0]))


ACTIVATIONS = (
    "elu", "hardswish", "leaky_relu", "softplus", "logsigmoid", "hardtanh", "hardsigmoid", "mish", "hardshrink",
)  # fmt: skip
LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits")
# A function of a batch [4, 64] and a weight [64]
SAMPLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: lambda x, w, f=getattr(F, name): f(x * w) for name in ACTIVATIONS},
    **{name: lambda x, w, f=getattr(F, name): f(x * w, x.sigmoid()) for name in LOSSES},
    **{f"{name} sum": lambda x, w, f=getattr(F, name): f(x * w, x.sigmoid(), reduction="sum") for name in LOSSES},
    **{f"{name} none": lambda x, w, f=getattr(F, name): f(x * w, x.sigmoid(), reduction="none") for name in LOSSES},
    "binary_cross_entropy": lambda x, w: F.binary_cross_entropy((x * w).sigmoid(), x.sigmoid()),
    "soft_margin_loss": lambda x, w: F.soft_margin_loss(x * w, x.sign()),
    "cross_entropy": likelihood,
    "cross_entropy sum": lambda x, w: likelihood(x, w, "sum"),
    "cross_entropy none": lambda x, w: likelihood(x, w, "none"),
    "cross_entropy masked": masked,
    "nll_loss2d": labels_in_a_plane,
    "softmax": lambda x, w: (x * w).softmax(-1),
    "layer_norm": lambda x, w: F.layer_norm(x * w, (64,), w, w),
    "convolution": lambda x, w: F.conv2d((x * w).reshape(4, 2, 8, 4), w[:36].reshape(2, 2, 3, 3), w[:2]),
    "max_pool2d": pooled(lambda x: F.max_pool2d(x, 2)),
    "avg_pool2d": pooled(lambda x: F.avg_pool2d(x, 2)),
    "adaptive_avg_pool2d": pooled(lambda x: F.adaptive_avg_pool2d(x, (2, 2))),
    "embedding": lambda x, w: F.embedding((x > 0).long(), w.reshape(8, 8)),
    "slice": lambda x, w: (x * w)[:, 3:9],
    "select": lambda x, w: (x * w)[:, 3],
    "repeat": lambda x, w: (x * w).repeat(1, 2),
    "attention": lambda x, w: F.scaled_dot_product_attention(*[(x * w).reshape(4, 2, 4, 8)] * 3),
}


class Sample(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.linspace(-1.0, 1.0, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight).square().mean()


@functools.cache
def of_sample(name: str) -> IR:
    model = Sample(SAMPLES[name])
    return extract_training(model, (torch.zeros(4, 64),), optimizer=sgd(model), strict=False)


@pytest.mark.parametrize("name", SAMPLES)
def test_operators_over_a_sharded_batch(name: str) -> None:
    """Without a rule, the batch would be gathered; with a wrong one, the gradient would differ."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    model, ir = Sample(SAMPLES[name]), of_sample(name)
    rank = shard(ir, {}, {"dp": 2}, inputs=ROWS)
    got = after_step(rank, {**model.state_dict(), **optimizer_state(ir)}, (x,))
    eager = sgd(model)
    model(x).backward()
    eager.step()
    torch.testing.assert_close(got["weight"], model.weight, rtol=1e-5, atol=1e-6)
    assert collectives(rank).keys() <= {"all_reduce"}


def test_every_rule_of_gradients_is_tried() -> None:
    steps = [*map(of_sample, SAMPLES), in_bfloat16()]
    tried = {node.op_type.rpartition(".")[0] for ir in steps for node in ir.nodes}
    assert OF_GRADIENTS - tried == set()


@pytest.mark.parametrize("plan", [{}, {"**": "fsdp"}])
def test_batch_norm_over_a_sharded_batch(plan: dict[str, Any]) -> None:
    """Its statistics are those of the whole batch, which is gathered."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4)).train()
    ir = extract_training(model, (X,), loss=lambda y: y.square().mean(), optimizer=sgd(model), strict=False)
    read = {key for param in ir.params if param.param for key in param.param.keys}
    weights = {key: value for key, value in model.state_dict().items() if key in read}
    is_valid, report = verify_sharded(
        shard(ir, plan, {"dp": 2}, inputs=ROWS), ir, {**weights, **optimizer_state(ir)}, (X,), atol=1e-6
    )
    assert is_valid, report


def test_dropout_is_refused() -> None:
    model = nn.Sequential(Layer(), nn.Linear(8, 4))
    ir = extract_training(model.train(), (X,), targets=(LABELS,), loss=F.cross_entropy, strict=False)
    with pytest.raises(ShardError, match="draws random numbers, which would differ between ranks"):
        shard(ir, {}, {"dp": 2}, inputs=ROWS)
