"""Run cases in a back end, many in one compiled graph; rejected cases are found by bisection."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.backend_sweep.cases import Case
from tests.backend_sweep.judging import REFUSED, WRONG, in_float64, judge
from tests.backend_sweep.merging import merged
from tests.backend_sweep.own_paths import EXPORTED, PATHS, Run
from torch_ir import TorchIRError
from torch_ir.backends import compile
from torch_ir.errors import first_line
from torch_ir.ir import IR

BATCH = 24
_RECORDED = (bool, int, float, str, type(None))  # attributes that a condition of the table may name
_OPERATOR = re.compile(r"\b\w+\.\w+\.\w+\b")


@dataclass(frozen=True)
class Outcome:
    """How a back end fared with a case on one set of values."""

    backend: str
    case: Case
    values: str
    verdict: str
    detail: str = ""

    def record(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "case": self.case.name,
            "operator": self.case.operator,
            "dtype": self.case.dtype,
            "values": self.values,
            "verdict": self.verdict,
            "detail": self.detail,
            "nodes": describe_nodes(self.case.ir),
        }


def describe_nodes(ir: IR) -> list[dict[str, Any]]:
    """Return the facts of a graph's nodes that rows of the table may use."""
    return [
        {
            "op": node.op_type,
            "attrs": {name: value for name, value in node.attrs.items() if isinstance(value, _RECORDED)},
            "given": list(node.args),
            "dtypes": [tensor.dtype for tensor in node.inputs],
            "shapes": [list(tensor.shape) for tensor in node.inputs],
            "made": [tensor.dtype for tensor in node.outputs],
        }
        for node in ir.nodes
    ]


def swept(backend: str, cases: Sequence[Case], batch: int = BATCH) -> Iterator[Outcome]:
    """The outcomes of all cases."""
    for start in range(0, len(cases), batch):
        yield from _tried(backend, cases[start : start + batch])


def _tried(backend: str, cases: Sequence[Case]) -> Iterator[Outcome]:
    if not cases:
        return
    try:
        run = _compiled(backend, cases)
        found = [outcome for values in _names(cases) for outcome in _judged_or_refused(backend, cases, values, run)]
    except TorchIRError as error:
        yield from _divided(backend, cases, str(error), REFUSED)
    except Exception as error:  # a raw error of a runtime is a fault of ours
        yield from _divided(backend, cases, f"{type(error).__name__}: {first_line(error)[:200]}", WRONG)
    else:
        wrong = {outcome.case.name for outcome in found if outcome.verdict == WRONG} if len(cases) > 1 else set()
        yield from (outcome for outcome in found if outcome.case.name not in wrong)
        for case in cases:  # alone, so that none is blamed for its neighbours
            yield from _tried(backend, [case] if case.name in wrong else [])


def _divided(backend: str, cases: Sequence[Case], said: str, verdict: str) -> Iterator[Outcome]:
    """Set aside the cases whose operators an error names, else try halves; one alone has the verdict."""
    if len(cases) == 1:
        yield from (Outcome(backend, cases[0], values, verdict, said[:300]) for values in cases[0].runs)
        return
    named = set(_OPERATOR.findall(said))
    blamed = [case for case in cases if verdict == REFUSED and named.intersection(case.op_types)]
    if 0 < len(blamed) < len(cases):
        yield from (Outcome(backend, case, values, REFUSED, said[:300]) for case in blamed for values in case.runs)
        yield from _tried(backend, [case for case in cases if case not in blamed])
        return
    half = len(cases) // 2
    yield from _tried(backend, cases[:half])
    yield from _tried(backend, cases[half:])


def _compiled(backend: str, cases: Sequence[Case]) -> Run:
    """Compile without the comparison with the executor, which would refuse what has no row in the table."""
    ir = merged([case.ir for case in cases])
    weights = {f"c{at}_{name}": value for at, case in enumerate(cases) for name, value in case.weights.items()}
    with _time_limit(240):
        if prepare := PATHS.get(backend) or EXPORTED.get(backend):
            return prepare(ir, weights)
        return compile(ir, weights, backend=backend, level=None, verify=False).run


def _names(cases: Sequence[Case]) -> list[str]:
    return list(dict.fromkeys(values for case in cases for values in case.runs))


def _judged_or_refused(backend: str, cases: Sequence[Case], values: str, run: Run) -> list[Outcome]:
    """The outcomes on one set of values; a case that runs alone may be refused on some of them."""
    try:
        return list(_judged(backend, cases, values, run))
    except TorchIRError as error:
        if len(cases) > 1:
            raise
        return [Outcome(backend, cases[0], values, REFUSED, str(error)[:300])]


def _judged(backend: str, cases: Sequence[Case], values: str, run: Run) -> Iterator[Outcome]:
    given = [(case.runs.get(values) or next(iter(case.runs.values())))[0] for case in cases]
    torch.manual_seed(0)
    flat = [tensor.clone() for tensors in given for tensor in tensors]
    got = iter(run(flat))
    for case in cases:
        made: list[Tensor] = [next(got) for _ in case.ir.graph_outputs]
        if values in case.runs:
            tensors, wanted = case.runs[values]
            verdict, why = judge(wanted, made, None)
            if verdict == WRONG:
                verdict, why = judge(wanted, made, in_float64(case.model, tensors))
            yield Outcome(backend, case, values, verdict, why)


class _time_limit:  # used as a function
    """Raise TimeoutError in this thread after some seconds."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._over)
        signal.alarm(self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)

    def _over(self, *_: object) -> None:
        raise TimeoutError(f"it takes more than {self.seconds} seconds")
