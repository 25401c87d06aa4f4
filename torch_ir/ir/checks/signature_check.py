"""Check the signature of a graph: weights, outputs, mutations, and the structure of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError
from torch_ir.ir.checks.check_context import CheckContext
from torch_ir.ir.checks.json_paths import weight_path
from torch_ir.ir.graph.io_tree import Branch, Slot, Tree, call, flat
from torch_ir.ir.graph.name_grammar import bad_name, is_line
from torch_ir.ir.graph.tensor import INDEX, PARAM_KINDS, STACK, TensorMeta
from torch_ir.ir.json.json_values import MAX_NESTING, TAGS
from torch_ir.ir.sizes.expressions import Expr

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_MOST_STACKED = 100_000  # members of one stack: each has a key


def check_signature(ir: IR, context: CheckContext, outer: IR | None) -> None:
    """Check that weight keys are unique, results exist, and every input and output has one slot in its structure."""
    _check_params(ir, context, outer)
    _check_returns(ir)
    if ir.input_tree != call(len(ir.graph_inputs)):
        _check_tree(ir.input_tree, len(ir.graph_inputs), context, "$.input_tree")
        _check_pair(ir.input_tree)
    if ir.output_tree != flat(len(ir.graph_outputs)):
        _check_tree(ir.output_tree, len(ir.graph_outputs), context, "$.output_tree.tree")


def _check_params(ir: IR, context: CheckContext, outer: IR | None) -> None:
    owners: dict[str, TensorMeta] = {}
    for number, tensor in enumerate(ir.params):
        param = tensor.param
        if param is None or not param.keys or param.kind not in PARAM_KINDS:
            message = f"weight {tensor!r:.200} has no key or an unknown kind"
            raise GraphError(message, f"$.params.{tensor.name}.kind", rule="R5")
        for index, key in enumerate(param.keys):
            if not is_line(key, context.limits.name_length):
                path = _key_path(ir, number, index, outer)
                raise bad_name(key, f"invalid weight key {key!r:.80}", path, context.limits.name_length)
            if key in owners:
                message = f"{tensor!r:.200} and {owners[key]!r:.200} both hold the weight {key!r:.80}"
                raise GraphError(message, _key_path(ir, number, index, outer), rule="R8")
            owners[key] = tensor
        if param.kind == STACK:
            _check_stack(tensor, param.keys)
        if param.data is not None and (param.data.shape, param.data.dtype) != (tensor.shape, tensor.dtype):
            message = f"{tensor!r:.200} holds values of {param.data.dtype}{list(param.data.shape)!r:.200}"
            raise GraphError(message, f"$.constants.{param.keys[0]:.200}", rule="R7")


def _check_stack(tensor: TensorMeta, keys: tuple[str, ...]) -> None:
    """Check that a stack has one key with one `*`, and a number of members."""
    if len(keys) != 1 or keys[0].count(INDEX) != 1:
        message = f"the stack {tensor!r:.200} needs one key with one {INDEX!r}, not {list(keys)!r:.200}"
        raise GraphError(message, f"$.params.{tensor.name}.kind", rule="R5")
    if not tensor.shape or not isinstance(tensor.shape[0], int) or tensor.shape[0] > _MOST_STACKED:
        message = f"the stack {tensor!r:.200} needs a first size of at most {_MOST_STACKED}"
        raise GraphError(message, f"$.params.{tensor.name}.kind", rule="R5")


def _key_path(ir: IR, number: int, index: int, outer: IR | None) -> str:
    if index:
        return f"$.params.{ir.params[number].name}.tied[{index - 1}]"
    return f"{weight_path(ir, number, outer)}.name"


def _check_returns(ir: IR) -> None:
    given = {*ir.graph_inputs, *ir.params}
    changed: set[TensorMeta] = set()
    for index, (target, value) in enumerate(ir.mutations):
        path = f"$.mutations[{index}].target"
        if target not in given:
            message = f"the graph changes {target!r:.200}, which is neither an input nor a weight"
            raise GraphError(message, path, rule="R8")
        if target in changed:
            raise GraphError(f"the graph changes {target!r:.200} twice", path, rule="R8")
        changed.add(target)
        if (target.shape, target.dtype) != (value.shape, value.dtype):
            message = f"{target!r:.200} cannot become {value!r:.200}: shape and dtype must stay"
            raise GraphError(message, f"$.mutations[{index}].value", rule="R7")
    if not ir.returns.inputs and not any(True for _ in _leaves(ir.output_tree, "$", 0)):
        raise GraphError("the graph returns nothing and changes nothing", "$.graph_outputs", rule="R8")


def _check_tree(tree: Tree, count: int, context: CheckContext, path: str) -> None:
    """Check that every tensor has exactly one slot in the structure."""
    slots = []
    for place, leaf in _leaves(tree, path, 0):
        if isinstance(leaf, Slot):
            slots.append(int(leaf))
        elif isinstance(leaf, Expr):
            context.check_expression(leaf, path.split(".")[1], f"{place}.{TAGS[Expr]}")
    if sorted(slots) != list(range(count)):
        message = f"{path.split('.')[1]} has slots {slots[:20]} for {count} tensors"
        raise GraphError(message, path, rule="R7")


def _leaves(tree: Tree, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its JSON path."""
    if not isinstance(tree, Branch):
        yield path, tree
        return
    if depth > MAX_NESTING:
        raise GraphError(f"a structure is nested deeper than {MAX_NESTING} levels", path, rule="R2")
    for index, item in enumerate(tree.items):
        yield from _leaves(item, f"{path}.items[{index}]", depth + 2)


def _check_pair(tree: Tree) -> None:
    """Check that the inputs are a tuple of arguments and a dict of keywords."""
    pair = tree.items if isinstance(tree, Branch) else ()
    if [item.kind if isinstance(item, Branch) else "" for item in pair] != ["tuple", "dict"]:
        raise GraphError("input_tree is not a pair of arguments and keywords", "$.input_tree", rule="R4")
