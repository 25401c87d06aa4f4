"""Zip archives that would expand far beyond their size."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from torch_ir.errors import SerializationError

_MOST_EXPANDED, _MOST_TIMES = 1 << 28, 100  # limits of an archive: bytes, and expansion ratio beyond them


def refuse_expansion(file: Path) -> None:
    """Raise SerializationError for an archive that expands far beyond its size, before decompressing it."""
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return  # numpy reports the error
    packed = max(os.path.getsize(file), 1)
    if size > _MOST_EXPANDED and size > _MOST_TIMES * packed:
        problem = f"{file} expands from {packed:,} to {size:,} bytes, more than {_MOST_TIMES} times"
        raise SerializationError(f"{problem}; save it without compression (numpy.savez)", rule="R2")
