"""Lines of the text form that begin with a keyword, except those of weights; each is read after its keyword."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch_ir.errors import SerializationError, suggestion
from torch_ir.ir.graph.attr_types import is_device
from torch_ir.ir.graph.io_tree import Branch, Slot, Tree
from torch_ir.ir.json.json_text import parse_json
from torch_ir.ir.json.json_values import plain_json
from torch_ir.ir.sizes.symbols import Symbol
from torch_ir.ir.text.bare_words import PART, WORD
from torch_ir.ir.text.graph_draft import Draft
from torch_ir.ir.text.line_cursor import Cursor
from torch_ir.ir.text.value_syntax import read_tree, read_value

_FROM = re.compile(r"from +")
_SLOTS = re.compile(r"slots +(?=\[)")
_DEVICE = re.compile(r"\S+")


def _read_symbol(draft: Draft, cursor: Cursor) -> None:
    low = high = None
    if not PART.match(cursor.line, cursor.at):
        low = cursor.integer("the name of a size, or its least value")
        cursor.expect("<=")
    name = cursor.match(PART)
    if name is None:
        raise cursor.expected("the name of a size")
    if cursor.take("<="):
        high = cursor.integer()
    if f"symbols.{name}" in draft.lines:
        raise cursor.error(f"two sizes are called {name!r:.80}", rule="R8")
    symbol = Symbol(name, low, high)
    if cursor.match(_FROM):
        at = cursor.at
        draft.bindings.append((symbol, cursor.name(WORD, "the name of a tensor"), cursor, at))
        if cursor.take("["):
            symbol.dim = cursor.integer("a dimension")
            cursor.expect("]")
    draft.symbols.append(symbol)
    draft.lines[f"symbols.{name}"] = cursor.number


def _read_constraint(draft: Draft, cursor: Cursor) -> None:
    """Read a constraint, which is the rest of the line verbatim, with its blanks; `check` parses it."""
    draft.lines[f"constraints[{len(draft.constraints)}]"] = cursor.number
    draft.constraints.append(cursor.line.partition("require ")[2])
    cursor.at = len(cursor.line)


def _read_use(draft: Draft, cursor: Cursor) -> None:
    cursor.expect("@")
    at = cursor.at
    draft.uses.append((cursor.name(PART, "the name of a function"), cursor, at))


def _read_mesh(draft: Draft, cursor: Cursor) -> None:
    axis = cursor.match(PART)
    if axis is None or axis in draft.mesh:
        raise cursor.expected("the name of another axis" if axis else "the name of an axis")
    cursor.expect("=")
    draft.mesh[axis] = cursor.integer()


def _read_device(draft: Draft, cursor: Cursor) -> None:
    start, draft.device = cursor.at, cursor.match(_DEVICE) or ""
    if not is_device(draft.device):
        raise cursor.error(f"unknown device {draft.device!r:.60}", start, rule="R5")


def _read_fixed_layout(draft: Draft, cursor: Cursor) -> None:
    draft.fixed_layout = cursor.string()


def _read_model(draft: Draft, cursor: Cursor) -> None:
    draft.model_name = cursor.name(WORD, "the name of a model")


def _read_extension(draft: Draft, cursor: Cursor) -> None:
    start, key = cursor.at, cursor.string()
    if key in draft.extensions:
        raise cursor.error(f"two extensions are called {key!r:.60}", start, rule="R3")
    cursor.expect("=")
    start = cursor.at
    try:
        draft.extensions[key] = plain_json(parse_json(cursor.line[cursor.at :]), "$")
    except SerializationError as error:
        raise cursor.error(str(error.args[0]), start, rule=error.rule) from None
    cursor.at = len(cursor.line)


def _read_inputs(draft: Draft, cursor: Cursor) -> None:
    start = cursor.line.index("inputs")
    slots = {tensor.name: Slot(index) for index, tensor in enumerate(draft.inputs)}

    def leaf(cursor: Cursor, name: str, at: int) -> Slot:
        if name not in slots:
            raise cursor.error(f"unknown input {name!r:.80}", at, rule="R8", hint=suggestion(name, slots))
        return slots[name]

    tree = read_tree(cursor, leaf)
    if not isinstance(tree, Branch):
        raise cursor.error("the inputs of a call are a tuple of arguments and keywords", start, rule="R4")
    draft.input_tree = tree
    draft.lines["input_tree"] = cursor.number


def _read_return(draft: Draft, cursor: Cursor) -> None:
    draft.lines["return"] = draft.lines["graph_outputs"] = draft.lines["output_tree"] = cursor.number

    def leaf(cursor: Cursor, name: str, at: int) -> Slot:
        draft.outputs.append(draft.find(name, cursor, at))
        return Slot(len(draft.outputs) - 1)

    items: list[Tree] = []
    is_tuple, is_bracketed = cursor.is_done, cursor.is_next("(")
    while not cursor.is_done:
        items.append(read_tree(cursor, leaf))
        if not cursor.take(","):
            break
        is_tuple = True
    is_tuple = is_tuple or (bool(draft.path) and isinstance(items[0], Slot) and not is_bracketed)
    draft.output_tree = Branch("tuple", tuple(items)) if is_tuple else items[0]
    if cursor.match(_SLOTS):
        _reorder(draft, cursor)


def _reorder(draft: Draft, cursor: Cursor) -> None:
    """Renumber the outputs according to `slots`, if that is not the order in which they are returned."""
    start, slots = cursor.at, read_value(cursor)
    if type(slots) is not list or {*map(type, slots)} != {int} or sorted(slots) != list(range(len(draft.outputs))):
        raise cursor.error(f"expected the numbers from 0 to {len(draft.outputs) - 1}, each once", start, rule="R7")
    outputs = dict(zip(slots, draft.outputs, strict=True))
    draft.outputs = [outputs[slot] for slot in range(len(slots))]
    draft.output_tree = _renumbered(draft.output_tree, slots)


def _renumbered(tree: Tree, slots: list[int]) -> Tree:
    if isinstance(tree, Slot):
        return Slot(slots[tree])
    if not isinstance(tree, Branch):
        return tree
    return Branch(tree.kind, tuple(_renumbered(item, slots) for item in tree.items), tree.keys, tree.type_name)


LINES: dict[str, Callable[[Draft, Cursor], None]] = {
    "symbol": _read_symbol,
    "require": _read_constraint,
    "uses": _read_use,
    "mesh": _read_mesh,
    "device": _read_device,
    "fixed_layout": _read_fixed_layout,
    "extension": _read_extension,
    "inputs": _read_inputs,
    "model": _read_model,
    "return": _read_return,
}
