"""Architectures of `transformers`: on meta, to a file, and from the file alone back to the model's own results."""

from pathlib import Path

import pytest

from tests.architectures import NOT_CAPTURED, TABLES, Architecture, architectures
from tests.architectures.sweep import CAPTURED, REFUSED, extract, verify_in_fresh_process

BY_KIND = {kind: [each for each in architectures() if each.kind == kind] for kind in TABLES}


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_sample_of_each_kind(kind: str, tmp_path: Path) -> None:
    """Every fourth architecture of a kind is carried exactly."""
    _carry(BY_KIND[kind][::4], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_KIND)
def test_every_architecture(kind: str, tmp_path: Path) -> None:
    """Whatever torch.export captures is carried exactly; the rest is the list of known refusals and nothing else."""
    _carry(BY_KIND[kind], tmp_path)


def _carry(chosen: list[Architecture], folder: Path) -> None:
    outcomes = {each.name: extract(each, folder) for each in chosen}
    assert outcomes == {name: REFUSED if name in NOT_CAPTURED else CAPTURED for name in outcomes}
    captured = [name for name, outcome in outcomes.items() if outcome == CAPTURED]
    assert verify_in_fresh_process(captured, folder) == dict.fromkeys(captured, "")
