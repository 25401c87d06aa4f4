"""Dumps of another runtime: tensors by name from .safetensors, .npz and .npy files, read on access."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import MissingExtraError, SerializationError, first_line
from torch_ir.golden.pack import open_safetensors
from torch_ir.ir.files.regular_file import IrregularFileError, open_regular

_KINDS = (".safetensors", ".npz", ".npy")
_MOST_EXPANDED, _MOST_TIMES = 1 << 28, 100  # limits of an archive: bytes, and expansion ratio beyond them


class Dumps(dict[str, Callable[[], Any]]):
    """Maps names to functions that read the tensor; nothing is unpickled, as that could run code."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        place = Path(path)
        if not place.exists():
            raise SerializationError(f"no such file or folder: {place}")
        files = sorted(file for file in place.rglob("*") if file.suffix in _KINDS) if place.is_dir() else [place]
        if not files or files[0].suffix not in _KINDS:
            raise SerializationError(f"{place} contains no dumps; expected {', '.join(_KINDS)} files")
        super().__init__()
        for file in files:
            _refuse_special(file, follow=file == place)
            for name, reader in _tensors(file, place):
                if name in self:
                    raise SerializationError(f"{file}: {name!r} is dumped twice")
                self[name] = reader


def _refuse_special(file: Path, *, follow: bool) -> None:
    """Raise SerializationError for anything but a regular file: a pipe never ends, and a link may leave the folder."""
    try:
        os.close(open_regular(file, follow=follow))
    except IrregularFileError as error:
        raise SerializationError(f"{file} {error.strerror}") from None
    except OSError as error:
        raise SerializationError(f"cannot read {file}: {error.strerror}") from None


def _tensors(file: Path, folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each tensor in a file with its reader; an .npy file is named by its path in the folder."""
    if file.suffix == ".safetensors":
        opened = open_safetensors(file)
        for name in opened.keys():  # noqa: SIM118  # not a dict
            yield name, partial(opened.get_tensor, name)
    elif file.suffix == ".npz":
        refuse_expansion(file)
        arrays = _load(file)
        for name in arrays.files:
            yield name, partial(_read_array, file, arrays, name)
    else:
        name = file.relative_to(folder).with_suffix("").as_posix() if folder.is_dir() else file.stem
        yield name, lambda: _to_tensor(_load(file))


def refuse_expansion(file: Path) -> None:
    """Raise SerializationError for an archive that expands far beyond its size, before decompressing it."""
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return  # numpy reports the error
    packed = max(os.path.getsize(file), 1)
    if size > _MOST_EXPANDED and size > _MOST_TIMES * packed:
        problem = f"{file} expands from {packed:,} to {size:,} bytes, more than {_MOST_TIMES} times"
        raise SerializationError(f"{problem}; save it without compression (numpy.savez)", rule="R2")


def _read_array(file: Path, arrays: Any, name: str) -> Any:
    return _to_tensor(_guarded(file, lambda: arrays[name]))


def _load(file: Path) -> Any:
    try:
        import numpy
    except ImportError:
        raise MissingExtraError(f"reading {file.suffix} files", "numpy", "safetensors") from None
    opened = _guarded(file, lambda: file.open("rb"))  # numpy leaves a damaged archive open
    try:
        found = _guarded(file, lambda: numpy.load(opened, allow_pickle=False))
    except SerializationError:
        opened.close()
        raise
    if isinstance(found, numpy.ndarray):
        opened.close()
    else:
        found.fid = opened  # it is closed with the archive
    if isinstance(found, numpy.ndarray) is (file.suffix == ".npz"):  # numpy ignores the suffix
        raise SerializationError(f"the content of {file} is not {file.suffix}")
    return found


def _guarded(file: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # numpy raises errors of any type for a damaged file
        raise SerializationError(f"cannot read {file}: {first_line(error)}") from None


def _to_tensor(array: Any) -> Any:
    """Convert an array to a tensor; dtypes that numpy lacks, such as bfloat16, come as bytes."""
    import numpy

    flat = numpy.ascontiguousarray(array).reshape(-1)
    try:
        if array.dtype.kind == "V":
            return torch.from_numpy(flat.view(numpy.uint8).copy()).reshape(*array.shape, array.dtype.itemsize)
        return torch.from_numpy(flat.astype(array.dtype.newbyteorder("="), copy=True)).reshape(array.shape)
    except (TypeError, ValueError):
        raise SerializationError(f"torch does not support arrays of dtype {array.dtype}") from None
