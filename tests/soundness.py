"""Properties that every pass must keep on every graph."""

from collections.abc import Collection, Mapping, Sequence

import torch

from tests.random_graphs import Values, inputs_of, sizes_of
from torch_ir.analysis.cost_model.cost_summary import measured_in_all
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR
from torch_ir.passes import optimize
from torch_ir.passes.optimize_levels import CLEAN
from torch_ir.passes.pass_registry import find_pass
from torch_ir.passes.pipeline import Step
from torch_ir.passes.random_check import NOTHING, prove
from torch_ir.rewrite.change_log import Change
from torch_ir.run.executor import IRExecutor, Outcome
from torch_ir.run.weight_files import random_weights


def are_exact(passes: Sequence[Step]) -> bool:
    """Whether these passes promise to leave every bit as it is."""
    return all(step in CLEAN or callable(step) for step in passes)


def fault(ir: IR, passes: Sequence[Step], *, settles: bool = True) -> str:
    """Return the error of these passes on a graph, or nothing; passes at a fixed point must change nothing more."""
    given = ir.to_json()
    try:
        better, report = optimize(ir, passes=passes)
        text = better.to_json()
        if ir.to_json() != given:
            return "the given graph was changed"
        if optimize(ir, passes=passes)[0].to_json() != text:
            return "the same graph gives two results"
        if IR.from_json(text).to_json() != text:
            return "the result is not what its file says"
        if settles and (more := optimize(better, passes=passes)[1].changes):
            return f"not settled: {more[0].rule} at {more[0].node}"
    except Exception as error:  # no pass may raise any exception
        return f"{type(error).__name__}: {error}"
    is_exact = are_exact(passes)
    try:
        for number, sizes in enumerate(sizes_of(ir)):
            found = _values_fault(ir, better, sizes, number, report.changes, is_exact)
            if found := found or _memory_fault(ir, better, sizes, number):
                return f"{found}, at {dict(sizes)}" if sizes else found
    except TorchIRError as error:
        return f"the result does not run: {error}"
    return _cost_fault(ir, better, passes)


def _cost_fault(ir: IR, better: IR, passes: Sequence[Step]) -> str:
    """Whether a cost of the graph increased although no pass may increase it."""
    if not all(isinstance(step, str) for step in passes):
        return ""
    allowed = {name for step in passes for name in find_pass(str(step)).may_raise}
    if not _worse(ir, better, allowed):
        return ""
    # What a function computes from weights alone is computed once only after this pass, which is in every level.
    outside = (optimize(graph, passes=["hoist-from-functions"])[0] for graph in (ir, better))
    return _worse(*outside, allowed)


def _worse(ir: IR, better: IR, allowed: Collection[str]) -> str:
    """Return the first cost that increased, unless it is one of those that may."""
    before, after = measured_in_all(ir), measured_in_all(better)
    if after.once < before.once:  # for a result that depends only on weights, removing a copy means recomputing
        return ""
    for name in ("nodes", "flops", "bytes", "peak", "params"):
        old, new = getattr(before, name), getattr(after, name)
        if name not in allowed and weight_of(new) > weight_of(old):
            return f"worse: {name} {old} -> {new}"
    return ""


def _values_fault(
    ir: IR, better: IR, sizes: Mapping[str, int], seed: int, changes: Sequence[Change], is_exact: bool
) -> str:
    """Whether results and changed values are the same: to the last bit, or but for rounding."""
    if not is_exact:
        reason = prove(ir, better, inputs=inputs_of(ir, sizes, seed), trials=1, changes=changes).reason
        return "" if reason == NOTHING else reason
    one, other = IRExecutor(ir), IRExecutor(better)
    for number, special in enumerate((False, True)):
        weights = random_weights(ir, number)  # bound again, so that the prologue is computed again
        one.load_weights_from_state_dict(weights)
        other.load_weights_from_state_dict(weights)
        values = inputs_of(ir, sizes, seed + number, special=special)
        for _ in range(2):  # buffers that the graph changes persist from run to run
            first, second = _ran(one, values, seed), _ran(other, values, seed)
            if found := _difference(ir, first, second):
                return found
    return ""


def _ran(executor: IRExecutor, values: Values, seed: int) -> Outcome:
    torch.default_generator.manual_seed(seed)
    return executor.run([value.clone() for value in values])


def _difference(ir: IR, one: Outcome, other: Outcome) -> str:
    names = [f"result {tensor.name}" for tensor in ir.graph_outputs]
    names += [f"new value of {target.name}" for target, _ in ir.mutations]
    wanted, got = (_tensors(outcome) for outcome in (one, other))
    if len(wanted) != len(got):
        return f"{len(got)} results instead of {len(wanted)}"
    for name, first, second in zip(names, wanted, got, strict=True):
        if why := _apart(first, second):
            return f"{name}: {why}"
    return ""


def _tensors(outcome: Outcome) -> Values:
    return [*outcome.outputs, *outcome.mutations.values()]


def _apart(one: torch.Tensor, other: torch.Tensor) -> str:
    """How two tensors differ; every NaN is like every other."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{other.dtype}{list(other.shape)} instead of {one.dtype}{list(one.shape)}"
    if one.is_complex():
        return _apart(one.real, other.real) or _apart(one.imag, other.imag)
    if not one.is_floating_point():
        return "" if torch.equal(one, other) else "whole numbers differ"
    if not torch.equal(one.isnan(), other.isnan()):
        return "NaN in other places"
    first, second = one.nan_to_num(nan=0.0, posinf=None), other.nan_to_num(nan=0.0)
    if not torch.equal(first, second):
        return f"off by {float((first.double() - second.double()).abs().max()):.3g}"
    return "" if torch.equal(first.signbit(), second.signbit()) else "signs of zeros differ"


def _memory_fault(ir: IR, better: IR, sizes: Mapping[str, int], seed: int) -> str:
    """Whether results share memory that they did not share before."""
    weights = random_weights(ir)
    one, other = IRExecutor(ir, weights), IRExecutor(better, weights)
    values = inputs_of(ir, sizes, seed)
    before, first = _sharing(one, values, seed)
    after, second = _sharing(other, values, seed)
    if new := after - before:
        return f"{' and '.join(sorted(map(str, next(iter(new)))))} share memory"
    for index, (kept, result) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not any(f"result {index}" in pair for pair in before):
            for tensor in (kept, result):
                _spoil(tensor)
    if found := _difference(ir, _ran(one, values, seed), _ran(other, values, seed)):
        return f"after a result was written to, {found}" if _is_apart(found) else ""
    return ""


def _is_apart(found: str) -> bool:
    return not found.split(": ", 1)[-1].startswith(("off by", "signs of zeros"))  # rounding is judged elsewhere


def _spoil(tensor: torch.Tensor) -> None:
    """Write to a tensor, where that is possible at all."""
    if tensor.numel() and 0 not in tensor.stride():
        tensor.fill_(1)


def _sharing(executor: IRExecutor, values: Values, seed: int) -> tuple[set[frozenset[str]], Outcome]:
    """Return the pairs of inputs, weights and results that share memory."""
    torch.default_generator.manual_seed(seed)
    given = [value.clone() for value in values]
    held = dict(executor.state)
    outcome = executor.run(given)
    places: dict[int, list[str]] = {}
    named = {f"input {index}": value for index, value in enumerate(given)}
    named |= {f"weight {key}": value for key, value in held.items()}
    named |= {f"result {index}": value for index, value in enumerate(outcome.outputs)}
    for name, value in named.items():
        if value.numel():
            places.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    pairs = {frozenset((a, b)) for group in places.values() for a in group for b in group if a < b}
    return pairs, outcome
