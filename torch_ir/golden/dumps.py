"""Dumps of another runtime: tensors by name from .safetensors, .npz and .npy files, read on access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import MissingExtraError, SerializationError, first_line
from torch_ir.golden.pack import open_safetensors
from torch_ir.ir.files.expanding_archive import refuse_expansion
from torch_ir.ir.files.regular_file import IrregularFileError, open_regular

_KINDS = (".safetensors", ".npz", ".npy")

Dumps = dict[str, Callable[[], Any]]  # names, and functions that read the tensors


@contextmanager
def open_dumps(path: str | os.PathLike[str]) -> Iterator[Dumps]:
    """Open a file or a folder, and close it at the end; nothing is unpickled, as that could run code."""
    place = Path(path)
    if not place.exists():
        raise SerializationError(f"no such file or folder: {place}")
    files = _files_below(place) if place.is_dir() else [place]
    if not files or files[0].suffix not in _KINDS:
        raise SerializationError(f"{place} contains no dumps; expected {', '.join(_KINDS)} files")
    dumps: Dumps = {}
    with ExitStack() as archives:
        for file in files:
            _refuse_special(file, follow=file == place)
            for name, reader in _tensors(file, place, archives):
                if name in dumps:
                    raise SerializationError(f"{file}: {name!r} is dumped twice")
                dumps[name] = reader
        yield dumps


def _files_below(folder: Path) -> list[Path]:
    """Return the files of a folder and its subfolders, at any depth, in order; links to folders are not followed."""
    found, left = [], [os.fspath(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith(_KINDS):
                        found.append(Path(entry.path))  # of any kind: what is not a file is refused later
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError as error:
            raise SerializationError(f"cannot read {folder}: {error.strerror}") from None
    return sorted(found)


def _refuse_special(file: Path, *, follow: bool) -> None:
    """Raise SerializationError for anything but a regular file: a pipe never ends, and a link may leave the folder."""
    try:
        os.close(open_regular(file, follow=follow))
    except IrregularFileError as error:
        raise SerializationError(f"{file} {error.strerror}") from None
    except OSError as error:
        raise SerializationError(f"cannot read {file}: {error.strerror}") from None


def _tensors(file: Path, folder: Path, archives: ExitStack) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each tensor in a file with its reader; an .npy file is named by its path in the folder."""
    if file.suffix == ".safetensors":
        opened = open_safetensors(file)
        for name in opened.keys():  # noqa: SIM118  # not a dict
            yield name, partial(_guarded, file, partial(opened.get_tensor, name))
    elif file.suffix == ".npz":
        refuse_expansion(file)
        arrays = archives.enter_context(_loaded(file))
        for name in arrays.files:
            yield name, partial(_read_array, file, arrays, name)
    else:
        name = file.relative_to(folder).with_suffix("").as_posix() if folder.is_dir() else file.stem
        yield name, partial(_read_file, file)


def _read_file(file: Path) -> Any:
    with _loaded(file) as array:
        return _to_tensor(array)


def _read_array(file: Path, arrays: Any, name: str) -> Any:
    return _to_tensor(_guarded(file, lambda: arrays[name]))


@contextmanager
def _loaded(file: Path) -> Iterator[Any]:
    """Yield the array of a file, or the archive, which reads while the file is open."""
    try:
        import numpy
    except ImportError:
        raise MissingExtraError(f"reading {file.suffix} files", "numpy", "safetensors") from None
    with _guarded(file, lambda: file.open("rb")) as opened:
        found = _guarded(file, lambda: numpy.load(opened, allow_pickle=False))
        if isinstance(found, numpy.ndarray) is (file.suffix == ".npz"):  # numpy ignores the suffix
            raise SerializationError(f"the content of {file} is not {file.suffix}")
        yield found


def _guarded(file: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # numpy and safetensors raise errors of any type for a damaged file
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
