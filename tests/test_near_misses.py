"""Every rule matches its stored graph, and passes stay sound on near misses of it."""

import random
import zlib
from collections.abc import Iterator

import pytest

from tests.near_misses import TWISTS, twisted
from tests.patterns import FOLDER, Hit, fired, stored
from tests.soundness import fault
from torch_ir.ir import IR
from torch_ir.passes import list_passes
from torch_ir.passes.optimize_levels import LEVELS

pytestmark = pytest.mark.usefixtures("_one_thread")
_ROUNDS = "winograd"  # more than is compared here; separate tests cover the rest
HITS = sorted((path.parent.name, path.stem) for path in FOLDER.glob("*/*.json"))


def test_every_rule_has_a_graph() -> None:
    """Near misses of a rule without one are untested."""
    rules = {(made.name, rule.name) for made in list_passes() for rule in made.rules}
    assert rules - set(HITS) == set()
    assert {made.name for made in list_passes()} - {name for name, _ in HITS} == {_ROUNDS}


@pytest.mark.parametrize("hit", HITS, ids="/".join)
def test_a_rule_fires_on_its_graph(hit: Hit) -> None:
    name, rule = hit
    ir = stored()[hit]
    assert rule in fired(ir, name)
    assert fault(ir, [name]) == ""


def near_misses(kind: str, every: int = 1) -> Iterator[tuple[Hit, IR]]:
    """The stored graphs, changed where their rule fires; those for which the change is possible, or a part of them."""
    for (name, rule), ir in stored().items():
        seed = zlib.crc32(f"{name}/{rule}/{kind}".encode())
        if seed % every:
            continue
        draw = random.Random(seed)
        made = twisted(ir, fired(ir, name)[rule], kind, draw)
        if made is not None:
            yield (name, rule), made


def faults(kind: str, level: str = "", every: int = 1) -> list[str]:
    """Return the errors of a pass or a level on near misses, by case."""
    found = []
    for (name, rule), ir in near_misses(kind, every):
        why = fault(ir, LEVELS[level] if level else [name], settles=False)
        found.append(f"{name}, {rule}, {kind}: {why}\n{ir}" if why else "")
    return found


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", TWISTS)
def test_a_pass_is_sound_on_near_misses(kind: str, every: int) -> None:
    found = faults(kind, every=every)
    assert found
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TWISTS)
def test_the_highest_level_is_sound_on_near_misses(kind: str) -> None:
    found = faults(kind, "full")
    assert not any(found), "\n".join(filter(None, found))


def measure() -> dict[str, int]:
    """The figures of all near misses, each with its own pass and with the highest level."""
    found = [why for kind in TWISTS for level in ("", "full") for why in faults(kind, level)]
    return {
        "rules with a stored graph": len(HITS),
        "kinds of near misses": len(TWISTS),
        "near misses optimised": len(found),
        "wrong": sum(map(bool, found)),
    }
