"""Architectures of `transformers`: captured on meta, saved, and verified from the file alone."""

from pathlib import Path

import pytest

from tests.architectures import (
    NEEDS_VALUES,
    NOT_CAPTURED,
    NOT_FAST,
    NOT_FAST_OPEN,
    TABLES,
    UNLIKE_EXPORT,
    Architecture,
    architectures,
)
from tests.architectures.equality import SAME, compare
from tests.architectures.sweep import CAPTURED, REFUSED, WITH_VALUES, extract, select, verify_in_fresh_process

BY_KIND = {kind: [each for each in architectures() if each.kind == kind] for kind in TABLES}
ALSO = {"encoder": ["longformer"]}  # in a default run: one that needs values


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_sample_of_each_kind(kind: str, tmp_path: Path, programs: Path | None) -> None:
    """Every twenty-fourth architecture of a kind is carried exactly."""
    _carry(select([*(each.name for each in BY_KIND[kind][::24]), *ALSO.get(kind, ())]), tmp_path, programs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BY_KIND)
def test_every_architecture(kind: str, tmp_path: Path) -> None:
    """Each is carried exactly; which need values, and which are refused, is known by name."""
    _carry(BY_KIND[kind], tmp_path)


def test_the_fast_graph_is_torch_exports() -> None:
    """Every 120th architecture is byte-identical to torch.export."""
    _compare(architectures()[::120])


@pytest.mark.slow
def test_every_fast_graph_is_torch_exports() -> None:
    """Which are not recorded is known by name, with the reason."""
    _compare(architectures())


def test_the_fast_graph_with_open_sizes_is_torch_exports() -> None:
    """Two architectures, with a batch and a length that vary, are byte-identical to torch.export; see `test_llm.py`."""
    chosen = select(["llama", "vit"])
    assert {each.name: compare(each, is_open=True) for each in chosen} == {each.name: SAME for each in chosen}


@pytest.mark.slow
def test_every_fast_graph_with_open_sizes_is_torch_exports() -> None:
    """Those that are not recorded, or have other constraints, depend on data or are known by name."""
    outcomes = {
        each.name: compare(each, is_open=True) for each in architectures() if each.name not in NOT_FAST | UNLIKE_EXPORT
    }
    others = {name: outcome for name, outcome in outcomes.items() if outcome != SAME}
    unknown = {name: outcome for name, outcome in others.items() if "depends on the data" not in outcome}
    assert unknown.keys() == NOT_FAST_OPEN.keys()
    assert all(outcome.startswith(NOT_FAST_OPEN[name]) for name, outcome in unknown.items())
    assert len(outcomes) - len(others) >= 200


def _compare(chosen: list[Architecture]) -> None:
    outcomes = {each.name: compare(each) for each in chosen if each.name not in UNLIKE_EXPORT}
    assert {name: outcome for name, outcome in outcomes.items() if NOT_FAST.get(name, SAME) not in outcome} == {}


def _carry(chosen: list[Architecture], folder: Path, programs: Path | None = None) -> None:
    outcomes = {each.name: extract(each, folder) for each in chosen}
    special = {**dict.fromkeys(NOT_CAPTURED, REFUSED), **dict.fromkeys(NEEDS_VALUES, WITH_VALUES)}
    assert outcomes == {name: special.get(name, CAPTURED) for name in outcomes}
    captured = [name for name, outcome in outcomes.items() if outcome != REFUSED]
    assert verify_in_fresh_process(captured, folder, programs) == dict.fromkeys(captured, "")
