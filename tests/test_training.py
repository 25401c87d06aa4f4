"""Training steps: gradients and updated weights are those of eager autograd and torch.optim."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import catalogue
from tests.proof import module
from tests.trained_models import LABELS, Layer, Optimizers, X, adamw, compare, layers, net, squares
from torch_ir import (
    IRExecutor,
    extract_training,
    load_ir,
    optimizer_state,
)
from torch_ir.errors import TorchIRError
from torch_ir.ops.grouped_products import grouped_product
from torch_ir.training.named_optimizers import named_optimizer

# -- optimisers -------------------------------------------------------------------------------------------------------

EXACT: dict[str, Optimizers] = {
    "sgd": lambda each: torch.optim.SGD(each, lr=0.05),
    "momentum": lambda each: torch.optim.SGD(each, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda each: torch.optim.Adam(each, lr=0.01, amsgrad=True, weight_decay=0.01),
    "maximize": lambda each: torch.optim.AdamW(each, lr=0.01, maximize=True),
    "rmsprop": lambda each: torch.optim.RMSprop(each, lr=0.01, momentum=0.5, centered=True),
    "adamax": lambda each: torch.optim.Adamax(each, lr=0.01),
    "adadelta": lambda each: torch.optim.Adadelta(each),
}


def test_ten_steps_of_adamw_are_bit_equal() -> None:
    """Loss, weights, batch statistics and dropout masks, with the same seed at each step."""
    compared = compare(net(), (X,), targets=(LABELS,), loss=F.cross_entropy, steps=10)
    assert compared[1:] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", EXACT)
def test_optimisers_are_bit_equal(name: str) -> None:
    compared = compare(layers(), (X,), targets=(LABELS,), loss=F.cross_entropy, optimizer=EXACT[name], steps=3)
    assert compared[1:] == (0.0, 0.0, 0.0)


def test_parameter_groups_keep_their_settings() -> None:
    def grouped(parameters: Any) -> torch.optim.Optimizer:
        each = list(parameters)
        plain = [tensor for tensor in each if tensor.dim() < 2]
        decayed = [tensor for tensor in each if tensor.dim() == 2]
        return torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0, "lr": 0.1}], lr=0.01)

    assert compare(layers(), (X,), optimizer=grouped, steps=2).is_exact


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda each: torch.optim.Adafactor(each, lr=0.01),
        lambda each: torch.optim.AdamW(each, lr=torch.tensor(0.01)),
        lambda each: torch.optim.SGD(each, lr=torch.tensor(0.01), momentum=0.9),
    ],
)
def test_numbers_that_the_graph_computes_may_round_differently(optimizer: Optimizers) -> None:
    """`add(x, y, alpha=n)` rounds once in the kernel and twice in the graph; a learning rate is float64 there."""
    compared = compare(layers(), (X,), targets=(LABELS,), loss=F.cross_entropy, optimizer=optimizer, steps=3)
    assert compared.gradients == 0.0
    assert compared.weights < 1e-6


def test_muon_with_adamw_for_the_other_parameters() -> None:
    model = layers().train()
    start = {key: value.clone() for key, value in model.state_dict().items()}
    ir = extract_training(
        model, (X,), targets=(LABELS,), loss=F.cross_entropy, strict=False, optimizer=named_optimizer("muon", model)
    )
    step = IRExecutor(ir, {**start, **optimizer_state(ir)})
    eager = named_optimizer("muon", model)
    for seed in range(2):
        torch.manual_seed(seed)
        model.zero_grad()
        F.cross_entropy(model(X), LABELS).backward()
        for each in eager:
            each.step()
        torch.manual_seed(seed)
        step(X, LABELS)
    assert all(torch.equal(step.state[key], value) for key, value in model.state_dict().items())


def test_a_learning_rate_that_is_a_tensor_is_a_weight() -> None:
    """So a schedule changes it between steps."""
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    ir = extract_training(model.eval(), (X,), loss=squares, optimizer=optimizer, strict=False)
    state = optimizer_state(ir)
    assert state == {"optimizer.lr.0": torch.tensor(0.5)}
    start = {key: value.clone() for key, value in model.state_dict().items()}
    still = IRExecutor(ir, {**start, "optimizer.lr.0": torch.tensor(0.0)})
    still(X)
    assert all(torch.equal(still.state[key], value) for key, value in start.items())


# -- the loss, and what happens around it -----------------------------------------------------------------------------


def eager_step(model: nn.Module, update: Callable[[nn.Module], None]) -> dict[str, Tensor]:
    """Run one eager step, with AdamW after `update`, which computes the gradients."""
    optimizer = adamw(model.parameters())
    torch.manual_seed(0)
    update(model)
    optimizer.step()
    return dict(model.state_dict())


def stepped(model: nn.Module, **options: Any) -> dict[str, Tensor]:
    """Run one step of the graph."""
    captured = copy.deepcopy(model)
    options.setdefault("loss", F.cross_entropy)
    ir = extract_training(
        captured, (X,), targets=(LABELS,), optimizer=adamw(captured.parameters()), strict=False, **options
    )
    step = IRExecutor(ir, {**copy.deepcopy(model.state_dict()), **optimizer_state(ir)})
    torch.manual_seed(0)
    step(X, LABELS)
    return step.state


def test_clipping_is_that_of_torch() -> None:
    def update(model: nn.Module) -> None:
        F.cross_entropy(model(X), LABELS).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1

    model = layers()
    got = stepped(model, clip_norm=0.1)
    assert all(torch.equal(got[key], value) for key, value in eager_step(model, update).items())


def test_micro_batches_sum_their_gradients() -> None:
    def update(model: nn.Module) -> None:
        for x, labels in zip(X.chunk(3), LABELS.chunk(3), strict=True):
            (F.cross_entropy(model(x), labels) / 3).backward()

    model = layers()
    got = stepped(model, micro_batches=3)
    assert all(torch.equal(got[key], value) for key, value in eager_step(model, update).items())


def test_the_loss_may_be_scaled() -> None:
    """By a power of two, the scale changes no bit of the result."""

    def update(model: nn.Module) -> None:
        F.cross_entropy(model(X), LABELS).backward()

    model = layers()
    got = stepped(model, loss_scale=1024.0)
    assert all(torch.equal(got[key], value) for key, value in eager_step(model, update).items())


def test_gradients_of_the_outputs_may_be_inputs() -> None:
    model = module(lambda self, x: {"a": self.fc(x), "b": self.fc(x).sin()}, fc=nn.Linear(8, 8))
    seeds = (torch.randn(6, 8), torch.randn(6, 8))
    ir = extract_training(model, (X,), targets=seeds, loss="seed", strict=False)
    got = IRExecutor(ir, model.state_dict())(X, *seeds)["gradients"]
    output = model(X)
    torch.autograd.backward([output["a"], output["b"]], list(seeds))
    assert {key: torch.equal(value, model.get_parameter(key).grad) for key, value in got.items()} == {
        "fc.weight": True,
        "fc.bias": True,
    }


def test_the_loss_of_a_language_model() -> None:
    """From its labels, on meta, weight-free; repeated layers are functions in all three parts of the step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 64, (2, 12))
    given = {"input_ids": ids, "labels": ids}
    compared = compare(model, (), kwargs=given, loss=None, steps=2)
    assert compared[1:] == (0.0, 0.0, 0.0)
    folded = compared.ir.fold_blocks()
    kinds = [node.op_type.rpartition(".")[2] for node in folded.nodes if node.is_call]
    assert [kinds.count(f"LlamaDecoderLayer{part}") for part in ("", "Backward", "Update")] == [3, 3, 3]
    assert folded.at_level("aten").to_json() == compared.ir.to_json()


