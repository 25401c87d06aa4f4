"""Decide whether a corrupted graph computes another function by running graphs, without the verifier.

A mutant is equivalent if it says the same about its tensors and its structure, and gives the bits of the original on 24
sets of inputs of several scales and sizes, half of them with other weights; or if only rounding differs, which is gone
in float64.
"""

import contextlib
import math
import random
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tests.mutations.kinds import Mutant, graphs
from tests.mutations.subjects import Subject
from tests.mutations.widening import dtypes_in, widened, widened_table, widened_values
from torch_ir import IR, IRExecutor, TorchIRError
from torch_ir.ir import evaluate
from torch_ir.ir.graph.io_tree import leaves
from torch_ir.run.compiled_plan import computed
from torch_ir.run.executor import flatten_call, read_sizes
from torch_ir.verify.reference_run import values_outside_state_dict

SETS = 24
PATIENCE = 2.0  # seconds for a mutant whose loop may never end, in addition to the original's time
_SCALES = (1.0, 0.01, 0.3, 3.0, 10.0, 0.0)
Values = list[Any]
Weights = Mapping[str, torch.Tensor]


class Endless(BaseException):
    """A mutant that does not end; not an Exception, which the executor would wrap."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Endless after a while."""

    def stop(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Original:
    """A subject with the results of its graph on many inputs."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.weights: Weights = subject.model.state_dict()
        start = time.perf_counter()
        self.cases = list(self._cases())
        self.patience = PATIENCE + 10 * (time.perf_counter() - start)
        assert len(self.cases) > SETS // 2, f"{subject.name} refuses most of the inputs that are drawn"

    def is_equivalent(self, mutant: Mutant) -> bool:
        """Whether the mutant computes the same as the original."""
        if not _says_the_same(self.subject.ir, mutant.ir):
            return False
        try:
            with limited(self.patience):
                return self._gives_the_same(mutant)
        except (TorchIRError, Endless):
            return False

    def _gives_the_same(self, mutant: Mutant) -> bool:
        known = values_outside_state_dict(mutant.ir, self.subject.model)
        if mutant.weights is not None:  # of another checkpoint, every bit counts
            own = [(values, wanted) for values, weights, wanted in self.cases if weights is self.weights]
            return all(is_same(wanted, results(mutant.ir, values, mutant.weights, known)) for values, wanted in own)
        if all(is_same(wanted, results(mutant.ir, values, w, known)) for values, w, wanted in self.cases):
            return True
        if dtypes_in(mutant.ir) != dtypes_in(self.subject.ir):
            return False  # in float64 this would not show
        original, ir = widened(self.subject.ir), widened(mutant.ir)
        for values, weights, _ in self.cases:
            wide = widened_values(values), widened_table(weights), widened_table(known)
            if not is_same(results(original, *wide), results(ir, *wide), 1e-9):
                return False
        return True

    def _cases(self) -> Iterator[tuple[Values, Weights, Any]]:
        generator, rng = torch.Generator().manual_seed(0), random.Random(0)
        given = flatten_call(self.subject.ir, self.subject.args, self.subject.kwargs)
        known = values_outside_state_dict(self.subject.ir, self.subject.model)
        for number in range(SETS):
            weights = self.weights if number % 2 else _perturbed(self.weights, generator)
            values = _drawn(self.subject.ir, given, _SCALES[number % len(_SCALES)], rng, generator)
            with contextlib.suppress(TorchIRError):  # sizes or indices that do not go together
                yield values, weights, results(self.subject.ir, values, weights, known)


def results(ir: IR, values: Values, weights: Weights, constants: Weights) -> list[Any]:
    """All that a graph leaves behind: its outputs, and every input and weight as it is afterwards."""
    torch.default_generator.manual_seed(0)
    executor = IRExecutor(ir, weights, constants)
    outcome = executor.run([_copy(value) for value in values])
    others = [computed(leaf, outcome.sizes) for _, leaf in leaves(ir.output_tree)]
    inputs = [outcome.mutations.get(tensor, value) for tensor, value in zip(ir.graph_inputs, values, strict=True)]
    state = {key: value for key, value in executor.state.items() if key in weights}
    return [*others, *outcome.outputs, *inputs, *(state.get(key, weights[key]) for key in sorted(weights))]


def is_same(wanted: list[Any], found: list[Any], tolerance: float = 0.0) -> bool:
    """Whether two lists of results agree to the bit, or but for a fraction of their size."""
    return len(wanted) == len(found) and all(_is_same(a, b, tolerance) for a, b in zip(wanted, found, strict=True))


def _is_same(wanted: Any, found: Any, tolerance: float) -> bool:
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return type(wanted) is type(found) and bool(wanted == found or wanted is found)
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        return False
    equal = (wanted == found) | ((wanted != wanted) & (found != found))
    if bool(equal.all()) or not tolerance or not (wanted.is_floating_point() or wanted.is_complex()):
        return bool(equal.all())
    gaps = torch.where(equal, 0.0, (wanted - found).abs().double())
    largest = float(wanted.abs().nan_to_num(0.0, 0.0).max())
    return math.isfinite(float(gaps.max())) and float(gaps.max()) <= tolerance * max(largest, 1e-3)


def _says_the_same(ir: IR, other: IR) -> bool:
    """Whether tensors of the same name have equal declarations, and the nesting is the same."""
    one, two = (
        {(g, t.name): (t.shape, t.dtype, t.stride) for g, graph in enumerate(graphs(each)) for t in graph.tensors()}
        for each in (ir, other)
    )
    alike = all(two.get(name, facts) == facts for name, facts in one.items())
    return alike and (ir.input_tree, ir.output_tree) == (other.input_tree, other.output_tree)


def _perturbed(weights: Weights, generator: torch.Generator) -> Weights:
    """Return other weights; possible variances stay positive, and tied weights stay tied."""
    made: dict[int, torch.Tensor] = {}
    for value in weights.values():
        if value.is_floating_point() and value.data_ptr() not in made:
            factors, offsets = torch.rand(2, *value.shape, generator=generator)
            made[value.data_ptr()] = (value * (0.5 + factors) + 0.1 * offsets).to(value.dtype)
    return {key: made.get(value.data_ptr(), value) for key, value in weights.items()}


def _drawn(ir: IR, given: Values, scale: float, rng: random.Random, generator: torch.Generator) -> Values:
    """Return random inputs like the given ones; integers stay in their range, and ascending ones are unchanged."""
    sizes = read_sizes(ir, given)
    for name, symbol in ir.symbols.items():
        if symbol.dim is not None and symbol.tensor in ir.graph_inputs:
            sizes[name] = rng.randint(max(symbol.min or 2, 2), min(symbol.max or 9, 9))
    values = []
    for tensor, value in zip(ir.graph_inputs, given, strict=True):
        if isinstance(value, torch.Tensor):
            value = _drawn_tensor(value, [int(evaluate(dim, sizes)) for dim in tensor.shape], scale, generator)
        values.append(value)
    return values


def _drawn_tensor(value: torch.Tensor, shape: list[int], scale: float, generator: torch.Generator) -> torch.Tensor:
    if value.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.7
    if value.is_floating_point() or value.is_complex():
        return (torch.randn(shape, generator=generator) * scale).to(value.dtype)
    if value.numel() == 0 or bool((value.flatten().diff() >= 0).all()):
        return value
    low, high = value.amin(0, keepdim=True), value.amax(0, keepdim=True)  # columns may have a range each
    return (low + (torch.rand(shape, generator=generator) * (high - low + 1)).floor()).to(value.dtype)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
