"""Whether the fast recording is exact with the installed torch.

The fast recording reproduces details of `torch.export`: names, dropped literals, added assertions. On an untested torch
version, it is compared with `torch.export` on tiny models, once per installation.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache

import torch

from torch_ir._version import __version__
from torch_ir.capture.crosscheck import first_difference
from torch_ir.capture.export.torch_export import export_to_ir
from torch_ir.capture.fast.check_models import check_models
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.errors import CaptureWarning, first_line
from torch_ir.ir.files.cache_folder import CachedTable
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.ops.tested_versions import TESTED_TORCH

_FILE, _MOST_BYTES, _MOST_ENTRIES = "fast-capture.json", 1 << 20, 64
_MOST_CHARACTERS = 500  # of a difference


@cache
def is_exact(version: str) -> bool:
    """Whether the fast recording equals torch.export byte for byte; if not, warn once per process."""
    difference = _remembered(version)
    if difference:
        warnings.warn(
            f"torch {version} was never tested with torch_ir {__version__}, and the fast recording differs from "
            f"torch.export there ({difference}); torch.export is used, which is slower. Install a newer torch_ir, "
            f"or a tested torch: {', '.join(TESTED_TORCH)}",
            CaptureWarning,
            stacklevel=4,
        )
    return not difference


def _remembered(version: str) -> str:
    """Return the first difference, from the cache folder or from a check."""
    python = ".".join(map(str, sys.version_info[:2]))
    key = f"torch {version} {torch.version.git_version}, torch_ir {__version__}, Python {python}"
    table = CachedTable(_FILE, _MOST_BYTES, _MOST_ENTRIES)
    known = table.get(key)
    if isinstance(known, str):
        return known[:_MOST_CHARACTERS]
    try:
        found = difference_from_export()
    except Exception as error:  # torch has changed; not cached, because the cause may be elsewhere
        return f"the check failed with {type(error).__name__}: {first_line(error)}"[:_MOST_CHARACTERS]
    table.keep(key, found[:_MOST_CHARACTERS])
    return found


def difference_from_export() -> str:
    """Capture each check model both ways; return the first difference, or an empty string."""
    with NeutralState(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, args, kwargs in check_models():
            exact = export_to_ir(model, (args, kwargs), None)
            if found := first_difference(exact, record_fast(model, args, kwargs)):
                return found
    return ""
