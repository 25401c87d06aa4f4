"""Weights: read from files that contain only tensors, at once or when needed, and matched to a graph."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, Union

import torch
from torch import nn

from torch_ir.errors import (
    ArgumentError,
    MissingExtraError,
    SerializationError,
    WeightLoadError,
    WeightWarning,
    did_you_mean,
    first_line,
)
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.json.json_text import parse_json, read_text
from torch_ir.ops.guards import overridden
from torch_ir.ops.tensor_data import plain_tensors, to_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name
from torch_ir.run.gguf_file import for_keys, gguf_tensors
from torch_ir.run.pickled_file import load_pickled
from torch_ir.run.stacked_weights import add_stacks, described
from torch_ir.run.stored import StoredTensor, Weight, loaded, read_header, stored_tensors
from torch_ir.run.stored_piece import StoredPiece

_Kind = TypeVar("_Kind")
WeightSource = Union[Mapping[str, Weight], nn.Module, str, os.PathLike[str]]
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # independent of the process's settings
_CHUNK = 1 << 20  # elements compared at once
_ALIGNMENT = 64  # bytes, as torch allocates
_HINTS = 20  # suggested keys in one report: each takes a search through all keys
_INDEX = ".safetensors.index.json"
_PICKLED = (".pt", ".pth", ".bin")
_PICKLED_INDEX = ".bin.index.json"
_STATE = ".quant_state.bitsandbytes__"  # JSON text of bitsandbytes as a tensor of bytes
_LONGEST_STATE = 1 << 16
_IN_FOLDER = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)


def load_weights(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a .safetensors, .gguf or .pt/.pth/.bin file, of an index of shards, or of a folder."""
    return _tensors_of(path, _load_one)


def weights_from(source: WeightSource) -> Mapping[str, Weight]:
    """Return weights by key: a mapping as it is, the state dict of a model, or the tensors of a path."""
    if isinstance(source, Mapping):
        return source
    if isinstance(source, nn.Module):
        state: Mapping[str, Weight] = source.state_dict()
        return state
    if isinstance(source, (str, os.PathLike)):
        return load_weights(source)
    raise ArgumentError(f"weights are a state dict, a model, or the path of a checkpoint, not {type(source).__name__}")


def open_weights(path: str | os.PathLike[str]) -> dict[str, Weight]:
    """Return the tensors of a checkpoint by key; bound as weights, those in files are read when needed.

    `path` is a .safetensors, .gguf or .pt/.pth/.bin file, an index of shards, or a folder. Pickled tensors are read at
    once. Tensors of a GGUF file have its own names; a graph finds them by its keys.
    """
    return _tensors_of(path, _open_one)


def read_headers(path: str | os.PathLike[str]) -> dict[str, Weight]:
    """Return the shape and dtype of every tensor of a checkpoint without reading a tensor; pickled ones are on meta."""
    return _tensors_of(path, _read_header)


def headers_of(source: WeightSource) -> Mapping[str, Weight]:
    """Return weights of which only shapes and dtypes are needed, by key: those of a path are not read."""
    return read_headers(source) if isinstance(source, (str, os.PathLike)) else weights_from(source)


def _read_header(file: Path) -> dict[str, Weight]:
    is_pickled = file.suffix not in (".safetensors", ".gguf")
    return dict(_load_one(file, "meta")) if is_pickled else _open_one(file)


def stream_weights(path: str | os.PathLike[str]) -> dict[str, Weight]:
    """Open a checkpoint of which tensors can be read one at a time; raise WeightLoadError for pickled files."""
    file = _checkpoint(path)
    if file.suffix in _PICKLED or file.name.endswith(_PICKLED_INDEX):
        raise WeightLoadError(f"{file}: pickled tensors cannot be read one at a time; load this file whole")
    return open_weights(path)


def has_pieces(path: str | os.PathLike[str]) -> bool:
    """Whether single tensors of a checkpoint can be read."""
    file = _checkpoint(path)
    return file.name.endswith((".safetensors", _INDEX))


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with a checkpoint."""
    return any((Path(path) / name).is_file() for name in _IN_FOLDER)


def _checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the file itself, or the checkpoint in a folder."""
    file = Path(path)
    if not file.is_dir():
        return file
    found = next((file / name for name in _IN_FOLDER if (file / name).is_file()), None)
    if found is None:
        raise WeightLoadError(f"{file} contains none of {', '.join(_IN_FOLDER)}")
    return found


