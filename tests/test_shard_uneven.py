"""A vocabulary that the ranks do not divide: pieces as `torch.chunk` cuts them, padded to the largest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.sharded_models import collectives, language_model
from torch_ir import (
    IR,
    GraphError,
    ShardError,
    TensorMeta,
    cost,
    extract_ir,
    load_ir,
    shard,
    transformers_plan,
    verify_sharded,
)
from torch_ir.run.ranks import Rank
from torch_ir.run.stored import StoredTensor
from torch_ir.run.weight_files import open_weights

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
    ir, tensor = IR([], [], [], mesh={"tp": 5}), TensorMeta("w", (2, 3), "float32", placement=("padded(7)",))
    chunks = [*whole.chunk(5), *[whole[:0]] * 5][:5]  # 2, 2, 2, 1 and no rows
    for number, chunk in enumerate(chunks):
        expected = torch.cat([chunk, torch.zeros(2 - len(chunk), 3)])
        for source in (whole, stored):
            piece = Rank({"tp": number}).piece(ir, tensor, source)
            assert torch.equal(piece.load() if source is stored else piece, expected)
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


def test_other_sizes_must_be_divisible() -> None:
    """Inside the model, padding would meet other operators."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)).eval()
    with pytest.raises(ShardError, match=r"0.weight: .* has size 5, which cannot be divided among 2 ranks"):
        shard(extract_ir(model, (torch.ones(2, 4),), strict=False), {"0": "colwise"}, {"tp": 2})
