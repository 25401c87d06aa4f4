"""Near misses by dtype and by value: stored and generated graphs in all dtypes, on extreme inputs and weights.

An optimised graph is compared with the graph that it was made of. At level `clean` every bit must be the same. At the
others, differences must be explained by the rounding of the original in its own dtype (`torch_ir.passes.rounding`).
"""

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from tests.near_graphs import BUILDERS
from tests.near_misses import TWISTS, _retype, twisted
from tests.patterns import Hit, fired
from tests.random_graphs import rebuilt, runs
from tests.soundness import _apart
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, Dtype
from torch_ir.passes import optimize
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.passes.probe_inputs import probes
from torch_ir.passes.random_check import NOTHING, prove
from torch_ir.run.executor import IRExecutor
from torch_ir.run.weight_files import random_weights

FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64", "int32", "uint8", "bool")
PLAIN, GENERATED = "as it is", "generated"
SAME, ROUNDING, UNCHANGED, WRONG = "same", "within rounding", "left as they are", "silently wrong"
Weights = Mapping[str, torch.Tensor]


class Case(NamedTuple):
    """A stored graph in a dtype, with a twist, and the level that it is optimised at."""

    hit: Hit
    dtype: str
    twist: str
    level: str

    def __str__(self) -> str:
        return f"{'/'.join(self.hit)}, {self.dtype}, {self.twist}, {self.level}"


def cases(hits: Iterable[Hit]) -> list[Case]:
    """Every stored graph in every dtype at every level, every twist of it in one dtype, and all generated graphs."""
    found = [Case(hit, dtype, GENERATED, "full") for dtype in FLOATS for hit in BUILDERS]
    for hit in hits:
        found += [Case(hit, dtype, PLAIN, level) for dtype in DTYPES for level in LEVELS]
        for twist in TWISTS:
            draw = random.Random(f"{hit}/{twist}")
            found.append(Case(hit, draw.choice(FLOATS), twist, "full"))
    return found


def graph_of(case: Case, graphs: Mapping[Hit, IR]) -> IR | None:
    """Return the graph of a case; None if operators refuse the dtype or the change cannot be made."""
    if case.twist == GENERATED:
        return BUILDERS[case.hit](case.dtype)
    ir: IR | None = in_dtype(graphs[case.hit], case.dtype)
    if ir is None or case.twist == PLAIN:
        return ir
    name, rule = case.hit
    place = fired(ir, name).get(rule)
    seed = zlib.crc32(f"{name}/{rule}/{case.twist}".encode())
    return None if place is None else twisted(ir, place, case.twist, random.Random(seed))


def in_dtype(ir: IR, dtype: str) -> IR | None:
    """A copy in which every tensor and number type of floating point is of this dtype; None where that does not run."""
    copy = ir.clone()
    if copy.functions or any(param.param is not None and param.param.data is not None for param in copy.params):
        return copy if dtype == "float32" else None
    for tensor in (*copy.graph_inputs, *copy.params):
        if tensor.dtype in FLOATS:
            tensor.dtype = dtype
    for node in copy.nodes:
        node.attrs = {
            name: Dtype(dtype) if isinstance(value, Dtype) and value in FLOATS else value
            for name, value in node.attrs.items()
        }
    try:
        _retype(copy)
        made = rebuilt(copy, copy.nodes, copy.graph_outputs).check()
    except (TorchIRError, ValueError):
        return None
    return made if runs(made) else None


def verdict(case: Case, ir: IR) -> str:
    """Classify the effect of optimising a graph on its results: one of the constants above, the last with a reason."""
    try:
        better, report = optimize(ir, case.level)
    except Exception as error:  # no pass may raise any exception
        return f"{WRONG}: {type(error).__name__}: {error}"
    if not report.changes:
        return UNCHANGED
    found = SAME
    for kind, weights in weight_sets(ir):
        why = exact_fault(ir, better, weights) if case.level == "clean" else ""
        if case.level != "clean":
            proof = prove(ir, better, weights=weights, trials=1, changes=report.changes)
            why = "" if proof.reason == NOTHING else proof.reason
            found = ROUNDING if proof.rounding else found
        if why:
            return f"{WRONG}: {why}, weights {kind}"
    return found


def weight_sets(ir: IR) -> Iterator[tuple[str, Weights]]:
    """Random weights, and the same with zeros among them, larger, and smaller."""
    drawn = random_weights(ir)
    yield "random", drawn
    for kind in ("zeros", "large", "small") if drawn else ():
        yield kind, {key: _changed(value, kind) for key, value in drawn.items()}


def _changed(value: torch.Tensor, kind: str) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    if kind == "zeros":
        made = value.flatten().clone()
        made[::3] = 0
        return made.view(value.shape)
    power = 3 if value.dtype == torch.float16 else 8
    return value * 2.0 ** (power if kind == "large" else -power)


def exact_fault(ir: IR, better: IR, weights: Weights) -> str:
    """The first result that is not the same to the last bit, or nothing."""
    one, other = IRExecutor(ir, weights), IRExecutor(better, weights)
    for number, probe in enumerate(probes(ir, None, 1)):
        results = []
        for executor in (one, other):
            torch.manual_seed(number)
            try:
                outcome = executor.run([value.clone() for value in probe.values])
            except TorchIRError as error:
                if executor is one:
                    break
                return f"it fails on {probe.kind}: {error}"
            results.append([*outcome.outputs, *outcome.mutations.values()])
        for first, second in zip(*results, strict=True) if len(results) == 2 else ():
            if why := _apart(first, second):
                return f"{why} on {probe.kind}"
    return ""
