"""Proof by running: two graphs on the same random inputs and weights give the same results.

Where results differ a little, both graphs are run once more in float64: what is still there is a mistake, unless the
second graph is as near to the first one in float64 as the first one is itself; what is gone was rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.analysis.sizes import points_of
from torch_ir.errors import ExecutionError, TorchIRError
from torch_ir.ir import IR, Dtype, TensorMeta, evaluate
from torch_ir.ir.data import TensorData
from torch_ir.ir.functions import further_entries
from torch_ir.ops.names import TORCH_DTYPES
from torch_ir.ops.tensor_data import from_tensor, to_tensor
from torch_ir.passes.clean.fold_constants import fold_constants
from torch_ir.run.compare import compare
from torch_ir.run.executor import IRExecutor
from torch_ir.run.weights import random_weights

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_LARGEST_INDEX = 8
_MOST_UNITS = 16  # in the last place; where a graph is off by more, its dtype says nothing about what it computes
NOTHING = "both give NaN throughout, which proves nothing"
Inputs = Sequence[torch.Tensor]
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Proof:
    """How two graphs compare; `reason` says what is wrong, and `max_diff` how far any number is off."""

    trials: int
    max_diff: float
    reason: str = ""
    rounding: bool = False  # it took float64 to tell that only rounding differs

    @property
    def is_valid(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"not the same: {self.reason}"
        how = "the same in float64, rounding apart" if self.rounding else "the same"
        return f"{how} on {self.trials} sets of random inputs and weights, max diff {self.max_diff:.3g}"


def prove(
    before: IR,
    after: IR,
    dtype: str | None = None,
    *,
    inputs: Inputs | None = None,
    weights: Weights | None = None,
    trials: int = 2,
) -> Proof:
    """Run both graphs on random weights and inputs, or on these, in their own dtypes or all in one.

    Entry points of the file beside the graph, such as that for the next token, are run too.
    """
    proof = _compared(before, after, dtype, inputs, weights, trials)
    for name, entry in further_entries(before).items():
        if proof.is_valid:
            other = _compared(entry, after.functions[name], dtype, None, weights, trials)
            reason = f"{name}: {other.reason}" if other.reason else ""
            proof = Proof(trials, max(proof.max_diff, other.max_diff), reason, proof.rounding or other.rounding)
    return proof


def _compared(
    before: IR, after: IR, dtype: str | None, inputs: Inputs | None, weights: Weights | None, trials: int
) -> Proof:
    weights = random_weights(before) if weights is None else weights
    if dtype is not None:
        return _proved(retyped(before, dtype), retyped(after, dtype), inputs, weights, trials)
    proof = _proved(before, after, inputs, weights, trials)
    if proof.reason in ("", NOTHING) or not any(tensor.dtype in _FLOATS for tensor in before.graph_outputs):
        return proof
    try:
        wide = retyped(before, "float64")
        is_same = _proved(wide, retyped(after, "float64"), inputs, weights, trials).is_valid
        if is_same or _is_as_exact(before, after, wide, inputs, weights):
            return Proof(proof.trials, proof.max_diff, rounding=True)
    except ExecutionError:  # an operator that insists on another dtype: nothing speaks for rounding
        pass
    return proof


def retyped(ir: IR, dtype: str) -> IR:
    """A copy in which everything that computes with floating-point numbers does so in this dtype.

    Values that are known are computed before, in their own dtypes, as folding computes them.
    """
    if dtype not in _FLOATS:
        raise ExecutionError(f"{dtype!r} is not one of {', '.join(_FLOATS)}")
    copy = ir.clone()
    fold_constants(copy)
    _retype(copy, dtype)
    return copy


def _retype(ir: IR, dtype: str) -> None:
    for tensor in ir.tensors():
        if tensor.dtype in _FLOATS:
            if tensor.param is not None and tensor.param.data is not None:
                tensor.param = type(tensor.param)(
                    tensor.param.keys, tensor.param.kind, _converted(tensor.param.data, dtype)
                )
            tensor.dtype = dtype
    for node in ir.nodes:
        node.attrs = {name: _retyped_value(value, dtype) for name, value in node.attrs.items()}
        if not node.inputs and node.outputs[:1] and node.outputs[0].dtype == dtype and "dtype" in node.attrs:
            node.attrs["dtype"] = Dtype(dtype)  # what makes numbers out of nothing makes float32 unless it is told
    for body in ir.functions.values():
        _retype(body, dtype)


def _converted(data: TensorData, dtype: str) -> TensorData:
    return from_tensor(to_tensor(data).to(TORCH_DTYPES[dtype]))


def _retyped_value(value: Any, dtype: str) -> Any:
    return Dtype(dtype) if isinstance(value, Dtype) and value in _FLOATS else value


def _proved(before: IR, after: IR, inputs: Inputs | None, weights: Weights, trials: int) -> Proof:
    first, second = _bound(before, weights), _bound(after, weights)
    worst = 0.0
    points = _points(before)
    for trial in range(trials):
        values = drawn_inputs(before, points[trial % len(points)], trial) if inputs is None else _like(before, inputs)
        try:
            one = _ran(first, values, trial)
        except TorchIRError as error:
            which = "random inputs; give some of your own" if inputs is None else "these inputs"
            raise ExecutionError(f"the graph cannot be run on {which}: {error}") from error
        try:
            other = _ran(second, values, trial)
        except TorchIRError as error:
            return Proof(trial + 1, float("inf"), f"the second graph fails: {error}")
        if one and all(map(_is_nothing, one)) and all(map(_is_nothing, other)):
            return Proof(trial + 1, worst, NOTHING)
        for name, wanted, got in zip(_names(before), one, other, strict=True):
            difference = compare(wanted, got)
            worst = max(worst, difference.max_diff)
            if difference.reason:
                return Proof(trial + 1, worst, f"{name}: {difference.reason}")
    return Proof(trials, worst)


def _is_as_exact(before: IR, after: IR, wide: IR, inputs: Inputs | None, weights: Weights) -> bool:
    """Whether the second graph is as near to the first one in float64 as the first one itself is.

    Where numbers of a narrow dtype were folded, the rounding of what was folded is there in float64 too.
    """
    values = drawn_inputs(before, _points(before)[0]) if inputs is None else _like(before, inputs)
    one, other = (_ran(_bound(ir, weights), values, 0) for ir in (before, after))
    exact = _ran(_bound(wide, weights), [*map(_widened, values)], 0)
    return all(map(_is_near, one, other, exact))


def _is_near(one: torch.Tensor, other: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the second tensor is off by no more than the first one, which is off by a little."""
    if not one.is_floating_point() or not one.numel():
        return not compare(one, other).reason
    finite = one.isfinite()
    if not torch.equal(finite, other.isfinite()) or not finite.any():
        return not compare(one, other).reason
    error, others_error = ((values.double() - exact)[finite].abs().max() for values in (one, other))
    unit = torch.finfo(one.dtype).eps * exact[finite].abs().max()
    return bool(error <= _MOST_UNITS * unit and others_error <= 2 * error + unit)


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _bound(ir: IR, weights: Weights) -> IRExecutor:
    """A graph with those of the weights that it still has, in the dtypes that it has them in."""
    keys = {key: param.dtype for param in ir.params if param.param for key in param.param.keys}
    kept = {key: weight.to(TORCH_DTYPES[keys[key]]) for key, weight in weights.items() if key in keys}
    return IRExecutor(ir, kept)


