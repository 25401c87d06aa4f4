"""Compile MLIR text with IREE for this machine, with a cache; errors name nodes."""

from __future__ import annotations

import hashlib
import platform
import re
from contextlib import suppress
from pathlib import Path

import torch

from torch_ir.errors import SerializationError, TorchIRError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, OpNode
from torch_ir.ir.files.atomic_write import plain_target, write_bytes
from torch_ir.ir.files.cache_folder import private_cache
from torch_ir.ir.files.regular_file import read_regular

_FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false")
_MOST_BYTES = 1 << 32  # of a compiled module
_BEGIN_ONLY = ("--compile-to=input",)  # convert from the torch dialect only
_PLACE = re.compile(r'loc\(("(?:[^"\\]|\\.)*")\)')
_LINE = re.compile(r"\S*:(\d+):\d+: error: ")
_SAID = re.compile(r"error: (?:loc\(.*?\): )?([^%]*)")


class CannotCompileError(TorchIRError):
    """IREE rejects a module; `places` are the quoted names of the nodes in its messages."""

    def __init__(self, message: str, places: list[str]) -> None:
        super().__init__(message)
        self.places = places

    def nodes_of(self, ir: IR) -> list[OpNode]:
        """Return the nodes of a graph in IREE's messages, directly or by a part of them."""
        by_place = {in_mlir(node.name): node for node in ir.all_nodes()}
        found = [by_place.get(place) or by_place.get(f'{place.partition(".")[0]}"') for place in self.places]
        return list(dict.fromkeys(node for node in found if node is not None))


def compile_module(text: str) -> bytes:
    """Compile a module for this machine, or read it from the cache."""
    folder = private_cache("iree")
    if folder is None:  # files that others can write are not executed
        return _compiled(text, _FLAGS)
    path = folder / f"{_digest(text)}.vmfb"
    module = _kept(path)
    if module is None:
        module = _compiled(text, _FLAGS)
        with suppress(SerializationError):  # the cache is not writable
            write_bytes(plain_target(path), hashlib.sha256(module).digest() + module)
    return module


def _kept(path: Path) -> bytes | None:
    """Read a module from a file that begins with its digest; None if missing or damaged."""
    try:
        kept = read_regular(path, _MOST_BYTES, follow=False)
    except OSError:
        return None
    digest, module = kept[:32], kept[32:]
    return module if hashlib.sha256(module).digest() == digest else None


def check_module(text: str) -> None:
    """Raise CannotCompileError if IREE cannot convert the torch dialect, which is quick to check."""
    _compiled(text, (*_FLAGS, *_BEGIN_ONLY))


def _digest(text: str) -> str:
    """Return a digest of the text, the compiler, its flags and the processor."""
    from iree.compiler import version

    key = (text, version.VERSION, _FLAGS, platform.machine(), torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256(repr(key).encode()).hexdigest()


def _compiled(text: str, flags: tuple[str, ...]) -> bytes:
    from iree.compiler.tools import CompilerToolError, compile_str

    try:
        module: bytes = compile_str(text, target_backends=["llvm-cpu"], input_type="torch", extra_args=flags)
    except CompilerToolError as error:
        raise _parsed_error(str(error), text) from None
    return module


def _parsed_error(output: str, text: str) -> CannotCompileError:
    """Parse the compiler's output: its first error, and the nodes that it names."""
    lines = [line for line in output.splitlines() if "error: " in line]
    places = [place for line in lines for place in _PLACE.findall(line) or _places_in_line(line, text)]
    first = _SAID.search(lines[0]) if lines else None
    reason = first[1].strip(" :")[:200] if first is not None else "the compiler stopped"
    return CannotCompileError(f"IREE cannot compile the graph: {reason}", places)


def _places_in_line(error: str, text: str) -> list[str]:
    """Return the nodes of the MLIR line that an error refers to."""
    line = _LINE.match(error)
    lines = text.splitlines()
    return _PLACE.findall(lines[int(line[1]) - 1]) if line is not None and 0 < int(line[1]) <= len(lines) else []
