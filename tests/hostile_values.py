"""Constants that may break kernels, computed in a child process that may crash.

python -m tests.hostile_values PER START STOP

computes some of the calls, `PER` for every operator that may run on values from a file: those that constant folding
runs are folded, others computed as parts of masks and tables of positions are. The child prints the call that it is at;
if it ends before the last one, that call has crashed or hung it.
"""

import random
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from tests.hostile_calls import FLOATS, HUGE
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.values.constants import Constants, is_small
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, OpNode, Param, TensorMeta
from torch_ir.llm.forms.fixed_parts import new_budget, values_at
from torch_ir.ops.foldable import is_computable_here, is_foldable
from torch_ir.ops.schema import find_operator, operator_names
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3,), (2, 3), (3, 3), (2, 3, 4), (1, 0, 2), (1, 2, 3, 4))
DTYPES = ("float32", "int64", "int64", "int32", "int8", "uint8", "bool", "float16", "float64", "complex64")
SECONDS, ADDRESSES = 10, 16 << 30


@dataclass
class Outcome:
    """Counts of calls and of returned values, and the calls that crashed the child."""

    made: int = 0
    computed: int = 0
    crashed: list[str] = field(default_factory=list)


@cache
def operators() -> list[str]:
    """The operators that may run on values from a file."""
    return sorted(name for name in operator_names("aten") if _is_plain(name))


def _is_plain(name: str) -> bool:
    node = OpNode("made", name, [], [TensorMeta("made", (), "float32")])
    if not (is_foldable(node) or is_computable_here(node)):
        return False
    operator = find_operator(name)
    return isinstance(operator, OpOverload) and not operator._schema.is_mutable


def value(draw: random.Random, name: str, alike: tuple[int, ...]) -> TensorMeta:
    """A constant of hostile values: extremes of its dtype, infinities, indices out of range."""
    dtype = draw.choice(DTYPES)
    shape = alike if draw.random() < 0.7 else draw.choice(SHAPES)
    kind = TORCH_DTYPES[dtype]
    numbers: tuple[Any, ...] = FLOATS
    if not (kind.is_floating_point or kind.is_complex):
        lowest, highest = (0, 1) if kind is torch.bool else (torch.iinfo(kind).min, torch.iinfo(kind).max)
        numbers = tuple(number for number in (lowest, highest, *HUGE.ints) if lowest <= number <= highest)
    count = torch.Size(shape).numel()
    held = torch.tensor([draw.choice(numbers) for _ in range(count)], dtype=kind).reshape(shape)
    tensor = TensorMeta(name.replace(".", "_"), shape, dtype)
    tensor.param = Param((name,), "constant", from_tensor(held))
    return tensor


def graph(op_type: str, number: int) -> IR | None:
    """Return a graph of one call on constants, with the outputs of torch's shape rule; None if it refuses."""
    operator = find_operator(op_type)
    assert isinstance(operator, OpOverload)
    draw = random.Random(f"{op_type}/{number}")
    alike = draw.choice(SHAPES)
    tensors: dict[str, TensorMeta] = {}
    attrs: dict[str, Any] = {}
    arguments: Any = operator._schema.arguments
    for argument in arguments:
        kind = str(argument.real_type)
        if argument.has_default_value() and draw.random() < 0.6:
            attrs[argument.name] = argument.default_value
        elif kind == "Tensor":
            tensors[argument.name] = value(draw, argument.name, alike)
        elif "Tensor" in kind and "List" in kind:
            names = [f"{argument.name}.{index}" for index in range(draw.choice((1, 2, 3)))]
            tensors |= {name: value(draw, name, alike) for name in names}
        else:
            attrs[argument.name] = _attribute(draw, kind, argument.N)
    try:
        probe = IR([], [], [], params=list(tensors.values()))
        made = Shapes(probe).results(op_type, tensors, attrs)
    except (TorchIRError, TypeError):
        return None
    if not made:
        return None
    outputs = [TensorMeta(f"made_{index}", one.shape, one.dtype, stride=one.stride) for index, one in enumerate(made)]
    node = OpNode("made", op_type, tensors.values(), outputs, attrs, args=tensors)
    return IR([node], [], outputs, params=list(tensors.values()))


def _attribute(draw: random.Random, kind: str, length: int | None) -> Any:
    """A value for an argument that is not a tensor: mostly small numbers, so that shapes agree, and extremes."""
    if kind.startswith("Optional["):
        return None if draw.random() < 0.4 else _attribute(draw, kind[len("Optional[") : -1], length)
    if kind.startswith("List["):
        count = length if length and draw.random() < 0.7 else draw.choice((0, 1, 2, 3))
        return [_attribute(draw, kind[len("List[") : -1], None) for _ in range(count)]
    if kind in ("int", "number") and draw.random() < 0.6:
        return draw.choice((0, 1, -1, 2, 3, -2))
    return draw.choice(HUGE.values(kind))


def sweep(per: int, start: int = 0, stop: int | None = None) -> Outcome:
    """Fold the calls from `start` to `stop` in child processes: a new one after each that died."""
    outcome = Outcome()
    stop = len(operators()) * per if stop is None else stop
    while start < stop:
        command = [sys.executable, "-W", "ignore", "-m", "tests.hostile_values", *map(str, (per, start, stop))]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        if not told:
            raise AssertionError("the child prints nothing")
        ends = told[1::2]
        outcome.made += len(ends)
        outcome.computed += ends.count("computed")
        if len(told) % 2:
            outcome.crashed.append(told[-1])
        start = int(told[-1 if len(told) % 2 else -2].split()[0]) + 1
    return outcome


def main(per: int, start: int, stop: int) -> None:
    """Fold the calls one by one, printing each before and after; a signal ends those that take too long."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # the limit of seconds is one of CPU time
    for index in range(start, stop):
        op_type, number = operators()[index // per], index % per
        print(index, op_type, number, flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        ir = graph(op_type, number)
        print("computed" if ir is not None and _is_computed(ir) else "was not changed", flush=True)


def _is_computed(ir: IR) -> bool:
    """Compute the outputs of a graph where the package would; return whether it did."""
    if is_foldable(ir.nodes[0]):
        known = Constants(ir)
        return any(known.value(made) is not None for made in ir.graph_outputs)
    if not is_computable_here(ir.nodes[0]) or not all(map(is_small, ir.graph_outputs)):
        return False
    try:
        return bool(values_at(ir, ir.graph_outputs, {}, {}, new_budget()))
    except TorchIRError:
        return False


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    outcome = sweep(per=200)
    return {
        "operators that may run on values from a file": len(operators()),
        "calls with hostile values": outcome.made,
        "of them computed": outcome.computed,
        "crashes and hangs": len(outcome.crashed),
    }


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
