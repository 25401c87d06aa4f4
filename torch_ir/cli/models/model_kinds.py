"""The kind of model that a name denotes, judged by the name and the file system; nothing is imported."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

TRANSFORMERS, TIMM, PROGRAM, CODE = "hf:", "timm:", ".pt2", ".py"
GRAPHS = (".json", ".json.gz", ".pb", ".binpb", ".ir")  # suffixes of graph files
_MOST = 1000  # files of a folder that are compared


def is_model(text: str) -> bool:
    """Whether a text names a model rather than a graph file, existing or not."""
    if is_config(text) or text.startswith(TIMM) or text.endswith((PROGRAM, CODE)):
        return True
    return not Path(text).exists() and not text.endswith(GRAPHS)


def is_config(text: str) -> bool:
    """Whether a text names a transformers configuration: by prefix, or as a file or folder that contains one."""
    path = Path(text.partition("?")[0])
    return text.startswith(TRANSFORMERS) or path.name == "config.json" or (path / "config.json").is_file()


def did_you_mean_file(path: str) -> str:
    """Return an error message suffix with the graph file of the same folder whose stem is nearest, or nothing."""
    there = (file for file in Path(path).parent.glob("*") if file.name.endswith(GRAPHS))
    files = {_stem(file): str(file) for file in islice(there, _MOST)}
    near = difflib.get_close_matches(_stem(Path(path)), files, n=1)
    return f"; did you mean {files[near[0]]!r}?" if near else ""


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]
