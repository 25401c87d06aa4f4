"""Every sharding rule of an operator: for every sharded input, the ranks together compute the same as one."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.test_shard_training import OF_GRADIENTS
from torch_ir import IR, ExecutionError, extract_ir, shard
from torch_ir.sharding import run_in_lockstep, whole_outputs
from torch_ir.sharding.placement_rules import RULES

Function = Callable[..., Any]
aten = torch.ops.aten


class Of(nn.Module):
    """A function of tensors as a model; the first is the result of a linear layer, whose weight may be sharded."""

    def __init__(self, function: Function, width: int) -> None:
        super().__init__()
        self.function = function
        self.term = nn.Linear(width, width, bias=False) if width else nn.Identity()
        self.eval().requires_grad_(False)

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(self.term(first), *others)


def indices(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 4


def shared_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


SAMPLES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "add": (lambda x, y: x + y, ((4, 6, 4), (4, 6, 4))),
    "add broadcast": (lambda x, y: x + y, ((4, 6, 4), (6, 1))),
    "add a number": (lambda x: x + 1, ((4, 4),)),
    "sub of itself": (lambda x: x - 2 * x, ((4, 4),)),
    "mul": (lambda x, y: x * y, ((4, 6), (4, 6))),
    "div": (lambda x, y: x / (y * y + 1), ((4, 6), (4, 6))),
    "div by it": (lambda x, y: y / (x * x + 1), ((4, 6), (4, 6))),
    "div, rounded": (lambda x: (torch.div(x, 0.3, rounding_mode="floor"), x // 0.3), ((4, 6),)),
    "square": (lambda x: x * x, ((4, 6),)),
    "silu": (F.silu, ((4, 6),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), ((4, 6), (4, 6))),
    "masked_fill": (lambda x, y: x.masked_fill(y > 0, 0.5), ((4, 6), (6,))),
    "to": (lambda x: x.double(), ((4, 6),)),
    "to whole numbers": (lambda x: (x * 3).long(), ((4, 6),)),
    "zeros_like": (torch.zeros_like, ((4, 6),)),
    "new_zeros": (lambda x: x.new_zeros(3) + 1, ((4, 6),)),
    "transpose": (lambda x: x.transpose(0, -1), ((4, 6, 2),)),
    "permute": (lambda x: x.permute(2, 0, 1), ((4, 6, 2),)),
    "movedim": (lambda x: x.movedim(0, 2), ((4, 6, 2),)),
    "t": (lambda x: x.t(), ((4, 6),)),
    "mT": (lambda x: x.mT, ((4, 6, 2),)),
    "T": (lambda x: x.T, ((4, 6),)),
    "swapdims": (lambda x: x.swapdims(0, 1), ((4, 6, 2),)),
    "moveaxis": (lambda x: x.moveaxis((0, 1), (2, 0)), ((4, 6, 2),)),
    "copies of transposed": (
        lambda x: (torch.t_copy(x), torch.transpose_copy(x, 0, 1), torch.permute_copy(x, (1, 0))), ((4, 6),),
    ),
    "unsqueeze": (lambda x: x.unsqueeze(1), ((4, 6),)),
    "squeeze": (lambda x: x.squeeze(1), ((4, 1, 6),)),
    "squeeze all": (lambda x: x.squeeze(), ((4, 1, 6),)),
    "squeeze all of as many as ranks": (lambda x: x.squeeze(), ((2, 1, 6),)),
    "expand": (lambda x: x.unsqueeze(1).expand(4, 3, 6), ((4, 6),)),
    "expand further": (lambda x: x.expand(2, 4, -1), ((4, 6),)),
    "select": (lambda x: x.select(1, 2), ((4, 6, 2),)),
    "slice": (lambda x: x[:, 1:5], ((4, 6),)),
    "slice whole": (lambda x: x[:, 0:], ((4, 6),)),
    "slice steps": (lambda x: x[::2], ((4, 6),)),
    "chunk": (lambda x: x.chunk(2, 1), ((4, 8),)),
    "chunk of chunks": (lambda x, y: (lambda a, b: a * b)(*torch.cat([x, y], 1).chunk(2, 1)), ((4, 8), (4, 8))),
    "split": (lambda x: x.split([2, 6], 1), ((4, 8),)),
    "unbind": (lambda x: x.unbind(1), ((4, 2, 8),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((4, 6), (4, 2))),
    "stack": (lambda x, y: torch.stack([x, y], 1), ((4, 6), (4, 6))),
    "heads": (lambda x: x.view(2, 4, 4, 3), ((2, 4, 12),)),
    "heads back": (lambda x: x.reshape(2, 4, 12), ((2, 4, 4, 3),)),
    "tokens": (lambda x: x.reshape(-1, 6), ((4, 8, 6),)),
    "tokens back": (lambda x: x.reshape(-1, 6).reshape(4, 8, 6) * 2, ((4, 8, 6),)),
    "tokens with heads": (lambda x: x.reshape(8, 4, 4).reshape(4, 2, 16), ((4, 2, 16),)),
    "flatten": (lambda x: x.flatten(1), ((4, 2, 6),)),
    "unflatten": (lambda x: x.unflatten(1, (4, 3)), ((2, 12),)),
    "repeat_kv": (lambda x: x[:, :, None].expand(2, 4, 3, 2, 2).reshape(2, 12, 2, 2), ((2, 4, 2, 2),)),
    "roll": (lambda x: x.roll(1, 0), ((4, 6),)),
    "pad": (lambda x: F.pad(x, (1, 2)), ((4, 6),)),
    "sum": (lambda x: x.sum(1), ((4, 6, 2),)),
    "sum all": (lambda x: x.sum(), ((4, 6),)),
    "mean": (lambda x: x.mean(-1, keepdim=True), ((4, 6),)),
    "amax": (lambda x: x.amax(0), ((4, 6),)),
    "sums of maxima": (lambda x, y: (x.amax(1) + y.amax(1), x.amax(0) - y.amax(0), -x.amin(1)), ((4, 6), (4, 6))),
    "sums of means": (lambda x, y: (x.mean(1) + y.mean(1), x.mean(1) - y.sum(1)), ((4, 6), (4, 6))),
    "argmax": (lambda x: x.argmax(1), ((4, 6),)),
    "var": (lambda x: x.var(1), ((4, 6),)),
    "softmax": (lambda x: x.softmax(-1), ((4, 6),)),
    "cumsum": (lambda x: x.cumsum(0), ((4, 6),)),
    "topk": (lambda x: x.topk(2, 1), ((4, 6),)),
    "max": (lambda x: x.max(1), ((4, 6),)),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), ((4, 2, 6),)),
    "rms_norm": (lambda x: F.rms_norm(x, (6,)), ((4, 2, 6),)),
    "linear": (F.linear, ((4, 2, 6), (8, 6), (8,))),
    "linear without bias": (F.linear, ((4, 6), (8, 6))),
    "mm": (torch.mm, ((4, 6), (6, 2))),
    "addmm": (lambda x, y, z: torch.addmm(z, x, y), ((4, 6), (6, 2), (2,))),
    "bmm": (torch.bmm, ((4, 2, 6), (4, 6, 2))),
    "matmul": (torch.matmul, ((4, 2, 2, 6), (2, 6, 4))),
    "attention": (F.scaled_dot_product_attention, ((2, 4, 6, 2), (2, 4, 8, 2), (2, 4, 8, 2), (2, 1, 6, 8))),
    "attention to one batch": (F.scaled_dot_product_attention, ((2, 4, 6, 2), (1, 4, 8, 2), (1, 4, 8, 2))),
    "causal attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 4, 6, 2),) * 3,
    ),
    "shared heads": (shared_heads, ((2, 4, 6, 2), (2, 1, 8, 2), (2, 1, 8, 2))),
    "shared heads, not of one rank each": (shared_heads, ((2, 12, 6, 2), (2, 3, 8, 2), (2, 3, 8, 2))),
    "conv2d": (lambda x: F.max_pool2d(F.conv2d(x, torch.ones(2, 2, 3, 3)), 2), ((4, 2, 8, 8),)),
    "embedding": (lambda x, w: x.sum() + F.embedding(indices(2, 6), w), ((2, 2), (8, 4))),
    "index": (lambda x: x[:, indices(2, 2)], ((4, 6, 2),)),
    "index with what is cut": (lambda x, y: x[(y * y).long() % 2], ((4, 6), (4, 2))),
    "index_select": (lambda x: x.index_select(0, indices(2)), ((4, 6),)),
    "gather": (lambda x: x.gather(1, indices(4, 2)), ((4, 6),)),
    "gather fewer rows": (
        lambda x, y: (x.gather(1, (y * y).long() % 4), x.gather(0, (y * y).long() % 4)), ((8, 6), (4, 2)),
    ),
    "index_copy": (lambda x, y: x.index_copy(1, indices(2), y), ((4, 6, 2), (4, 2, 2))),
    "logical": (lambda x, y: ((x > 0) & (y > 0)) | ((x < 0) ^ (y < 0)), ((4, 6), (4, 6))),
    "like": (lambda x: torch.ones_like(x) + torch.full_like(x, 2.0) + 0 * torch.empty_like(x).fill_(1), ((4, 6),)),
    "new": (lambda x: x.new_ones(2) + x.new_full((2,), 3.0) + 0 * x.new_empty(2).fill_(1), ((4, 6),)),
    "copies": (lambda x: x.t().contiguous().clone().detach().type_as(x.double()), ((4, 6),)),
    "dropout": (lambda x: F.dropout(x, training=False), ((4, 6),)),
    "constants": (lambda x: x + torch.tensor([1.0, 2.0]), ((4, 2),)),
    "_to_copy": (lambda x: aten._to_copy(x, dtype=torch.float64), ((4, 6),)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), ((4, 6),)),
    "narrow": (lambda x: x.narrow(1, 2, 2), ((4, 6),)),
    "splits": (lambda x: (*x.split(4, 1), *x.tensor_split(2, 1), *x.unsafe_split(4, 1)), ((4, 8),)),
    "views": (lambda x: aten._unsafe_view(aten.view_copy(x, [4, 2, 4]), [4, 8]), ((4, 8),)),
    "flip": (lambda x: x.flip(1), ((4, 6),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), ((4, 6),)),
    "constant_pad_nd": (lambda x: aten.constant_pad_nd(x, [0, 2], 1.0), ((4, 6),)),
    "reductions": (lambda x: (x.amin(1), x.prod(1), x.std(1), x.logsumexp(1), x.argmin(1)), ((4, 6),)),
    "truths": (lambda x: ((x > 0).any(1), (x > 0).all(1)), ((4, 6),)),
    "norms": (lambda x: (torch.linalg.vector_norm(x, dim=1), aten.norm(x, 2, [1])), ((4, 6),)),
    "softmaxes": (lambda x: (x.log_softmax(1), aten._softmax(x, 1, False), aten._log_softmax(x, 1, False)), ((4, 6),)),
    "orders": (lambda x: (x.sort(1), x.argsort(1), x.cumprod(1), x.min(1), F.glu(x, 1)), ((4, 6),)),
    "native_layer_norm": (lambda x: aten.native_layer_norm(x, [6], None, None, 1e-5), ((4, 2, 6),)),
    "baddbmm": (lambda x, y, z: torch.baddbmm(z, x, y), ((4, 2, 6), (4, 6, 2), (4, 2, 2))),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(2, 2, 3)), ((4, 2, 8),)),
    "conv1d of one sample": (lambda x: F.conv1d(x, torch.ones(2, 4, 3)), ((4, 8),)),
    "convolution": (
        lambda x: aten.convolution(x, torch.ones(2, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ((4, 2, 8, 8),),
    ),
    "pooling": (lambda x: F.adaptive_avg_pool2d(F.avg_pool2d(x, 2), 2), ((4, 2, 8, 8),)),
    "batch norms": (
        lambda x: F.group_norm(F.batch_norm(x, torch.zeros(2), torch.ones(2)), 2), ((4, 2, 8, 8),),
    ),
    "scatters": (
        lambda x, y: x.slice_scatter(y, 1, 0, 2).index_add(1, indices(2), y), ((4, 6, 2), (4, 2, 2)),
    ),
    "index_put": (lambda x, y: x.index_put((indices(2),), y), ((4, 6), (2, 6))),
}  # fmt: skip


def cuts(shape: tuple[int, ...]) -> list[str]:
    """Every way in which an input can be cut for two ranks."""
    return [f"shard({dim})" for dim, size in enumerate(shape) if size % 2 == 0]


def check(ir: IR, model: nn.Module, values: list[torch.Tensor], plan: dict[str, Any], **cut: str) -> None:
    """The graph of two ranks returns the model's results."""
    sharded = shard(ir, plan, {"tp": 2}, inputs=cut)
    results = run_in_lockstep(sharded, values, model.state_dict())
    wanted = model(*values)
    for whole, made in zip(tree_leaves(wanted), whole_outputs(sharded, results), strict=True):
        torch.testing.assert_close(made, whole)


