"""The kind of model that a name denotes, judged by the name and the file system; nothing is imported."""

from __future__ import annotations

from pathlib import Path

TRANSFORMERS, TIMM, PROGRAM, CODE = "hf:", "timm:", ".pt2", ".py"
_GRAPHS = (".json", ".json.gz", ".pb", ".binpb", ".ir")


def is_model(text: str) -> bool:
    """Whether a text names a model rather than a graph file, existing or not."""
    if is_config(text) or text.startswith(TIMM) or text.endswith((PROGRAM, CODE)):
        return True
    return not Path(text).exists() and not text.endswith(_GRAPHS)


def is_config(text: str) -> bool:
    """Whether a text names a transformers configuration: by prefix, or as a file or folder that contains one."""
    path = Path(text.partition("?")[0])
    return text.startswith(TRANSFORMERS) or path.name == "config.json" or (path / "config.json").is_file()
