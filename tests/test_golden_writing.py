"""Writing a golden pack: its content, atomic writes, deterministic bytes."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.golden_packs import NET, X, compared, dumped, golden
from tests.proof import captured
from torch_ir import write_golden
from torch_ir.errors import ExecutionError, MissingExtraError, SerializationError
from torch_ir.golden.pack import read_pack


def test_what_a_pack_holds(tmp_path: Path) -> None:
    """Inputs and, on request, weights; the digest of the graph; the kind of reference."""
    ir = golden(tmp_path / "pack", with_weights=True)
    index = json.loads((tmp_path / "pack" / "index.json").read_text())
    assert (index["format"], index["version"], index["model_name"]) == ("torch-ir golden", 1, "Net")
    assert index["ir"].startswith("sha256:")
    assert "verified against the model" in index["reference"]
    assert torch.equal(load_file(tmp_path / "pack" / "inputs-00001.safetensors")["x"], X)
    weights = load_file(tmp_path / "pack" / "weights-00001.safetensors")
    assert weights.keys() == NET.state_dict().keys()
    write_golden(ir, NET.state_dict(), (X,), tmp_path / "alone")
    assert read_pack(tmp_path / "alone").reference == "the graph"
    assert not (tmp_path / "alone" / "weights-00001.safetensors").exists()


def test_a_graph_that_is_not_the_model_gives_no_pack(tmp_path: Path) -> None:
    """A reference that is wrong itself would be worse than none."""
    ir = captured(NET, X)
    ir.node("tanh").op_type = "aten.sin.default"
    with pytest.raises(ExecutionError, match="the graph differs from the model"):
        write_golden(ir, NET.state_dict(), (X,), tmp_path / "pack", model=NET)
    assert list(tmp_path.iterdir()) == []


def test_shards_and_selections(tmp_path: Path) -> None:
    """No shard exceeds the limit; `only` and `every` omit nodes and say so; `max_bytes` raises."""
    ir = golden(tmp_path / "pack", shard_bytes=150)
    sizes = [shard.size for shard in read_pack(tmp_path / "pack").files.values()]
    assert len(sizes) > 4
    assert max(sizes) < 150 + 500  # and a header
    assert compared(tmp_path / "pack", dumped(ir, NET.state_dict(), X)).is_equal
    golden(tmp_path / "part", only=["encoder"])
    part = read_pack(tmp_path / "part")
    assert [value.name for value in part.values] == ["linear", "tanh", "linear_1"]
    assert part.notes == ["7 of 10 values were not selected"]
    golden(tmp_path / "few", every=4)
    assert [value.name for value in read_pack(tmp_path / "few").values][-1] == "argmax"
    with pytest.raises(ExecutionError, match="no node belongs to module encodr; did you mean 'encoder"):
        golden(tmp_path / "none", only=["encodr"])
    with pytest.raises(ExecutionError, match="exceeds 100 bytes"):
        golden(tmp_path / "none", max_bytes=100)
    assert not (tmp_path / "none").exists()


def test_a_pack_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A pack is replaced by a pack; after an error the old one remains; other folders are never touched."""
    golden(tmp_path / "pack", every=3)
    before = (tmp_path / "pack" / "index.json").read_bytes()
    with pytest.raises(ExecutionError):
        golden(tmp_path / "pack", max_bytes=300)
    assert (tmp_path / "pack" / "index.json").read_bytes() == before
    golden(tmp_path / "pack")
    assert (tmp_path / "pack" / "index.json").read_bytes() != before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.json").write_text("{}")
    with pytest.raises(SerializationError, match="is not a golden pack; it was not changed"):
        golden(tmp_path / "mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SerializationError, match="was not changed"):
        golden(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "pack"]


def test_equal_packs_are_equal_bytes(tmp_path: Path) -> None:
    """Nothing of the place or the time is in a pack."""
    golden(tmp_path / "one")
    golden(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the extra, and no files remain."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(MissingExtraError, match=r"torch-ir\[safetensors\]"):
        golden(tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []
