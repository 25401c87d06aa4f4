"""Nodes with hostile operator arguments, checked in a child process that may crash.

python -m tests.hostile_calls all|listed PER START STOP

checks some of the nodes, `PER` for every registered operator, or for those whose shape rules run in this process. The
child says which one it is at; where it ends before the last, that one has crashed it, or taken for ever.
"""

import json
import random
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from torch_ir.ir import IR, Device, Dtype, Layout, MemoryFormat, OpNode, TensorMeta
from torch_ir.ir.checks.limits import UNLIMITED
from torch_ir.ops.safe_shape_calls import is_safe_in_process
from torch_ir.ops.schema import find_operator, operator_names
from torch_ir.safety import Report, examine

NAMESPACES = ("aten", "prims", "quantized", "_quantized", "mkldnn", "onednn", "quantized_decomposed", "sparse")
FLOATS = (0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), 1e-300, 1e308)


class Range(NamedTuple):
    """The range that arguments are drawn from."""

    ints: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def values(self, kind: str) -> tuple[Any, ...]:
        """Return values of a scalar schema type; none for a type that a file cannot represent."""
        return {"int": self.ints, "number": (*self.ints, *FLOATS, 1j, True)}.get(kind) or VALUES.get(kind, (None,))


HUGE = Range(
    (0, 1, -1, 2, 3, 100_000, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)),
    (
        (), (0,), (3,), (2, 3), (8, 8), (2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4, 5), (1,) * 20, (2**31,), (2**62,),
        (0, 2**62), (2**40, 1), (2**20, 2**20), (2**31, 3), (10**6, 4), (1, 8, 2**33, 8),
    ),
    ("float32", "float32", "int64", "bool", "complex64", "float16", "int32", "quint8", "float64", "uint8"),
)  # fmt: skip
# Small sizes that fit together, often 0: they reach the parts of a rule behind its first checks.
SMALL = Range(
    (0, 1, -1, 2, 3, 4),
    (
        (), (0,), (1,), (0, 3), (3, 0), (2, 3), (0, 5, 56), (1, 4, 4), (2, 0, 3), (2, 3, 4), (0, 0, 0, 0), (1, 2, 3, 4),
        (1, 0, 3, 4), (2, 3, 0, 0), (1, 2, 3, 4, 5), (1, 0, 2, 3, 4),
    ),
    ("float32", "float32", "float32", "int64", "bool", "complex64", "float16", "bfloat16", "uint8"),
)  # fmt: skip
VALUES: dict[str, tuple[Any, ...]] = {
    "float": FLOATS,
    "bool": (False, True),
    "str": ("", "sum", "mean", "none", "reflect", "a" * 1000, "nearest", "i->i", "ij,jk->ik", "left", "floor"),
    "ScalarType": tuple(map(Dtype, HUGE.dtypes)),
    "Layout": tuple(map(Layout, ("strided", "sparse_coo", "sparse_csr", "_mkldnn", "jagged"))),
    "Device": (Device("cpu"),),
    "MemoryFormat": tuple(map(MemoryFormat, ("contiguous_format", "channels_last", "channels_last_3d"))),
}
SECONDS, MEGABYTES, ADDRESSES = 20, 256, 16 << 30


@dataclass
class Outcome:
    """Counts of checked and rejected nodes, and the nodes that crashed the child or cost too much."""

    checked: int = 0
    refused: int = 0
    crashed: list[str] = field(default_factory=list)
    hungry: list[str] = field(default_factory=list)


@cache
def operators(which: str = "all") -> list[str]:
    names = sorted(name for namespace in NAMESPACES for name in operator_names(namespace))
    return names if which == "all" else list(filter(_is_listed, names))


def _is_listed(name: str) -> bool:
    operator = find_operator(name)
    return isinstance(operator, OpOverload) and is_safe_in_process(operator, [], {})


