"""Positions of the tokens of a prompt, for models where an image takes other positions than its number of tokens."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

POSITIONS = "_prepare_position_ids_for_generation"  # of models; overridden where an image changes the positions


def prompt_positions(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Return the `position_ids` of a prompt as `generate` computes them, for models whose graphs take them.

    `inputs` are those of the processor. The weights are not read, so the model may be on meta.
    """
    bare = copy.copy(model)  # the model keeps an offset of the last prompt, which is not changed here
    bare._modules = dict(model._modules)
    if model.base_model is not model:
        bare._modules[model.base_model_prefix] = copy.copy(model.base_model)
    ids = inputs["input_ids"]
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    given.setdefault("attention_mask", torch.ones_like(ids))
    found: Tensor = getattr(bare, POSITIONS)(ids, given)
    return found
