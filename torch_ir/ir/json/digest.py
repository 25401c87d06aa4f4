"""The digest at the end of a graph file's text: how it is made, where it stands, and what it says."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_LAST_KEY = re.compile(rb',\n"digest": "(sha256:[0-9a-f]{64})"\n}\n?\Z')
LENGTH = 100  # bytes of the last key, and a little more


class StatedDigest(NamedTuple):
    """What a text says its digest is, and where the text ends that it speaks of."""

    digest: str
    start: int


def digest_of(body: bytes | memoryview) -> str:
    """The digest of these bytes, as files state it."""
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def stated_digest(raw: bytes) -> StatedDigest | None:
    """The digest that a graph file's text ends with; its last `LENGTH` bytes are enough."""
    found = _LAST_KEY.search(raw, max(0, len(raw) - LENGTH))
    return StatedDigest(found[1].decode(), found.start()) if found else None
