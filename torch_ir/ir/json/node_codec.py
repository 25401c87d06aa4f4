"""Write nodes as lines of JSON, and read such lines back quickly by memoising their pieces.

Most pieces of a line occurred in lines before: references to the same tensors, the same attributes. The reader looks a
piece up by its text and parses only new ones. It accepts only lines as written here; anything else raises
`UnfamiliarError`, and `decode` then parses the document as general JSON, which reports errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.graph.attr_order import ordered
from torch_ir.ir.graph.node import OpNode, Origin, copy_value, read_origin
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.json.json_fields import Dim, allow_keys, field, texts
from torch_ir.ir.json.json_text import parse_json
from torch_ir.ir.json.json_values import INT64, TAGS, decode, encode

FactsText = Callable[[tuple[Dim, ...], str], str]  # from shape and dtype
_CALL = frozenset(("attrs", "args"))
_ORIGIN = frozenset(("module", "module_class", "call", "outer", "source", "function", "origins"))
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode  # nothing here is circular
_WORDS = {None: "null", True: "true", False: "false"}


class UnfamiliarError(SerializationError):
    """The text is not as written here, which need not be an error."""

    def __init__(self) -> None:
        super().__init__("not canonical text")


# -- writing ----------------------------------------------------------------------------------------------------------


def node_lines(nodes: Iterable[OpNode]) -> list[str]:
    """Return the records of nodes, as from `OpNode.to_dict`, in JSON."""
    facts = cache(_facts_text)
    restated = cache(lambda tensor: _restated_text(tensor, facts))
    lines = []
    for node in nodes:
        name, op_type = encode_basestring(node.name), encode_basestring(node.op_type)
        inputs = ", ".join([restated(tensor) for tensor in node.inputs])
        outputs = ", ".join([_bare_text(tensor, facts) for tensor in node.outputs])
        more = f', "args": {_strings(node._args)}' if node._args else ""
        lines.append(
            f'{{"name": {name}, "op_type": {op_type}, "inputs": [{inputs}], "outputs": [{outputs}], '
            f'"attrs": {attrs_text(ordered(node.op_type, node.attrs))}{more}{_origin_text(node)}}}'
        )
    return lines


def attrs_text(attrs: Mapping[str, Any]) -> str:
    """Return attributes as JSON; equal text means equal values of equal types."""
    if not attrs:
        return "{}"
    return f"{{{', '.join([f'{encode_basestring(name)}: {_value_text(value)}' for name, value in attrs.items()])}}}"


def _value_text(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if value is None or kind is bool:
        return _WORDS[value]
    if kind is int and -INT64 <= value < INT64:
        return str(value)
    if kind in TAGS:
        return f'{{"{TAGS[kind]}": {encode_basestring(value)}}}'
    return _dump(encode(value))


def _strings(items: Iterable[str]) -> str:
    return f"[{', '.join(map(encode_basestring, items))}]"


def _origin_text(node: OpNode) -> str:
    module, call, module_class, source, outer, function = node.origin
    text = f', "module": {encode_basestring(module)}' if module or module_class else ""
    if module_class:
        text += f', "module_class": {encode_basestring(module_class)}'
    if call:
        text += f', "call": {_dump(call)}'
    if outer:
        text += f', "outer": {_strings(outer)}'
    if source:
        text += f', "source": {encode_basestring(source)}'
    if function:
        text += f', "function": {encode_basestring(function)}'
    if node.origins != (node.name,):
        text += f', "origins": {_strings(node.origins)}'
    return text


def _facts_text(shape: tuple[Dim, ...], dtype: str) -> str:
    return f'"shape": {_dump(list(shape))}, "dtype": {encode_basestring(dtype)}'


def _restated_text(tensor: TensorMeta, facts: FactsText) -> str:
    text = f'{{"name": {encode_basestring(tensor.name)}, {facts(tensor.shape, tensor.dtype)}'
    if tensor.param is not None:
        return text + "}"
    producer = encode_basestring(tensor.name if tensor.producer is None else tensor.producer.name)
    return f'{text}, "producer_node": {producer}, "producer_output_idx": {tensor.index}}}'


def _bare_text(tensor: TensorMeta, facts: FactsText) -> str:
    text = f'{{"name": {encode_basestring(tensor.name)}, {facts(tensor.shape, tensor.dtype)}'
    if tensor.stride is not None:
        text += f', "stride": {_dump(list(tensor.stride))}'
    if tensor.placement is not None:
        text += f', "placement": {_strings(tensor.placement)}'
    return text + "}"


# -- reading ----------------------------------------------------------------------------------------------------------


def read_lines(lines: Iterable[str], given: Iterable[TensorMeta]) -> list[OpNode]:
    """Read nodes from lines, each with a comma; they may read given tensors and outputs of earlier lines."""
    reader = _Reader(given)
    try:
        return [reader.node(line) for line in lines]
    except (KeyError, ValueError, GraphError):  # an unknown piece, other separators, or not a node
        raise UnfamiliarError from None


class _Reader:
    """Reads lines in order, and finds tensors by the text that their readers use.

    Texts of records in lists lack their opening brace. Names are not checked here, as `check` refuses names that JSON
    would have to escape.
    """

    def __init__(self, given: Iterable[TensorMeta]) -> None:
        facts = cache(_facts_text)
        self._known = {_restated_text(tensor, facts)[1:]: tensor for tensor in given}
        self._op_type, self._type = cache(_read_op_type), cache(_read_type)
        self._call, self._rest = cache(_read_call), cache(_read_rest)
        self._origin = _origin_reader()

    def node(self, line: str) -> OpNode:
        head, tail = line.split('], "outputs": [', 1)
        start, inputs = head.split(', "inputs": [', 1)
        start, op_type = start.split('", "op_type": ', 1)
        outputs, rest = tail.split('], "attrs": ', 1)
        call, module, origin = rest.partition(', "module": "')
        (attrs, args, is_flat), (place, stands_for) = (
            (self._call(call), self._origin(origin)) if module else self._rest(rest)
        )
        if start[:10] != '{"name": "' or inputs[:1] not in ("", "{") or outputs[:1] not in ("", "{"):
            raise UnfamiliarError
        name = start[10:]
        return OpNode(
            name,
            self._op_type(op_type),
            map(self._known.__getitem__, inputs[1:].split(", {")) if inputs else (),
            self._outputs(outputs, name) if outputs else (),
            attrs if is_flat else {key: copy_value(value) for key, value in attrs.items()},
            args=args,
            origin=place,
            origins=stands_for,
        )

    def _outputs(self, outputs: str, node: str) -> list[TensorMeta]:
        made: list[TensorMeta] = []
        for text in outputs[1:].split(", {"):
            start, facts = text.split('", ', 1)
            shape, dtype, stride, placement, restated = self._type(facts)
            if start[:9] != '"name": "':
                raise UnfamiliarError
            tensor = TensorMeta(start[9:], shape, dtype)
            tensor.stride, tensor.placement = stride, placement
            self._known[f'{start}", {restated}, "producer_node": "{node}", "producer_output_idx": {len(made)}}}'] = (
                tensor
            )
            made.append(tensor)
        return made


def _read_op_type(text: str) -> str:
    found = parse_json(text)
    if type(found) is not str:
        raise UnfamiliarError
    return found


class _Type(NamedTuple):
    """An output's record without its name, and the corresponding text at its readers."""

    shape: tuple[Dim, ...]
    dtype: str
    stride: tuple[Dim, ...] | None
    placement: tuple[str, ...] | None
    restated: str