def _points(ir: IR) -> list[Mapping[str, int]]:
    return sorted(points_of(ir), key=lambda point: sum(point.values())) or [{}]


def _is_nothing(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0 and bool(value.isnan().all())


def _ran(executor: IRExecutor, values: Sequence[Any], seed: int) -> list[Any]:
    torch.manual_seed(seed)
    copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    outcome = executor.run(copies)
    return [*outcome.outputs, *outcome.mutations.values()]


def _names(ir: IR) -> list[str]:
    return [tensor.name for tensor in ir.graph_outputs] + [target.name for target, _ in ir.mutations]


def _like(ir: IR, inputs: Inputs) -> list[Any]:
    return [value.to(TORCH_DTYPES[tensor.dtype]) for tensor, value in zip(ir.graph_inputs, inputs, strict=True)]


def drawn_inputs(ir: IR, sizes: Mapping[str, int], seed: int = 0) -> list[Any]:
    """Random values for the inputs of a graph: small whole numbers where they may be places in a table."""
    generator = torch.Generator().manual_seed(seed)
    rows = [int(evaluate(node["weight"].shape[0], sizes)) for node in ir.all_nodes() if _is_look_up(node.op_type)]
    largest = min([_LARGEST_INDEX, *rows])
    return [_drawn(tensor, sizes, largest, generator) for tensor in ir.graph_inputs]


def _is_look_up(op_type: str) -> bool:
    return op_type.startswith("aten.embedding")


def _drawn(tensor: TensorMeta, sizes: Mapping[str, int], largest: int, generator: torch.Generator) -> torch.Tensor:
    shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
    dtype = TORCH_DTYPES[tensor.dtype]
    if dtype == torch.bool:
        made = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") < 0.75
    elif dtype.is_floating_point or dtype.is_complex:
        made = torch.randn(
            shape, generator=generator, dtype=dtype if dtype.is_complex else torch.float32, device="cpu"
        ).to(dtype)
    else:
        made = torch.randint(0, max(largest, 1), shape, generator=generator, dtype=torch.int64, device="cpu").to(dtype)
    if tensor.stride is None:
        return made
    laid = torch.empty_strided(shape, [int(evaluate(step, sizes)) for step in tensor.stride], dtype=dtype, device="cpu")
    return laid.copy_(made)
