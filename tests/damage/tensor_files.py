"""Files of tensors: weights, golden packs, dumps, command-line inputs, ONNX files; and the cache of back ends."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from tests.damage.subject import Subject, files, written
from tests.graphs import mlp
from torch_ir import bind_onnx, compare_golden, load_weights, to_onnx, write_golden
from torch_ir.backends.choices import Choice, Choices
from torch_ir.cli.arguments.input_files import read_files
from torch_ir.cli.arguments.input_specs import parse_input
from torch_ir.golden.pack import read_pack
from torch_ir.run import open_weights, random_weights
from torch_ir.run.weight_files import validate_weights_against_ir

IR = mlp()
WEIGHTS = random_weights(IR)
X = torch.arange(4.0).reshape(1, 4)
CHOICE = Choice("torch", {"torch": 0.5, "onnxruntime": 0.75}, {"iree": "is not installed"})


def facts(tensors: Mapping[str, Tensor]) -> Any:
    """Return tensors in a comparable form."""
    return {name: (str(value.dtype), list(value.shape), value.tolist()) for name, value in tensors.items()}


def pickled(value: Any, path: Path) -> bytes:
    torch.save(value, path)
    return path.read_bytes()


# -- weights ----------------------------------------------------------------------------------------------------------


@files("weights as .pt")
def pt_weights(folder: Path) -> Subject:
    other = pickled({"state_dict": {"x": X.half()}}, folder / "other.pt")
    path = written(folder / "weights.pt", pickled(WEIGHTS, folder / "weights.pt"))
    return Subject(path, other, partial(_load, path))


@files("weights as .pt of the time before zip")
def old_weights(folder: Path) -> Subject:
    torch.save(WEIGHTS, folder / "weights.pt", _use_new_zipfile_serialization=False)
    torch.save({"x": X}, folder / "other.pt", _use_new_zipfile_serialization=False)
    return Subject(folder / "weights.pt", (folder / "other.pt").read_bytes(), partial(_load, folder / "weights.pt"))


@files("weights as .safetensors")
def safe_weights(folder: Path) -> Subject:
    path = written(folder / "weights.safetensors", save(WEIGHTS))
    return Subject(path, save({"x": X.half()}), partial(_load, path))


@files("weights as .safetensors, read when needed")
def stored_weights(folder: Path) -> Subject:
    path = written(folder / "weights.safetensors", save(WEIGHTS, {"format": "pt"}))
    return Subject(path, save({"x": X.half()}), lambda: _loaded_later(path))


@files("an index of shards")
def shard_index(folder: Path) -> Subject:
    names = list(WEIGHTS)
    save_file({name: WEIGHTS[name] for name in names[:2]}, folder / "model-1.safetensors")
    save_file({name: WEIGHTS[name] for name in names[2:]}, folder / "model-2.safetensors")
    placed = {name: f"model-{1 + names.index(name) // 2}.safetensors" for name in names}
    index = json.dumps({"metadata": {"total_size": 100}, "weight_map": placed}, indent=2)
    path = written(folder / "model.safetensors.index.json", index.encode())
    return Subject(path, b'{"weight_map": {"x": "x.safetensors"}}', partial(_load, path))


def _load(path: Path) -> Any:
    weights = load_weights(path)
    validate_weights_against_ir(weights, IR)
    return facts(weights)


def _loaded_later(path: Path) -> Any:
    weights = open_weights(path)
    validate_weights_against_ir(weights, IR)
    return facts({name: stored.load() for name, stored in weights.items()})


# -- golden packs and dumps -------------------------------------------------------------------------------------------


@files("the index of a golden pack", digest=True)
def pack_index(folder: Path) -> Subject:
    write_golden(IR, WEIGHTS, (X,), folder / "pack")
    write_golden(IR, WEIGHTS, (X,), folder / "other", every=3)
    index = folder / "pack" / "index.json"
    return Subject(index, (folder / "other" / "index.json").read_bytes(), partial(_read_pack, folder / "pack"))


@files("a shard of a golden pack", digest=True)
def pack_shard(folder: Path) -> Subject:
    write_golden(IR, WEIGHTS, (X,), folder / "pack")
    shard = folder / "pack" / "values-00001.safetensors"
    return Subject(
        shard, (folder / "pack" / "inputs-00001.safetensors").read_bytes(), partial(_read_pack, shard.parent)
    )


@files("the index of a golden pack without its digest")
def bare_pack_index(folder: Path) -> Subject:
    subject = pack_index(folder)
    text = subject.path.read_bytes()
    subject.path.write_bytes(text[: text.rindex(b',\n"digest"')] + b"\n}\n")
    return subject


def _read_pack(path: Path) -> Any:
    pack = read_pack(path)
    tensors = [pack.tensor(value) for value in [*pack.inputs, *pack.values]]
    told = [pack.model_name, pack.ir, pack.reference, pack.notes, pack.files, pack.inputs, pack.values]
    return told, [value.tolist() for value in tensors]


@files("dumps as .safetensors")
def safe_dumps(folder: Path) -> Subject:
    path = written(folder / "dumps.safetensors", save(_dumped(folder)))
    return Subject(path, save({"x": X.half()}), lambda: _compared(folder, path))


@files("dumps as .npz")
def zipped_dumps(folder: Path) -> Subject:
    path = folder / "dumps.npz"
    numpy.savez(path, **{name: value.numpy() for name, value in _dumped(folder).items()})  # type: ignore[arg-type]
    numpy.savez(folder / "other.npz", relu=X.numpy())
    return Subject(path, (folder / "other.npz").read_bytes(), lambda: _compared(folder, path))


@files("dumps as .npy")
def array_dumps(folder: Path) -> Subject:
    path = folder / "relu.npy"
    numpy.save(path, _dumped(folder)["relu"].numpy())
    numpy.save(folder / "other.npy", X.numpy())
    return Subject(path, (folder / "other.npy").read_bytes(), lambda: _compared(folder, path))


def _dumped(folder: Path) -> dict[str, Tensor]:
    write_golden(IR, WEIGHTS, (X,), folder / "pack")
    pack = read_pack(folder / "pack")
    return {value.name: pack.tensor(value) for value in pack.values}


def _compared(folder: Path, path: Path) -> str:
    return str(compare_golden(folder / "pack", path))


# -- inputs and ONNX files --------------------------------------------------------------------------------------------


@files("an input as .npy")
def array_input(folder: Path) -> Subject:
    numpy.save(folder / "x.npy", X.numpy())
    numpy.save(folder / "other.npy", X.int().numpy())
    return _input(folder / "x.npy", (folder / "other.npy").read_bytes())


@files("an input as .pt")
def pickled_input(folder: Path) -> Subject:
    other = pickled({"y": X.half()}, folder / "other.pt")
    torch.save(X, folder / "x.pt")
    return _input(folder / "x.pt", other)


@files("an input as .safetensors")
def safe_input(folder: Path) -> Subject:
    return _input(written(folder / "x.safetensors", save({"x": X})), save({"y": X.half()}))


def _input(path: Path, other: bytes) -> Subject:
    spec = parse_input(f"x=@{path}")
    return Subject(path, other, lambda: facts({"x": read_files([spec])[0].value}))


@files("ONNX to be bound")
def onnx_file(folder: Path) -> Subject:
    path = folder / "model.onnx"
    to_onnx(IR, path)
    return Subject(path, path.read_bytes()[::-1], partial(_bound, path))


def _bound(path: Path) -> Any:
    """The file after binding, which an error leaves as it was."""
    before = path.read_bytes()
    try:
        bind_onnx(path, WEIGHTS)
    except BaseException:
        assert path.read_bytes() == before
        raise
    return path.read_bytes()


# -- what is remembered -----------------------------------------------------------------------------------------------


@files("remembered choices of back ends")
def choices(folder: Path) -> Subject:
    path = written(
        folder / "fastest.json", json.dumps({"key": asdict(CHOICE), "other": asdict(CHOICE)}, indent=1).encode()
    )
    return Subject(path, b'{"key": {"backend": "openvino"}}', partial(_chosen, path))


def _chosen(path: Path) -> str:
    """An unreadable file is ignored: there is no error, and the next choice is stored."""
    before = os.environ.get("TORCH_IR_CACHE")
    os.environ["TORCH_IR_CACHE"] = str(path.parent)
    try:
        found = Choices().get("key")
        Choices().keep("key", CHOICE)
        assert Choices().get("key") == CHOICE
        return str(found)
    finally:
        os.environ.pop("TORCH_IR_CACHE")
        if before is not None:
            os.environ["TORCH_IR_CACHE"] = before
