"""Seeds of runs that are compared: both must draw the same random numbers."""

from __future__ import annotations

import torch


def seed_generators(number: int) -> None:
    """Seed like `torch.manual_seed`, which formats the stack once for each kind of accelerator that is not there.

    A check of many small graphs would spend more time on that than on running them.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