def graph(op_type: str, number: int) -> IR | None:
    """Return a graph of one node; None for operators with arguments that a file cannot represent."""
    operator = find_operator(op_type)
    if not isinstance(operator, OpOverload):
        return None
    draw, among = random.Random(f"{op_type}/{number}"), (HUGE, SMALL)[number % 2]
    alike = draw.choice(among.shapes)
    tensors: dict[str, TensorMeta] = {}
    attrs: dict[str, Any] = {}
    arguments: Any = operator._schema.arguments
    for argument in arguments:
        kind = str(argument.real_type)
        if argument.has_default_value() and draw.random() < 0.4:
            continue
        if kind in ("Tensor", "Optional[Tensor]") and (kind == "Tensor" or draw.random() < 0.5):
            tensors[argument.name] = _tensor(draw, among, alike, argument.name)
        elif "Tensor" in kind and "List" in kind:
            count = draw.choice((0, 1, 2, 3, 9))
            attrs |= {} if count else {argument.name: []}
            names = [f"{argument.name}.{index}" for index in range(count)]
            tensors |= {name: _tensor(draw, among, alike, name) for name in names}
        else:
            attrs[argument.name] = _value(draw, among, kind, argument.N)
    made = TensorMeta("made", draw.choice(among.shapes), draw.choice(among.dtypes))
    node = OpNode("made", op_type, tensors.values(), [made], attrs, args=tensors)
    return IR([node], tensors.values(), [made])


def _tensor(draw: random.Random, among: Range, alike: tuple[int, ...], name: str) -> TensorMeta:
    shape = alike if draw.random() < 0.6 else draw.choice(among.shapes)
    stride = [draw.choice((0, 1, 2, 2**31, 2**62)) for _ in shape] if draw.random() < 0.1 else None
    return TensorMeta(name.replace(".", "_"), shape, draw.choice(among.dtypes), stride=stride)


def _value(draw: random.Random, among: Range, kind: str, length: int | None) -> Any:
    if kind.startswith("Optional["):
        return None if draw.random() < 0.4 else _value(draw, among, kind[len("Optional[") : -1], length)
    if kind.startswith("List["):
        count = length if length and draw.random() < 0.7 else draw.choice((0, 1, 2, 3, 4, 5, 64, 20_000))
        return [_value(draw, among, kind[len("List[") : -1], None) for _ in range(count)]
    return draw.choice(among.values(kind))


def sweep(per: int, start: int = 0, stop: int | None = None, which: str = "all") -> Outcome:
    """Check the nodes from `start` to `stop` in child processes: a new one where one has ended before its time."""
    outcome = Outcome()
    stop = len(operators(which)) * per if stop is None else stop
    while start < stop:
        command = [sys.executable, "-W", "ignore", "-m", "tests.hostile_calls", which, *map(str, (per, start, stop))]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        for line in told[1::2]:
            refused, megabytes = json.loads(line)
            outcome.checked += 1
            outcome.refused += refused
            if megabytes > MEGABYTES:
                outcome.hungry.append(told[told.index(line) - 1])
        if not told:
            raise AssertionError("the child says nothing")
        if len(told) % 2:
            outcome.crashed.append(told[-1])
        start = int(told[-1 if len(told) % 2 else -2].split()[0]) + 1
    return outcome


def main(which: str, per: int, start: int, stop: int) -> None:
    """Check the nodes one by one, printing each before and after; a signal ends those that take too long."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # the limit of seconds is one of CPU time
    for index in range(start, stop):
        op_type, number = operators(which)[index // per], index % per
        print(index, op_type, number, flush=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        ir = graph(op_type, number)
        refused = ir is not None and any(True for _ in examine(ir, Report(), UNLIMITED))
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(json.dumps([refused, taken]), flush=True)


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    outcome, listed = sweep(per=12), sweep(per=200, which="listed")
    return {
        "operators asked with hostile arguments": len(operators()),
        "nodes checked": outcome.checked,
        "refused": outcome.refused,
        "operators whose shape rules run in this process": len(operators("listed")),
        "nodes of these checked": listed.checked,
        "crashes and hangs": len(outcome.crashed) + len(listed.crashed),
        f"over {MEGABYTES} MB": len(outcome.hungry) + len(listed.hungry),
    }


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
