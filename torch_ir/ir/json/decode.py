"""Decode the JSON document to an IR: every field is checked, and every error has its JSON path."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_ir.errors import GraphError, SerializationError, suggestion
from torch_ir.ir.checks.limits import Counter, Limits
from torch_ir.ir.files.side_file import Folder
from torch_ir.ir.graph.attr_types import is_device
from torch_ir.ir.graph.constant_data import TensorData, static_shape
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.graph.io_tree import Branch
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.tensor import PARAM_KINDS, Param, Scope, TensorMeta, read_tensors
from torch_ir.ir.json.encode import FORMAT, MAX_FUNCTION_DEPTH, VERSION
from torch_ir.ir.json.json_fields import T, allow_keys, field, optional, read_dims, read_dtype, texts, typed
from torch_ir.ir.json.json_text import parse_around_nodes, parse_document
from torch_ir.ir.json.json_values import decode, plain_json
from torch_ir.ir.json.legacy_json import upgrade
from torch_ir.ir.json.node_codec import read_lines
from torch_ir.ir.sizes.symbols import Symbol

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_HEADER = frozenset(("format", "version", "digest"))  # the digest was checked with the text
_INLINE = frozenset(("shape", "dtype", "base64"))
_BESIDE = frozenset(("shape", "dtype", "file", "offset", "digest"))
_DECIMAL = frozenset(("dtype", "data"))
_NAMING = frozenset(("mutations", "symbols"))  # these reference tensors by name
_GRAPH = frozenset((
    "model_name", "pytorch_version", "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "nodes",
    "constants", "params", "shared_weights", "mutations", "symbols", "constraints", "input_tree", "output_tree",
    "functions", "device", "mesh", "fixed_layout", "modules", "extensions",
))  # fmt: skip


class Unmade(NamedTuple):
    """Nodes without records in the document: their number, and a function that creates them and the outputs."""

    total: int
    make: Callable[[Scope], tuple[list[OpNode], list[TensorMeta]]]


class _Source:
    """State that the graphs of one file share."""

    def __init__(self, cls: type[IR], limits: Limits, folder: Folder | None) -> None:
        self.cls, self.folder = cls, folder
        self.counter = Counter(limits)


def read_text(text: str, cls: type[IR], limits: Limits, folder: Folder | None = None) -> IR:
    """Read an IR from a file's text.

    Canonical text is read line by line, which is fast. Anything else is parsed as general JSON, which reports errors.
    """
    try:
        found = parse_around_nodes(text, limits)
        if found is not None:
            document, lines = found
            return read_graph({**document, "nodes": _by_lines(document, lines)}, cls, limits, folder)
    except SerializationError:
        pass  # reported by the general parser below
    return read_graph(parse_document(text, limits), cls, limits, folder)


def _by_lines(document: dict[str, Any], lines: Sequence[str]) -> Unmade:
    def make(scope: Scope) -> tuple[list[OpNode], list[TensorMeta]]:
        nodes = read_lines(lines, scope.tensors.values())
        if not document.keys().isdisjoint(_NAMING):
            for node in nodes:
                scope.tensors.update((tensor.name, tensor) for tensor in node.outputs)
        return nodes, read_tensors(document, "graph_outputs", "$")

    return Unmade(len(lines), make)


def read_graph(document: dict[str, Any], cls: type[IR], limits: Limits = Limits(), folder: Folder | None = None) -> IR:
    """Read an IR from a document of this format, or of the documented one without a header (version 0).

    Constants in a side file are looked up in `folder`.
    """
    if not isinstance(document, dict):
        raise SerializationError(f"expected an object, found {type(document).__name__}", "$", rule="R4")
    if "format" not in document and "version" not in document:
        document = upgrade(document)
    else:
        _check_header(document)
    allow_keys(document, _HEADER | _GRAPH, "$")
    with uncollected():
        source = _Source(cls, limits, folder)
        ir = _read({key: document[key] for key in document if key not in _HEADER}, source, "$")
        ir.limits = limits
        try:
            return ir.check(limits)
        except GraphError as error:
            raise SerializationError.of(error) from None


def _check_header(document: dict[str, Any]) -> None:
    if document.get("format") != FORMAT:
        message = f"format is {document.get('format')!r:.60}, not {FORMAT!r}"
        raise SerializationError(message, "$.format", rule="R4")
    version = field(document, "version", int, "$")
    if not 1 <= version <= VERSION:
        message = f"the file has format version {version}, but this torch_ir reads versions up to {VERSION}"
        raise SerializationError(message, "$.version", rule="R4")


def _read(
    record: dict[str, Any],
    source: _Source,
    path: str,
    around: Mapping[str, TensorMeta] = MappingProxyType({}),
    depth: int = 0,
) -> IR:
    """Read one graph; `around` are the weights of the enclosing graph by name, if it is a function."""
    allow_keys(record, _GRAPH, path)
    if depth > MAX_FUNCTION_DEPTH:
        message = f"functions are nested deeper than {MAX_FUNCTION_DEPTH} levels"
        raise SerializationError(message, path, rule="R2")
    functions: dict[str, Any] = optional(record, "functions", dict, path) or {}
    source.counter.add("functions", len(functions), f"{path}.functions")
    device = optional(record, "device", str, path) or "cpu"
    if not is_device(device):
        raise SerializationError(f"unknown device {device!r:.60}", f"{path}.device", rule="R5")
    params = [*_find_shared(record, around, path), *_read_params(record, source, path)]
    by_name = {tensor.name: tensor for tensor in params} if functions else {}
    source.counter.add("tensors", len(field(record, "graph_inputs", list, path)), f"{path}.graph_inputs")
    inputs = read_tensors(record, "graph_inputs", path)
    scope = Scope()
    for tensor in [*inputs, *params]:
        scope.define(tensor)
    nodes, outputs = _read_nodes(record, source, scope, path)
    try:
        return source.cls(
            nodes,
            inputs,
            outputs,
            params=params,
            mutations=_read_mutations(record, scope.tensors, path),
            functions={
                name: _read(typed(body, dict, place), source, place, by_name, depth + 1)
                for name, body in functions.items()
                for place in [f"{path}.functions.{name:.200}"]
            },
            symbols=_read_symbols(record, scope.tensors, path),
            constraints=texts(record, "constraints", path),
            input_tree=_read_input_tree(record, path),
            output_tree=_read_output_tree(record, path),
            model_name=field(record, "model_name", str, path),
            pytorch_version=optional(record, "pytorch_version", str, path) or "",
            device=device,
            mesh=_read_table(record, "mesh", int, path),
            fixed_layout=optional(record, "fixed_layout", str, path) or "",
            modules=_read_table(record, "modules", str, path),
            extensions=plain_json(optional(record, "extensions", dict, path) or {}, f"{path}.extensions"),
        )
    except GraphError as error:
        raise SerializationError.of(error, path) from None


def _read_nodes(
    record: dict[str, Any], source: _Source, scope: Scope, path: str
) -> tuple[list[OpNode], list[TensorMeta]]:
    unmade = record.get("nodes")
    if isinstance(unmade, Unmade):
        source.counter.add("nodes", unmade.total, f"{path}.nodes")
        return unmade.make(scope)
    records = field(record, "nodes", list, path)
    source.counter.add("nodes", len(records), f"{path}.nodes")
    nodes = [OpNode.from_dict(node, f"{path}.nodes[{index}]", scope) for index, node in enumerate(records)]
    return nodes, read_tensors(record, "graph_outputs", path)


def _read_table(record: dict[str, Any], key: str, kind: type[T], path: str) -> dict[str, T]:
    """Read an object whose values all have one type."""
    found: dict[str, Any] = optional(record, key, dict, path) or {}
    return {name: typed(value, kind, f"{path}.{key}.{name:.200}") for name, value in found.items()}


def _read_params(record: dict[str, Any], source: _Source, path: str) -> list[TensorMeta]:
    names = field(record, "weight_name_mapping", dict, path)
    source.counter.add("tensors", len(names), f"{path}.weight_name_mapping")
    weights = read_tensors(record, "weights", path)
    details: dict[str, Any] = optional(record, "params", dict, path) or {}
    constants = dict(optional(record, "constants", dict, path) or {})
    if len(names) != len(weights) or not details.keys() <= names.keys():
        message = "weights, weight_name_mapping and params list different weights"
        raise SerializationError(message, f"{path}.weight_name_mapping", rule="R7")
    params = []
    for weight, (name, key) in zip(weights, names.items(), strict=True):
        if weight.name != key or weight.producer_node is not None:
            message = f"{name!r:.80} maps to {key!r:.60}, but the weight there is {weight.name!r:.80}"
            raise SerializationError(message, f"{path}.weight_name_mapping.{name:.200}", rule="R7")
        place = f"{path}.constants.{key:.200}"
        data = _read_data(constants.pop(key), weight, source.folder, place) if key in constants else None
        param = _read_param(key, details.get(name, {}), data, f"{path}.params.{name:.200}")
        params.append(weight.copy(name))
        params[-1].param = param
    if constants:
        key = next(iter(constants))
        raise SerializationError(f"unknown weight {key!r:.60}", f"{path}.constants.{key:.200}", rule="R8")
    return params


def _find_shared(record: dict[str, Any], known: Mapping[str, TensorMeta], path: str) -> list[TensorMeta]:
    """Return copies of the weights that a function shares with the enclosing graph."""
    shared = []
    for index, name in enumerate(texts(record, "shared_weights", path)):
        if name not in known:
            message, place = f"the enclosing graph has no weight {name!r:.60}", f"{path}.shared_weights[{index}]"
            raise SerializationError(message, place, rule="R8", hint=suggestion(name, known))
        shared.append(known[name].copy())
    return shared


def _read_param(key: str, record: Any, data: TensorData | None, path: str) -> Param:
    allow_keys(record, frozenset(("kind", "tied")), path)
    kind = optional(record, "kind", str, path) or "parameter"
    if kind not in PARAM_KINDS:
        message = f"{kind!r:.60} is not one of {', '.join(PARAM_KINDS)}"
        raise SerializationError(message, f"{path}.kind", rule="R5")
    return Param((key, *texts(record, "tied", path)), kind, data)


def _read_data(record: Any, weight: TensorMeta, folder: Folder | None, path: str) -> TensorData:
    """Read raw bytes, inline as base64 or from a side file, or the documented decimal form, which has no shape."""
    keys = record.keys() if isinstance(record, dict) else ()
    form = _DECIMAL if "data" in keys else _BESIDE if "file" in keys else _INLINE
    allow_keys(record, form, path)
    dtype = read_dtype(field(record, "dtype", str, path), f"{path}.dtype")
    try:
        if form is _DECIMAL:
            data = TensorData.from_numbers(record["data"], dtype)
            return data if data.raw else TensorData(static_shape(weight.shape), dtype, b"")  # [] loses the other sizes
        shape = static_shape(read_dims(field(record, "shape", list, path), f"{path}.shape"))
        if form is _BESIDE:
            return _find_data(record, shape, dtype, folder, path)
        return TensorData(shape, dtype, _read_base64(field(record, "base64", str, path), f"{path}.base64"))
    except GraphError as error:
        raise SerializationError.of(error, path) from None


def _read_base64(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # also for non-ASCII characters
        raise SerializationError(str(error), path, rule="R15") from None


def _find_data(
    record: dict[str, Any], shape: tuple[int, ...], dtype: str, folder: Folder | None, path: str
) -> TensorData:
    name = field(record, "file", str, path)
    offset, digest = field(record, "offset", int, path), field(record, "digest", str, path)
    if folder is None:
        message = f"the values are in the side file {name!r:.80}"
        raise SerializationError(message, f"{path}.file", rule="R16", hint="use IR.load(path)")
    return folder.find(name, shape, dtype, offset, digest, path)


def _read_mutations(
    record: dict[str, Any], known: dict[str, TensorMeta], path: str
) -> list[tuple[TensorMeta, TensorMeta]]:
    found: list[Any] = optional(record, "mutations", list, path) or []
    pairs = []
    for index, pair in enumerate(found):
        place = f"{path}.mutations[{index}]"
        allow_keys(pair, frozenset(("target", "value")), place)
        pairs.append((_known(pair, "target", known, place), _known(pair, "value", known, place)))
    return pairs


def _read_symbols(record: dict[str, Any], known: dict[str, TensorMeta], path: str) -> list[Symbol]:
    found: dict[str, Any] = optional(record, "symbols", dict, path) or {}
    symbols = []
    for name, body in found.items():
        place = f"{path}.symbols.{name:.200}"
        allow_keys(body, frozenset(("min", "max", "tensor", "dim")), place)
        tensor = _known(body, "tensor", known, place) if "tensor" in body else None
        low, high, dim = (optional(body, key, int, place) for key in ("min", "max", "dim"))
        symbols.append(Symbol(name, low, high, tensor, dim))
    return symbols


def _known(record: dict[str, Any], key: str, known: dict[str, TensorMeta], path: str) -> TensorMeta:
    name = field(record, key, str, path)
    if name not in known:
        message = f"unknown tensor {name!r:.60}"
        raise SerializationError(message, f"{path}.{key}", rule="R8", hint=suggestion(name, known))
    return known[name]


def _read_input_tree(record: dict[str, Any], path: str) -> Branch | None:
    tree = decode(record.get("input_tree"), f"{path}.input_tree")
    if tree is not None and not isinstance(tree, Branch):
        message = "the inputs of a call are a tuple of arguments and keywords"
        raise SerializationError(message, f"{path}.input_tree", rule="R4")
    return tree


def _read_output_tree(record: dict[str, Any], path: str) -> Any:
    """Read the structure of the outputs; it is wrapped because a model may return None."""
    if "output_tree" not in record:
        return ...
    wrapped = field(record, "output_tree", dict, path)
    allow_keys(wrapped, frozenset(("tree",)), f"{path}.output_tree")
    return decode(wrapped.get("tree"), f"{path}.output_tree.tree")
