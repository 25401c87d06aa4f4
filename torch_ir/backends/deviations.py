"""The table of operators that back ends compute differently from eager: `deviations.json`, by tests/backend_sweep.

A row names a back end, an operator (`*` is any), a condition on the node, the effect (`refused`: `compile` raises
before anything runs; `deviation`: it runs, and the page describes the difference), the reason, and the version tested.

The condition is a conjunction over a closed vocabulary:
  attr      an attribute equals a value: {"attr": {"train": true}}
  at_least  an attribute is a number of at least this: {"at_least": {"padding_idx": 0}}
  at_most   an attribute is a number of at most this: {"at_most": {"scale": 0}}
  dtype     an input or output has one of these dtypes: {"dtype": ["float64"]}
  filled    the first input has one value, such as zeros, and is not the only tensor of its kind: {"filled": true}
  given     these optional tensors are present: {"given": ["attn_mask"]}
  overlaps  what is written into the first input is a part of it: {"overlaps": true}
  rank      an input has this many dimensions: {"rank": 0}
  empty     an input has no elements: {"empty": true}
  open      a size of an input or output is symbolic: {"open": true}
  rounds    numbers are converted to a narrower dtype and computed with in a wider one: {"rounds": true}
  storage   elements are counted in the storage of a view: {"storage": true}
  values    of a deviation: the input values it needs, which are not in a graph: {"values": ["nan"]}
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch_ir.analysis.memory.aliasing import counts_in_a_storage, shares_memory
from torch_ir.backends.table import installed_backends
from torch_ir.errors import ExecutionError, SerializationError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import FLOATS, base_name
from torch_ir.ops.prepare_run import with_calls_inline

TABLE = Path(__file__).parent / "deviations.json"
REFUSED, DEVIATION = "refused", "deviation"
_FILLS = tuple(f"aten.{name}." for name in ("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "empty"))
_SPECIAL = frozenset(("nan", "infinity", "large", "denormal", "extremes"))  # values that no random inputs have


@dataclass(frozen=True)
class Row:
    """The behaviour of one back end for one operator under a condition."""

    backend: str
    operator: str
    when: Mapping[str, Any]
    effect: str
    reason: str
    version: str

    def matches(self, node: OpNode, *, in_body: bool = False, filled: Collection[OpNode] = ()) -> bool:
        """Whether the condition holds for a node; `values` is ignored, as a graph has none.

        In the body of an operator such as `cond`, an input may be a view that is made outside. `filled` are the nodes
        of the graph that fill a tensor that is not the only one of its kind.
        """
        if self.operator not in ("*", node.op_type):
            return False
        if "filled" in self.when and self.when["filled"] != _is_filled(node, filled):
            return False
        if "storage" in self.when and self.when["storage"] != counts_in_a_storage(node, in_body=in_body):
            return False
        return all(_TESTS[kind](node, wanted) for kind, wanted in self.when.items())


def _compares(compare: Callable[[float, float], bool], node: OpNode, wanted: Mapping[str, float]) -> bool:
    found = [(node.attrs.get(name), limit) for name, limit in wanted.items()]
    return all(isinstance(value, (int, float)) and compare(value, limit) for value, limit in found)


def _made_from(tensor: TensorMeta) -> list[TensorMeta]:
    """Return what is computed from a tensor or from views of it."""
    made = [(reader, out) for reader in tensor.consumers for out in reader.outputs]
    return [one for reader, out in made for one in (_made_from(out) if shares_memory(reader) else [out])]


def _rounds(node: OpNode) -> bool:
    """Whether a node converts numbers to fewer digits than float32, and a reader returns more, integers or truths."""
    if base_name(node.op_type) not in ("aten.to", "aten._to_copy", "aten.type_as"):
        return False
    given = [tensor for tensor in node.inputs[:1] if tensor.dtype not in ("bool", "int8", "uint8")]  # never rounded
    least, *others = (
        min((FLOATS.index(tensor.dtype) if tensor.dtype in FLOATS else -1 for tensor in tensors), default=len(FLOATS))
        for tensors in (node.outputs, given, _made_from(node.outputs[0]))
    )
    return least > FLOATS.index("float32") and all(other < least for other in others)


def _sources(tensor: TensorMeta) -> list[TensorMeta]:
    """Return a tensor and those that it is a part or a function of, by operators of one tensor: compilers fold some."""
    found = [tensor]
    while (node := found[-1].producer) is not None and len(node.inputs) == 1:
        found.append(node.inputs[0])
    return found


def _overlaps(node: OpNode) -> bool:
    """Whether a node writes a part of its first input into it."""
    return not set(_sources(node.inputs[0])).isdisjoint(_sources(node.inputs[-1]))


def _is_filled(node: OpNode, filled: Collection[OpNode]) -> bool:
    """Whether a node writes into a tensor that one of these nodes fills, or into a function of it."""
    return any(one.producer in filled for one in _sources(node.inputs[0]))


def _filled_twice(nodes: Iterable[OpNode]) -> set[OpNode]:
    """Return the nodes that fill a tensor with one value, if there is another of its size, or two nodes read it."""
    fills = [node for node in nodes if node.op_type.startswith(_FILLS) or "_like." in node.op_type]
    forms = Counter((out.shape, out.dtype) for node in fills for out in node.outputs)
    return {node for node in fills for out in node.outputs if forms[out.shape, out.dtype] + len(out.consumers) > 2}


_TESTS: dict[str, Callable[[OpNode, Any], bool]] = {
    "attr": lambda node, wanted: all(name in node.attrs and node.attrs[name] == wanted[name] for name in wanted),
    "at_least": partial(_compares, operator.ge),
    "at_most": partial(_compares, operator.le),
    "dtype": lambda node, wanted: any(tensor.dtype in wanted for tensor in (*node.inputs, *node.outputs)),
    "filled": lambda node, wanted: True,  # tested by `matches`
    "given": lambda node, wanted: set(wanted) <= set(node.args),
    "overlaps": lambda node, wanted: wanted == _overlaps(node),
    "rank": lambda node, wanted: any(len(tensor.shape) == wanted for tensor in node.inputs),
    "empty": lambda node, wanted: wanted == any(0 in tensor.shape for tensor in node.inputs),
    "open": lambda node, wanted: wanted == any(not tensor.is_static for tensor in (*node.inputs, *node.outputs)),
    "rounds": lambda node, wanted: wanted == _rounds(node),
    "storage": lambda node, wanted: True,  # tested by `matches`
    "values": lambda node, wanted: True,
}
VOCABULARY = frozenset(_TESTS)


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of the table."""
    found = tuple(Row(**record) for record in json.loads(TABLE.read_text(encoding="utf-8")))
    for row in found:
        if unknown := set(row.when) - VOCABULARY:
            raise SerializationError(f"{TABLE.name}: unknown condition {min(unknown)!r}; expected {sorted(VOCABULARY)}")
    return found


