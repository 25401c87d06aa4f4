"""Sizes that the ranks do not divide: pieces as `torch.chunk` cuts them, padded to the largest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from tests.sharded_models import TENSOR_PARALLEL, Tower, checkpoint, collectives, language_model
from torch_ir import (
    IR,
    GraphError,
    IRExecutor,
    LocalRanks,
    ShardError,
    TensorMeta,
    cost,
    extract_ir,
    load_ir,
    shard,
    transformers_plan,
    verify_sharded,
)
from torch_ir.llm import extract_llm
from torch_ir.run.lockstep import left_in_lockstep
from torch_ir.run.ranks import Rank
from torch_ir.run.stored import StoredTensor
from torch_ir.run.weight_files import open_weights
from torch_ir.sharding.local_ranks import whole as assembled

IDS = torch.arange(32).reshape(4, 8)


class Vocabulary(nn.Module):
    """A table and a head with a bias."""

    def __init__(self, count: int = 5, width: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(count, width), nn.Linear(width, count)
        self.eval().requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids)).float()


ROWS = {"embed": "embedding_rowwise", "head": "colwise"}


@pytest.mark.parametrize("tied", [False, True])
def test_language_models_with_an_odd_vocabulary(tied: bool) -> None:
    """33 tokens on 2 and 4 ranks, with one weight for the table and the head, or two."""
    model = language_model("llama", vocab_size=33, tie_word_embeddings=tied)
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    for ranks, rows in ((2, 17), (4, 9)):
        plan = {**transformers_plan(model, ir, ranks=ranks), "model.embed_tokens": "embedding_rowwise"}
        sharded = shard(ir, plan, {"tp": ranks})
        assert collectives(sharded) == {"all_reduce": 5, "all_gather_into_tensor": 1}
        own = {param.shape for param in sharded.params if param.key in ("model.embed_tokens.weight", "lm_head.weight")}
        assert own == {(rows, 32)}
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
        assert is_valid, str(report)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_ranks_may_have_no_rows(ranks: int) -> None:
    """Five tokens: on 4 ranks the last has none, on 7 the last two."""
    torch.manual_seed(0)
    model, ids = Vocabulary(), torch.tensor([[0, 4, 2], [3, 1, 4]])
    sharded = shard(extract_ir(model, (ids,), strict=False), ROWS, {"tp": ranks})
    assert sharded.graph_outputs[0].shape == (2, 3, 5)
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (ids,))
    assert is_valid, str(report)


def test_the_vocabulary_of_gpt2_on_8_ranks() -> None:
    """The largest piece decides: 6283 of 50257 rows on each rank, without any weight."""
    with torch.device("meta"):
        ir = extract_ir(Vocabulary(50257, 64), (torch.zeros(1, 4, dtype=torch.int64),))
    sharded = shard(ir, ROWS, {"tp": 8})
    assert [param.shape for param in sharded.params if param.placement] == [(6283, 64), (6283, 64), (6283,)]
    assert cost(sharded).by_op()["aten.linear.default"].flops == 2 * 4 * 64 * 6283


def test_pieces_are_those_of_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tensor and of a file, of which only the rank's own rows are read."""
    whole = torch.arange(21.0).reshape(7, 3)
    save_file({"w": whole}, tmp_path / "w.safetensors")
    stored, read = open_weights(tmp_path / "w.safetensors")["w"], []
    elements = StoredTensor.elements
    monkeypatch.setattr(StoredTensor, "elements", lambda self, *at: read.append(at) or elements(self, *at))
    for dim in (0, 1):
        read.clear()
        source = {"tensor": whole if dim == 0 else whole.t().contiguous(), "file": stored}
        if dim:
            save_file({"w": source["tensor"]}, tmp_path / "t.safetensors")
            source["file"] = open_weights(tmp_path / "t.safetensors")["w"]
        shape = (2, 3) if dim == 0 else (3, 2)
        placed = TensorMeta("w", shape, "float32", placement=("padded(7)" if dim == 0 else "padded(7, 1)",))
        chunks = [*source["tensor"].chunk(5, dim), *[source["tensor"].narrow(dim, 0, 0)] * 5][:5]  # 2, 2, 2, 1 and none
        for number, chunk in enumerate(chunks):
            expected = torch.zeros(shape)
            expected.narrow(dim, 0, chunk.shape[dim]).copy_(chunk)
            for name, given in source.items():
                piece = Rank({"tp": number}).piece(IR([], [], [], mesh={"tp": 5}), placed, given)
                assert torch.equal(piece.load() if name == "file" else piece, expected)
        assert sum(stop - start for start, stop in read) == whole.numel()


def test_weights_of_another_size_are_refused() -> None:
    model, ids = Vocabulary(), torch.zeros(1, 2, dtype=torch.int64)
    sharded = shard(extract_ir(model, (ids,), strict=False), ROWS, {"tp": 2})
    for count in (4, 6, 9):
        _, report = verify_sharded(sharded, model, Vocabulary(count).state_dict(), (ids,))
        assert "embed.weight" in str(report)


