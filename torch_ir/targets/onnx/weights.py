"""The weights of an ONNX file: in the file, in a file of its own beside it, or in a checkpoint that is there already.

A file of its own has a name made of its contents, so that the old pair is whole until the new one is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path

import onnx_ir
from torch import Tensor

from torch_ir.errors import (
    MissingExtraError,
    MissingFileError,
    SerializationError,
    WeightLoadError,
    WeightWarning,
    first_line,
)
from torch_ir.ir import IR, Param, TensorMeta
from torch_ir.ir.document import write_bytes
from torch_ir.ops.names import dtype_name
from torch_ir.run.stored import StoredTensor, Weight, loaded, stored_tensors
from torch_ir.run.weights import fit_weights, load_weights, open_weights
from torch_ir.targets.onnx.model import plain, weights_of

INLINE_LIMIT = 1 << 20  # bytes of all weights together that stay in the file
_CHUNK = 1 << 24


def save(model: onnx_ir.Model, target: Path) -> None:
    """Write a model as it is; what lay beside the file before and nothing names any more goes."""
    before = _side_files(target)
    try:
        content = onnx_ir.to_proto(model).SerializeToString()
    except Exception as error:  # protobuf ends at 2 GB, and says so in several ways
        raise SerializationError(f"cannot write {target}: {first_line(error)}") from None
    write_bytes(target, content)
    for path in before:
        if path.name.encode() not in content:
            with suppress(OSError):  # another process may hold it open; it does no harm
                path.unlink()


def save_with(model: onnx_ir.Model, values: Mapping[str, Tensor], target: Path) -> None:
    """Write a model whose initialisers have these values, by name."""
    held = {name: plain(value) for name, value in values.items()}
    if sum(value.nbytes for value in held.values()) <= INLINE_LIMIT:
        for name, value in held.items():
            model.graph.initializers[name].const_value = onnx_ir.tensor_adapters.TorchTensor(value, name=name)
        save(model, target)
        return
    before = _side_files(target)
    side = _write_beside(target, held)
    try:
        _point(model, stored_tensors(side), target.parent)
        save(model, target)
    except BaseException:
        if side not in before:
            side.unlink(missing_ok=True)
        raise


# -- binding ----------------------------------------------------------------------------------------------------------


def bind_file(target: Path, weights: Mapping[str, Weight] | str | os.PathLike[str]) -> None:
    """Give the weights of a file their values; see `bind_onnx`."""
    model, params = _read(target)
    if not params:
        raise WeightLoadError(
            f"{target} has no weights that could be bound: it was written with their values, or has none"
        )
    if not isinstance(weights, Mapping):
        weights = _opened(Path(weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # weights that nothing reads are not in the file
        values = fit_weights(IR([], [], [], params=params, model_name=str(target)), weights, {})
    named = {param.name: value for param, value in zip(params, values, strict=True)}
    stored = {name: value for name, value in named.items() if isinstance(value, StoredTensor)}
    if len(stored) == len(named):
        _point(model, stored, target.parent)
        save(model, target)
    else:
        save_with(model, {name: loaded(value) for name, value in named.items()}, target)


def _read(target: Path) -> tuple[onnx_ir.Model, list[TensorMeta]]:
    """A file, and the weights of it that can be bound."""
    if not target.is_file():
        raise MissingFileError(f"no such file: {target}")
    try:
        model = onnx_ir.load(target)
        return model, list(_as_params(model))
    except Exception as error:  # what protobuf, onnx and what `to_onnx` did not write raise has nothing in common
        raise SerializationError(f"{target} is not an ONNX file of ours: {first_line(error)}") from None


def _as_params(model: onnx_ir.Model) -> Iterator[TensorMeta]:
    """The initialisers that can be bound, as the weights of a graph."""
    for name, keys in weights_of(model).items():
        held = model.graph.initializers[name].const_value
        assert held is not None  # every initialiser has one, if only a place
        dtype = dtype_name(onnx_ir.tensor_adapters.to_torch_dtype(held.dtype))
        yield TensorMeta(name, [int(dim) for dim in held.shape.numpy()], dtype, param=Param(keys))


def _opened(path: Path) -> Mapping[str, Weight]:
    """The weights of a checkpoint: where they lie, or the weights themselves where no other program could find them."""
    return load_weights(path) if path.suffix in (".pt", ".pth", ".bin") else open_weights(path)


def _point(model: onnx_ir.Model, stored: Mapping[str, StoredTensor], folder: Path) -> None:
    """Let initialisers lie where these tensors lie."""
    root = folder.resolve()
    for name, tensor in stored.items():
        path = tensor.path.resolve()
        if not path.is_relative_to(root):
            raise WeightLoadError(
                f"{tensor.path} does not lie in {folder} or below, and ONNX points to no other place; "
                "move or copy it there, or bind what load_weights reads of it"
            )
        model.graph.initializers[name].const_value = onnx_ir.ExternalTensor(
            path.relative_to(root).as_posix(),
            tensor.offset,
            tensor.dtype.itemsize * prod(tensor.shape),
            onnx_ir.tensor_adapters.from_torch_dtype(tensor.dtype),
            shape=onnx_ir.Shape(tensor.shape),
            name=name,
        )


# -- the file beside --------------------------------------------------------------------------------------------------


def _write_beside(target: Path, values: Mapping[str, Tensor]) -> Path:
    """Write weights to a file under the name of its contents, and say which."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtraError("writing weights beside an ONNX file", "safetensors", "safetensors") from None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            ordinary, written = Path(folder) / "ordinary", Path(folder) / "weights"
            ordinary.touch()
            save_file(_apart(values), written)
            shutil.copymode(ordinary, written)  # safetensors lets nobody but the owner read
            side = target.with_name(f"{_own(target)}{_digest(written)[:12]}.safetensors")
            os.replace(written, side)
    except (OSError, SafetensorError) as error:  # the latter wraps those of the system
        raise SerializationError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from None
    return side


def _apart(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same, none in the memory of another, which safetensors insists on."""
    seen: set[int] = set()
    apart = {}
    for name, value in values.items():
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in seen else value
        seen.add(place)
    return apart


def _digest(path: Path) -> str:
    """The digest of a file, which is on the disk afterwards."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()


def _own(target: Path) -> str:
    """How the names of weight files of an ONNX file begin."""
    return f"{target.name}.weights-"


def _side_files(target: Path) -> list[Path]:
    """The weight files that lie beside an ONNX file under its name, and that it speaks of."""
    pattern = re.compile(re.escape(_own(target)) + r"[0-9a-f]{12}\.safetensors")
    try:
        beside = [name for name in os.listdir(target.parent) if pattern.fullmatch(name)]
        content = target.read_bytes() if beside else b""
    except OSError:
        return []
    return [target.with_name(name) for name in beside if name.encode() in content]
