"""A model of timm, from `timm:NAME?key=value&...` or its bare name; nothing is downloaded."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.model_kinds import TIMM
from torch_ir.cli.models.model_settings import split_settings
from torch_ir.cli.models.source import Source
from torch_ir.errors import CommandError, MissingExtraError, did_you_mean, first_line

if TYPE_CHECKING:
    from torch import nn


def find_timm(text: str) -> Source:
    """Return the timm model of that name."""
    timm = _imported()
    name, settings = split_settings(text)
    name = name.removeprefix(TIMM)
    if not timm.is_model(name):
        raise CommandError(f"timm has no model {name!r}{did_you_mean(name, timm.list_models())}")
    return Source(text, partial(_build, text, name, settings))


def is_of_timm(name: str) -> bool:
    """Whether timm is installed and has a model of this name."""
    try:
        return bool(_imported().is_model(name))
    except (MissingExtraError, CommandError):
        return False


def find_names() -> list[str]:
    """Return all model names of timm."""
    return list(_imported().list_models())


def names_of_timm() -> list[str]:
    """Return all model names of timm; none if it cannot be imported."""
    try:
        return find_names()
    except (MissingExtraError, CommandError):
        return []


def _imported() -> Any:
    if importlib.util.find_spec("timm") is None:
        raise MissingExtraError("a model of timm", "timm", "timm")
    try:
        import timm
    except Exception as error:  # for example a torchvision built for another torch
        raise CommandError(f"timm is installed, but importing it fails: {first_line(error)}") from None
    return timm


def _build(text: str, name: str, settings: dict[str, Any]) -> nn.Module:
    timm = _imported()
    try:
        model: Any = timm.create_model(name, pretrained=False, **settings)
    except Exception as error:  # models raise errors of any type for wrong settings
        raise CommandError(f"{text}: {first_line(error)}") from None
    channels, *size = model.pretrained_cfg["input_size"]
    size = settings.get("img_size", size)
    size = [size, size] if isinstance(size, int) else size
    input_size = (settings.get("in_chans", channels), *size)  # timm does not apply these settings to its config
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": input_size}
    _fill_buffers(model)
    built: nn.Module = model.eval()
    return built


def _fill_buffers(model: nn.Module) -> None:
    """Compute non-persistent buffers, such as position tables, which timm leaves empty on the meta device."""
    import torch

    from torch_ir.ops.torch_internals import buffer_table, non_persistent_names

    for module in model.modules():
        fill = getattr(module, "init_non_persistent_buffers", None)
        empty = {name: buffer_table(module)[name] for name in non_persistent_names(module)}
        if fill is None or not any(buffer is not None and buffer.is_meta for buffer in empty.values()):
            continue
        for name, buffer in empty.items():
            buffer_table(module)[name] = None if buffer is None else torch.zeros(buffer.shape, dtype=buffer.dtype)
        try:
            fill()
        except NotImplementedError:  # it reads weights, which have no values; extraction reports what is unknown
            buffer_table(module).update(empty)
