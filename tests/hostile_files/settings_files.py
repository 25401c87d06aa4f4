"""Recipes, ranges, plans, contracts and inputs that never end, or are none."""

import io
import json
from pathlib import Path
from typing import Any

import torch

from tests.hostile_files.case import Family, Make

FAMILY = Family("recipes, ranges, plans, inputs")


def _file(name: str, content: Any) -> Make:
    def make(folder: Path) -> Path:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(data)
        return folder / name

    return make


def _rules(*matches: str, scheme: Any = "int8") -> dict[str, Any]:
    return {"layers": [{"match": match, "scheme": scheme} for match in matches]}


def _saved(value: Any) -> bytes:
    target = io.BytesIO()
    torch.save(value, target)
    return target.getvalue()


def _cycle() -> dict[str, Any]:
    held: dict[str, Any] = {}
    held["again"] = held
    return held


def _shared(levels: int) -> Any:
    held: Any = torch.zeros(1)
    for _ in range(levels):
        held = {"a": held, "b": held}
    return held


_DIGITS = b"9" * 5000
for name, opens, file, content in [
    ("key of 5,000 steps", "recipe", "r.toml", b".".join([b"a"] * 5000) + b" = 1\n"),
    ("key of 5,000 steps", "contract", "c.toml", b".".join([b"a"] * 5000) + b" = 1\n"),
    ("key of 5,000 quoted steps", "recipe", "r.toml", b" . ".join([b'"="'] * 5000) + b" = 1\n"),
    ("table of 5,000 steps", "contract", "c.toml", b"[" + b".".join([b"'#'"] * 5000) + b"]\n"),
    ("key of 5,000 steps inside", "recipe", "r.toml", b'x = {y = "a.b", ' + b".".join([b"a"] * 5000) + b" = 1}\n"),
    ("number of 5,000 digits", "recipe", "r.toml", b"x = " + _DIGITS + b"\n"),
    ("number of 5,000 digits", "contract", "c.toml", b"x = " + _DIGITS + b"\n"),
    ("5 MB of text", "recipe", "r.toml", b'x = """' + b'\\"""' * (5 << 18)),
    ("10^5 nested tables", "recipe", "r.toml", b"x = " + b"{a=" * 10**5),
    ("not UTF-8", "recipe", "r.toml", b'x = "\xff"\n'),
    ("another suffix", "recipe", "r.py", b"import os\n"),
    ("30,000 patterns", "recipe", "r.json", _rules(*(f"layer{number}.*" for number in range(30_000)))),
    ("pattern of 10^6 characters", "recipe", "r.json", _rules("*a" * 500_000)),
    ("group of 5,000 digits", "recipe", "r.json", _rules("*", scheme="int4-g" + "9" * 5000)),
    ("scheme of 10^5 parts", "recipe", "r.json", _rules("*", scheme="int8" + "-x" * 10**5)),
    ("scheme that is a list", "recipe", "r.json", _rules("*", scheme=["int8"])),
    ("weight that is a table", "recipe", "r.json", _rules("*", scheme={"weight": {"a": {}}})),
    ("layers as text", "recipe", "r.json", {"layers": "all"}),
    ("a list", "recipe", "r.json", []),
    ("a list", "ranges", "r.json", []),
    ("NaN", "ranges", "r.json", b'{"fc": [NaN, 1]}'),
    ("infinity", "ranges", "r.json", b'{"fc": [-1e999, 1]}'),
    ("high below low", "ranges", "r.json", {"fc": [1, -1]}),
    ("three numbers", "ranges", "r.json", {"fc": [0, 1, 2]}),
    ("texts", "ranges", "r.json", {"fc": ["0", "1"]}),
    ("10^5 levels", "ranges", "r.json", b'{"fc": ' + b"[" * 10**5),
    ("style that is a list", "plan", "p.json", {"fc": ["colwise"]}),
    ("style of 5,000 digits", "plan", "p.json", {"fc": "shard(" + "9" * 5000 + ")"}),
    ("pattern of 2,000 stars", "plan", "p.json", {"**f" * 2000: "colwise"}),
    ("regular expression", "plan", "p.json", {"(f+)+$": "colwise"}),
    ("10^5 levels", "plan", "p.json", b'{"fc": ' + b"[" * 10**5),
    ("dict that contains itself", "input", "x.pt", _saved(_cycle())),
    ("2^40 shared tensors", "input", "x.pt", _saved(_shared(40))),
    ("60 levels", "input", "x.pt", _saved(_shared(60))),
]:
    FAMILY.refused(f"{opens}: {name}", _file(file, content), r"(R\d+)?", ".*", opens=opens)
