"""Right and wrong graphs, each judged by verification and by an oracle process that ran the model."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from tests.corruptions import corruptions
from tests.proof import quiet
from tests.verification_oracle.plain import copied
from tests.verification_oracle.subjects import Subject, batches, find, names
from torch_ir import IR, GuardError, IRExecutor, TorchIRError, extract_ir, verify_ir_with_state_dict
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.run.compiled_plan import computed
from torch_ir.run.executor import flat_inputs
from torch_ir.verify.reference_run import values_outside_state_dict

ROOT = Path(__file__).resolve().parents[2]
CORRUPTED = 3  # graphs of each model
_AT_ONCE = 60  # models of one plain process
# Relative to the largest element: a larger difference is not rounding.
_FAR = {torch.float16: 0.02, torch.bfloat16: 0.1, torch.float32: 1e-3, torch.complex64: 1e-3}


@dataclass
class Found:
    """Counts by verdicts, and the two kinds of error by name."""

    graphs: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    models: int = 0
    false_passes: list[str] = field(default_factory=list)
    false_failures: list[str] = field(default_factory=list)

    def rows(self) -> dict[str, int | float | str]:
        beyond = self.graphs["right FAILED"] - len(self.false_failures)
        return {
            "models": self.models,
            "of them refused at capture, or with results that no process can send": self.refused,
            "graphs": sum(self.graphs.values()),
            "rejected by the oracle, and FAILED": self.graphs["wrong FAILED"],
            "wrong verdicts: rejected by the oracle, but PASSED": self.graphs["wrong PASSED"],
            "accepted by the oracle, and PASSED": self.graphs["right PASSED"],
            "wrong verdicts: captured, accepted by the oracle, but FAILED": len(self.false_failures),
            "corrupted, and FAILED on inputs that the oracle does not try": beyond,
        }


def sweep(chosen: Mapping[str, int]) -> Found:
    """Judge the captured graph of every model, and as many corrupted copies as its name is mapped to."""
    found = Found()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for group in batches(list(chosen), _AT_ONCE):
            expected = plain_runs(group)
            for name in group:
                with torch.random.fork_rng(devices=[]), quiet():
                    _judge(name, expected[name], chosen[name], found)
    finally:
        torch.set_num_threads(threads)
    return found


def plain_runs(group: list[str]) -> Mapping[str, list[Any]]:
    """Observe these models in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs.pt"
        command = [sys.executable, "-m", "tests.verification_oracle.plain", str(out), *group]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        runs: Mapping[str, list[Any]] = torch.load(out, weights_only=False)
    return runs


def _judge(name: str, expected: list[Any], corrupted: int, found: Found) -> None:
    found.models += 1
    captured = _captured(name)
    if captured is None or not isinstance(expected[0][0], tuple):
        found.refused += 1
        return
    for about, ir in _graphs(name, captured, corrupted):
        subject = find(name)
        is_right = agrees(ir, subject, expected)
        passed = _passes(ir, subject)
        found.graphs[f"{'right' if is_right else 'wrong'} {'PASSED' if passed else 'FAILED'}"] += 1
        if passed and not is_right:
            found.false_passes.append(f"{name}, {about}: PASSED, but it is wrong")
        if is_right and not passed and not about:
            found.false_failures.append(f"{name}: FAILED, but it is right")


def _captured(name: str) -> IR | None:
    subject = find(name)
    args, kwargs = copied(subject.calls[0])
    try:
        return extract_ir(subject.model, args, kwargs=kwargs, dynamic_shapes=subject.dynamic_shapes, strict=False)
    except TorchIRError:
        return None


def _graphs(name: str, captured: IR, corrupted: int) -> Iterator[tuple[str, IR]]:
    yield "", captured
    wrong = itertools.islice(corruptions(captured, seed=zlib.crc32(name.encode())), corrupted)
    yield from ((f"{each.node}: {each.how}", each.ir) for each in wrong)


def _passes(ir: IR, subject: Subject) -> bool:
    args, kwargs = subject.calls[0]
    try:
        return verify_ir_with_state_dict(ir, subject.model.state_dict(), subject.model, args, test_kwargs=kwargs)[0]
    except TorchIRError:
        return False


# -- the oracle's judgement, which uses no comparison of torch_ir -----------------------------------------------------


def agrees(ir: IR, subject: Subject, expected: list[Any]) -> bool:
    """Whether a graph reproduces the results and side effects of the plain process, on all inputs."""
    weights = {key: value.clone() for key, value in subject.model.state_dict().items()}
    for call, runs in zip(subject.calls, expected, strict=True):
        try:
            executor = IRExecutor(ir, weights, values_outside_state_dict(ir, subject.model))
            for run in runs:
                if isinstance(run, tuple) and not _same_run(executor, call, run, weights):
                    return False
        except GuardError:  # the graph's own guard rejects these inputs
            if runs is expected[0]:
                return False
        except TorchIRError:
            return False
    return True


def _same_run(executor: IRExecutor, call: Any, run: Any, weights: Mapping[str, Tensor]) -> bool:
    ir = executor.ir
    results, inputs, state = run
    torch.manual_seed(0)
    values = flat_inputs(ir, *copied(call))
    outcome = executor.run(values)
    got = pytree.tree_leaves(rebuild(ir.output_tree, outcome.outputs, lambda leaf: computed(leaf, outcome.sizes)))
    written = [outcome.mutations.get(tensor, value) for tensor, value in zip(ir.graph_inputs, values, strict=True)]
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    after = {**weights}
    held = executor.state
    for param in ir.params:
        if param.key in held:  # not if only the prologue reads it
            after.update(dict.fromkeys(param.param.keys if param.param else (), held[param.key]))
    return (
        len(got) == len(results)
        and all(map(is_same, results, got))
        and all(map(is_same, tensors, [value for value in written if isinstance(value, Tensor)]))
        and all(key in after and is_same(value, after[key]) for key, value in state.items())
    )


def is_same(wanted: Any, got: Any) -> bool:
    """Whether two values are the same, up to rounding far below the effect of an error."""
    if not isinstance(wanted, Tensor) or not isinstance(got, Tensor):
        return type(wanted) is type(got) and (wanted == got or wanted != wanted)
    if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
        return False
    if wanted.layout != torch.strided:
        wanted, got = wanted.to_dense(), got.to_dense()
    if wanted.is_complex():
        return is_same(torch.view_as_real(wanted), torch.view_as_real(got))
    if not wanted.is_floating_point():
        return bool((wanted == got).all())
    far = _FAR.get(wanted.dtype, 1e-6 if wanted.dtype == torch.float64 else 0.1)
    wanted, got = wanted.double(), got.double()
    finite = wanted.isfinite()
    if not torch.equal(_special(wanted), _special(got)):
        return False
    gap, scale = (wanted - got)[finite].abs(), wanted[finite].abs()
    return gap.numel() == 0 or bool(gap.max() <= far * scale.max())


def _special(value: Tensor) -> Tensor:
    """Which elements are NaN (2) or infinite (1, -1)."""
    return torch.where(value.isnan(), 2, torch.where(value.isinf(), value.sign(), 0.0))


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    return sweep(dict.fromkeys(names(), CORRUPTED)).rows()
