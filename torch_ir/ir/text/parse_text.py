"""Parse the text form: `IR.parse` reads what `print(ir)` shows; every error names its line and column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch_ir.errors import GraphError, SerializationError, listed, suggestion
from torch_ir.ir.checks.limits import Counter, Limits
from torch_ir.ir.graph.constant_data import Array, TensorData, static_shape
from torch_ir.ir.graph.tensor import PARAM_KINDS, Param, TensorMeta
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH
from torch_ir.ir.json.json_text import check_count
from torch_ir.ir.text.bare_words import PART, WORD
from torch_ir.ir.text.graph_draft import Draft, located
from torch_ir.ir.text.keyword_lines import LINES
from torch_ir.ir.text.line_cursor import Cursor, place
from torch_ir.ir.text.node_lines import read_call, read_tensor
from torch_ir.ir.text.text_constants import LEFT_OUT, data_of
from torch_ir.ir.text.value_syntax import read_value

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_OPENINGS = ("graph ", "graph(", "graph`", "function ")
_KEYWORD = re.compile(r"([a-z_]+)(?: +(?!:=)|$)")
_VALUES = re.compile(r"values +")
_HEX = re.compile(r"0x[0-9a-f]*")
_PARAMS = {"param" if kind == "parameter" else kind: kind for kind in PARAM_KINDS}
_LISTED = 10  # names listed in an error


def is_text_form(text: str) -> bool:
    """Whether a file starts like the text form, after blank lines and comments."""
    first = next((line for _, line in _lines(text)), "")
    return first.startswith(_OPENINGS)


def parse_graph(text: str, cls: type[IR], limits: Limits, constants: Mapping[str, TensorData | Array]) -> IR:
    """Parse a graph; `constants` supplies the values that the text omits, by key."""
    if not isinstance(text, str):
        raise SerializationError(f"expected text, found {type(text).__name__}", rule="R1")
    try:
        check_count(text.encode(), limits)
    except UnicodeEncodeError:
        raise SerializationError("the text is not valid Unicode", "line 1, column 1", rule="R1") from None
    ir = _Reader(cls, limits, constants).read(text)
    ir.limits = limits
    return ir


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty or comments, with their numbers, lazily because there may be very many."""
    start, number = 0, 1
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].removesuffix("\r")
        if (shown := line.strip(" ")) and not shown.startswith("#"):
            yield number, line
        start, number = end + 1, number + 1


