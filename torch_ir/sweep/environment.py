"""Versions that the result of a sweep depends on."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from torch_ir._version import __version__

_PACKAGES = ("torch", "transformers", "timm")


@cache
def versions() -> str:
    """Return the versions of torch_ir, torch and installed model libraries, without importing them."""
    found = [f"torch_ir {__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
