"""The page: code, style and data in one self-contained file.

Everything from a graph is in the packed data, which a browser cannot interpret as markup; the code displays it as text.
The page's policy allows only its own script and style, by their digests.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "data", "text", "levels", "checks", "sides", "layout", "colours", "elements", "drawing", "minimap", "places",
    "view", "pointer", "picture", "tables", "code", "values", "panel", "panels", "tree", "search",
    "compare", "keys", "main",
)  # fmt: skip
_LIBRARY, _LICENCE = "dagre.min.js", "dagre.LICENSE.txt"
_MAP = "//# sourceMappingURL="  # a browser with open developer tools would request it


def page(record: dict[str, Any]) -> str:
    """Return the whole page for a record; equal records have equal pages."""
    data = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(data.encode("utf-8", "replace"), 9, mtime=0)).decode()
    script, style = _script(), _bare(_asset("style.css"))
    return filled(_asset("page.html"), script, style, packed)


def filled(text: str, script: str, style: str, data: str) -> str:
    """Return a page with its data, its only script and style, and a policy that allows nothing else."""
    parts = {"POLICY": policy(script, style), "STYLE": style, "DATA": data, "SCRIPT": script}
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


@lru_cache(maxsize=1)
def _script() -> str:
    library = "\n".join(line for line in _asset(_LIBRARY).splitlines() if not line.startswith(_MAP))
    return "\n".join([f"/*!\n{_asset(_LICENCE)}*/", library, *(_bare(_asset(f"{name}.js")) for name in _SCRIPTS)])


def _bare(code: str) -> str:
    """Strip indentation and comment lines from code, as it is part of every page."""
    lines = (line.strip() for line in code.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def policy(script: str, style: str) -> str:
    """Return the content security policy: only this script and style, and no requests."""
    return f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("torch_ir.explorer") / "assets" / name).read_text(encoding="utf-8")