def _tensors_of(path: str | os.PathLike[str], read: Callable[[Path], dict[str, _Kind]]) -> dict[str, _Kind]:
    """Read a file, the shards that an index names, or the checkpoint in a folder."""
    file = _checkpoint(path)
    if not file.is_file():
        raise WeightLoadError(f"no such file: {file}")
    return _of_shards(file, read) if file.name.endswith((_INDEX, _PICKLED_INDEX)) else read(file)


def _load_one(file: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        return load_weights_safetensors(file)
    if file.suffix == ".gguf":
        tensors: dict[str, Any] = gguf_tensors(file).loaded()
        return tensors
    if file.suffix in _PICKLED:
        return _unpickled(file, device)
    raise WeightLoadError(f"{file}: unknown weight format; expected .safetensors, .gguf, .pt, .pth, .bin or *{_INDEX}")


def _open_one(file: Path) -> dict[str, Weight]:
    if file.suffix == ".safetensors":
        return dict(stored_tensors(file))
    return gguf_tensors(file) if file.suffix == ".gguf" else dict(_load_one(file))


def load_weights_pt(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Load a pickled state dict; anything but plain data is refused, not executed."""
    return _unpickled(path, "cpu")


def _unpickled(path: str | os.PathLike[str], device: str) -> dict[str, torch.Tensor]:
    found = load_pickled(path, device)
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict):
        raise WeightLoadError(f"{os.fspath(path)} contains a {type(found).__name__}, not a state dict")
    return {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}


def load_weights_safetensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of one .safetensors file by key, each in aligned memory.

    The package maps the file, where tensors may begin anywhere; kernels of torch then add in another order.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtraError("reading .safetensors files", "safetensors", "safetensors") from None
    read_header(Path(path))  # the package accepts duplicate names
    try:
        mapped = load_file(os.fspath(path))
        return {key: each.clone() if each.data_ptr() % _ALIGNMENT else each for key, each in mapped.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightLoadError(f"cannot read {os.fspath(path)}: {error!s:.200}") from None


def _of_shards(index: Path, read: Callable[[Path], dict[str, _Kind]]) -> dict[str, _Kind]:
    try:
        placed = parse_json(read_text(index))["weight_map"]
        shards = sorted(set(placed.values()))
    except (SerializationError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightLoadError(f"{index} is not an index of shards: {type(error).__name__}: {error}") from None
    for shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard or not os.path.isfile(index.parent / shard):
            raise WeightLoadError(f"{index} names the shard {shard!r:.80}, which is not a file in the same folder")
    found = ((shard, key, tensor) for shard in shards for key, tensor in read(index.parent / shard).items())
    weights = {key: tensor for shard, key, tensor in found if placed.get(key, shard) == shard}
    missing = sorted(set(placed) - set(weights))
    if missing:
        raise WeightLoadError(f"{index} lists {missing[0]!r:.200} and {len(missing) - 1} more that their shard lacks")
    return weights


class Misfit(NamedTuple):
    """One way in which weights do not fit a graph: its kind, the key, and a sentence."""

    kind: str  # one of those below
    key: str
    text: str

    def __str__(self) -> str:
        return self.text


MISSING, UNEXPECTED, SHAPE, DTYPE, VALUES = "missing", "unexpected", "shape", "dtype", "values"
UNREAD = "unread"  # part of a quantised weight that the graph reads without it
_PARTS = re.compile(r"(^|[._])(scales?|scale_inv|scale_2|global_scale|zeros?|qzeros|zero_point|g_idx|absmax|SCB)$")
_OF_ACTIVATIONS = re.compile(r"^(input|output|activation|act|q|k|v|kv|attn)_|^activation")
_SHOWN = 20  # problems in an error; `validate_weights_against_ir` returns all
_DESCRIPTIONS = ("weight_shape", "weight_format")  # say again what the shapes and dtypes of other tensors say


def validate_weights_against_ir(weights: Mapping[str, Any], ir: IR) -> list[str]:
    """Return every problem with these weights for this graph, one sentence each; empty if they fit."""
    weights = weights_for([ir], weights)
    wrong = _misfits(ir, weights, {}, weights.keys() - _keys([ir]), Budget(_HINTS))
    return [misfit.text for misfit in (*wrong, *_surplus([ir], weights))]


def compare_headers(ir: IR, headers: Mapping[str, Weight]) -> list[Misfit]:
    """Return how the headers of a checkpoint differ from the weights of a graph and its entry points."""
    graphs = [ir, *(body for body in ir.functions.values() if body.params)]
    headers = weights_for(graphs, headers)
    unused = headers.keys() - _keys(graphs)
    hints = Budget(_HINTS)
    found = {
        misfit.key: misfit
        for graph in graphs
        for misfit in _misfits(graph, headers, {}, unused, hints, with_values=False)
    }
    return [*found.values(), *_surplus(graphs, headers)]


def fit_weights(ir: IR, weights: Mapping[str, Weight], constants: Mapping[str, torch.Tensor]) -> list[Weight]:
    """Return the value of every param of the graph, in order; problems are reported together."""
    weights = weights_for([ir], weights)
    unused = weights.keys() - _keys([ir])
    wrong, surplus = list(_misfits(ir, weights, constants, unused, Budget(_HINTS))), _surplus([ir], weights)
    if wrong or any(misfit.kind == UNREAD for misfit in surplus):
        problems = [str(misfit) for misfit in (*wrong, *surplus)]
        others = [f"and {len(problems) - _SHOWN:,} more"] if len(problems) > _SHOWN else []
        listed = "\n  ".join([*problems[:_SHOWN], *others])
        raise WeightLoadError(f"the weights do not fit {ir.model_name or 'the graph'}:\n  {listed}")
    if surplus:
        more = f" (and {len(surplus) - 1} more)" if len(surplus) > 1 else ""
        warnings.warn(f"{surplus[0]}{more}", WeightWarning, stacklevel=4)
    return [value for param in ir.params if (value := _find(param, weights, constants)) is not None]


def weights_for(graphs: Iterable[IR], weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights as graphs name them: plain tensors, those of a GGUF file by key, stacks, numbers in JSON."""
    graphs = list(graphs)
    plain = plain_tensors(for_keys(weights, sorted(_keys(graphs))))
    for key, value in plain.items():
        if isinstance(value, torch.Tensor) and (changed := overridden(type(value))):
            raise WeightLoadError(
                f"{key!r} is a {type(value).__name__}, whose own {changed} a graph does not call; pass a plain tensor: "
                "w.as_subclass(torch.Tensor)"
            )
    for key in [key for key in plain if _STATE in key]:
        offset = _nested_offset(key, plain.pop(key))
        if offset is not None:
            plain[f"{key.partition(_STATE)[0]}.nested_offset"] = offset
    add_stacks(graphs, plain)
    return plain


def weights_read(ir: IR, weights: Mapping[str, _Kind]) -> dict[str, _Kind]:
    """Return the weights that a graph reads."""
    keys = (key for param in ir.params for key in (str(param.key), *param.stored_keys))
    return {key: weights[key] for key in keys if key in weights}


def _nested_offset(key: str, state: Weight) -> torch.Tensor | None:
    """Return the offset of doubly quantised weights of bitsandbytes, which it stores in JSON text."""
    if state.is_meta:
        return torch.empty((), dtype=torch.float32, device="meta")
    if state.dtype != torch.uint8 or math.prod(state.shape) > _LONGEST_STATE:
        raise WeightLoadError(f"{key!r} is not the JSON text of bitsandbytes")
    try:
        found = parse_json(bytes(loaded(state).flatten().tolist()).decode()).get("nested_offset")
        return None if found is None else torch.tensor(float(found), **_PLAIN)
    except (SerializationError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise WeightLoadError(f"{key!r} is not the JSON text of bitsandbytes: {first_line(error)}") from None


def _find(param: TensorMeta, weights: Mapping[str, Any], constants: Mapping[str, Any]) -> Any:
    """Find a weight by any of its keys, else a given constant, else the value in the graph."""
    assert param.param is not None  # ensured by `check`
    for key in param.param.keys:
        if key in weights:
            return weights[key]
    for key in (*param.param.keys, param.name):
        if key in constants:
            return constants[key]
    return to_tensor(param.param.data, param.stride) if param.param.data is not None else None


def _misfits(
    ir: IR,
    weights: Mapping[str, Any],
    constants: Mapping[str, Any],
    unused: Collection[str],
    hints: Budget,
    with_values: bool = True,
) -> Iterator[Misfit]:
    parts = ((param, key, shape) for param in ir.params for key, shape in described(param, weights))
    for param, key, shape in parts:
        value = _find(param, weights, constants) if key == param.key else weights.get(key)
        if value is None:
            yield Misfit(MISSING, key, _missing(param, key, unused if hints.take() else ()))
        elif not isinstance(value, (torch.Tensor, StoredTensor)):
            yield Misfit(VALUES, key, f"{key!r} is a {type(value).__name__}, not a tensor")
        elif tuple(value.shape) != shape:
            yield Misfit(SHAPE, key, f"{key!r} has shape {list(value.shape)}, the graph needs {list(shape)}")
        elif value.dtype != TORCH_DTYPES[param.dtype]:
            yield Misfit(DTYPE, key, f"{key!r} is {dtype_name(value.dtype)}, the graph needs {param.dtype}")
        elif with_values and value.is_meta:
            yield Misfit(VALUES, key, f"{key!r} is on meta and has no values")
        elif with_values and (other := _contradiction(param, weights, value)) is not None:
            yield Misfit(VALUES, key, f"{key!r} and {other!r} are one weight in the graph, but their values differ")


def _contradiction(param: TensorMeta, weights: Mapping[str, Any], value: Weight) -> str | None:
    """Return another key of a tied weight that has a different value."""
    assert param.param is not None
    for key in param.param.keys[1:]:
        if key in weights and weights[key] is not value and not _are_equal(weights[key], value):
            return key
    return None


def _are_equal(one: Weight, other: Weight) -> bool:
    """Whether two weights have equal elements; weights in files are read in pieces, unless they are pieces already."""
    one, other = (each.load() if isinstance(each, StoredPiece) else each for each in (one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    pieces = range(0, math.prod(one.shape), _CHUNK)
    return one.shape == other.shape and all(torch.equal(_piece(one, at), _piece(other, at)) for at in pieces)


def _piece(weight: Weight, start: int) -> torch.Tensor:
    stop = min(start + _CHUNK, math.prod(weight.shape))
    return weight.elements(start, stop) if isinstance(weight, StoredTensor) else weight.flatten()[start:stop].cpu()


def _missing(param: TensorMeta, key: str, unused: Iterable[str]) -> str:
    assert param.param is not None
    if param.param.in_state_dict:
        return f"{key!r} is missing{did_you_mean(key, unused)}"
    return (
        f"{key!r} is missing; it is not in any state dict: pass constants={{{key!r}: ...}}, "
        "or extract from a model built under torch_ir.meta_init()"
    )


def _surplus(graphs: Iterable[IR], weights: Mapping[str, Any]) -> list[Misfit]:
    graphs = list(graphs)
    known = _keys(graphs)
    modules = {key.rpartition(".")[0] for key in known}
    missing = {key for graph in graphs for param in graph.params for key in param.stored_keys} - weights.keys()
    found: list[Misfit] = []
    for key in weights:
        module, _, last = key.rpartition(".")
        if key in known or (last in _DESCRIPTIONS and module in modules):
            continue
        if _PARTS.search(last) and not _OF_ACTIVATIONS.match(last) and (module in modules or module in known):
            found.append(Misfit(UNREAD, key, f"nothing reads the scale {key!r}, though the graph reads its weight"))
        else:
            hint = did_you_mean(key, missing if len(found) < _HINTS else ())
            found.append(Misfit(UNEXPECTED, key, f"unexpected weight {key!r}{hint}"))
    return found


def _keys(graphs: Iterable[IR]) -> set[str]:
    params = (param for ir in graphs for param in ir.params if param.param)
    return {key for param in params for key in (str(param.key), *param.stored_keys)}


def random_weights(ir: IR, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random values for every weight without values in the graph; vectors, possibly variances, are positive."""
    require_graph(ir, "random_weights")
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for param in ir.params:
        if param.param is None or param.param.data is not None or param.key is None:
            continue
        dtype = TORCH_DTYPES[param.dtype]
        shape = [int(dim) for dim in param.shape]
        if not dtype.is_floating_point:
            weights[param.key] = torch.zeros(shape, dtype=dtype, device="cpu")
        elif len(shape) < 2:
            weights[param.key] = (torch.rand(shape, generator=generator, **_PLAIN) + 0.5).to(dtype)
        else:
            fan_in = max(1, torch.Size(shape[1:]).numel())
            weights[param.key] = (torch.randn(shape, generator=generator, **_PLAIN) / fan_in**0.5).to(dtype)
    return weights
