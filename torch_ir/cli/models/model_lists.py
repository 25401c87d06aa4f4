"""Lists of models for a sweep: all of timm, and every type of transformers in a tiny configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from torch_ir.cli.models.config import model_class
from torch_ir.cli.models.model_kinds import TIMM, TRANSFORMERS
from torch_ir.cli.models.timm import find_names
from torch_ir.errors import CommandError, MissingExtraError


def tiny_transformers() -> Iterator[str]:
    """Yield a line for each type of transformers, small enough to build and run in a second."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise MissingExtraError("a list of the models of transformers", "transformers", "transformers") from None
    from torch_ir.llm.tiny_config import tiny

    for name in sorted(CONFIG_MAPPING):
        try:
            config = CONFIG_MAPPING[name]()
            model_class(config, None)
            settings = tiny(config)
        except CommandError:  # a part of another model
            continue
        except Exception:  # settings or packages are missing, which is reported when the model is built
            settings = {}
        query = "&".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in settings.items())
        yield shlex.quote(f"{TRANSFORMERS}{name}?{query}" if query else f"{TRANSFORMERS}{name}")


def of_timm() -> Iterator[str]:
    """Return a line for each model of timm."""
    return (f"{TIMM}{name}" for name in find_names())


LISTS = {"transformers": tiny_transformers, "timm": of_timm}
