"""Sweeps over random graphs, and their figures."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.random_irs.draft import random_ir
from tests.random_irs.properties import PROPERTIES
from tests.random_irs.shrink import shrunk
from tests.random_irs.violations.kinds import VIOLATIONS
from tests.random_irs.violations.sweep import sweep as sweep_violations
from torch_ir.ir import IR

GRAPHS = 2000
_BROKEN = 200  # graphs in which every kind of violation is possible
REGRESSIONS = Path(__file__).resolve().parents[1] / "data" / "regressions" / "irs"


def graphs(seeds: Iterable[int]) -> Iterator[tuple[int, IR]]:
    """A graph for each seed: half of them pass the full check."""
    for seed in seeds:
        yield seed, random_ir(seed, typed=seed % 2 == 0)


def fault(name: str, seed: int, ir: IR) -> str:
    """Return the error of a graph, and the text of its reduced form, to be stored among the regressions."""
    holds = PROPERTIES[name]
    found = holds(ir)
    if not found:
        return ""
    kind = found.partition(":")[0]
    least = shrunk(ir, lambda one: holds(one).startswith(kind))
    return f"seed {seed}, {name}: {found}\n{least.to_json()}"


def operators_in(seeds: Iterable[int]) -> set[str]:
    return {node.op_type for _, ir in graphs(seeds) for node in ir.all_nodes()}


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep, in order."""
    faults = [found for seed, ir in graphs(range(GRAPHS)) for name in PROPERTIES if (found := fault(name, seed, ir))]
    score = sweep_violations(range(_BROKEN))
    made = sum(score.made.values())
    return {
        "random graphs": GRAPHS,
        "operators in them": len(operators_in(range(GRAPHS))),
        "properties that failed": len(faults),
        "kinds of violations": len(VIOLATIONS),
        "violations made": made,
        "caught": score.caught,
        "by the right rule": score.right_rule,
        "at the right path": score.right_path,
        "mutation score of check": round(100 * (made - len(score.misses)) / made, 2),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
