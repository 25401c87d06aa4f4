"""Golden packs on disk: `index.json` in strict JSON, and shards of tensors with their sizes and digests.

The index lists for each value its node, the origin of that node, and the tolerances.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_ir.errors import MissingExtraError, MissingFileError, SerializationError, did_you_mean
from torch_ir.golden.folders import restore
from torch_ir.ir import Limits
from torch_ir.ir.checks.limits import allow_more
from torch_ir.ir.files.locks import folder_lock
from torch_ir.ir.files.regular_file import open_regular
from torch_ir.ir.files.side_file import SAFETENSORS
from torch_ir.ir.json.json_fields import allow_keys, read_dims, typed
from torch_ir.ir.json.json_fields import field as entry
from torch_ir.ir.json.json_text import parse_document, read_text
from torch_ir.ops.torch_types import TORCH_DTYPES

FORMAT, VERSION, INDEX = "torch-ir golden", 1, "index.json"
_KEYS: dict[str, type] = {
    "format": str, "version": int, "model_name": str, "ir": str, "reference": str, "seed": int, "notes": list,
    "files": list, "inputs": list, "values": list,
}  # fmt: skip
_FILE = re.compile(r"[a-z]+-\d{5}\.safetensors")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Shard:
    """A file of a pack."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Value:
    """One tensor of a pack, with its names in the graph."""

    name: str
    shape: list[int]
    dtype: str
    stored: str  # "plain", "pairs" of real and imaginary parts, or "bytes"
    file: str
    node: str = ""
    op_type: str = ""
    module: str = ""
    call: int = 0
    module_class: str = ""
    source: str = ""
    reads: list[str] = field(default_factory=list)
    rtol: float = 0.0
    atol: float = 0.0
    is_random: bool = False


_REQUIRED = ("name", "shape", "dtype", "stored", "file")
_TEXTS = ("name", "node", "op_type", "module", "module_class", "source")
_VALUE = {name: type(value) for name, value in vars(Value("", [], "", "", "")).items()}


@dataclass
class Pack:
    """A pack: its index is checked on reading, its shards on first access."""

    folder: Path
    model_name: str
    ir: str
    reference: str
    notes: list[str]
    files: dict[str, Shard]
    inputs: list[Value]
    values: list[Value]
    limits: Limits

    def __post_init__(self) -> None:
        self._open: dict[str, Any] = {}
        self._verified: dict[str, tuple[int, ...]] = {}  # the state of a shard whose digest was checked

    def tensor(self, value: Value) -> torch.Tensor:
        """Return the reference tensor of a value."""
        from safetensors import SafetensorError

        try:
            found = self._shard(value.file).get_tensor(value.name)
        except SafetensorError as error:
            raise SerializationError(f"{self.folder / value.file}: {error!s:.200}", rule="R8") from None
        tensor = unstored(found, value.stored, value.dtype, value.shape)
        if list(tensor.shape) != value.shape:
            problem = f"{value.name!r:.80} has shape {list(tensor.shape)}, but the index says {value.shape!r:.80}"
            raise SerializationError(f"{self.folder / value.file}: {problem}", rule="R7")
        return tensor

    def _shard(self, name: str) -> Any:
        if name not in self._open:
            with folder_lock(self.folder.parent, shared=True):  # no replacement between check and opening
                self._open = {name: self._checked(name)}  # one at a time: values are read in order
        return self._open[name]

    def _checked(self, name: str) -> Any:
        path, shard = self.folder / name, self.files[name]
        is_there = path.is_file() and not path.is_symlink()
        if is_there and self._is_verified(path, shard):
            return open_safetensors(path)
        if read_pack(self.folder, self.limits).files != self.files:
            raise SerializationError(f"{self.folder} was replaced while it was being read; read it again")
        if not is_there:
            raise MissingFileError(f"{path} is missing from the pack", rule="R16")
        raise SerializationError(f"{path} is damaged: its size or digest differs from the index", rule="R16")

    def _is_verified(self, path: Path, shard: Shard) -> bool:
        """Whether a shard has the digest of the index; it is computed again only if the file has changed."""
        facts = path.stat()
        state = facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
        if self._verified.get(shard.name) != state:
            if facts.st_size != shard.size or file_digest(path) != shard.digest:
                return False
            self._verified[shard.name] = state
        return True


