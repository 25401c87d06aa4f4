"""Compare a captured training step with eager autograd and torch.optim, on an untouched copy of the model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from torch_ir import IR, IRExecutor
from torch_ir.errors import CaptureWarning
from torch_ir.training import extract_training, optimizer_state

Optimizers = Callable[[Any], torch.optim.Optimizer]
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.inner = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.gelu(self.inner(self.norm(x))))


class Net(nn.Module):
    """Repeated layers, batch norm, dropout, a write in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.first(x)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Block(nn.Module):
    """Attention of four heads and a feed-forward network, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        q, k, v = (each(normed).unflatten(-1, (4, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.o(attended)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """A small language model: an embedding, blocks, and a head over 24 words."""

    def __init__(self, count: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 24, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


IDS = torch.randint(0, 24, (4, 8), generator=torch.Generator().manual_seed(1))
WORDS = torch.randint(0, 24, (4, 8), generator=torch.Generator().manual_seed(2))


def decoder(count: int = 2) -> Decoder:
    torch.manual_seed(0)
    return Decoder(count).train()


def of_words(logits: Tensor, words: Tensor) -> Tensor:
    """The loss of a language model; words of -100 are ignored."""
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(3)], nn.Linear(8, 4))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def squares(output: Any, *_: Any) -> Tensor:
    """A loss for any model: a weighted mean of every output that depends on parameters, and of its square."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    terms = [torch.view_as_real(leaf) if leaf.is_complex() else leaf.float() for leaf in leaves]
    shares = [torch.arange(term.numel()).remainder(7).reshape(term.shape).to(term.dtype) for term in terms]
    pairs = zip(terms, shares, strict=True)
    return torch.stack([((term + 0.1 * term.square()) * share).mean() for term, share in pairs]).sum()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def on_meta(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().to("meta"), value)


class Compared(NamedTuple):
    """The largest difference of losses, gradients and updated weights, relative to the largest value."""

    ir: IR
    losses: float
    gradients: float
    weights: float

    @property
    def is_exact(self) -> bool:
        return not (self.losses or self.gradients or self.weights)


def compare(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    kwargs: dict[str, Any] | None = None,
    targets: tuple[Any, ...] = (),
    loss: Any = squares,
    optimizer: Optimizers = adamw,
    steps: int = 1,
    on_meta_device: bool = False,
    least: float = 0.0,
    **options: Any,
) -> Compared:
    """Run steps of the graph and of eager PyTorch from the same state, with the same random numbers.

    `least` is that of `difference`.
    """
    kwargs = kwargs or {}
    model = model.train()
    captured = copy.deepcopy(model)
    given = (inputs, targets, kwargs)
    if on_meta_device:
        captured, given = captured.to("meta"), on_meta(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        optimizers = optimizer(captured.parameters())
        options |= {"targets": given[1], "kwargs": given[2], "loss": loss, "strict": on_meta_device}
        ir = extract_training(captured, given[0], optimizer=optimizers, **options)
    read = {key for param in ir.params if param.param for key in param.param.keys}
    start = {key: value.clone() for key, value in model.state_dict().items()}
    given_weights = {key: value for key, value in start.items() if key in read}
    run_backward = IRExecutor(ir.functions["backward"], {key: value.clone() for key, value in given_weights.items()})
    run_step = IRExecutor(ir, {**given_weights, **optimizer_state(ir)})
    eager_optimizer = optimizer(model.parameters())
    losses, gradients = 0.0, 0.0
    for number in range(steps):
        torch.manual_seed(number)
        value = eager_loss(model, copy.deepcopy(inputs), copy.deepcopy(targets), kwargs, loss)
        eager_optimizer.zero_grad()
        torch.autograd.backward(value)
        wanted = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
        if number == 0:
            torch.manual_seed(number)
            found = run_backward(*inputs, *targets, **kwargs)["gradients"]
            assert found.keys() == wanted.keys()
            gradients = difference(found, wanted, least)
        eager_optimizer.step()
        torch.manual_seed(number)
        got = run_step(*inputs, *targets, **kwargs)["loss"]
        losses = max(losses, difference({"loss": got}, {"loss": value.detach()}))
    after = {key: value for key, value in model.state_dict().items() if key in run_step.state}
    assert all(torch.equal(start[key], value) for key, value in model.state_dict().items() if key not in read)
    return Compared(ir, losses, gradients, difference(run_step.state, after, least))


def eager_loss(model: nn.Module, inputs: Any, targets: Any, kwargs: Any, loss: Any) -> Tensor:
    output = model(*inputs, **kwargs)
    value: Tensor = output.loss if loss is None else loss(output, *targets)
    return value


def difference(found: Any, wanted: Any, least: float = 0.0) -> float:
    """Return the largest difference of tensors under the same keys, each relative to its largest value.

    A tensor of values below `least` of the largest of all is relative to that: the gradient of a bias before batch norm
    is 0, and what is computed is noise.
    """
    largest = 0.0
    whole = max((float(tensor.abs().max()) for tensor in wanted.values() if tensor.numel()), default=0.0)
    for key, tensor in wanted.items():
        if not torch.equal(found[key], tensor) and not (tensor.isnan() == found[key].isnan()).all():
            return float("inf")
        one, other = (each.nan_to_num(0.0, 0.0, 0.0) for each in (found[key], tensor))
        if tensor.numel() and not torch.equal(one, other):
            scale = max(float(other.abs().max()), least * whole, 1e-30)
            largest = max(largest, float((one - other).abs().max()) / scale)
    return largest
