"""Tensors of GGUF files: read when needed, dequantised by their block format, and found by the keys of a graph.

Names and block formats are those of the `gguf` package. Files of llama.cpp differ from checkpoints in a few values,
which are restored: the rows of the query and key projections of Llama, and the norms of Gemma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import MissingExtraError, WeightLoadError
from torch_ir.run.gguf_header import Entry, Header, read_gguf_header
from torch_ir.run.stored import StoredTensor, Weight

_PLAIN = {0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
          28: torch.float64, 30: torch.bfloat16}  # fmt: skip
# Architectures whose tensors are those of a checkpoint but for the names and the two differences below.
_AS_STORED = ("gemma", "gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "starcoder2")
_ROTATED = ("llama",)  # rows of q and k are in the order of interleaved rotary embeddings
_NORMS_PLUS_ONE = ("gemma", "gemma2", "gemma3")
_MOST_BLOCKS = 2_000  # the package lists some hundred names for each
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


@dataclass(frozen=True)
class GgufTensor(StoredTensor):
    """A tensor of a GGUF file; blocks of a quantised format become float32."""

    kind: int
    size_in_file: int
    heads: int = 0  # not 0: rows are in rotary order
    minus: float = 0.0  # to subtract

    def load(self) -> torch.Tensor:
        raw = StoredTensor(self.path, torch.uint8, (self.size_in_file,), self.offset, self.stamp).load()
        if self.kind in _PLAIN:
            tensor = raw.view(_PLAIN[self.kind]).view(self.shape)
        elif not self.size_in_file:
            tensor = torch.empty(self.shape, dtype=self.dtype, device="cpu")
        else:
            gguf = _package()
            rows = raw.numpy().reshape(-1, self.size_in_file // max(1, math.prod(self.shape[:-1])))
            found = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(self.kind))
            tensor = torch.from_numpy(found).view(self.shape)
        if self.heads:
            parts = tensor.view(self.heads, self.shape[0] // self.heads // 2, 2, *self.shape[1:])
            tensor = parts.transpose(1, 2).reshape(self.shape)
        return tensor - self.minus if self.minus else tensor

    def elements(self, start: int, stop: int) -> torch.Tensor:
        """Read some of the elements: only the rows that they are in, if these are stored in order."""
        if self.heads or start >= stop:
            return self.load().view(-1)[start:stop]
        width = self.shape[-1]
        first, last = start // width, -(-stop // width)
        size = self.size_in_file // math.prod(self.shape[:-1])
        rows = replace(
            self, shape=(last - first, width), offset=self.offset + first * size, size_in_file=(last - first) * size
        )
        return rows.load().view(-1)[start - first * width : stop - first * width]

    def expert(self, number: int) -> GgufTensor:
        """Return the matrix of one expert."""
        size = self.size_in_file // self.shape[0]
        offset = self.offset + number * size
        return replace(self, shape=self.shape[1:], offset=offset, size_in_file=size)


class GgufTensors(dict[str, Weight]):
    """The tensors of a GGUF file by its own names; `for_keys` finds those of a graph."""

    def __init__(self, tensors: Mapping[str, Weight], path: Path, fields: Mapping[str, Any]) -> None:
        super().__init__(tensors)
        self.path, self.fields = path, fields

    def loaded(self) -> GgufTensors:
        """Return the same with all tensors in memory."""
        tensors = {name: each.load() if isinstance(each, GgufTensor) else each for name, each in self.items()}
        return GgufTensors(tensors, self.path, self.fields)

    def for_keys(self, keys: Iterable[str]) -> dict[str, Weight]:
        """Return the tensors under those keys of a checkpoint that name them, and the others under their own names."""
        architecture = self.fields.get("general.architecture")
        if architecture not in _AS_STORED:
            raise WeightLoadError(
                f"{self.path} has the architecture {architecture!r:.80}, whose tensors are not mapped to keys of a "
                f"checkpoint; expected one of {', '.join(_AS_STORED)}"
            )
        gguf = _package()
        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        blocks = self.fields.get(f"{architecture}.block_count")
        if not isinstance(blocks, int) or not 0 <= blocks <= _MOST_BLOCKS:
            raise WeightLoadError(f"{self.path} has {architecture}.block_count={blocks!r:.80}")
        names = gguf.get_tensor_name_map(kinds[architecture], blocks)
        found: dict[str, Weight] = {}
        used = set()
        for key in keys:
            expert = _EXPERT.search(key)
            plain = key if expert is None else _EXPERT.sub(".experts.", key)
            name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
            tensor = self.get(name)
            if tensor is None or (expert and not int(expert[1]) < tensor.shape[0]):
                continue
            used.add(name)
            found[key] = tensor if expert is None else _expert(tensor, int(expert[1]))
        return {**found, **{name: tensor for name, tensor in self.items() if name not in used}}


def _expert(tensor: Weight, number: int) -> Weight:
    if isinstance(tensor, GgufTensor):
        return tensor.expert(number)
    assert isinstance(tensor, torch.Tensor)  # loaded
    return tensor[number]


def for_keys(weights: Mapping[str, Any], keys: Iterable[str]) -> Mapping[str, Any]:
    """Return weights by the keys of a graph: those of a GGUF file are renamed, others are returned as they are."""
    return weights.for_keys(keys) if isinstance(weights, GgufTensors) else weights


def gguf_tensors(path: Path) -> GgufTensors:
    """Return the tensors listed in the header of a GGUF file; nothing else is read."""
    header = read_gguf_header(path)
    tensors = {name: _placed(path, name, entry, header) for name, entry in header.tensors.items()}
    _check_places(path, tensors)
    return GgufTensors(tensors, path, header.fields)


def _check_places(path: Path, tensors: Mapping[str, GgufTensor]) -> None:
    """Refuse tensors that share bytes: together, they could be larger than the file without end."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size_in_file)):
        if tensor.size_in_file and tensor.offset < end:
            raise WeightLoadError(f"{path}: {name!r:.80} overlaps another tensor")
        end = max(end, tensor.offset + tensor.size_in_file)


