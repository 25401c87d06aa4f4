"""Aliasing: which tensors share storage, and which storage the caller holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from torch_ir.analysis.cost_model.traffic import SOMETIMES_VIEWS, VIEWS, is_view
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.checks.limits import Budget
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import gives_its_input, may_alias
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import find_operator
from torch_ir.ops.torch_internals import OpOverload

Functions = Mapping[str, IR]
_NONE: Functions = MappingProxyType({})
_RETURN = "return"
COUNTING = ("aten.as_strided", "aten.resize")  # prefixes of operators that take elements by their places in a storage
_MOST_STEPS = 64  # views of views; models have about ten
_MOST_VIEWS = 256  # of one tensor


def shares_memory(node: OpNode, functions: Functions = _NONE) -> bool:
    """Whether an output of a node may share storage with an input; a call is judged by its body, if given."""
    operator = find_operator(node.op_type)
    if executor_of(node) is not None or gives_its_input(node.op_type, node.attrs):
        return True
    if not isinstance(operator, OpOverload):
        body = functions.get(node.attrs["function"]) if operator is None and node.is_call else None
        return body is None or _gives_inputs(body)
    if base_name(node.op_type) not in SOMETIMES_VIEWS or not node.inputs:
        return may_alias(operator)
    is_open = not all(made.is_static for made in node.outputs)  # what copies at most sizes is a view at size 1
    return is_view(node) or (is_open and node.inputs[0].dtype == node.outputs[0].dtype and not node.attrs.get("copy"))


def counts_in_a_storage(node: OpNode, *, in_body: bool = False) -> bool:
    """Whether a node takes elements by their places in a storage that its input may share, or does not fill in order.

    Runtimes without storages count from the first element of the input instead. In the body of a function, an input
    may be a view that the caller made.
    """
    if not node.op_type.startswith(COUNTING) or not node.inputs:
        return False
    given = node.inputs[0]
    may_be_a_part = in_body if given.producer is None else shares_memory(given.producer)
    if may_be_a_part and (node.attrs.get("storage_offset") is not None or _may_reach_beyond(node)):
        return True
    return given.stride is not None


def counting_functions(functions: Functions) -> dict[str, frozenset[str]]:
    """Map functions to the names of their inputs in whose storage they take elements by place; others are left out."""
    found = {}
    for name, body in functions.items():
        inner = counting_functions(body.functions)
        counted = (tensor for node in body.nodes for tensor in counted_operands(node, inner))
        memories = [memory_of(tensor, body.functions) for tensor in counted]
        given = [one for one in body.graph_inputs if any(memory is None or one in memory for memory in memories)]
        if given:
            found[name] = frozenset(tensor.name for tensor in given)
    return found


def counted_operands(node: OpNode, counting: Mapping[str, frozenset[str]]) -> list[TensorMeta]:
    """Return the inputs in whose storage a node, or one of these functions that it runs, takes elements by place.

    Operators such as `cond` and `map` name their operands differently from their bodies: all of them are returned.
    """
    if node.op_type.startswith(COUNTING):
        return list(node.inputs[:1])
    names = [counting[name] for name in called_by([node]) if name in counting] if counting else []
    if names and node.is_call and find_operator(node.op_type) is None:
        return [tensor for name, tensor in zip(node.args, node.inputs, strict=True) if name in names[0]]
    return list(node.inputs) if names else []


def counted_views(node: OpNode, functions: Functions, counting: Mapping[str, frozenset[str]]) -> Iterator[TensorMeta]:
    """Yield the tensors in whose storage a node counts, if a copy of their elements alone would be another storage."""
    left = counted_operands(node, counting)
    seen = set(left)
    while left:
        tensor = left.pop()
        maker = tensor.producer
        is_view = maker is not None and shares_memory(maker, functions)
        if is_view or tensor.stride is not None:
            yield tensor
        if maker is not None and is_view:
            sources = maker.inputs if find_operator(maker.op_type) is None else maker.inputs[:1]
            left += [source for source in sources if source not in seen]
            seen.update(sources)


def _may_reach_beyond(node: OpNode) -> bool:
    """Whether `as_strided` without an offset may take elements after the last one of its input."""
    sizes, steps = node.attrs.get("size"), node.attrs.get("stride")
    if not isinstance(sizes, list) or not isinstance(steps, list):
        return True
    numbers = [*sizes, *steps, *node.inputs[0].shape]
    if not all(isinstance(number, int) for number in numbers):
        return True
    last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    return 0 not in sizes and last >= math.prod(node.inputs[0].shape)


def _gives_inputs(body: IR) -> bool:
    """Whether an output of a function may share storage with an input."""
    given = set(body.graph_inputs)
    found = (memory_of(result, body.functions) for result in body.graph_outputs)
    return any(memory is None or not given.isdisjoint(memory) for memory in found)


def memory_of(tensor: TensorMeta, functions: Functions = _NONE) -> set[TensorMeta] | None:
    """Return the tensors whose storage this one may share: inputs, weights, or results that own their storage.

    Return None if the chain of views is longer than `_MOST_STEPS`.
    """
    found: set[TensorMeta] = set()
    seen = {tensor}
    left = [tensor]
    work = Budget(_MOST_STEPS)
    while left:
        if not work.take():
            return None
        maker = (one := left.pop()).producer
        if maker is None or not shares_memory(maker, functions):
            found.add(one)
        else:
            left += [source for source in maker.inputs if source not in seen]
            seen.update(maker.inputs)
    return found


def home_of(tensor: TensorMeta) -> TensorMeta:
    """Return the tensor whose storage this one certainly shares; for a long chain of views, an intermediate one."""
    for _ in range(_MOST_STEPS):
        if (maker := tensor.producer) is None or not _is_sure_to_share(maker):
            break
        tensor = maker.inputs[0]
    return tensor


def _is_sure_to_share(node: OpNode) -> bool:
    """Whether the output of a node always shares storage with its first input."""
    name = base_name(node.op_type)
    if executor_of(node) is not None or len(node.inputs) != (2 if name.endswith("_as") else 1):
        return False
    if name in SOMETIMES_VIEWS:
        return is_view(node) and not name.startswith("aten.resolve_")
    return name in VIEWS or gives_its_input(node.op_type, node.attrs)


def is_held_by_caller(tensor: TensorMeta, functions: Functions = _NONE) -> bool:
    """Whether a graph output may share storage with this tensor; True if it has too many views."""
    return _is_read(tensor, lambda reader: reader.op_type == _RETURN, functions)


def is_counted(tensor: TensorMeta, functions: Functions = _NONE) -> bool:
    """Whether a node may take elements by their places in the storage of this tensor; True if it has too many views."""

    counting = counting_functions(functions)
    return _is_read(tensor, lambda reader: bool(counted_operands(reader, counting)), functions)


def _is_read(tensor: TensorMeta, wanted: Callable[[OpNode], bool], functions: Functions) -> bool:
    """Whether such a node reads a tensor or a view of it; True if it has too many views."""
    seen = {tensor}
    left = [tensor]
    while left:
        if len(seen) > _MOST_VIEWS:
            return True
        for reader in left.pop()._uses:
            if wanted(reader):
                return True
            if reader.op_type != _RETURN and shares_memory(reader, functions):
                left += [made for made in reader.outputs if made not in seen]
                seen.update(reader.outputs)
    return False


def moves_results(old: TensorMeta, new: TensorMeta, functions: Functions = _NONE) -> bool:
    """Whether the caller could notice that `new` replaces `old`: an output would newly share storage."""
    if not is_held_by_caller(old, functions):
        return False
    found = memory_of(new, functions)
    if found is None:
        return True
    others = found - {home_of(old)}
    return any(memory.producer is None or is_held_by_caller(memory, functions) for memory in others)
