"""Many random models at once.

python -m tests.random_models [COUNT]     prints what is wrong, shrunk, and the figures
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from tests.proof import quiet
from tests.random_models.block import BLOCKS
from tests.random_models.differential import Compared, blocks_for, compared
from tests.random_models.properties import Verdict, judged
from tests.random_models.recipe import Recipe, drawn
from tests.random_models.refusals import reason_of
from tests.random_models.shrinking import reproduction, shrunk

MODELS = 1000
ENGINES = {"onnxruntime": 200, "inductor": 100}
_FIRST = 100_000  # of the seeds for engines


@dataclass
class Figures:
    """Results of a sweep."""

    models: int = 0
    exact: int = 0
    blocks: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def swept(seeds: Iterable[int], *, thorough: bool = True) -> Figures:
    """Check the models of these seeds; a failing one is reduced first."""
    found = Figures()
    for seed in seeds:
        recipe = _drawn(seed)
        verdict = judged(recipe, thorough=thorough)
        found.models += 1
        found.blocks.update(name for name, _ in recipe.steps)
        if verdict.fault:
            found.faults.append(told(recipe, verdict, thorough=thorough))
        elif verdict.refusal:
            found.refused[reason_of(verdict.refusal)] += 1
        else:
            found.exact += 1
    return found


def told(recipe: Recipe, verdict: Verdict, *, thorough: bool = True) -> str:
    """A failure with the smallest model that fails so, as a script."""
    kind = verdict.fault.partition(":")[0]
    least = shrunk(recipe, lambda one: judged(one, thorough=thorough).fault.partition(":")[0] == kind)
    return f"{judged(least, thorough=thorough).fault}\n{reproduction(least)}"


def in_engine(seed: int, engine: str) -> Compared:
    """Run a plain model, drawn from the blocks for an engine, in that engine."""
    with quiet():
        recipe = drawn(seed, blocks_for(engine), plain=True)
    return compared(recipe, engine)


def _drawn(seed: int) -> Recipe:
    with quiet():
        return drawn(seed)


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    torch.set_num_threads(1)
    found = swept(range(MODELS))
    rows: dict[str, int | float | str] = {
        "random models": found.models,
        "blocks that they are drawn from": len(BLOCKS),
        "equal to eager bit for bit, and in all else": found.exact,
        "refused, as torch.export refuses them": sum(found.refused.values()),
        **{f"refused: {reason}": count for reason, count in found.refused.most_common()},
        "wrong": len(found.faults),
    }
    for engine, count in ENGINES.items():
        kinds = Counter(in_engine(seed, engine).kind for seed in range(_FIRST, _FIRST + count))
        rows |= {f"{engine}: {kind}": kinds[kind] for kind in ("same", "rounding", "refused", "apart")}
    return rows
