"""IR: a graph of operator nodes over inputs and weights, with its functions, symbols and signature."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_ir.errors import GraphError, did_you_mean, suggestion
from torch_ir.ir.checks.graph_check import check
from torch_ir.ir.checks.json_paths import given_path
from torch_ir.ir.checks.limits import UNLIMITED, Limits
from torch_ir.ir.files.atomic_write import is_stream, real_target
from torch_ir.ir.files.side_file import INLINE_LIMIT, Folder, SideFile, read_pair, write_pair
from torch_ir.ir.files.sniff_file import sniffed_errors
from torch_ir.ir.graph.attr_defaults import fill_defaults
from torch_ir.ir.graph.constant_data import Array, TensorData
from torch_ir.ir.graph.edits import erase, insert
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.graph.io_tree import Branch, Tree, call, flat
from torch_ir.ir.graph.node import OpNode, copy_value
from torch_ir.ir.graph.read_only import DictView, ListView
from torch_ir.ir.graph.tensor import Param, TensorMeta
from torch_ir.ir.json.decode import read_graph, read_text
from torch_ir.ir.json.encode import constants_over, graph_document, graph_text
from torch_ir.ir.json.gzip_text import compress, is_gzip_name, read_graph_text
from torch_ir.ir.regroup.granularity import at_level
from torch_ir.ir.regroup.repeated_blocks import fold_blocks
from torch_ir.ir.sizes.specialize import specialize
from torch_ir.ir.sizes.symbols import Symbol
from torch_ir.ir.text.parse_text import is_text_form, parse_graph
from torch_ir.ir.text.printer import print_graph

_CHANGE_PARAMS = "change ir.params, each a tensor whose `param` says its keys, kind and data"


class IR:
    """A model as a list of nodes in program order.

    The constructor joins tensors by name; after that, a producer and its consumers share one `TensorMeta` object.
    Graph outputs and the new values of mutated tensors are the inputs of one hidden node, `returns`.
    """

    __slots__ = (  # so that assigning to an unknown attribute is an error
        "__weakref__", "_mutated", "_places", "constraints", "device", "extensions", "fixed_layout", "functions",
        "graph_inputs", "input_tree", "mesh", "model_name", "modules", "nodes", "output_tree", "params",
        "pytorch_version", "returns", "symbols",
    )  # fmt: skip

    def __init__(
        self,
        nodes: Iterable[OpNode],
        graph_inputs: Iterable[TensorMeta],
        graph_outputs: Iterable[TensorMeta],
        weights: Iterable[TensorMeta] = (),
        weight_name_mapping: Mapping[str, str] | None = None,
        constants: Mapping[str, TensorData | Array] | None = None,
        model_name: str = "",
        pytorch_version: str = "",
        *,
        params: Iterable[TensorMeta] | None = None,
        mutations: Iterable[tuple[TensorMeta, TensorMeta]] = (),
        functions: Mapping[str, IR] | None = None,
        symbols: Iterable[Symbol] = (),
        constraints: Iterable[str] = (),
        input_tree: Branch | None = None,
        output_tree: Tree = ...,  # default: a plain tuple; None means that the model returns None
        device: str = "cpu",
        mesh: Mapping[str, int] | None = None,
        fixed_layout: str = "",
        modules: Mapping[str, str] | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        self.nodes = list(nodes)
        for node in self.nodes:
            fill_defaults(node)
        self._places: dict[str, int] = {}  # node name -> position, as of the last lookup
        self.graph_inputs = list(graph_inputs)
        self.params = _params(weights, weight_name_mapping or {}, constants or {}) if params is None else list(params)
        self.functions: dict[str, IR] = dict(functions or {})
        self.symbols: dict[str, Symbol] = {symbol.name: symbol for symbol in symbols}
        self.constraints: list[str] = list(constraints)
        self.model_name = model_name
        self.pytorch_version = pytorch_version
        self.device = device
        self.mesh: dict[str, int] = dict(mesh or {})  # axes of a sharded graph, with their sizes
        self.fixed_layout = fixed_layout  # source line that reads strides: inputs must have the captured layout
        self.modules: dict[str, str] = dict(modules or {})  # module path -> full name of its class
        self.extensions: dict[str, Any] = dict(extensions or {})
        joined = _join(self)
        outputs = [joined(tensor, f"$.graph_outputs[{index}]") for index, tensor in enumerate(graph_outputs)]
        pairs = [
            (joined(target, f"$.mutations[{index}].target"), joined(value, f"$.mutations[{index}].value"))
            for index, (target, value) in enumerate(mutations)
        ]
        self._mutated: tuple[TensorMeta, ...] = tuple(target for target, _ in pairs)
        self.returns = OpNode("return", "return", [*outputs, *(value for _, value in pairs)], ())
        for symbol in self.symbols.values():
            if symbol.tensor is not None:
                symbol.tensor = joined(symbol.tensor, f"$.symbols.{symbol.name}.tensor")
        self.input_tree: Branch = input_tree or call(len(self.graph_inputs))
        self.output_tree: Tree = flat(len(outputs)) if output_tree is ... else output_tree

    @property
    def graph_outputs(self) -> list[TensorMeta]:
        """The outputs, flat and in order; assign a list to change them."""
        outputs = self.returns.inputs[: len(self.returns.inputs) - len(self._mutated)]
        return ListView(outputs, "assign ir.graph_outputs = [...]", is_assignable=True)

    @graph_outputs.setter
    def graph_outputs(self, tensors: Iterable[TensorMeta]) -> None:
        self.returns.inputs = (*tensors, *(value for _, value in self.mutations))

    @property
    def mutations(self) -> list[tuple[TensorMeta, TensorMeta]]:
        """Pairs of an input or buffer that the model changes and its value afterwards; assign a list to change them."""
        first = len(self.returns.inputs) - len(self._mutated)
        pairs = zip(self._mutated, self.returns.inputs[first:], strict=True)
        return ListView(pairs, "assign ir.mutations = [...]", is_assignable=True)

    @mutations.setter
    def mutations(self, pairs: Iterable[tuple[TensorMeta, TensorMeta]]) -> None:
        pairs = list(pairs)
        outputs = self.graph_outputs
        self._mutated = tuple(target for target, _ in pairs)
        self.returns.inputs = (*outputs, *(value for _, value in pairs))

    @property
    def weights(self) -> list[TensorMeta]:
        """The weights, named by state-dict key; a read-only view of `params`."""
        weights = [param.copy(param.key) for param in self.params]
        for weight in weights:
            weight.param = None
        return ListView(weights, _CHANGE_PARAMS)

    @property
    def weight_name_mapping(self) -> dict[str, str]:
        """Map from the name that nodes read to the state-dict key; a read-only view of `params`."""
        return DictView({param.name: param.key or param.name for param in self.params}, _CHANGE_PARAMS)

    @property
    def constants(self) -> dict[str, TensorData]:
        """The weights whose values the graph contains, by key; a read-only view of `params`."""
        params = [(tensor, tensor.param) for tensor in self.params if tensor.param]
        found = {tensor.key or tensor.name: param.data for tensor, param in params if param.data}
        return DictView(found, _CHANGE_PARAMS)

    @property
    def tied_weights(self) -> list[tuple[str, ...]]:
        """Groups of state-dict keys that name the same weight."""
        keys = (param.param.keys for param in self.params if param.param)
        return ListView((group for group in keys if len(group) > 1), _CHANGE_PARAMS)

    @property
    def is_static(self) -> bool:
        """Whether every size is a number."""
        return not self.symbols

    def tensors(self) -> Iterator[TensorMeta]:
        """Yield every tensor in order of definition: inputs, weights, node outputs."""
        yield from self.graph_inputs
        yield from self.params
        for node in self.nodes:
            yield from node.outputs

    def all_nodes(self) -> Iterator[OpNode]:
        """Yield the nodes of the graph and of its functions."""
        for graph in self.all_graphs():
            yield from graph.nodes

    def all_graphs(self) -> Iterator[IR]:
        """Yield the graph, then its functions and theirs."""
        yield self
        for body in self.functions.values():
            yield from body.all_graphs()

    def node(self, name: str) -> OpNode:
        """Return the node of that name, using an index that is rebuilt when nodes have changed."""
        places = self._places
        if name not in places or places[name] >= len(self.nodes) or self.nodes[places[name]].name != name:
            places = self._places = {node.name: place for place, node in reversed(list(enumerate(self.nodes)))}
        if name in places:
            return self.nodes[places[name]]
        raise KeyError(f"no node is called {name!r}{did_you_mean(name, (node.name for node in self.nodes))}")

    def erase(self, nodes: OpNode | Iterable[OpNode]) -> None:
        """Remove nodes whose outputs no other node reads; a GraphError names a reader and changes nothing."""
        erase(self, nodes)

    def insert_before(self, anchor: OpNode, nodes: OpNode | Iterable[OpNode]) -> None:
        """Insert new nodes before a node of the graph; a GraphError says what is wrong and leaves the graph unchanged.

        They may read tensors that are produced before that place, and they and their outputs need new names.
        """
        insert(self, anchor, nodes, after=False)

    def insert_after(self, anchor: OpNode, nodes: OpNode | Iterable[OpNode]) -> None:
        """Insert new nodes after a node of the graph; see `insert_before`."""
        insert(self, anchor, nodes, after=True)

    def check(self, limits: Limits = UNLIMITED) -> IR:
        """Raise GraphError at the first violated invariant; return the graph itself."""
        check(self, limits)
        return self

    def clone(self) -> IR:
        """Return an equal graph that shares no mutable object with this one."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, Any]) -> IR:
        """Clone the graph, reusing nodes and tensors that are already in `memo`."""

        def copied(tensor: TensorMeta) -> TensorMeta:
            found: TensorMeta | None = memo.get(id(tensor))
            if found is None:
                found = memo[id(tensor)] = tensor.copy()
            return found

        nodes = []
        for node in self.nodes:
            if id(node) not in memo:
                memo[id(node)] = node.copy(copied)
            nodes.append(memo[id(node)])
        return self._rebuilt(nodes, copied, {name: deepcopy(body, memo) for name, body in self.functions.items()})

    def __copy__(self) -> IR:
        """Return a clone: a node belongs to one graph, so a shallow copy is not possible."""
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the arguments that construct an equal graph."""
        return _restored, (type(self), self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor arguments that rebuild this graph from its own parts."""
        plain = ("constraints", "input_tree", "output_tree", "model_name", "pytorch_version", "device", "mesh")
        return {
            "nodes": self.nodes,
            "graph_inputs": self.graph_inputs,
            "graph_outputs": list(self.graph_outputs),
            "params": self.params,
            "mutations": list(self.mutations),
            "functions": self.functions,
            "symbols": list(self.symbols.values()),
            **{name: getattr(self, name) for name in (*plain, "fixed_layout", "modules", "extensions")},
        }

    def _rebuilt(
        self, nodes: Iterable[OpNode], copied: Callable[[TensorMeta], TensorMeta], functions: Mapping[str, IR]
    ) -> IR:
        """Return this graph with other nodes and functions; `copied` maps each tensor to its copy."""
        return self.replaced(
            nodes=nodes,
            graph_inputs=map(copied, self.graph_inputs),
            graph_outputs=map(copied, self.graph_outputs),
            params=map(copied, self.params),
            mutations=[(copied(target), copied(value)) for target, value in self.mutations],
            functions=functions,
            symbols=[replace(s, tensor=copied(s.tensor) if s.tensor else None) for s in self.symbols.values()],
            extensions=copy_value(self.extensions),
        )

    def replaced(self, **parts: Any) -> IR:
        """Return a graph with these constructor arguments, and this graph's for all others."""
        return IR(**{**self._arguments(), **parts})

    def specialize(self, **sizes: int) -> IR:
        """Return a copy in which these symbolic sizes are numbers, without tracing again: `ir.specialize(batch=8)`."""
        return specialize(self, sizes)

    def at_level(self, level: str, leaf: Collection[str | type] = ()) -> IR:
        """Return a copy at the granularity `module` (layers), `function` (torch functions) or `aten` (operators).

        Calls of the classes that `leaf` names, by full or short name, stay single nodes.
        """
        return at_level(self, level, leaf)

    def fold_blocks(self) -> IR:
        """Return a copy in which repeated blocks, such as the layers of a language model, are calls of one function.

        `at_level("aten")` inlines them again and returns exactly this graph.
        """
        return fold_blocks(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of the file format as plain JSON values."""
        return graph_document(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any], limits: Limits = Limits()) -> IR:
        """Build the graph of a document; a SerializationError names the JSON path of what is wrong."""
        return read_graph(document, cls, limits)

    def to_json(self) -> str:
        """Return the JSON text of the file; equal graphs have equal text."""
        return graph_text(self)

    @classmethod
    def from_json(cls, text: str, limits: Limits = Limits()) -> IR:
        """Read the JSON text of a file without the checks that need torch (see `load_ir`)."""
        with uncollected():
            return read_text(text, cls, limits)

    def to_text(self) -> str:
        """Return the text form with the values of all constants; `str(ir)` omits those of long ones."""
        return print_graph(self, whole=True)

    @classmethod
    def parse(
        cls, text: str, limits: Limits = Limits(), *, constants: Mapping[str, TensorData | Array] | None = None
    ) -> IR:
        """Parse the text form, as `print(ir)` shows it; a SerializationError names line and column.

        `constants` supplies the values of long constants, by key, which `print` omits. The text, and so the parsed
        graph, lacks the torch version, the module table, and the origins of nodes (`origin` and `origins`).
        Inputs numbered from 0 have no argument names.
        """
        with uncollected():
            return parse_graph(text, cls, limits, constants or {})

    def save(self, path: str | os.PathLike[str], *, inline_limit: int | None = INLINE_LIMIT) -> None:
        """Write the file atomically; folders are created as needed.

        Constants of more than `inline_limit` bytes go into one `.safetensors` file beside it; None keeps all inside.
        A file whose name ends in `.gz` is compressed with gzip.
        """
        target = real_target(path)
        large = [] if inline_limit is None or is_stream(target) else list(constants_over(self, inline_limit))
        side = SideFile(target, large) if large else None
        content = graph_text(self, side.places if side else {}).encode()
        write_pair(target, compress(content) if is_gzip_name(path) else content, side)

    @classmethod
    def load(cls, path: str | os.PathLike[str], limits: Limits = Limits()) -> IR:
        """Read a JSON file, plain or gzip, or the text form; constants in a side file are read at first use."""
        with uncollected(), sniffed_errors(path, limits, is_json=True):
            return read_pair(
                Path(path), limits, lambda folder: _read(read_graph_text(path, limits), cls, limits, folder)
            )

    def __str__(self) -> str:
        return print_graph(self)

    def _repr_html_(self) -> str:
        """Summary and picture for notebooks."""
        from torch_ir.draw.notebook import to_html  # the only upward import: notebooks call this method

        return to_html(self)

    def __repr__(self) -> str:
        return (
            f"IR(model_name={self.model_name!r}, nodes={len(self.nodes)}, inputs={len(self.graph_inputs)}, "
            f"outputs={len(self.graph_outputs)}, weights={len(self.params)})"
        )


def _read(text: str, cls: type[IR], limits: Limits, folder: Folder) -> IR:
    return parse_graph(text, cls, limits, {}) if is_text_form(text) else read_text(text, cls, limits, folder)


def _restored(kind: type[IR], arguments: dict[str, Any]) -> IR:
    return kind(**arguments)


def _params(
    weights: Iterable[TensorMeta], names: Mapping[str, str], constants: Mapping[str, TensorData | Array]
) -> list[TensorMeta]:
    """Build the weight tensors from the documented tables."""
    by_key = {weight.name: weight for weight in weights}
    named = set(names.values())
    unnamed = {key: key for key in by_key if key not in named}
    params = []
    for name, key in {**names, **unnamed}.items():
        if key not in by_key:
            message = f"weight_name_mapping sends {name!r} to {key!r}, which is not among the weights"
            raise GraphError(message, f"$.weight_name_mapping.{name}", rule="R8", hint=suggestion(key, by_key))
        weight = by_key[key]
        kind = "constant" if key in constants else "buffer" if name.startswith("b_") else "parameter"
        param = Param((key,), kind, TensorData.of(constants[key]) if key in constants else None)
        params.append(weight.copy(name))
        params[-1].param = param
    return params


def _join(ir: IR) -> Callable[..., TensorMeta]:
    """Make nodes share tensors by name; return the function that maps a read tensor to the shared one."""
    table: dict[str, TensorMeta] = {}

    def joined(tensor: TensorMeta, path: str, node: str = "") -> TensorMeta:
        found = table.get(tensor.name, tensor)
        if found is not tensor:
            try:
                found.agree_with(tensor)
            except GraphError as error:
                error.prefix(path, node=node)
                raise
        return found

    for number, tensor in enumerate([*ir.graph_inputs, *ir.params]):
        if table.setdefault(tensor.name, tensor) is not tensor:
            raise _defined_twice(tensor, given_path(ir, number, "$.name"))
    for number, node in enumerate(ir.nodes):
        for tensor in node.inputs:
            if table.get(tensor.name, tensor) is not tensor:
                node.inputs = [
                    joined(read, f"$.nodes[{number}].inputs[{index}]", node.name)
                    for index, read in enumerate(node.inputs)
                ]
                break
        for index, tensor in enumerate(node._outputs):
            if table.setdefault(tensor.name, tensor) is not tensor:
                raise _defined_twice(tensor, f"$.nodes[{number}].outputs[{index}].name", node.name)
    return joined


def _defined_twice(tensor: TensorMeta, path: str, node: str = "") -> GraphError:
    return GraphError(f"two tensors are called {tensor.name!r:.80}", path, rule="R8", node=node)
