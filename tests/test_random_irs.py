"""Random graphs with every feature of the format: encodings, analyses, determinism, and one violation at a time."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.random_irs.draft import random_ir
from tests.random_irs.properties import PROPERTIES
from tests.random_irs.shrink import shrunk
from tests.random_irs.sweep import GRAPHS, REGRESSIONS, fault, graphs
from tests.random_irs.violations.kinds import VIOLATIONS
from tests.random_irs.violations.sweep import sweep
from torch_ir import validate_ir
from torch_ir.ir import IR

_CHUNK = 100  # graphs of one slow test
_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress torch's warnings about unusual operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_holds(path: Path) -> None:
    """Each stored graph is the smallest that showed an error."""
    ir = IR.load(path)
    for name, holds in PROPERTIES.items():
        assert not holds(ir), name


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_holds(name: str) -> None:
    """Of graphs of every kind; the smallest that fails is shown as it would be stored."""
    for seed, ir in graphs(range(14)):
        if found := fault(name, seed, ir):
            pytest.fail(found)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, GRAPHS, _CHUNK))
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_holds_of_thousands(name: str, start: int) -> None:
    for seed, ir in graphs(range(start, start + _CHUNK)):
        if found := fault(name, seed, ir):
            pytest.fail(found)


def test_a_typed_graph_passes_the_full_check() -> None:
    """Operators, attributes and shapes go together in it."""
    for seed in range(0, 40, 2):
        assert validate_ir(random_ir(seed, typed=True))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, GRAPHS, _CHUNK))
def test_thousands_of_typed_graphs_pass_the_full_check(start: int) -> None:
    for seed in range(start, start + _CHUNK):
        assert validate_ir(random_ir(seed, typed=True))


def test_every_mistake_is_named_by_its_rule_and_place() -> None:
    """One violation at a random place: the error names the rule and the path."""
    score = sweep(range(0, 6, 2))
    assert not score.misses, "\n".join(score.misses)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 200, 10))
def test_every_mistake_is_named_in_hundreds_of_graphs(start: int) -> None:
    score = sweep(range(start, start + 10))
    assert not score.misses, "\n".join(score.misses)


def test_the_table_of_mistakes_covers_the_rules() -> None:
    """All rules about the content of a file, except those about running and saving."""
    assert len(VIOLATIONS) >= 60
    covered = {kind.rule for kind in VIOLATIONS.values()}
    assert covered == {f"R{number}" for number in (*range(1, 13), 15, 16, 17)}


def _said_under(*hash_seeds: int, count: str = "") -> list[str]:
    """Return the results of processes for some graphs, each with its own hash seed; two run at a time."""

    def said(hash_seed: int) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        command = [sys.executable, "-m", "tests.random_irs.reports", *count.split()]
        return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(said, hash_seeds))


@pytest.mark.slow
def test_nothing_depends_on_the_order_of_sets() -> None:
    """Files, optimised graphs, pictures and reports are the same under every seed of Python's hashes."""
    first, *others = _said_under(*range(10))
    assert len(first.splitlines()) > 100
    assert [said == first for said in others] == [True] * 9


def test_two_processes_say_the_same() -> None:
    """A sample of the test above."""
    one, other = _said_under(1, 12345, count="4")
    assert one.splitlines() == other.splitlines() != []


def test_a_failing_graph_becomes_small() -> None:
    """Everything that is not needed to fail is removed: of a graph with a certain operator, that node is left."""
    ir = next(ir for _, ir in graphs(range(100)) if len(ir.nodes) > 3 and ir.params)
    wanted = ir.nodes[len(ir.nodes) // 2].op_type
    least = shrunk(ir, lambda one: any(node.op_type == wanted for node in one.nodes))
    assert [node.op_type for node in least.nodes] == [wanted]
    assert not least.modules
