"""The weights of an ONNX file: in the file, in a side file, or in an existing checkpoint.

A side file is named by its digest, so that the old pair stays valid until the new one is complete.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from types import MappingProxyType

import onnx_ir
import torch
from torch import Tensor

from torch_ir.errors import MissingFileError, SerializationError, WeightLoadError, WeightWarning, first_line
from torch_ir.ir import IR, Param, TensorMeta
from torch_ir.ir.files.atomic_pair import Beside
from torch_ir.ir.files.atomic_write import Draft, draft, is_stream, write_bytes
from torch_ir.ir.files.side_file import safetensors_header
from torch_ir.ops.torch_types import dtype_name
from torch_ir.run.stored import StoredTensor, Weight, loaded
from torch_ir.run.weight_files import fit_weights, load_weights, open_weights
from torch_ir.targets.onnx.model import plain, weights_of

INLINE_LIMIT = 1 << 20  # bytes of weights that are stored in the file itself


def save(model: onnx_ir.Model, target: Path, new: Mapping[Path, Draft] = MappingProxyType({})) -> None:
    """Write a model and its new side files; remove side files that are no longer referenced."""
    try:
        content = onnx_ir.to_proto(model).SerializeToString()
    except Exception as error:  # protobuf reports its 2 GB limit in several ways
        raise SerializationError(f"cannot write {target}: {first_line(error)}") from None
    if is_stream(target):
        write_bytes(target, content)
    else:
        _beside(target).replace(content, new)


def save_with(model: onnx_ir.Model, values: Mapping[str, Tensor], target: Path) -> None:
    """Write a model with these values of its initialisers, by name."""
    held = {name: plain(value) for name, value in values.items()}
    if sum(value.nbytes for value in held.values()) <= INLINE_LIMIT or is_stream(target):
        for name, value in held.items():
            model.graph.initializers[name].const_value = onnx_ir.tensor_adapters.TorchTensor(value, name=name)
        save(model, target)
        return
    named = dict(sorted(held.items(), key=lambda item: (-item[1].itemsize, item[0])))  # large ones first: aligned
    with draft(target) as new:
        path, offset = _write_beside(target, named, new)
        for name, value in named.items():
            _point(model, name, path.name, offset, value.dtype, value.shape)
            offset += value.nbytes
        save(model, target, {path: new})


# -- binding ----------------------------------------------------------------------------------------------------------


def bind_file(target: Path, weights: Mapping[str, Weight] | str | os.PathLike[str]) -> None:
    """Bind weights to a file; see `bind_onnx`."""
    model, params = _read(target)
    if not params:
        raise WeightLoadError(f"{target} has no unbound weights: it was written with their values, or has none")
    if not isinstance(weights, Mapping):
        is_pickle = Path(weights).suffix in (".pt", ".pth", ".bin")  # ONNX cannot refer to its tensors
        weights = load_weights(weights) if is_pickle else open_weights(weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # unused weights are not in the file
        values = fit_weights(IR([], [], [], params=params, model_name=str(target)), weights, {})
    named = {param.name: value for param, value in zip(params, values, strict=True)}
    stored = {name: value for name, value in named.items() if isinstance(value, StoredTensor)}
    if len(stored) == len(named):
        _point_into(model, stored, target.parent)
        save(model, target)
    else:
        save_with(model, {name: loaded(value) for name, value in named.items()}, target)


def _read(target: Path) -> tuple[onnx_ir.Model, list[TensorMeta]]:
    """Read a model and its weights that can be bound."""
    if not target.is_file():
        raise MissingFileError(f"no such file: {target}")
    try:
        model = onnx_ir.load(target)
        return model, list(_as_params(model))
    except Exception as error:  # errors of protobuf and onnx, or of a file that `to_onnx` did not write
        raise SerializationError(f"{target} is not an ONNX file written by to_onnx: {first_line(error)}") from None


def _as_params(model: onnx_ir.Model) -> Iterator[TensorMeta]:
    """Yield the initialisers that can be bound as weights of a graph."""
    for name, keys in weights_of(model).items():
        held = model.graph.initializers[name].const_value
        assert held is not None  # every initialiser has one
        dtype = dtype_name(onnx_ir.tensor_adapters.to_torch_dtype(held.dtype))
        yield TensorMeta(name, [int(dim) for dim in held.shape.numpy()], dtype, param=Param(keys))


def _point_into(model: onnx_ir.Model, stored: Mapping[str, StoredTensor], folder: Path) -> None:
    """Make initialisers refer to these stored tensors."""
    root = folder.resolve()
    for name, tensor in stored.items():
        path = tensor.path.resolve()
        if not path.is_relative_to(root):
            raise WeightLoadError(
                f"{tensor.path} is outside {folder}, and ONNX can only refer to files inside it; "
                "move or copy it there, or bind the result of load_weights"
            )
        _point(model, name, path.relative_to(root).as_posix(), tensor.offset, tensor.dtype, tensor.shape)


def _point(
    model: onnx_ir.Model, name: str, location: str, offset: int, dtype: torch.dtype, shape: Sequence[int]
) -> None:
    """Make an initialiser refer to a position in a file."""
    model.graph.initializers[name].const_value = onnx_ir.ExternalTensor(
        location,
        offset,
        dtype.itemsize * prod(shape),
        onnx_ir.tensor_adapters.from_torch_dtype(dtype),
        shape=onnx_ir.Shape(shape),
        name=name,
    )


# -- side file --------------------------------------------------------------------------------------------------------


def _write_beside(target: Path, values: Mapping[str, Tensor], new: Draft) -> tuple[Path, int]:
    """Write weights to a side file; return its final path and the offset of the first weight."""
    header = safetensors_header(
        (name, dtype_name(value.dtype), value.shape, value.nbytes) for name, value in values.items()
    )
    digest = hashlib.sha256()
    raw = (value.reshape(-1).view(torch.uint8).numpy().tobytes() for value in values.values())
    for piece in chain([header], raw):
        digest.update(piece)
        new.write(piece)
    new.complete()
    return _beside(target).path(digest.hexdigest()), len(header)


def weight_files(target: Path) -> list[Path]:
    """Return the side files with weights that an ONNX file refers to."""
    return _beside(target).referenced()


def _beside(target: Path) -> Beside:
    return Beside(target, f"{target.name}.weights-")
