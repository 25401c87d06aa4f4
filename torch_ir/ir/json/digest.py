"""The digest at the end of a graph file's text."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_LAST_KEY = re.compile(rb',\n"digest": "(sha256:[0-9a-f]{64})"\n}\n?\Z')
LENGTH = 100  # bytes that contain the last key


class StatedDigest(NamedTuple):
    """The digest that a text states, and the end of the bytes it covers."""

    digest: str
    start: int


def digest_of(body: bytes | memoryview) -> str:
    """Return the digest of these bytes, as stated in files."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def stated_digest(raw: bytes) -> StatedDigest | None:
    """Return the digest at the end of a graph file's text; its last `LENGTH` bytes suffice."""
    found = _LAST_KEY.search(raw, max(0, len(raw) - LENGTH))
    return StatedDigest(found[1].decode(), found.start()) if found else None
