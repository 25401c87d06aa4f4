"""Find a model by name: determine its kind, or suggest the nearest known name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_ir.cli.models.config import find_config, model_types
from torch_ir.cli.models.exported_program import find_program
from torch_ir.cli.models.factory import find_factory
from torch_ir.cli.models.model_kinds import CODE, PROGRAM, TIMM, TRANSFORMERS, is_config
from torch_ir.cli.models.model_settings import split_settings
from torch_ir.cli.models.own_code import refuse_foreign_name
from torch_ir.cli.models.timm import find_timm, is_of_timm, names_of_timm
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.cli.models.source import Source


def find_model(text: str, *, own_only: bool = False) -> Source:
    """Return the model that a text names; its code is imported, but the model is not built yet.

    With `own_only`, code that is not the user's own is rejected: the text comes from a list, not from the user.
    """
    if own_only:
        refuse_foreign_name(text)
    if text.endswith(PROGRAM):
        return find_program(text)
    if is_config(text):
        return find_config(text)
    if text.startswith(TIMM):
        return find_timm(text)
    name = split_settings(text)[0]
    return find_factory(text, own_only=own_only) if ":" in name or name.endswith(CODE) else _find_bare(text, name)


def _find_bare(text: str, name: str) -> Source:
    """Return a model by its bare name, from transformers or timm."""
    types = model_types()
    if name in types:
        return find_config(f"{TRANSFORMERS}{text}")
    if is_of_timm(name):
        return find_timm(text)
    hint = did_you_mean(name, [*types, *names_of_timm()])
    spellings = "; write it as net.py:Net, package.module:Class, hf:llama, timm:resnet50 or model.pt2"
    raise CommandError(f"{name!r} is neither a file nor a model{hint or spellings}")