class _Reader:
    """Reads a text in one pass."""

    def __init__(self, cls: type[IR], limits: Limits, constants: Mapping[str, TensorData | Array]) -> None:
        self._cls, self._limits, self._constants = cls, limits, constants
        self._counter = Counter(limits)
        self._drafts: dict[tuple[str, ...], Draft] = {}
        self._left_out: dict[str, int] = {}  # keys of constants -> lines

    def read(self, text: str) -> IR:
        draft: Draft | None = None
        number = 1
        for number, line in _lines(text):
            cursor = Cursor(line, number)
            if draft is None:
                draft = self._read_title(cursor)
            elif cursor.take("}"):
                cursor.end()
                self._finish(draft, cursor)
                draft = None
            elif "return" in draft.lines:
                raise cursor.expected("'}' after 'return'")
            else:
                self._read_line(draft, cursor)
        if draft is not None or () not in self._drafts:
            what = "'}' before the end" if draft is not None else "a line 'graph NAME(...) {'"
            raise SerializationError(f"expected {what}", place(number + 1, 0), rule="R1")
        self._check_constants()
        return self._assemble()

    def _read_title(self, cursor: Cursor) -> Draft:
        start = cursor.at
        if cursor.take("function "):
            path: tuple[str, ...] = (cursor.name(PART, "the name of a function"),)
            while cursor.take("."):
                path = (*path, cursor.name(PART, "the name of a function"))
            self._counter.add("functions", 1, place(cursor.number, start))
            if len(path) > MAX_FUNCTION_DEPTH:
                raise cursor.error(f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels", start, rule="R2")
            draft = Draft(path, cursor.number)
        elif cursor.is_next(*_OPENINGS):
            cursor.take("graph")
            draft = Draft((), cursor.number)
            draft.model_name = "" if cursor.is_next("(") else cursor.name(WORD, "the name of a model")
        else:
            raise cursor.expected("'graph' or 'function'")
        if draft.path in self._drafts:
            message = f"two functions are called {'.'.join(draft.path)!r:.80}" if draft.path else "a second graph"
            raise cursor.error(message, start, rule="R8")
        cursor.expect("(")
        for _ in cursor.items(")"):
            at, tensor = cursor.at, read_tensor(cursor)
            draft.define(tensor, cursor, at)
            draft.inputs.append(tensor)
            self._counter.add("tensors", 1, place(cursor.number, at))
        cursor.expect("{")
        cursor.end()
        return draft

    def _read_line(self, draft: Draft, cursor: Cursor) -> None:
        found = _KEYWORD.match(cursor.line, cursor.at)
        keyword = found[1] if found else ""
        if keyword in _PARAMS:
            self._read_param(draft, cursor)
        elif keyword in LINES:
            cursor.match(PART)
            LINES[keyword](draft, cursor)
        else:
            self._read_node(draft, cursor)
        cursor.end()

    def _read_param(self, draft: Draft, cursor: Cursor) -> None:
        kind = _PARAMS[cursor.match(PART) or ""]
        at, tensor = cursor.at, read_tensor(cursor)
        keys: list[str] = []
        while cursor.take("=") or not keys:
            if not cursor.is_next('"'):
                raise cursor.expected("the key of the weight in quotes")
            keys.append(cursor.string())
        data = self._read_data(cursor, tensor, keys) if cursor.match(_VALUES) else None
        tensor.param = Param(tuple(keys), kind, data)
        draft.define(tensor, cursor, at)
        draft.params.append(tensor)
        self._counter.add("tensors", 1, place(cursor.number, at))

    def _read_data(self, cursor: Cursor, tensor: TensorMeta, keys: list[str]) -> TensorData | None:
        start = cursor.at
        try:
            if cursor.take(LEFT_OUT):
                key = next((key for key in keys if key in self._constants), keys[0])
                self._left_out[key] = cursor.number
                return TensorData.of(self._constants[key]) if key in self._constants else None
            shape = static_shape(tensor.shape)
            if (text := cursor.match(_HEX)) is not None:
                if len(text) % 2:
                    raise cursor.error("expected two digits for every byte", start, rule="R15")
                return TensorData(shape, tensor.dtype, bytes.fromhex(text[2:]))
            if not cursor.is_next("["):
                raise cursor.expected(f"'[', '0x' or {LEFT_OUT!r}")
            return data_of(read_value(cursor), shape, tensor.dtype)
        except GraphError as error:
            raise cursor.error(str(error), start, rule="R15") from None

    def _check_constants(self) -> None:
        """Check that `constants` supplies exactly the values that the text omits."""
        missing = [key for key in self._left_out if key not in self._constants]
        if missing:
            names = listed([f"{key!r:.80}" for key in missing], _LISTED)
            hint = f"pass constants={{{missing[0]!r:.80}: value, ...}}"
            at = place(self._left_out[missing[0]], 0)
            raise SerializationError(f"the text leaves out the values of {names}", at, rule="R15", hint=hint)
        for key in self._constants:
            if key not in self._left_out:
                hint = suggestion(str(key), self._left_out)
                raise SerializationError(f"the text omits no constant {key!r:.80}", rule="R15", hint=hint)

    def _read_node(self, draft: Draft, cursor: Cursor) -> None:
        """Read a node, or the new value of an input or buffer."""
        start, name = cursor.at, cursor.name(WORD, "a node, 'return' or '}'")
        if cursor.take(":="):
            at, value = cursor.at, cursor.name(WORD, "the name of a tensor")
            draft.lines[f"mutations[{len(draft.mutations)}]"] = cursor.number
            draft.mutations.append((draft.find(name, cursor, start), draft.find(value, cursor, at)))
            return
        if not cursor.is_next("(", ":"):
            hint = suggestion(name, (*_PARAMS, *LINES))
            raise cursor.error(f"expected ':', ':=' or '(' after {name!r:.80}", hint=hint)
        outputs: list[TensorMeta] = []
        places: list[int] = []
        has_outputs = cursor.is_next(":")
        cursor.at = start
        while has_outputs and (not outputs or cursor.take(",")):
            places.append(cursor.at)
            outputs.append(read_tensor(cursor))
        if has_outputs:
            cursor.expect("=")
        self._counter.add("nodes", 1, place(cursor.number, start))
        draft.lines[f"nodes[{len(draft.nodes)}]"] = cursor.number
        draft.nodes.append(read_call(draft, cursor, outputs))
        for tensor, at in zip(outputs, places, strict=True):
            draft.define(tensor, cursor, at)

    def _finish(self, draft: Draft, cursor: Cursor) -> None:
        if "return" not in draft.lines:
            raise cursor.error("expected 'return' before '}'", 0)
        for symbol, name, line, at in draft.bindings:
            symbol.tensor = draft.find(name, line, at)
        self._drafts[draft.path] = draft

    def _assemble(self) -> IR:
        """Build the graph with its functions, innermost first."""
        functions: dict[tuple[str, ...], dict[str, IR]] = {path: {} for path in self._drafts}
        for path in sorted(filter(None, self._drafts), key=len, reverse=True):
            if path[:-1] not in functions:
                message = f"the function {'.'.join(path[:-1])!r:.80} around this one is missing"
                raise SerializationError(message, place(self._drafts[path].number, 0), rule="R8")
            functions[path[:-1]][path[-1]] = self._build(self._drafts[path], functions[path])
        graph = self._build(self._drafts[()], functions[()])
        try:
            return graph.check(self._limits)
        except GraphError as error:
            raise located(error, self._drafts, ()) from None

    def _build(self, draft: Draft, functions: dict[str, IR]) -> IR:
        for name, cursor, at in draft.uses:
            if name not in functions:
                hint = suggestion(name, functions)
                raise cursor.error(f"no function of this graph is called {name!r:.80}", at, rule="R8", hint=hint)
        try:
            return draft.build(self._cls, functions)
        except GraphError as error:
            raise located(error, self._drafts, draft.path) from None