def mixed(shapes: tuple[tuple[int, ...], ...], most: int = 4) -> list[tuple[str, ...]]:
    """Ways for all inputs together: each cut alone, and a seeded sample of the others."""
    options = [["replicate", *ways] for ways in map(cuts, shapes)]
    alone = [
        tuple(way if index == at else "replicate" for index in range(len(shapes)))
        for at, found in enumerate(options)
        for way in found
    ]
    every = list(product(*options))
    return list(dict.fromkeys([*alone, *random.Random(0).sample(every, min(most, len(every)))]))


@pytest.mark.parametrize("name", SAMPLES)
def test_pieces_give_what_the_whole_gives(name: str) -> None:
    """For inputs whole or cut in any dimension, and for the first as terms of a sum."""
    function, shapes = SAMPLES[name]
    torch.manual_seed(0)
    values = [torch.randn(shape) for shape in shapes]
    plain = Of(function, 0)
    ir = extract_ir(plain, tuple(values), strict=False)
    for places in mixed(shapes):
        given = {tensor.name: place for tensor, place in zip(ir.graph_inputs, places, strict=True)}
        check(ir, plain, values, {}, **given)
    if shapes[0][-1] % 2 == 0:
        summed = Of(function, shapes[0][-1])
        terms = {"term": {"matrix": "shard(-1)", "inputs": "shard(-1)"}}
        check(extract_ir(summed, tuple(values), strict=False), summed, values, terms)


def test_every_rule_is_tried() -> None:
    """Every rule must have a test; those of experts, collectives and gradients are tested elsewhere."""
    tried = set()
    for function, shapes in SAMPLES.values():
        ir = extract_ir(Of(function, 0), tuple(map(torch.randn, shapes)), strict=False)
        tried |= {node.op_type.rpartition(".")[0] for node in ir.nodes}
    elsewhere = {name for name in RULES if "grouped_mm" in name or name.startswith("_c10d_functional.")}
    elsewhere |= OF_GRADIENTS
    assert set(RULES) - tried - elsewhere == set()


class Chosen(nn.Module):
    """Takes the columns that a buffer selects, so that a size depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("kept", torch.tensor([True, False, True, True]))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = x[:, self.kept]
        return self.linear(x), chosen.new_ones(chosen.shape) + chosen.reshape(-1, chosen.shape[1]) * chosen.shape[1]


@pytest.mark.parametrize("cut", ["replicate", "shard(0)"])
def test_sizes_that_depend_on_data_are_bound_in_lockstep(cut: str) -> None:
    """On every rank by its own data."""
    model, x = Chosen().eval(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    ir = extract_ir(model, (x,), strict=False)
    check(ir, model, [x], {"linear": {"matrix": "shard(0)", "vector": "shard(0)"}}, x=cut)


@pytest.mark.parametrize("rows", [6, 7])
@pytest.mark.parametrize("index", [-1, 7, 8, 1 << 40])
def test_an_index_outside_of_a_table_in_pieces_is_refused(rows: int, index: int) -> None:
    """As in eager; a rank that looks for its own rows only would return zeros."""
    model = nn.Sequential(nn.Embedding(rows, 4)).eval()
    ir = extract_ir(model, (torch.zeros(2, dtype=torch.int64),), strict=False)
    sharded = shard(ir, {"0": "embedding_rowwise"}, {"tp": 2})
    known = torch.tensor([0, rows - 1])
    results = whole_outputs(sharded, run_in_lockstep(sharded, [known], model.state_dict()))
    assert torch.equal(next(iter(results)), model(known))
    wrong = torch.tensor([0, index])
    with pytest.raises(IndexError):
        model(wrong)
    with pytest.raises(ExecutionError, match="out of range"):
        run_in_lockstep(sharded, [wrong], model.state_dict())