def _read_type(text: str) -> _Type:
    tensor = TensorMeta.from_dict(parse_json(f'{{"name": "", {text}'))
    if tensor.producer_node is not None:
        raise UnfamiliarError
    is_short = tensor.stride is None and tensor.placement is None  # readers use the same text
    restated = text[:-1] if is_short else _facts_text(tensor.shape, tensor.dtype)
    return _Type(tensor.shape, tensor.dtype, tensor.stride, tensor.placement, restated)


_Call = tuple[dict[str, Any], tuple[str, ...], bool]  # attributes, argument names, whether all attributes are immutable
_Place = tuple[Origin, tuple[str, ...]]  # origin, and names of the captured nodes


def _read_call(text: str) -> _Call:
    return _call_of(_parse(f'{{"attrs": {text}}}', _CALL))


def _origin_reader() -> Callable[[str], _Place]:
    """Return a memoised reader of origins; their module path is mostly new, the rest is mostly not."""
    after_path = cache(lambda rest: _place_of(_parse(f'{{"module": ""{_ended(rest)}', _ORIGIN)))

    def read(text: str) -> _Place:
        module, rest = text.split('"', 1)
        if not module.isprintable():
            raise UnfamiliarError
        origin, origins = after_path(rest)
        return Origin(module, *origin[1:]), origins

    return cache(read)


def _read_rest(text: str) -> tuple[_Call, _Place]:
    """Read the text after the outputs of a node that has no module."""
    record = _parse(f'{{"attrs": {_ended(text)}', _CALL | _ORIGIN)
    return _call_of(record), _place_of(record)


def _ended(text: str) -> str:
    """Return the end of a line without its comma."""
    if text[-1:] != ",":
        raise UnfamiliarError
    return text[:-1]


def _parse(text: str, keys: frozenset[str]) -> dict[str, Any]:
    record: dict[str, Any] = parse_json(text)
    allow_keys(record, keys, "$")
    return record


def _call_of(record: dict[str, Any]) -> _Call:
    found = field(record, "attrs", dict, "$")
    attrs = {name: decode(value, f"$.attrs.{name}") for name, value in found.items()}
    is_flat = not any(isinstance(value, (list, dict)) for value in attrs.values())
    return attrs, tuple(texts(record, "args", "$")), is_flat


def _place_of(record: dict[str, Any]) -> _Place:
    return read_origin(record, "$"), tuple(texts(record, "origins", "$"))