# -- models -----------------------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """With a gradient that is not that of its forward, so that a graph of the forward would differ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x * 5


def test_custom_gradients_frozen_and_tied_and_unused_parameters() -> None:
    one, other, frozen = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    other.weight = one.weight
    frozen.requires_grad_(False)
    model = module(
        lambda self, x: self.frozen(self.other(Cube.apply(self.one(x)).mul_(2))),
        one=one, other=other, frozen=frozen, unused=nn.Linear(2, 2),
    )  # fmt: skip
    compared = compare(model, (X,), steps=2)
    assert compared.is_exact
    gradients = compared.ir.functions["backward"].output_tree.items[1].keys
    assert gradients == ("one.weight", "one.bias", "other.bias")


def test_checkpointed_blocks_are_recomputed_with_the_same_dropout() -> None:
    """The graph runs the block twice and draws its mask once."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    compared = compare(Checkpointed(), (X,), steps=2)
    assert compared.is_exact
    nodes = compared.ir.nodes
    count = [node.op_type for node in nodes].count
    assert (count("aten.native_layer_norm.default"), count("aten.bernoulli.p")) == (4, 2)
    again = [node.origin.module for node in nodes if node.op_type == "aten.native_layer_norm.default"]
    assert again == ["layers.0.norm", "layers.1.norm", "backward.layers.1.norm", "backward.layers.0.norm"]


def test_reentrant_checkpoints_are_refused() -> None:
    model = module(lambda self, x: checkpoint(self.fc, x, use_reentrant=True), fc=nn.Linear(8, 8))
    with pytest.raises(TorchIRError, match="use use_reentrant=False"):
        extract_training(model, (X.clone().requires_grad_(),), loss=squares, strict=False)


def test_dropout_of_a_transposed_tensor_draws_the_same_mask() -> None:
    """The mask is drawn in the order of memory, which is not that of the indices."""
    model = module(lambda self, x: F.dropout(self.fc(x).transpose(0, 1), 0.5).cos(), fc=nn.Linear(8, 8))
    assert compare(model, (X,)).is_exact


def test_torchs_joint_graph_gives_the_same_gradients() -> None:
    """An independent capture of attention: AOTAutograd without decompositions."""
    from torch._functorch.aot_autograd import aot_export_joint_simple

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum(),)

    given = [torch.randn(1, 2, 6, 8) for _ in range(3)]
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    joint = aot_export_joint_simple(attention, leaves, trace_joint=True, decompositions={})
    _, wanted = joint(given, [torch.ones(())])
    model = module(lambda self: attention(*self.parameters())[0], a=given[0], b=given[1], c=given[2])
    for name, value in zip("abc", given, strict=True):
        setattr(model, name, nn.Parameter(value))
    ir = extract_training(model, (), strict=False)
    got = IRExecutor(ir, model.state_dict())()["gradients"]
    assert all(torch.equal(got[name], each) for name, each in zip("abc", wanted, strict=True))


UNTRAINABLE = {
    "bitwise": "no parameters",
    "integer_ops": "no parameters",
    "control_flow": "cond",
    "while_loop": "while_loop",
}
# Recurrent layers run oneDNN's kernels in eager mode and operators in a graph.
ROUNDED = {"gru": 1e-6, "lstm": 1e-4, "message_passing": 1e-6}
TRAINED = [entry.name for entry in catalogue.entries() if entry.name not in UNTRAINABLE]


def check_catalogue(name: str) -> None:
    entry = catalogue.find(name)
    torch.manual_seed(0)
    compared = compare(entry.build(), entry.inputs(), kwargs=entry.kwargs())
    assert max(compared[1:]) <= ROUNDED.get(name, 0.0)


SMALL = ["autoencoder", "causal_attention", "embedding_bag", "fft", "inplace", "instance_norm", "layer_norm", "moe"]


@pytest.mark.parametrize("name", random.Random(29).sample(SMALL, 3))
def test_a_sample_of_the_catalogue(name: str) -> None:
    check_catalogue(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_the_catalogue(name: str) -> None:
    check_catalogue(name)


@pytest.mark.parametrize("name", ["control_flow"])
def test_control_flow_is_refused(name: str) -> None:
    entry = catalogue.find(name)
    with pytest.raises(Exception, match=UNTRAINABLE[name]):
        extract_training(entry.build(), entry.inputs(), kwargs=entry.kwargs(), loss=squares, strict=False)


def test_batch_norm_of_an_input_has_no_gradient_there(tmp_path: Path) -> None:
    """Its kernel leaves out the gradient of the input, and torch's shape rule returns one."""
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
    compared = compare(model, (X,))
    assert compared.is_exact
    compared.ir.save(tmp_path / "step.json")
    assert load_ir(tmp_path / "step.json").to_json() == compared.ir.to_json()