def test_the_file_says_how_many_rows_there_are(tmp_path: Path) -> None:
    """In JSON and in text; a size that does not belong to the pieces is refused, and plans cannot ask for padding."""
    model, ids = Vocabulary(), torch.tensor([[0, 4]])
    ir = extract_ir(model, (ids,), strict=False)
    sharded = shard(ir, ROWS, {"tp": 2})
    sharded.save(tmp_path / "rank.json")
    for again in (load_ir(tmp_path / "rank.json"), IR.parse(str(sharded))):
        assert [param.placement for param in again.params if param.key == "embed.weight"] == [("padded(5)",)]
        assert verify_sharded(again, model, model.state_dict(), (ids,))[0]
    sharded.params[0].placement = ("padded(7)",)
    with pytest.raises(GraphError, match="invalid placement 'padded"):
        sharded.check()
    with pytest.raises(ShardError, match=r"invalid placement 'padded\(5\)'; expected replicate"):
        shard(ir, {"embed": {"matrix": "padded(5)"}}, {"tp": 2})


GATED = {"gate": "colwise", "up": "colwise", "down": "rowwise"}


class Gated(nn.Module):
    """A feed-forward network of seven numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 7), nn.Linear(8, 7), nn.Linear(7, 8)
        self.eval().requires_grad_(False)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.gate(x)) * self.up(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.inner(x))


class Reciprocal(Gated):
    """Padding of `gate` is zero, and its reciprocal is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.bias = None

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / self.gate(x) + self.up(x)


class Reduced(Gated):
    """What counts, averages or compares all seven numbers."""

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        y, z = self.up(x), self.gate(x)
        scale = y.mean(-1, keepdim=True) + y.amax(-1, keepdim=True) + y.norm(dim=-1, keepdim=True)
        return z.softmax(-1) * scale + y.sum(-1, keepdim=True) + y.argmax(-1, keepdim=True) + z.cumsum(-1)


@pytest.mark.parametrize("kind", [Gated, Reciprocal, Reduced])
def test_padding_is_no_part_of_a_result(kind: type[nn.Module]) -> None:
    """Seven numbers on 2 to 8 ranks, of which the last may have none."""
    torch.manual_seed(0)
    model, x = kind(), torch.randn(2, 3, 8)
    ir = extract_ir(model, (x,), strict=False)
    for ranks in (2, 3, 4, 8):
        sharded = shard(ir, GATED, {"tp": ranks})
        if kind is not Reduced:
            assert collectives(sharded) == {"all_reduce": 1}
        is_valid, report = verify_sharded(sharded, model, model.state_dict(), (x,))
        assert is_valid, str(report)


@pytest.mark.parametrize("ranks", [3, 8])
def test_sixteen_numbers_in_four_heads(ranks: int) -> None:
    """Heads, and not numbers, are divided: on 3 ranks two, two and none, on 8 one each on the first four."""
    torch.manual_seed(0)
    model, ids = Tower(), IDS % 32
    ir = extract_ir(model, (ids,), strict=False).fold_blocks()
    sharded = shard(ir, TENSOR_PARALLEL, {"tp": ranks})
    own = {param.shape for param in sharded.params if str(param.key).endswith("query.weight")}
    assert own == {(8, 16) if ranks == 3 else (4, 16)}
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (ids,))
    assert is_valid, str(report)


HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "7": ("llama", {"num_attention_heads": 7, "num_key_value_heads": 7}),
    "14, with 2 of keys": ("qwen2", {"num_attention_heads": 14, "num_key_value_heads": 2}),
    "14, by matrix products": ("qwen2", {"num_attention_heads": 14, "attn_implementation": "eager"}),
    "7, with norms": ("qwen3", {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 8}),
}


