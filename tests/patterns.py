"""For every rule of every pass, a small stored graph that it changes: `python -m tests.patterns` adds missing ones.

They are drawn at random and shrunk. A rule that no random graph has comes from the tests of its pass.
"""

import functools
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.random_graphs import random_graph, shrunk
from tests.soundness import are_exact
from torch_ir.ir import IR
from torch_ir.passes import Pass, list_passes, optimize

FOLDER = Path(__file__).parent / "data" / "patterns"
Hit = tuple[str, str]  # a pass, and a rule of it


@functools.cache
def stored() -> Mapping[Hit, IR]:
    """The stored graphs by pass and rule; they are shared, so that a change needs a clone."""
    return {(path.parent.name, path.stem): IR.load(path) for path in sorted(FOLDER.glob("*/*.json"))}


def fired(ir: IR, name: str) -> dict[str, str]:
    """The rules that a pass applies to a graph, each with a node of the graph that is concerned."""
    nodes = {node.name for node in ir.nodes}
    found: dict[str, str] = {}
    for change in optimize(ir, passes=[name])[1].changes:
        place = next((one for one in (change.node, *change.origins) if one in nodes), None)
        if place is not None:
            found.setdefault(change.rule, place)
    return found


def add(ir: IR, made: Pass) -> None:
    """Store the smallest reduced graph on which a rule still fires, for rules that have none yet."""
    for rule in fired(ir, made.name):
        path = FOLDER / made.name / f"{rule}.json"
        if not path.exists():
            shrunk(ir, lambda one, rule=rule: rule in fired(one, made.name)).save(path)
            print(f"{made.name}: {rule}", flush=True)


def main(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for seed in range(first, last):
        for made in list_passes():
            add(random_graph(seed, steady=not are_exact([made.name])), made)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
