"""Weights: file formats, matching with a graph, and errors."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.adversarial.shapes import SHAPES
from tests.proof import captured, module
from torch_ir import (
    IR,
    IRExecutor,
    OpNode,
    TensorMeta,
    WeightLoadError,
    WeightWarning,
    extract_ir,
    load_weights,
    load_weights_pt,
    load_weights_safetensors,
    random_weights,
)
from torch_ir.ir import Param
from torch_ir.run import weight_files
from torch_ir.run.weight_files import compare_headers, open_weights
from torch_ir.weight_loader import validate_weights_against_ir

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
MODEL = module(lambda self, x: self.b(self.a(x)), a=nn.Linear(4, 4), b=nn.Linear(4, 2))
GOOD = MODEL.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="module")
def ir() -> IR:
    return captured(MODEL, X)


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_pickled_state_dicts(tmp_path: Path, suffix: str) -> None:
    """A state dict written by torch.save, alone or under `state_dict`; other values are omitted."""
    torch.save(GOOD, tmp_path / f"plain{suffix}")
    torch.save({"state_dict": GOOD, "epoch": 3}, tmp_path / f"nested{suffix}")
    torch.save({**GOOD, "epoch": 3}, tmp_path / f"mixed{suffix}")
    for name in ("plain", "nested", "mixed"):
        assert same(load_weights(tmp_path / f"{name}{suffix}"), GOOD)


def test_safetensors(tmp_path: Path) -> None:
    """A .safetensors file, by the general and by its own function, as text or as a path."""
    path = tmp_path / "model.safetensors"
    save_file(GOOD, path)
    assert same(load_weights(str(path)), GOOD)
    assert same(load_weights_safetensors(path), GOOD)


def test_half_precision_survives(tmp_path: Path) -> None:
    """bfloat16 and float8 round-trip."""
    weights = {"a": torch.randn(3).bfloat16(), "b": torch.ones(2).to(torch.float8_e4m3fn)}
    torch.save(weights, tmp_path / "w.pt")
    save_file(weights, tmp_path / "w.safetensors")
    for path in tmp_path.iterdir():
        assert {key: value.dtype for key, value in load_weights(path).items()} == {
            "a": torch.bfloat16,
            "b": torch.float8_e4m3fn,
        }


def shards(folder: Path) -> Path:
    """A checkpoint in two shards with its index."""
    first, second = dict(list(GOOD.items())[:2]), dict(list(GOOD.items())[2:])
    names = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for name, part in names.items():
        save_file(part, folder / name)
    index = folder / "model.safetensors.index.json"
    placed = {key: name for name, part in names.items() for key in part}
    index.write_text(json.dumps({"metadata": {}, "weight_map": placed}), encoding="utf-8")
    return index


def test_sharded_checkpoints(tmp_path: Path) -> None:
    """An index brings the tensors of all its shards; a folder is found by its index."""
    index = shards(tmp_path)
    assert same(load_weights(index), GOOD)
    assert same(load_weights(tmp_path), GOOD)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_folders(tmp_path: Path, name: str) -> None:
    """A folder is found by the usual file names."""
    if name.endswith(".bin"):
        torch.save(GOOD, tmp_path / name)
    else:
        save_file(GOOD, tmp_path / name)
    assert same(load_weights(tmp_path), GOOD)


def test_executor_reads_files(ir: IR, tmp_path: Path) -> None:
    """`load_weights` of an executor binds a file's tensors."""
    save_file(GOOD, tmp_path / "w.safetensors")
    executor = IRExecutor(ir)
    executor.load_weights(tmp_path / "w.safetensors")
    assert torch.equal(executor(X), MODEL(X))