@pytest.mark.parametrize("fold", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("case", HEADS)
def test_heads_that_the_ranks_do_not_divide(case: str, fold: bool) -> None:
    """On 4 ranks, with 50 numbers inside feed-forward networks: the collectives of sizes that can be divided."""
    kind, heads = HEADS[case]
    model = language_model(kind, **{"num_key_value_heads": 2, **heads}, hidden_size=56, intermediate_size=50)
    ir = extract_ir(model, (IDS,), strict=False)
    ir = ir.fold_blocks() if fold else ir
    sharded = shard(ir, transformers_plan(model, ir, ranks=4), {"tp": 4})
    assert collectives(sharded) == {"all_reduce": 4, "all_gather_into_tensor": 1}
    own = next(param for param in sharded.params if param.key == "model.layers.0.self_attn.q_proj.weight")
    size, count = heads.get("head_dim", 56 // heads["num_attention_heads"]), heads["num_attention_heads"]
    assert (own.shape[0], own.placement) == (-(-count // 4) * size, (f"padded({count * size}, 0, {size})",))
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


@pytest.mark.parametrize("style", ["", "all_to_all"])
@pytest.mark.parametrize("count", [5, 6])
def test_experts_that_the_ranks_do_not_divide(count: int, style: str) -> None:
    """On 4 ranks: two experts on each of the first ones, the last rank has none."""
    model = language_model("mixtral", num_local_experts=count, num_hidden_layers=1)
    ir = extract_ir(model, (IDS,), strict=False)
    experts = "model.layers.*.mlp.experts"
    rows = {f"{experts}.gate_up_proj": "grouped_gemm", f"{experts}.down_proj": "grouped_gemm"}
    sharded = shard(ir, rows | ({experts: style} if style else {}), {"ep": 4})
    assert {param.shape[0] for param in sharded.params if ".experts." in str(param.key)} == {2}
    is_valid, report = verify_sharded(sharded, model, model.state_dict(), (IDS,))
    assert is_valid, str(report)


def test_uneven_pieces_on_real_ranks(ranks: LocalRanks, tmp_path: Path) -> None:
    """Four processes: each reads its own heads, rows and columns from the file, and computes what eager does."""
    model = language_model("qwen2", num_attention_heads=14, num_key_value_heads=2, hidden_size=56, intermediate_size=50)
    ir = extract_ir(model, (IDS,), strict=False).fold_blocks()
    shard(ir, transformers_plan(model, ir, ranks=4), {"tp": 4}).save(tmp_path / "rank.json")
    weights = checkpoint(model, tmp_path)
    is_valid, report = verify_sharded(load_ir(tmp_path / "rank.json"), model, weights, (IDS,), ranks=ranks)
    assert is_valid, str(report)


def test_two_axes_cut_one_dimension() -> None:
    """Seven numbers on 2 ranks, and their four on 3: each size is that of what was cut before."""
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(2, 3, 8)
    both = shard(shard(extract_ir(model, (x,), strict=False), GATED, {"a": 2}), GATED, {"b": 3})
    placed = {str(param.key): param.placement for param in both.params}
    assert placed["down.weight"] == ("padded(7, 1)", "padded(4, 1)")
    for again in (both, IR.parse(str(both))):
        is_valid, report = verify_sharded(again, model, model.state_dict(), (x,))
        assert is_valid, str(report)


def test_a_cache_stays_in_pieces_between_prefill_and_decode() -> None:
    """Seven heads of keys and values on 4 ranks: two on each, in the cache too."""
    model = language_model("llama", num_attention_heads=7, num_key_value_heads=7, hidden_size=56, use_cache=True)
    llm = extract_llm(model, batch=1, prompt=4)
    divided = shard(llm, transformers_plan(model, llm, ranks=4), {"tp": 4})
    cache = next(tensor for tensor in divided.functions["decode"].graph_inputs if "key" in tensor.name)
    assert (cache.shape[1], cache.placement) == (2, ("padded(7, 1)",))
    decode = llm.functions["decode"]
    torch.manual_seed(0)
    values = {
        tensor.name: torch.randn([3 if isinstance(size, str) else size for size in tensor.shape])
        for tensor in decode.graph_inputs
        if tensor.dtype == "float32"
    }
    inputs = [values.get(tensor.name, torch.tensor([[5]])) for tensor in decode.graph_inputs]
    expected = IRExecutor(decode, model.state_dict()).run(inputs).outputs
    found = left_in_lockstep(divided.functions["decode"], inputs, model.state_dict())
    for tensor, value, *pieces in zip(divided.functions["decode"].graph_outputs, expected, *found, strict=False):
        torch.testing.assert_close(assembled(divided, tensor, pieces), value, rtol=1e-5, atol=1e-5)


def test_sizes_that_must_be_divisible() -> None:
    """Several matrices in one, and inputs of the graph."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    ir = extract_ir(model, (torch.ones(3, 4),), strict=False)
    with pytest.raises(
        ShardError, match=r"0.weight: .* has size 6, which cannot be divided among 2 packed parts, each"
    ):
        shard(ir, {"0": "packed_colwise"}, {"tp": 2})
    with pytest.raises(ShardError, match=r"has size 3, which cannot be divided among 2 ranks"):
        shard(ir, {}, {"tp": 2}, inputs={"*": "shard(0)"})


@pytest.mark.parametrize("text", ["padded(7, 2)", "padded(7, 1, 2)", "padded(9, 1)", "padded(7)", "padded(7, 1, 7)"])
def test_placements_that_do_not_belong_to_the_pieces(text: str) -> None:
    model, x = Gated(), torch.randn(2, 8)
    sharded = shard(extract_ir(model, (x,), strict=False), GATED, {"tp": 2})
    param = next(param for param in sharded.params if param.key == "down.weight")
    assert param.placement == ("padded(7, 1)",)
    param.placement = (text,)
    with pytest.raises(GraphError, match="invalid placement 'padded"):
        sharded.check()
