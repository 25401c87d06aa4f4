"""Pickled tensors (.pt, .pth, .bin), read as plain data, after a look at what the pickle would build.

`torch.load(weights_only=True)` runs no code of a file, but the file can still crash or exhaust the process: hashing a
tuple of a million nested tuples overflows the stack, and `bytearray(10**11)` allocates that much.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import zipfile
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Union

import torch

from torch_ir.errors import WeightLoadError, first_line
from torch_ir.ir.files.regular_file import open_regular
from torch_ir.ops.torch_internals import ArchiveReader

_ARCHIVE = b"PK\x03\x04"  # with which torch recognises an archive
_PICKLES = 5  # in a file of the kind before archives; the bytes of tensors follow
_DEEPEST, _LARGEST = 50, 100_000  # of a tuple, which may be hashed: levels, and items with shared ones counted again
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_ATOMS = ("BINPERSID", "REDUCE", "NEWOBJ", "BUILD")  # results that are not tuples
_REFUSED = (
    "builtins bytearray",
    "__builtin__ bytearray",
    "torch._utils _rebuild_nested_tensor",  # a view by offsets that torch does not check
    "torch._utils _rebuild_device_tensor_from_numpy",
)


class _Item(NamedTuple):
    """A value of a pickle, as far as it is a tuple."""

    levels: int = 0
    items: int = 1


_Stack = list[Union[_Item, None]]  # None is a mark


def load_pickled(path: str | os.PathLike[str], device: str) -> Any:
    """Return the content of a file of `torch.save`: tensors in lists and dicts; raise WeightLoadError for others."""
    name = os.fspath(path)
    try:
        _check(name)
        return torch.load(path, map_location=device, weights_only=True)
    except WeightLoadError:
        raise
    except pickle.UnpicklingError:
        raise WeightLoadError(f"{name} contains more than tensors; save only model.state_dict()") from None
    except Exception as error:  # torch's unpickler raises anything for a damaged file
        raise WeightLoadError(f"cannot read {name}: {first_line(error)}") from None


def _check(path: str) -> None:
    with os.fdopen(open_regular(path, follow=True), "rb") as file:
        is_archive = file.read(len(_ARCHIVE)) == _ARCHIVE
        file.seek(0)
        if not is_archive:
            _check_pickles(file, path)
            return
        _refuse_compression(file, path)
    record = ArchiveReader(path).get_record("data.pkl")
    _check_pickle(io.BytesIO(record), path)


def _refuse_compression(file: BinaryIO, path: str) -> None:
    """Refuse a compressed archive: torch stores its parts uncompressed, one after the other."""
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
    is_plain = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
    if not is_plain or sum(part.file_size for part in parts) > os.stat(path).st_size:
        raise WeightLoadError(f"{path} is compressed, unlike files of torch.save")


def _check_pickles(file: BinaryIO, path: str) -> None:
    for _ in range(_PICKLES):
        _check_pickle(file, path)


def _check_pickle(file: BinaryIO, path: str) -> None:
    """Raise WeightLoadError if a pickle builds a tuple too large to hash, or calls a function that allocates.

    The rest of an invalid pickle is not looked at: torch stops at the same place, with an error.
    """
    stack: _Stack = []
    memo: dict[Any, _Item] = {}
    with suppress(ValueError, IndexError, KeyError, AttributeError):
        for operation, argument, _ in pickletools.genops(file):
            made = _made(operation, argument, stack, memo)
            if made.levels > _DEEPEST or made.items > _LARGEST:
                raise WeightLoadError(f"{path} contains a tuple of more than {_DEEPEST} levels or {_LARGEST:,} items")
            if operation.name == "GLOBAL" and argument in _REFUSED:
                raise WeightLoadError(f"{path} contains a {argument.split()[1]}; save only model.state_dict()")


def _made(operation: pickletools.OpcodeInfo, argument: Any, stack: _Stack, memo: dict[Any, _Item]) -> _Item:
    """Apply one operation to the stack, and return what it leaves there."""
    if operation.name == "MARK":
        stack.append(None)
        return _Item()
    if "PUT" in operation.name:
        found = memo[argument] = _item(stack[-1])
        return found
    if "GET" in operation.name:
        stack.append(memo[argument])
        return memo[argument]
    taken = _taken(operation, stack)
    if operation.name in _TUPLES:
        made = _Item(1 + max((one.levels for one in taken), default=0), 1 + sum(one.items for one in taken))
    else:
        made = _Item() if operation.name in _ATOMS or not taken else taken[0]
    stack.extend(made for _ in operation.stack_after)
    return made


def _taken(operation: pickletools.OpcodeInfo, stack: _Stack) -> list[_Item]:
    """Remove the operands of an operation from the stack."""
    before = operation.stack_before
    taken: list[_Item] = []
    if pickletools.markobject in before:
        while (top := stack.pop()) is not None:
            taken.append(top)
        before = before[: before.index(pickletools.markobject)]
    taken += [_item(stack.pop()) for _ in before]
    return taken[::-1]


def _item(value: _Item | None) -> _Item:
    if value is None:
        raise ValueError("a mark where a value is expected")
    return value
