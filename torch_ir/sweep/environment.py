"""What the result of a sweep depends on besides the models."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from torch_ir._version import __version__

_PACKAGES = ("torch", "transformers", "timm")


@cache
def versions() -> str:
    """Us, torch and the libraries that models come from, as far as they are installed; none is imported."""
    found = [f"torch_ir {__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
