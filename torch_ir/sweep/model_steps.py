"""The steps of a sweep for one model, and the facts each reports."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.analysis import cost
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR
from torch_ir.ir.json.digest import stated_digest
from torch_ir.passes import Report, optimize
from torch_ir.passes.random_check import prove
from torch_ir.run.executor import flatten_call
from torch_ir.verify import VerificationReport, verify_ir_with_state_dict

if TYPE_CHECKING:
    from torch_ir.sweep.case import Case
    from torch_ir.sweep.job import Job


class Work:
    """The state of one model; `problem` describes a wrong result."""

    def __init__(self, job: Job, graph: Path) -> None:
        self.problem = ""
        self._entry, self._plan, self._file = job.entry, job.plan, graph
        self._case: Case | None = None
        self._ir: IR | None = None
        self._better: tuple[IR, Report] | None = None

    def take(self, step: str) -> dict[str, Any]:
        """Run a step; return its facts and its duration."""
        start = time.perf_counter()
        facts = getattr(self, f"_{step}")()
        return {**facts, f"{step}_seconds": round(time.perf_counter() - start, 4)}

    @property
    def case(self) -> Case:
        assert self._case is not None  # `open` is the first step
        return self._case

    @property
    def ir(self) -> IR:
        assert self._ir is not None  # `extract` is the second
        return self._ir

    def _open(self) -> dict[str, Any]:
        torch.manual_seed(self._plan.seed)
        self._case = self._plan.open(self._entry)
        return {}

    def _extract(self) -> dict[str, Any]:
        self._ir = self.case.extract()
        text = self._ir.to_json().encode()
        self._file.write_bytes(text)
        stated = stated_digest(text)
        assert stated is not None  # every text ends with one
        learned = [param for param in self._ir.params if param.param is None or param.param.is_learnt]
        return {
            "nodes": len(self._ir.nodes),
            "parameters": sum(math.prod(param.shape) for param in learned),
            "digest": stated.digest.removeprefix("sha256:"),
            "graph_bytes": self._file.stat().st_size,
        }

    def _cost(self) -> dict[str, Any]:
        costs = cost(self.ir)
        return {"flops": _number(costs.flops), "bytes": _number(costs.bytes)}

    def _optimize(self) -> dict[str, Any]:
        self._better = optimize(self.ir, self._plan.level)
        return {"nodes_after": len(split_prologue(self._better[0])[1])}

    def _verify(self) -> dict[str, Any]:
        """Compare the captured graph with the model, and the optimised graph with the captured one."""
        torch.manual_seed(self._plan.seed)
        model = self.case.build()
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        args, kwargs = self.case.inputs(self.ir, self._plan.seed)
        is_valid, report = verify_ir_with_state_dict(self.ir, weights, model, args, test_kwargs=kwargs)
        if not is_valid:
            self.problem = _what_differs(report)
        facts = {"max_diff": _finite(report.max_diff)}
        if is_valid and self._better is not None:
            flat, (better, optimised) = flatten_call(self.ir, args, kwargs), self._better
            proof = prove(self.ir, better, inputs=flat, weights=weights, changes=optimised.changes)
            self.problem = f"only after optimisation: {proof.reason}" if proof.reason else ""
            facts["max_diff_after"] = _finite(proof.max_diff)
        return facts


def _number(amount: int | str) -> int | None:
    return amount if isinstance(amount, int) else None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _what_differs(report: VerificationReport) -> str:
    if report.error_message:
        return report.error_message.partition("\n")[0]
    wrong = next((item for item in report.output_details if not item["is_close"]), None)
    return f"{wrong['name']} differs: {wrong['reason']}" if wrong else "the results differ"
