"""Outcome of a case: refused by eager or by torch.export, exact, or unsupported."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from tests.operators.cases import SEED, Case, cases, database
from tests.proof import quiet
from torch_ir import IR, ExportError, IRExecutor, TorchIRError, extract_ir
from torch_ir.run.tolerances import compare

EAGER, EXPORT, CARRIED, LOST = "eager refuses", "torch.export refuses", "carried", "lost"
# Uninitialised values: only shape and dtype can be compared.
UNINITIALISED = frozenset(["empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"])
_RESHAPES = "changes the shape or strides of an input, which torch cannot functionalise"
_POLYGAMMA = "torch treats `polygamma_` as a custom operator and does not functionalise it"
# Captured by torch.export, but not carried; a reason for each.
EXCEPTIONS = {
    "as_strided in-place": _RESHAPES,
    "broadcast_shapes functional": "returns Python numbers and no tensor; a graph without outputs is rejected",
    "masked_select functional": "if the mask broadcasts, torch's own bound of the size is too small",
    "resize_ in-place": _RESHAPES,
    "squeeze in-place": _RESHAPES,
    "squeeze.multiple in-place": _RESHAPES,
    "t in-place": _RESHAPES,
    "transpose in-place": _RESHAPES,
    **{f"polygamma.polygamma_n_{order} in-place": _POLYGAMMA for order in range(5)},
}


@dataclass
class Tally:
    """Counts by dtype and outcome, and every loss by name."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, outcome: str, reason: str) -> None:
        self.counts[case.dtype, outcome] += 1
        if outcome == LOST:
            self.lost[case.name] = reason
        if outcome == EXPORT:
            self.refused[case.operator] += 1

    def merge(self, other: "Tally") -> None:
        self.counts += other.counts
        self.lost |= other.lost
        self.refused += other.refused

    def unexplained(self) -> dict[str, str]:
        """Return the losses without a listed exception."""
        known = tuple(f"{name} " for name in EXCEPTIONS)
        return {name: why for name, why in self.lost.items() if not name.startswith(known)}


def sweep(operators: Iterable[object], samples: int) -> Tally:
    """Every case of these operators on its way."""
    tally = Tally()
    with quiet():
        for operator in operators:
            for case in cases(operator, samples):
                tally.add(case, *carry(case))
    return tally


def carry(case: Case) -> tuple[str, str]:
    """Extract, save, load, execute and compare one case."""
    given = [tensor.clone() for tensor in case.tensors]
    try:
        torch.manual_seed(SEED)
        with torch.no_grad():
            expected = case.model(*given)
    except Exception as error:  # samples that are meant to fail
        return EAGER, str(error)
    try:
        ir = extract_ir(case.model, case.tensors, strict=False)
    except ExportError as error:
        return EXPORT, str(error)
    except TorchIRError as error:
        return LOST, f"{type(error).__name__}: {error}"
    try:
        executor = IRExecutor(IR.from_json(ir.to_json()), {})
        torch.manual_seed(SEED)
        outcome = executor.run([tensor.clone() for tensor in case.tensors])
    except TorchIRError as error:
        return LOST, f"{type(error).__name__}: {error}"
    wanted = [leaf for leaf in pytree.tree_leaves(expected) if isinstance(leaf, torch.Tensor)]
    changed = {executor.ir.graph_inputs.index(target): value for target, value in outcome.mutations.items()}
    pairs = [*zip(wanted, outcome.outputs, strict=True)]
    pairs += [(tensor, changed.get(index, case.tensors[index])) for index, tensor in enumerate(given)]
    return _judge(case, pairs)


def _judge(case: Case, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[str, str]:
    for expected, actual in pairs:
        if case.operator in UNINITIALISED:
            expected, actual = torch.zeros_like(expected), torch.zeros_like(actual)
        if reason := compare(expected, actual).reason:
            return LOST, reason
    return CARRIED, ""


def sweep_part(part: int, parts: int, step: int, samples: int) -> Tally:
    """One of several equal parts of every `step`-th operator of the database."""
    return sweep(database()[::step][part::parts], samples)