def read_pack(path: str | os.PathLike[str], limits: Limits = Limits()) -> Pack:
    """Read the pack in a folder; reject an index that is damaged, too large or of a later version."""
    folder = Path(path)
    restore(folder)
    if not os.path.lexists(folder / INDEX):
        raise MissingFileError(f"{folder} is not a golden pack: {INDEX} is missing")
    document = parse_document(read_text(folder / INDEX, limits, follow=False), limits)
    if document.get("format") != FORMAT:
        raise SerializationError(f"{folder / INDEX} is not the index of a golden pack", rule="R4")
    if document.get("version") != VERSION:
        found = document.get("version")
        problem = f"{folder / INDEX} has version {found!r:.20}; this torch_ir reads version {VERSION}"
        raise SerializationError(problem, "$.version", rule="R4")
    allow_keys(document, _KEYS.keys(), "$")
    record: dict[str, Any] = {key: entry(document, key, kind, "$") for key, kind in _KEYS.items()}
    shards = [_read_shard(item, f"$.files[{index}]") for index, item in enumerate(record["files"])]
    files = {shard.name: shard for shard in shards}
    if len(files) != len(shards):
        raise SerializationError("a shard is listed twice", "$.files", rule="R8")
    inputs, values = (
        [_read_value(item, f"$.{key}[{index}]", files, limits) for index, item in enumerate(record[key])]
        for key in ("inputs", "values")
    )
    for key, listed in (("inputs", inputs), ("values", values)):
        if len({value.name for value in listed}) < len(listed):
            raise SerializationError("a tensor is listed twice", f"$.{key}", rule="R8")
    notes = [_line(note, f"$.notes[{index}]") for index, note in enumerate(record["notes"])]
    return Pack(folder, record["model_name"], record["ir"], record["reference"], notes, files, inputs, values, limits)


def is_index(path: Path) -> bool:
    """Whether a file is the index of a pack of any version."""
    try:
        return parse_document(read_text(path, follow=False)).get("format") == FORMAT
    except SerializationError:
        return False


def _read_shard(record: Any, path: str) -> Shard:
    allow_keys(record, {"name", "size", "digest"}, path)
    name = entry(record, "name", str, path)
    if not _FILE.fullmatch(name):
        raise SerializationError(f"{name!r:.60} is not the name of a shard", f"{path}.name", rule="R16")
    return Shard(name, entry(record, "size", int, path), entry(record, "digest", str, path))


def _read_value(record: Any, path: str, files: Mapping[str, Shard], limits: Limits) -> Value:
    allow_keys(record, _VALUE.keys(), path)
    value = Value(**{key: _typed(record, key, _VALUE[key], path) for key in dict.fromkeys((*_REQUIRED, *record))})
    for key in _TEXTS:
        _line(getattr(value, key), f"{path}.{key}")
    for index, name in enumerate(value.reads):
        _line(name, f"{path}.reads[{index}]")
    if len(value.module) > limits.name_length:
        problem = f"a module path of {len(value.module)} characters is longer than {limits.name_length}"
        raise SerializationError(problem, f"{path}.module", rule="R2", hint=allow_more("name_length"))
    if value.dtype not in TORCH_DTYPES:
        problem = f"unknown dtype {value.dtype!r:.60}{did_you_mean(value.dtype, TORCH_DTYPES)}"
        raise SerializationError(problem, f"{path}.dtype", rule="R5")
    if value.dtype.startswith("q"):
        raise SerializationError("a pack has no quantised tensors", f"{path}.dtype", rule="R5")
    if any(isinstance(dim, str) for dim in read_dims(value.shape, f"{path}.shape")):
        raise SerializationError("the sizes of a tensor must be numbers", f"{path}.shape", rule="R7")
    if value.file not in files:
        raise SerializationError(f"{value.file!r:.60} is not a file of the pack", f"{path}.file", rule="R8")
    if value.stored not in ("plain", "pairs", "bytes"):
        problem = f"unknown storage {value.stored!r:.60}; expected plain, pairs or bytes"
        raise SerializationError(problem, f"{path}.stored", rule="R5")
    return value


def _line(text: Any, path: str) -> str:
    """Return a text of the index; raise SerializationError unless it can be printed on one line."""
    if not typed(text, str, path).isprintable():
        raise SerializationError(f"{text!r:.60} contains characters that cannot be printed", path, rule="R6")
    return str(text)


def _typed(record: Any, key: str, kind: type, path: str) -> Any:
    if kind is float and type(record[key]) is int:
        return float(record[key])
    return entry(record, key, kind, path)


def stored(tensor: torch.Tensor, dtype: str) -> tuple[str, torch.Tensor]:
    """Return how a tensor is stored: as it is, complex numbers as pairs, dtypes that safetensors lacks as bytes."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.is_complex():
        return "pairs", torch.view_as_real(plain).contiguous()
    return ("plain", plain) if dtype in SAFETENSORS else ("bytes", plain.reshape(-1).view(torch.uint8))


def unstored(found: torch.Tensor, how: str, dtype: str, shape: list[int]) -> torch.Tensor:
    """Convert a stored tensor back."""
    try:
        if how == "pairs":
            found = torch.view_as_complex(found)
        elif how == "bytes":
            found = found.view(TORCH_DTYPES[dtype]).reshape(shape)
    except RuntimeError:
        held = f"{found.dtype}{list(found.shape)}"
        raise SerializationError(f"a tensor {held} cannot be read as the {dtype}{shape!r:.80} of the index") from None
    if found.dtype != TORCH_DTYPES[dtype]:
        raise SerializationError(f"a tensor has dtype {found.dtype}, but the index says {dtype}")
    return found


def open_safetensors(path: Path) -> Any:
    """Open a file whose tensors are read on access."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise MissingExtraError("reading .safetensors files", "safetensors", "safetensors") from None
    try:
        return safe_open(os.fspath(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise SerializationError(f"cannot read {path}: {error}") from None


def file_digest(path: Path) -> str:
    """Return the digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with os.fdopen(open_regular(path, follow=False), "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"