# -- hostile and broken files -----------------------------------------------------------------------------------------


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("writer", ["torch.save", "pickle"])
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, writer: str) -> None:
    """A pickle that would run code raises, and the code has not run."""
    trace = tmp_path / "was_run"
    path = tmp_path / "evil.pt"
    if writer == "torch.save":
        torch.save({"a.weight": Malicious(trace)}, path)
    else:
        path.write_bytes(pickle.dumps({"a.weight": Malicious(trace)}, protocol=2))
    with pytest.raises(WeightLoadError, match=r"contains more than tensors; save only model.state_dict\(\)"):
        load_weights(path)
    assert not trace.exists()


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/hosts", "sub/inside.safetensors", "..", "", 3, None])
def test_shards_are_files_beside_the_index(tmp_path: Path, shard: Any) -> None:
    """An index cannot refer to other folders; anything but a file name is an error."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(GOOD, tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": shard}}), encoding="utf-8")
    with pytest.raises(WeightLoadError, match="which is not a file in the same folder"):
        load_weights(index)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("w.pt", b"no pickle"),
        ("w.pt", b""),
        ("w.bin", b"PK\x03\x04 truncated"),
        ("w.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!"),
        ("w.safetensors", b""),
        ("model.safetensors.index.json", b"{"),
        ("model.safetensors.index.json", b"[]"),
        ("model.safetensors.index.json", b"{}"),
        ("model.safetensors.index.json", b'{"weight_map": 3}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": ["x"]}}'),
        ("model.safetensors.index.json", b"\xff\xfe"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "missing.safetensors"}}'),
        ("w.txt", b"text"),
        ("w", b""),
    ],
)
def test_garbage_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """A file without weights raises a WeightLoadError that names it."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WeightLoadError) as caught:
        load_weights(path)
    assert str(tmp_path) in str(caught.value)


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    """The error for a pickle without a dict names its type."""
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(WeightLoadError, match="contains a list, not a state dict"):
        load_weights_pt(tmp_path / "list.pt")


def test_nothing_there(tmp_path: Path) -> None:
    """A missing file, and a folder without a checkpoint, are named."""
    with pytest.raises(WeightLoadError, match=r"no such file: .*none\.pt"):
        load_weights(tmp_path / "none.pt")
    with pytest.raises(WeightLoadError, match=r"contains none of model\.safetensors\.index\.json, model\.safetensors"):
        load_weights(tmp_path)


def test_an_index_that_names_itself(tmp_path: Path) -> None:
    """A shard is a file of weights, never another index."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": index.name}}), encoding="utf-8")
    with pytest.raises(WeightLoadError, match="unknown weight format"):
        load_weights(index)


def test_the_index_decides_which_of_two_shards_holds_a_tensor(tmp_path: Path) -> None:
    """A tensor is read from the shard that the index names for it, not from the last one that has it."""
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}), encoding="utf-8")
    assert load_weights(index)["a"].tolist() == [0, 0]
    assert open_weights(index)["a"].load().tolist() == [0, 0]


def test_hints_are_searched_for_a_few_missing_keys_of_all_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have many entry points, and a checkpoint many keys."""
    searched: list[str] = []
    monkeypatch.setattr(weight_files, "did_you_mean", lambda key, known: searched.append(key) if known else None)
    ir = SHAPES["entry points"](50)
    assert len(compare_headers(ir, {"other": torch.empty(1, device="meta")})) == 2
    assert len(searched) < 45