def refused_nodes(ir: IR, backend: str) -> list[tuple[OpNode, str]]:
    """Return the nodes that a back end would compute differently from eager, with the reasons."""
    relevant = [row for row in rows() if row.backend == backend and row.effect == REFUSED]
    if not relevant:
        return []
    flat = with_calls_inline(ir)
    nodes = [(node, graph is not flat) for graph in flat.all_graphs() for node in graph.nodes]
    filled = _filled_twice(node for node, _ in nodes)
    found = (
        (node, [row for row in relevant if row.matches(node, in_body=inner, filled=filled)]) for node, inner in nodes
    )
    return [(node, matching[0].reason) for node, matching in found if matching]


def may_deviate(ir: IR, backend: str) -> bool:
    """Whether a listed deviation may show on ordinary values, such as equal ones."""
    relevant = [row for row in rows() if row.backend == backend and row.effect == DEVIATION]
    ordinary = [row for row in relevant if not _SPECIAL.issuperset(row.when.get("values", ("ordinary",)))]
    return any(row.matches(node) for node in with_calls_inline(ir).all_nodes() for row in ordinary)


def refusal(ir: IR, backend: str) -> str:
    """Return a sentence with these nodes and the back ends that support them; "" if there are none."""
    nodes = refused_nodes(ir, backend)
    if not nodes:
        return ""
    others = [name for name in installed_backends() if name not in (backend, "auto") and not refused_nodes(ir, name)]
    listed = "; ".join(f"{node.op_type} ({node.name}) {reason}" for node, reason in nodes)
    name = ir.model_name or "the graph"
    return f"{backend} does not compute {name} as torch does: {listed}; use {' or '.join(others)}"


def check_supported(ir: IR, backend: str) -> None:
    """Raise ExecutionError if a back end would compute a node differently from eager."""
    if reason := refusal(ir, backend):
        raise ExecutionError(reason)
