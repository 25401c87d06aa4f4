"""Positions of the tokens of a prompt, for models where an image takes other positions than its number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

POSITIONS = "_prepare_position_ids_for_generation"  # of models; overridden where an image changes the positions


def prompt_positions(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Return the `position_ids` of a prompt as `generate` computes them, for models whose graphs take them.

    `inputs` are those of the processor. The weights are not read, so the model may be on meta.
    """
    ids = inputs["input_ids"]
    given = {name: value for name, value in inputs.items() if name != "input_ids"}
    given.setdefault("attention_mask", torch.ones_like(ids))
    before = [(vars(each), dict(vars(each))) for each in (model, model.base_model)]
    try:
        found: Tensor = getattr(model, POSITIONS)(ids, given)
    finally:
        for attributes, kept in before:  # the model remembers an offset of its last prompt
            attributes.clear()
            attributes.update(kept)
    return found