def test_a_shard_that_lacks_what_the_index_promises(tmp_path: Path) -> None:
    """Every tensor of the index must be in a shard."""
    index = shards(tmp_path)
    document = json.loads(index.read_text())
    document["weight_map"]["c.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(WeightLoadError, match=r"lists 'c\.weight'"):
        load_weights(index)


# -- fitting ----------------------------------------------------------------------------------------------------------


def test_everything_wrong_is_said_at_once(ir: IR) -> None:
    """Missing, surplus, misshapen and mistyped weights are all in one error, each with its nearest name."""
    wrong = {
        "a.wieght": GOOD["a.weight"],
        "a.bias": torch.zeros(5),
        "b.weight": GOOD["b.weight"].double(),
        "b.bias": GOOD["b.bias"].to("meta"),
    }
    expected = [
        "'a.weight' is missing; did you mean 'a.wieght'?",
        "'a.bias' has shape [5], the graph needs [4]",
        "'b.weight' is float64, the graph needs float32",
        "'b.bias' is on meta and has no values",
        "unexpected weight 'a.wieght'; did you mean 'a.weight'?",
    ]
    assert validate_weights_against_ir(wrong, ir) == expected
    with pytest.raises(WeightLoadError) as caught:
        IRExecutor(ir, wrong)
    assert str(caught.value) == "\n  ".join(["the weights do not fit Model:", *expected])


def test_an_error_lists_some_of_many_problems(ir: IR) -> None:
    """The checkpoint of another model has hundreds."""
    with pytest.raises(WeightLoadError) as caught:
        IRExecutor(ir, {f"layers.{number}.weight": torch.zeros(1) for number in range(300)})
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (22, "  and 284 more")


def test_weights_that_fit(ir: IR) -> None:
    """Weights that fit have nothing wrong with them."""
    assert validate_weights_against_ir(GOOD, ir) == []


def test_surplus_weights_are_harmless(ir: IR) -> None:
    """Additional weights raise a warning, and the graph runs."""
    with pytest.warns(WeightWarning, match=r"unexpected weight 'c.weight'"):
        executor = IRExecutor(ir, {**GOOD, "c.weight": torch.ones(2)})
    assert torch.equal(executor(X), MODEL(X))


@pytest.mark.parametrize(("value", "kind"), [([1.0, 2.0], "list"), (3, "int"), ("text", "str")])
def test_weights_that_are_no_tensors(ir: IR, value: Any, kind: str) -> None:
    """The error for a value that is not a tensor says so."""
    with pytest.raises(WeightLoadError, match=rf"'a.bias' is a {kind}, not a tensor"):
        IRExecutor(ir, {**GOOD, "a.bias": value})


def test_tied_weights_need_one_key() -> None:
    """Any one key of tied weights suffices, because checkpoints contain either."""
    model = module(lambda self, x: self.b(self.a(x)), a=nn.Linear(4, 4, bias=False), b=nn.Linear(4, 4, bias=False))
    model.b.weight = model.a.weight
    ir = extract_ir(model, (X,), strict=False)
    weight = model.a.weight.detach()
    for weights in ({"a.weight": weight}, {"b.weight": weight}, {"a.weight": weight, "b.weight": weight}):
        assert torch.equal(IRExecutor(ir, weights)(X), model(X))
    with pytest.raises(WeightLoadError, match=r"'a\.weight' is missing"):
        IRExecutor(ir, {})


def test_given_constants_win_over_kept_ones() -> None:
    """A constant of the graph can be replaced by a given one, by key or by its name in the graph."""
    ir = captured(module(lambda self, x: x * self.scale, scale=torch.full((4,), 2.0)), X)
    assert torch.equal(IRExecutor(ir, {})(X), X * 2)
    for name in ("scale", "c_scale"):
        assert torch.equal(IRExecutor(ir, {}, {name: torch.full((4,), 3.0)})(X), X * 3)


def test_a_weight_that_is_not_contiguous(ir: IR) -> None:
    """Weights may be views with any strides."""
    wide = torch.randn(4, 8)
    weights = {**GOOD, "a.weight": wide[:, ::2]}
    expected = (X @ wide[:, ::2].T + GOOD["a.bias"]) @ GOOD["b.weight"].T + GOOD["b.bias"]
    assert torch.allclose(IRExecutor(ir, weights)(X), expected, atol=1e-6)


def test_random_weights(ir: IR) -> None:
    """Random weights fit the graph, are the same for the same seed, and keep activations in range."""
    weights = random_weights(ir)
    assert validate_weights_against_ir(weights, ir) == []
    assert same(weights, random_weights(ir))
    assert not same(weights, random_weights(ir, seed=1))
    assert IRExecutor(ir, weights)(X).isfinite().all()


def test_weight_names_are_never_paths(tmp_path: Path) -> None:
    """A weight whose key looks like a path is looked up only among the given weights."""
    path = tmp_path / "weight.pt"
    torch.save(torch.ones(4), path)
    x, out = TensorMeta("x", (4,), "float32"), TensorMeta("n", (4,), "float32")
    weight = TensorMeta("w", (4,), "float32", param=Param((str(path),)))
    ir = IR([OpNode("n", "aten.add.Tensor", [x, weight], [out])], [x], [out], params=[weight])
    with pytest.raises(WeightLoadError, match="is missing"):
        IRExecutor(ir, {})


def test_loaded_tensors_are_aligned(tmp_path: Path) -> None:
    """Whatever the length of the header, tensors are where torch would allocate them, so that kernels add alike."""
    for length in range(1, 9):
        save_file({"x" * length: torch.ones(3), "y": torch.ones(5)}, tmp_path / "model.safetensors")
        loaded = load_weights(tmp_path)
        assert all(tensor.data_ptr() % 64 == 0 for tensor in loaded.values())
