"""IREE's compiler: MLIR text to a module for this machine, which is kept in a folder; errors are told by nodes."""

from __future__ import annotations

import hashlib
import platform
import re
from contextlib import suppress
from pathlib import Path

import torch

from torch_ir.backends.cache import private_cache
from torch_ir.errors import SerializationError, TorchIRError
from torch_ir.escaping import in_mlir
from torch_ir.ir import IR, OpNode
from torch_ir.ir.files.atomic_write import plain_target, write_bytes
from torch_ir.ir.files.regular_file import read_regular

_FLAGS = ("--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false")
_MOST_BYTES = 1 << 32  # of a compiled module
_BEGIN_ONLY = ("--compile-to=input",)  # as far as the torch dialect goes
_PLACE = re.compile(r'loc\(("(?:[^"\\]|\\.)*")\)')
_LINE = re.compile(r"\S*:(\d+):\d+: error: ")
_SAID = re.compile(r"error: (?:loc\(.*?\): )?([^%]*)")


class CannotCompileError(TorchIRError):
    """IREE refuses a module; `places` are the names of nodes, in quotes, that it complains about."""

    def __init__(self, message: str, places: list[str]) -> None:
        super().__init__(message)
        self.places = places

    def nodes_of(self, ir: IR) -> list[OpNode]:
        """The nodes of a graph that IREE complains about, themselves or by a part that was taken out of them."""
        by_place = {in_mlir(node.name): node for node in ir.all_nodes()}
        found = [by_place.get(place) or by_place.get(f'{place.partition(".")[0]}"') for place in self.places]
        return list(dict.fromkeys(node for node in found if node is not None))


def compile_module(text: str) -> bytes:
    """A module for this machine; what was compiled before is read from its file."""
    folder = private_cache("iree")
    if folder is None:  # what others can write is not run
        return _compiled(text, _FLAGS)
    path = folder / f"{_digest(text)}.vmfb"
    module = _kept(path)
    if module is None:
        module = _compiled(text, _FLAGS)
        with suppress(SerializationError):  # where the folder cannot be written to, it is compiled again
            write_bytes(plain_target(path), hashlib.sha256(module).digest() + module)
    return module


def _kept(path: Path) -> bytes | None:
    """The module in a file that begins with its digest; None if there is none, or if it is damaged."""
    try:
        kept = read_regular(path, _MOST_BYTES, follow=False)
    except OSError:
        return None
    digest, module = kept[:32], kept[32:]
    return module if hashlib.sha256(module).digest() == digest else None


def check_module(text: str) -> None:
    """Refuse what IREE cannot take out of the torch dialect; that is found out soon."""
    _compiled(text, (*_FLAGS, *_BEGIN_ONLY))


def _digest(text: str) -> str:
    """What a compiled module depends on: the text, the compiler and its flags, and the processor."""
    from iree.compiler import version

    told = (text, version.VERSION, _FLAGS, platform.machine(), torch.backends.cpu.get_cpu_capability())
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _compiled(text: str, flags: tuple[str, ...]) -> bytes:
    from iree.compiler.tools import CompilerToolError, compile_str

    try:
        module: bytes = compile_str(text, target_backends=["llvm-cpu"], input_type="torch", extra_args=flags)
    except CompilerToolError as error:
        raise _understood(str(error), text) from None
    return module


def _understood(said: str, text: str) -> CannotCompileError:
    """What the compiler printed, without its stack traces: its first error, and the nodes that it names."""
    lines = [line for line in said.splitlines() if "error: " in line]
    places = [place for line in lines for place in _PLACE.findall(line) or _places_in_line(line, text)]
    first = _SAID.search(lines[0]) if lines else None
    told = first[1].strip(" :")[:200] if first is not None else "the compiler stopped"
    return CannotCompileError(f"IREE cannot compile the graph: {told}", places)


def _places_in_line(error: str, text: str) -> list[str]:
    """The nodes that the line of the text stands for that an error names."""
    line = _LINE.match(error)
    lines = text.splitlines()
    return _PLACE.findall(lines[int(line[1]) - 1]) if line is not None and 0 < int(line[1]) <= len(lines) else []
