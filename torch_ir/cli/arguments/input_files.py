"""Inputs from files: one tensor, or all tensors of a file, by name or in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_ir.cli.arguments.input_specs import InputSpec, refuse_twins
from torch_ir.errors import CommandError, TorchIRError, WeightLoadError, did_you_mean, first_line
from torch_ir.ir.checks.limits import Budget

_DEEPEST = 50  # levels of lists and dicts in a file, which may contain itself
_MOST_VALUES = 1_000_000  # with shared ones counted again


def read_files(specs: Sequence[InputSpec], *, nested: bool = False) -> list[InputSpec]:
    """Read the inputs that come from files; a file without a name before it provides all its tensors.

    With `nested`, an item of a list in a file may itself be a list or dict of tensors: an argument of a model, not an
    input of a graph.
    """
    found = [each for spec in specs for each in ([spec] if spec.file is None else _read(spec, spec.file, nested))]
    refuse_twins(found)
    return found


def _read(spec: InputSpec, file: str, nested: bool) -> Iterator[InputSpec]:
    path, member = _split(file)
    held = _load(path)
    if member is not None:
        yield _given(spec, spec.name, _member(held, member, path), path)
    elif spec.name is not None:
        yield _given(spec, spec.name, _pick(held, spec.name, path) if isinstance(held, dict) else held, path)
    elif isinstance(held, dict):
        yield from (_given(spec, name, value, path) for name, value in _leaves(held))
    elif isinstance(held, (list, tuple)):
        yield from (_given(spec, None, value, path, nested) for value in held)
    else:
        yield _given(spec, None, held, path)


def _split(file: str) -> tuple[Path, str | None]:
    """Split a path from the member that follows `#`."""
    name, mark, member = file.rpartition("#")
    if not mark or Path(file).exists():
        return Path(file), None
    return Path(name), member


def _load(path: Path) -> Any:
    """Read a file: a tensor, or tensors by name or in order."""
    if not path.is_file():
        raise CommandError(f"no such file: {path}")
    try:
        return _read_as(path)
    except ImportError as error:
        raise CommandError(f"reading {path} needs {error.name}") from None
    except TorchIRError:
        raise
    except Exception as error:  # numpy and torch raise errors of any type for a damaged file
        raise CommandError(f"cannot read {path}: {first_line(error)}") from None


def _read_as(path: Path) -> Any:
    import torch

    from torch_ir.run import load_weights_safetensors
    from torch_ir.run.pickled_file import load_pickled

    if path.suffix == ".safetensors":
        return load_weights_safetensors(path)
    if path.suffix in (".pt", ".pth"):
        try:
            return load_pickled(path, "cpu")
        except WeightLoadError as error:
            raise CommandError(f"cannot read {path}: {first_line(error)}") from None
    if path.suffix not in (".npy", ".npz"):
        raise CommandError(f"{path}: unknown file type; expected .npy, .npz, .safetensors or .pt")
    import numpy

    from torch_ir.ir.files.expanding_archive import refuse_expansion

    with open(path, "rb") as file:
        if path.suffix == ".npy":
            return torch.from_numpy(numpy.lib.format.read_array(file, allow_pickle=False))
        refuse_expansion(path)
        with numpy.load(file, allow_pickle=False) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}


def _given(spec: InputSpec, name: str | None, value: Any, path: Path, nested: bool = False) -> InputSpec:
    import torch

    for item in (leaf for _, leaf in _leaves(value)) if nested else [value]:
        if not isinstance(item, (torch.Tensor, bool, int, float, str, type(None))):
            raise CommandError(f"{path} contains a {type(item).__name__}, not a tensor")
    return replace(spec, name=name, value=value)


def _leaves(held: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by name; nested ones are named `options.keys`, `pair.0` and so on."""
    left, work = [(name, held, 0)], Budget(_MOST_VALUES)
    while left:
        if not work.take():
            raise CommandError(f"the file contains more than {_MOST_VALUES:,} values")
        name, value, level = left.pop()
        if not isinstance(value, (dict, list, tuple)):
            yield name, value
            continue
        if level > _DEEPEST:
            raise CommandError(f"tensors are nested more than {_DEEPEST} levels deep")
        inner = list(value.items() if isinstance(value, dict) else enumerate(value))
        left += [(f"{name}.{key}" if name else str(key), each, level + 1) for key, each in reversed(inner)]


def _pick(held: dict[str, Any], name: str, path: Path) -> Any:
    """Return the value of this name, or the only value."""
    if name in held:
        return held[name]
    if len(held) == 1:
        return next(iter(held.values()))
    hint = did_you_mean(name, held) or f"; name one: {name}=@{path}#{next(iter(held), 'MEMBER')}"
    raise CommandError(f"{path} contains {len(held)} tensors, none named {name!r}{hint}")


def _member(held: Any, member: str, path: Path) -> Any:
    names = dict(_leaves(held)) if isinstance(held, (dict, list, tuple)) else {}
    if member not in names:
        known = did_you_mean(member, names) or f"; members: {', '.join(names) or 'none'}"
        raise CommandError(f"{path} has no member {member!r}{known}")
    return names[member]
