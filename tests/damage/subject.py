"""Every kind of file that the package reads: a valid one, another of its kind, and how it is read."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.refusals import without_digest
from torch_ir import IR
from torch_ir.errors import TorchIRError


@dataclass(frozen=True)
class Subject:
    """A file to corrupt, with its companion files; `read` returns the meaning of the files, or raises a typed error."""

    path: Path
    other: bytes
    read: Callable[[], Any]


@dataclass(frozen=True)
class Kind:
    """How to write files of a kind to a folder; if they have a digest, no corruption may change their meaning."""

    name: str
    has_digest: bool
    make: Callable[[Path], Subject]


FILES: dict[str, Kind] = {}
Json = dict[str, Any]
_MEMORY = Path("/dev/shm")


def new_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for files that live but a moment, in memory where the system lends some of it as a disk."""
    return tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)


def files(name: str, *, digest: bool = False) -> Callable[[Callable[[Path], Subject]], Callable[[Path], Subject]]:
    """Enter a kind of file under its name."""

    def enter(make: Callable[[Path], Subject]) -> Callable[[Path], Subject]:
        FILES[name] = Kind(name, digest, make)
        return make

    return enter


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def undigested(content: bytes) -> bytes:
    return without_digest(content.decode()).encode()


def meaning(ir: IR) -> str:
    """Return the text of a valid graph that prints, and is equal after copying, writing and reading."""
    text = ir.to_json()
    with without_refusal():
        assert IR.parse(ir.to_text()).to_text() == ir.to_text()
        assert IR.from_json(text).to_json() == text == ir.check().clone().to_json()
    return text


@contextmanager
def without_refusal() -> Iterator[None]:
    """Input accepted once must be accepted again."""
    try:
        yield
    except TorchIRError as error:
        raise AssertionError(f"what was read is refused later: {error}") from error