def _placed(path: Path, name: str, entry: Entry, header: Header) -> GgufTensor:
    block, size = _block(path, name, entry.kind)
    total = math.prod(entry.shape)
    if not entry.shape or total % block or entry.shape[-1] % block:
        raise WeightLoadError(f"{path}: {name!r:.80} has shape {list(entry.shape)}, not whole blocks of {block}")
    size_in_file = total // block * size
    if entry.offset + size_in_file > header.stamp[0]:
        raise WeightLoadError(f"{path}: {name!r:.80} ends after the end of the file")
    architecture = header.fields.get("general.architecture")
    heads, minus = 0, 0.0
    if architecture in _ROTATED and name.endswith((".attn_q.weight", ".attn_k.weight")):
        heads = _heads(path, header.fields, f"{architecture}.attention.head_count", is_key=".attn_k." in name)
        if heads < 1 or entry.shape[0] % (2 * heads):
            raise WeightLoadError(f"{path}: {name!r:.80} has {entry.shape[0]} rows, which are not {heads} heads")
    if architecture in _NORMS_PLUS_ONE and name.endswith("norm.weight"):
        minus = 1.0
    dtype = _PLAIN.get(entry.kind, torch.float32)
    return GgufTensor(
        path, dtype, entry.shape, entry.offset, header.stamp, entry.kind, size_in_file, heads=heads, minus=minus
    )


def _heads(path: Path, fields: Mapping[str, Any], field: str, is_key: bool) -> int:
    found = fields.get(f"{field}_kv", fields.get(field)) if is_key else fields.get(field)
    if not isinstance(found, int):
        raise WeightLoadError(f"{path} has no {field}, which the order of rows in its projections depends on")
    return found


def _block(path: Path, name: str, kind: int) -> tuple[int, int]:
    """Return the elements and the bytes of one block of a format."""
    if kind in _PLAIN:
        return 1, _PLAIN[kind].itemsize
    gguf = _package()
    known = {int(each): each for each in gguf.GGML_QUANT_SIZES}
    if kind not in known or known[kind] not in gguf.quants._type_traits:
        shown = known[kind].name if kind in known else f"type {kind}"
        raise WeightLoadError(f"{path}: {name!r:.80} has the format {shown}, which cannot be dequantised")
    block, size = gguf.GGML_QUANT_SIZES[known[kind]]
    return int(block), int(size)


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("reading .gguf files", "gguf", "gguf") from None
    return gguf