class Dropping(nn.Module):
    """Layer drop, as models of transformers write it: with torch's numbers, or with NumPy's."""

    def __init__(self, chance: float, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.chance, self.draw, self.fc = chance, draw, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.draw() < self.chance else self.fc(x)


@pytest.mark.parametrize("draw", [lambda: torch.rand([]), lambda: numpy.random.uniform(0, 1)])
def test_layers_that_are_never_dropped(draw: Callable[[], Any]) -> None:
    """The number is drawn all the same, so that masks drawn later are those of eager mode."""
    assert compare(nn.Sequential(Dropping(0.0, draw), Layer()), (X,), steps=2).is_exact


def test_layers_that_may_be_dropped_are_refused() -> None:
    """A graph of one draw would train the other layers for ever."""
    model = nn.Sequential(*[Dropping(0.5, lambda: torch.rand([])) for _ in range(2)])
    with pytest.raises(TorchIRError, match="a tensor without values cannot be read"):
        extract_training(model, (X,), loss=squares, strict=False)
    model = nn.Sequential(*[Dropping(0.5, lambda: numpy.random.uniform(0, 1)) for _ in range(16)], nn.Linear(8, 4))
    with pytest.raises(TorchIRError, match="draws random numbers from NumPy or Python that decide what is computed"):
        extract_training(model, (X,), loss=squares, strict=False)


def test_products_of_groups_of_rows() -> None:
    """As mixtures of experts compute them; torch's own shape rule takes bfloat16 only."""

    def forward(self: Any, x: Tensor) -> Tensor:
        ends = torch.tensor([2, 3, 6], dtype=torch.int32)
        made: Tensor = F.grouped_mm(x.repeat(1, 2), self.weight.transpose(-2, -1), offs=ends)
        return made * 1.5

    model = module(forward)
    model.weight = nn.Parameter(torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0)))
    assert compare(model, (X,)).is_exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_shape_rule_of_grouped_products_is_that_of_the_kernel(dtype: torch.dtype) -> None:
    """Shapes, and strides of rows that are padded to 16 bytes."""
    ends = torch.tensor([3, 7, 10], dtype=torch.int32)
    rows, batch = torch.zeros(10, 16, dtype=dtype), torch.zeros(3, 7, 16, dtype=dtype)
    narrow = torch.zeros(3, 5, 16, dtype=dtype).transpose(1, 2)
    for call in ((rows, narrow, ends), (rows.t(), torch.zeros(10, 24, dtype=dtype), ends), (batch, narrow, None),
                 (batch, rows.t(), ends)):  # fmt: skip
        made, wanted = grouped_product(*call), torch.ops.aten._grouped_mm(*call)
        assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    with pytest.raises(ValueError, match="takes one number of groups"):
        grouped_product(rows, narrow, ends[:2])
    with pytest.raises(ValueError, match="cannot multiply"):
        grouped_product(rows[:, :8], narrow, ends)
