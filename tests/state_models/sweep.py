"""Capture every case, save, load and run it, and compare with eager of an untouched model in another process.

python -m tests.state_models.sweep [PIECE | CLASS ...]     prints what is wrong; of those named, every verdict
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.proof import quiet
from tests.state_models.case import (
    CALLS,
    ROADS,
    Case,
    ambient,
    ambient_cases,
    example,
    inputs,
    random_cases,
    single_cases,
)
from tests.state_models.forked import in_children
from tests.state_models.oracle import expected
from tests.state_models.piece import PIECES
from torch_ir import IR, CaptureWarning, IRExecutor, extract_ir, load_ir, meta_init, save_ir
from torch_ir.errors import TorchIRError

RANDOM = 200
WRONG, SAME, REFUSED, WARNED = "silently wrong", "same", "refused", "warned"
SPOKEN = (
    "state that the graph does not keep",
    "the graph runs only if",
    "are unknown: they were built on meta",
    "reads the class of a tensor",
    "the graph is specialised to that value",
)


class Verdict(NamedTuple):
    kind: str
    told: str = ""


class Ran(NamedTuple):
    """Results of the graph of a case, by call, and the warnings of the capture."""

    results: list[torch.Tensor]
    warned: list[str]
    leftovers: str


def swept(cases: Sequence[Case]) -> list[Verdict]:
    wanted = expected(cases)
    with quiet():
        warm_up()
        found = in_children(_ran, cases)
    return [judged(want, got) for want, got in zip(wanted, found, strict=True)]


def warm_up() -> None:
    """Trigger torch's lazy imports for capture before any fork."""
    for road, device in itertools.product(ROADS, ("cpu", "meta")):
        extract_ir(
            nn.Linear(2, 2, device=device).eval(), (torch.zeros(1, 2, device=device),), strict=False, capture=road
        )


def _ran(case: Case) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = case.model().state_dict()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            ir, changed = extracted(case)
        except TorchIRError as error:
            return f"{REFUSED}: {type(error).__name__}: {error}"
    told = [str(warning.message) for warning in caught if warning.category is CaptureWarning]
    return results(ir, weights, told, ", ".join(changed))


def extracted(case: Case) -> tuple[IR, list[str]]:
    """Return the graph of a case, and the names of the weights that the capture changed."""
    with ambient(case.mode):
        if case.on_meta:
            with meta_init():
                model = case.model()
        else:
            model = case.model()
        before = {name: value.clone() for name, value in model.state_dict().items() if not value.is_meta}
        given = example().to("meta") if case.on_meta else example()
        ir = extract_ir(model, (given,), strict=False, capture=case.road)
    return ir, [name for name, value in before.items() if not _same(model.state_dict().get(name), value)]


def results(ir: IR, weights: Mapping[str, torch.Tensor], told: list[str], leftovers: str = "") -> Any:
    """Save, load and run the graph of a case, call after call; return the results, or why it does not run."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            save_ir(ir, Path(folder) / "ir.json")
            executor = IRExecutor(load_ir(Path(folder) / "ir.json"), weights)
        torch.manual_seed(0)
        returned = [executor(inputs()[number]) for number in CALLS]
    except TorchIRError as error:
        return f"{REFUSED}: {type(error).__name__}: {error}"
    return Ran(returned, told, leftovers)


def judged(wanted: Any, got: Any) -> Verdict:
    """Compare the results of a graph, or its refusal, with those of eager."""
    if isinstance(got, str):
        return Verdict(REFUSED if got.startswith(REFUSED) else WRONG, got)
    if isinstance(wanted, str):
        return Verdict(WRONG, f"eager raises {wanted}")
    if got.leftovers:
        return Verdict(WRONG, f"the capture changed {got.leftovers}")
    wrong = [
        number for number, (one, other) in enumerate(zip(got.results, wanted, strict=True)) if not _same(one, other)
    ]
    if not wrong:
        return Verdict(SAME, "; ".join(told for told in got.warned if SPOKEN[0] in told))
    if any(sign in told for sign in SPOKEN for told in got.warned):
        return Verdict(WARNED, "; ".join(got.warned))
    return Verdict(WRONG, f"calls {wrong} differ")


def _same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def all_cases() -> list[Case]:
    return [*single_cases(), *ambient_cases(), *random_cases(RANDOM)]


def wrong(cases: Sequence[Case], verdicts: Sequence[Verdict]) -> list[str]:
    return [f"{case}: {verdict.told}" for case, verdict in zip(cases, verdicts, strict=True) if verdict.kind == WRONG]


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    cases = all_cases()
    verdicts = swept(cases)
    print(*wrong(cases, verdicts), sep="\n", file=sys.stderr)
    rows: dict[str, int | float | str] = {
        "captures": len(cases),
        "pieces that the models are made of": sum(map(len, PIECES.values())),
    }
    for group in dict.fromkeys(case.group for case in cases):
        found = Counter(verdict.kind for case, verdict in zip(cases, verdicts, strict=True) if case.group == group)
        rows[group] = ", ".join(f"{found[kind]} {kind}" for kind in (SAME, REFUSED, WARNED) if found[kind])
    return {**rows, WRONG: sum(verdict.kind == WRONG for verdict in verdicts)}


def main() -> int:
    """Sweep the cases of the pieces that are named, or all cases."""
    named = set(sys.argv[1:])
    every = [*single_cases(), *ambient_cases()]
    cases = [case for case in every if named & {*case.pieces, case.group}] if named else all_cases()
    verdicts = swept(cases)
    for case, verdict in zip(cases, verdicts, strict=True):
        if verdict.kind == WRONG or named:
            print(case, *verdict, sep=" | ")
    print(Counter(verdict.kind for verdict in verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
