"""The styles among which a plan chooses, for each module or weight that can be sharded.

An option is written as in a plan: the name of a style, or a table of placements. `None` leaves the weight whole. A
module without an option, such as a normalisation, runs on what it gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.operator_sets import base_name
from torch_ir.ir.graph.placements import Placement
from torch_ir.sharding.styles import Style, style_of

Row = Union[str, Mapping[str, str]]
_TURNED = "Conv1D"  # a class whose weight is [in, out]
_PRODUCTS = ("aten.linear", "aten.mm", "aten.addmm", "aten.matmul", "aten.bmm")
_GROUPED = ("aten._grouped_mm", "transformers.grouped_mm_fallback")
_STACK_PRODUCTS = (*_GROUPED, "aten.bmm", "aten.matmul", "aten.baddbmm")
_LOOK_UP = "aten.embedding"
_ATTENTION = "aten.scaled_dot_product_attention.default"
_TOKENS = ("shard(1)", "shard(0)")  # the sequence, the batch
_VIEWS = ("aten.to", "aten._to_copy", "aten.t", "aten.transpose", "aten.detach", "aten.alias")
_MATRIX, _STACKED = 2, 3  # dimensions of a weight, and of the weights of all experts


@dataclass(frozen=True, eq=False)
class Choice:
    """One option: rows of a plan by path relative to the graph, and the placement of each weight."""

    rows: tuple[tuple[str, Row], ...]
    weights: tuple[Placement, ...]
    styles: tuple[tuple[str, Style], ...]  # of modules


@dataclass(frozen=True, eq=False)
class Variable:
    """A module or weight to choose a style for: its weights, and the modules whose nodes depend on the choice."""

    weights: tuple[TensorMeta, ...]
    modules: tuple[str, ...]
    choices: tuple[Choice, ...]
    nodes: tuple[OpNode, ...] = ()  # those that depend on the choice, if not all of the modules


def ring_variables(nodes: Sequence[OpNode], others: Sequence[Variable]) -> list[Variable]:
    """Return the choice for each attention over a divided sequence: gather keys and values, or send them in a ring.

    A module that owns a weight has a style already.
    """
    found: dict[str, list[OpNode]] = {}
    styled = {module for variable in others for module in variable.modules}
    for node in nodes:
        if node.op_type == _ATTENTION and node.origin.module not in styled and _is_sequence(node):
            found.setdefault(node.origin.module, []).append(node)
    return [Variable((), (module,), _styles(module, "ring"), tuple(each)) for module, each in found.items()]


def _is_sequence(node: OpNode) -> bool:
    """Whether attention has several queries and keys, which can be divided."""
    return all(isinstance(tensor.shape[-2], int) and tensor.shape[-2] > 1 for tensor in node.inputs[:2])


def _styles(module: str, *rows: Row) -> tuple[Choice, ...]:
    """Return the choice among no style and some for a module that has no weights."""
    return (Choice((), (), ()), *(Choice(((module, row),), (), ((module, style_of(row, module)),)) for row in rows))


def variables_of(keys: Mapping[TensorMeta, Sequence[str]], classes: Mapping[str, str], dispatch: str) -> list[Variable]:
    """Return what can be chosen for weights with these keys; `dispatch` is the style that sends tokens to experts."""
    experts: dict[str, None] = {}
    by_module: dict[tuple[str, ...], list[TensorMeta]] = {}
    found: list[Variable] = []
    for tensor, names in keys.items():
        kind = _kind(tensor)
        if kind == "stack" and len(names) == 1:
            found.append(_stack(tensor, names[0]))
            if all(base_name(node.op_type) in _GROUPED for node in _readers(tensor)):
                experts[names[0].rpartition(".")[0]] = None
        elif kind:
            by_module.setdefault(_owners(names), []).append(tensor)
    for modules, tensors in by_module.items():
        vectors = [t for t, names in keys.items() if len(t.shape) == 1 and _owners(names) == modules]
        if len(tensors) == 1:
            found.append(_module(modules, tensors[0], vectors, classes))
    return [*found, *(_dispatch(module, dispatch) for module in experts)]


def _dispatch(module: str, style: str) -> Variable:
    """Return the choice whether every rank gets all tokens, with sums that may be scattered, or tokens are sent."""
    return Variable((), (module,), _styles(module, style, {"outputs": _TOKENS[1]}))


def _owners(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.rpartition(".")[0] for name in names)


def _kind(tensor: TensorMeta) -> str:
    """Return how a weight is used: as a `matrix`, as a `table`, as a `stack` of matrices, or otherwise, ""."""
    readers = list(_readers(tensor))
    names = {base_name(node.op_type) for node in readers}
    if not names:
        return ""
    if len(tensor.shape) == _STACKED:
        return "stack" if names <= set(_STACK_PRODUCTS) else ""
    if len(tensor.shape) != _MATRIX:
        return ""
    if _LOOK_UP in names:
        return "table" if names <= {_LOOK_UP, *_PRODUCTS} else ""
    return "matrix" if names <= set(_PRODUCTS) else ""


def _readers(tensor: TensorMeta) -> Iterator[OpNode]:
    """Yield the nodes that read a weight, possibly after a change of dtype or order."""
    for node in tensor.consumers:
        if base_name(node.op_type) in _VIEWS and len(node.outputs) == 1:
            yield from _readers(node.outputs[0])
        elif not node.op_type.startswith("aten._assert"):
            yield node


def _stack(tensor: TensorMeta, key: str) -> Variable:
    """Return the options for the weights of all experts: whole experts, or columns or rows of each."""
    rows: list[Row | None] = [None, "grouped_gemm", "colwise", "rowwise", "packed_colwise", {"matrix": "shard(-1, 2)"}]
    choices = []
    for row in rows:
        style = style_of(row or "replicate", key)
        place = style.of_weight(len(tensor.shape), "")
        choices.append(Choice(((key, row),) if row else (), (place,), ()))
    return Variable((tensor,), (), tuple(choices))


def _module(
    modules: tuple[str, ...], tensor: TensorMeta, vectors: Sequence[TensorMeta], classes: Mapping[str, str]
) -> Variable:
    """Return the options for a weight of one module, or tied between a table of embeddings and a head."""
    weights = (tensor, *vectors)
    pairs = _tied(modules, tensor, classes) if len(modules) > 1 else _single(modules[0], tensor, classes)
    choices = []
    for rows in pairs:
        styles = {module: style_of(row, module) for module, row in rows.items()}
        of = [
            {
                styles[m].of_weight(len(each.shape), classes.get(m, ""))
                if m in styles
                else style_of("replicate", m).matrix
                for m in modules
            }
            for each in weights
        ]
        if all(len(places) == 1 for places in of):  # tied weights: all modules agree
            choices.append(Choice(tuple(rows.items()), tuple(places.pop() for places in of), tuple(styles.items())))
    return Variable(weights, modules, tuple(choices))


def _single(module: str, tensor: TensorMeta, classes: Mapping[str, str]) -> list[dict[str, Row]]:
    rows = _table() if _kind(tensor) == "table" else _matrix(classes.get(module, ""))
    return [{}, *({module: row} for row in rows)]


def _tied(modules: tuple[str, ...], tensor: TensorMeta, classes: Mapping[str, str]) -> list[dict[str, Row]]:
    """Return options in which a table and a head have the same weight in the same placement."""
    tables = [module for module in modules if classes.get(module, "").endswith("Embedding")]
    heads = [module for module in modules if module not in tables]
    if _kind(tensor) != "table" or len(tables) != 1:
        return [{}]
    found: list[dict[str, Row]] = [{}]
    for row in _table():
        style = style_of(row, tables[0]).of_weight(_MATRIX, "Embedding")
        for head in ("colwise", "rowwise"):
            if style_of(head, "").of_weight(_MATRIX, "Linear") == style:
                found.append({tables[0]: row, **dict.fromkeys(heads, head)})
        if style == style_of("replicate", "").matrix:
            found.append({tables[0]: row})
    return found


def _table() -> list[Row]:
    whole: list[Row] = ["embedding_rowwise", "embedding_colwise"]
    return [
        *whole,
        *({"outputs": place} for place in _TOKENS),
        *({"matrix": "shard(0)", "outputs": place} for place in _TOKENS),
    ]


def _matrix(module_class: str) -> list[Row]:
    inner = "shard(-2)" if module_class.endswith(_TURNED) else "shard(-1)"
    summed = {"matrix": inner, "inputs": "shard(-1)"}
    return ["colwise", "rowwise", summed, *({**summed, "outputs": place} for place in _TOKENS)]


def classes_of(ir: IR) -> dict[str, str]:
    """Return the class of each module, without its package."""
    return {path: name.rpartition(".")[2] for path, name in ir.modules.items()}
