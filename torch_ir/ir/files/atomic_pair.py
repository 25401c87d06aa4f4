"""Replace a file and its side files atomically: all of them or none.

A side file is named after its content digest. It is written before the file that references it, and removed when no
graph in the folder does. Meanwhile a hidden note lists the files involved, so that the next save can clean up after a
crash.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from torch_ir.errors import SerializationError
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.files.atomic_write import HIDDEN, Draft, draft, hidden_name, left_behind, remove, sync_folder
from torch_ir.ir.files.locks import folder_lock
from torch_ir.ir.files.regular_file import IrregularFileError, TooLargeError, create_regular, read_regular
from torch_ir.ir.json.gzip_text import MAGIC, decompress

_NOTE_BYTES = 1 << 16  # a note lists a few names
_TARGET_BYTES = 1 << 31  # the maximum size of a protobuf file
_TEXT_BYTES = Limits().expanded_bytes
_MOST_READ = 1 << 28  # bytes of other graphs in a folder; where there are more, no side file is removed
_BEGINNINGS = (b"{", b"\x08", b"\n", MAGIC[:1])  # of JSON, ONNX, protobuf and gzip


class Beside:
    """The side files of a target, whose names start with its own and end in twelve digits of their digests."""

    def __init__(self, target: Path, own: str) -> None:
        self.target = target
        self._own = own
        self._pattern = re.compile(re.escape(own) + r"[0-9a-f]{12}\.safetensors")

    def path(self, digest: str) -> Path:
        """Return the side file path for content with this digest."""
        return self.target.with_name(f"{self._own}{digest[:12]}.safetensors")

    def referenced(self) -> list[Path]:
        """Return the side files that the target references."""
        try:
            found = self._own_names(os.listdir(self.target.parent))
        except OSError:  # the folder is writable but not readable
            return []
        try:
            content = _content(self.target) if found else b""
        except (TooLargeError, SerializationError):  # the content is unknown, so keep all side files
            return []
        return [self.target.with_name(name) for name in found if os.fsencode(name) in content]

    def replace(self, content: bytes, new: Mapping[Path, Draft]) -> None:
        """Write the new side files, then the target that references them."""
        with draft(self.target) as main:
            main.write(content)
            main.complete()
            with folder_lock(self.target.parent) as is_alone:
                if is_alone:
                    self._recover()
                suspects = self.referenced() + [path for path in new if not path.exists()]
                try:
                    if is_alone and suspects:
                        create_regular(self._note, b"\n".join(os.fsencode(path.name) for path in suspects))
                    for path, file in new.items():
                        file.put(path)
                        sync_folder(path.parent)
                    main.put(self.target)
                    sync_folder(self.target.parent)
                finally:
                    self._settle(suspects)
                    if is_alone:
                        remove(self._note)

    @property
    def _note(self) -> Path:
        """Path of the note that lists files that may have to be removed; only used while holding the folder lock."""
        return hidden_name(self.target, "note")

    def _recover(self) -> None:
        """Remove what a crashed process left; anything else under the note's name is removed unread."""
        for left in left_behind(self.target):
            remove(left)
        with suppress(OSError):
            names = os.fsdecode(read_regular(self._note, _NOTE_BYTES, follow=False)).split("\n")
            self._settle(self.target.with_name(name) for name in self._own_names(names))
        remove(self._note)

    def _settle(self, suspects: Iterable[Path]) -> None:
        """Remove those files that neither the target nor another graph of the folder, such as a copy, references."""
        unused = {os.fsencode(path.name): path for path in suspects}
        with suppress(OSError, SerializationError):  # if that is unknown, keep all
            for graph in (self.target, *self._others()) if unused else ():
                content = _content(graph)
                unused = {name: path for name, path in unused.items() if name not in content}
            for path in unused.values():
                remove(path)

    def _others(self) -> Iterator[Path]:
        """Yield the other files of the folder that may be graphs."""
        read = 0
        for path in self.target.parent.iterdir():
            if path.name == self.target.name or path.name.startswith(HIDDEN) or path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                if file.read(1) not in _BEGINNINGS:
                    continue
            read += path.stat().st_size
            if read > _MOST_READ:
                raise TooLargeError(os.fspath(path), read, _MOST_READ)
            yield path

    def _own_names(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._pattern.fullmatch(name)]


def _content(path: Path) -> bytes:
    """Return the bytes of a graph, decompressed if they are gzip; empty if it does not exist yet."""
    try:
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise IrregularFileError(errno.EINVAL, "is not a plain file", os.fspath(path))
        if facts.st_size > _TARGET_BYTES:
            raise TooLargeError(os.fspath(path), facts.st_size, _TARGET_BYTES)
        content = path.read_bytes()
        return decompress(content, path, _TEXT_BYTES) if content.startswith(MAGIC) else content
    except FileNotFoundError:
        return b""
