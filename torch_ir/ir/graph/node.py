"""OpNode: one operator call, its arguments under their schema names, and where in the model it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from torch_ir.errors import GraphError, ReadOnlyError, SerializationError, did_you_mean
from torch_ir.ir.graph.attr_order import ordered
from torch_ir.ir.graph.attr_types import FunctionRef
from torch_ir.ir.graph.read_only import ListView
from torch_ir.ir.graph.tensor import Scope, TensorMeta, bare, read_tensors, restated
from torch_ir.ir.json.json_fields import allow_keys, field, optional, texts
from torch_ir.ir.json.json_values import PLAIN, decode, encode

_KEYS = frozenset(
    (
        "name", "op_type", "inputs", "outputs", "attrs", "args",
        "module", "module_class", "call", "outer", "source", "function", "origins",
    )
)  # fmt: skip
_ORIGIN_KEYS = ("module_class", "call", "outer", "source", "function")
_RARE = ("outer", "function")
_MANY = 32  # inputs; of nodes with more, replacing one must not copy all


class Origin(NamedTuple):
    """Where a node came from: module path, number of the call of that module, its class, and the user's source line.

    `outer` lists the enclosing modules that had been called before, as `path@call`: `("encoder.block@3",)`. `function`
    is the torch function that the model called, with the number of that call: `torch.nn.functional.gelu@2`.
    """

    module: str = ""
    call: int = 0
    module_class: str = ""
    source: str = ""
    outer: tuple[str, ...] = ()
    function: str = ""


_NOWHERE = Origin()


class _WideInputs:
    """The inputs of a node that has many, and the places of each: replacing one does not copy the others."""

    __slots__ = ("_places", "tensors")

    def __init__(self, tensors: Iterable[TensorMeta]) -> None:
        self.tensors = list(tensors)
        self._places: dict[TensorMeta, list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            self._places.setdefault(tensor, []).append(place)

    def replace(self, old: TensorMeta, new: TensorMeta) -> None:
        places = self._places.pop(old)
        for place in places:
            self.tensors[place] = new
        self._places.setdefault(new, []).extend(places)


class OpNode:
    """An operator applied to tensors.

    `args` names the argument of each input: `input`, `weight`, `tensors.0`. All other arguments are in `attrs`, absent
    optionals as `None`; `node["weight"]` and `node["stride"]` look up either.
    """

    __slots__ = ("_args", "_inputs", "_outputs", "_wide", "attrs", "name", "op_type", "origin", "origins")

    def __init__(
        self,
        name: str,
        op_type: str,
        inputs: Iterable[TensorMeta],
        outputs: Iterable[TensorMeta],
        attrs: Mapping[str, Any] | None = None,
        *,
        args: Iterable[str] = (),
        origin: Origin = _NOWHERE,
        origins: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.op_type = op_type
        self.attrs: dict[str, Any] = dict(attrs) if attrs else {}
        self.origin = origin
        self.origins: tuple[str, ...] = tuple(origins) or (name,)  # the captured nodes that this one replaces
        # inlined from the setters of inputs and outputs: there are no earlier links to undo
        self._inputs: tuple[TensorMeta, ...] | None  # None: `_wide` has changed since
        self._inputs = reads = tuple(inputs)
        self._wide: _WideInputs | None = None
        self._args = args = tuple(args)
        if args and len(args) != len(reads):
            raise self._wrong_arg_count(reads, args)
        for tensor in reads:
            uses = tensor._uses
            uses[self] = uses.get(self, 0) + 1
        self._outputs = tuple(outputs)
        for index, tensor in enumerate(self._outputs):
            tensor.producer = self
            tensor.index = index

    @property
    def inputs(self) -> tuple[TensorMeta, ...]:
        """The tensors that the node reads; assign a sequence to rewire it."""
        if self._inputs is None:
            assert self._wide is not None
            self._inputs = tuple(self._wide.tensors)
        return self._inputs

    @inputs.setter
    def inputs(self, tensors: Iterable[TensorMeta]) -> None:
        """The only place that rewires a node and counts uses."""
        before = self.inputs
        self._inputs, self._wide = tuple(tensors), None
        for new in self._inputs:
            new._uses[self] = new._uses.get(self, 0) + 1
        for old in before:  # afterwards, so that a node keeps its place among the consumers of what it still reads
            if old._uses[self] == 1:
                del old._uses[self]
            else:
                old._uses[self] -= 1

    def replace_input(self, old: TensorMeta, new: TensorMeta) -> None:
        """Replace input `old` by `new`; the uses of its other inputs, which may be many, are not touched."""
        count = old._uses.pop(self)
        if self._inputs is not None and len(self._inputs) <= _MANY:
            self._inputs = tuple([new if tensor is old else tensor for tensor in self._inputs])
        else:
            self._wide = self._wide or _WideInputs(self.inputs)
            self._wide.replace(old, new)
            self._inputs = None
        new._uses[self] = new._uses.get(self, 0) + count

    @property
    def args(self) -> tuple[str, ...]:
        """The argument name of each input; positions as text if there is no schema."""
        return self._args or tuple(map(str, range(len(self.inputs))))

    @property
    def computation(self) -> tuple[str, tuple[str, ...], str]:
        """A key of what the node computes from its inputs; attributes as text, which distinguishes 1, 1.0 and True."""
        return self.op_type, self._args, repr(ordered(self.op_type, self.attrs))

    @property
    def has_named_args(self) -> bool:
        """Whether the inputs have schema names rather than positions."""
        return bool(self._args) or not self.inputs

    def set_inputs(self, tensors: Iterable[TensorMeta], args: Iterable[str]) -> None:
        """Assign inputs together with their argument names."""
        tensors, args = tuple(tensors), tuple(args)
        if args and len(args) != len(tensors):
            raise self._wrong_arg_count(tensors, args)
        self.inputs = tensors
        self._args = args

    def _wrong_arg_count(self, tensors: tuple[TensorMeta, ...], args: tuple[str, ...]) -> GraphError:
        message = f"{self!r:.200} has {len(tensors)} inputs, but {len(args)} argument names"
        return GraphError(message, "$.args", rule="R7", node=self.name)

    @property
    def outputs(self) -> tuple[TensorMeta, ...]:
        """The tensors that the node produces."""
        return self._outputs

    @outputs.setter
    def outputs(self, tensors: Iterable[TensorMeta]) -> None:
        self._outputs = tuple(tensors)
        for index, tensor in enumerate(self._outputs):
            tensor.producer = self
            tensor.index = index

    @property
    def output(self) -> TensorMeta:
        """The only output; raises GraphError if there are none or several."""
        if len(self._outputs) != 1:
            raise GraphError(f"{self!r:.200} has {len(self._outputs)} outputs, not one", rule="R7", node=self.name)
        return self._outputs[0]

    def __getitem__(self, argument: str) -> Any:
        """Return an argument by name: a tensor, an attribute, or a list if the argument is a list of tensors."""
        if argument in self.attrs:
            return self.attrs[argument]
        if argument in self._args:
            return self.inputs[self._args.index(argument)]
        if argument in self.args:  # positional, without a schema
            return self.inputs[self.args.index(argument)]
        elements = self.elements(argument)
        if not elements:
            known = {name.partition(".")[0] for name in (*self.args, *self.attrs)}
            raise KeyError(f"{self!r} has no argument {argument!r}{did_you_mean(argument, known)}")
        return elements

    def get(self, argument: str, default: Any = None) -> Any:
        """Return an argument by name, or the default if the node has none: `node.get("bias")`."""
        try:
            return self[argument]
        except KeyError:
            return default

    def elements(self, argument: str) -> list[Any]:
        """Return the elements of a list argument in order: tensors, numbers, None if absent, or lists of these."""
        return self._elements(argument, {**dict(zip(self.args, self.inputs, strict=True)), **self.attrs})

    def _elements(self, argument: str, flat: Mapping[str, Any]) -> list[Any]:
        """Return the elements of a list argument, of these arguments by full name."""
        start = len(argument) + 1
        parts: dict[str, dict[str, Any]] = {}
        for name, value in flat.items():
            if name.startswith(f"{argument}."):
                parts.setdefault(name[start:].partition(".")[0], {})[name] = value

        def element(full: str, part: Mapping[str, Any] | None) -> Any:
            if part is None:  # a gap
                return self[full]  # raises KeyError
            return part[full] if full in part else self._elements(full, part)

        found = (element(f"{argument}.{index}", parts.get(str(index))) for index in range(len(parts)))
        return ListView(found, "assign the inputs with their argument names: node.set_inputs(tensors, args)")

    @property
    def is_call(self) -> bool:
        """Whether this node calls a function of the graph."""
        return isinstance(self.attrs.get("function"), FunctionRef)

    @property
    def is_layer(self) -> bool:
        """Whether this node is a whole module call, either with a body or as a placeholder."""
        return bool(self.origin.module_class) and self.op_type.rpartition(".")[2] == self.origin.module_class

    def copy(self, tensors: Callable[[TensorMeta], TensorMeta], name: str | None = None) -> OpNode:
        """Return the same call on other tensors, sharing no mutable object."""
        return OpNode(
            name or self.name,
            self.op_type,
            map(tensors, self.inputs),
            map(tensors, self._outputs),
            {key: copy_value(value) for key, value in self.attrs.items()},
            args=self._args,
            origin=self.origin,
            origins=self.origins,
        )

    def __copy__(self) -> NoReturn:
        message = f"{self!r:.200} shares its tensors with a graph, and two nodes cannot make the same tensor"
        raise ReadOnlyError(message, node=self.name, hint="use ir.clone(), or node.copy(tensors)")

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and deepcopy: the node with its tensors, which do not reference further nodes."""
        facts = (self.name, self.op_type, self.inputs, self._outputs, self.attrs)
        return _restored, (type(self), facts, self._args, self.origin, self.origins)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON record of the node."""
        record: dict[str, Any] = {
            "name": self.name,
            "op_type": self.op_type,
            "inputs": [restated(tensor) for tensor in self.inputs],
            "outputs": [bare(tensor) for tensor in self._outputs],
            "attrs": {name: encode(value) for name, value in ordered(self.op_type, self.attrs).items()},
        }
        if self._args:
            record["args"] = list(self._args)
        origin = self.origin
        if origin.module or origin.module_class:
            record["module"] = origin.module
        fields = {**origin._asdict(), "outer": list(origin.outer)}
        record.update((key, fields[key]) for key in _ORIGIN_KEYS if fields[key])
        if self.origins != (self.name,):
            record["origins"] = list(self.origins)
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any], path: str = "$", scope: Scope | None = None) -> OpNode:
        """Build a node from its record; inputs are looked up in the scope, and outputs are defined there."""
        allow_keys(record, _KEYS, path)
        name = field(record, "name", str, path)
        attrs = field(record, "attrs", dict, path) if "attrs" in record else {}
        scope = scope or Scope()
        try:
            node = cls(
                name,
                field(record, "op_type", str, path),
                scope.find(field(record, "inputs", list, path), f"{path}.inputs"),
                _read_outputs(record, name, path),
                {
                    key: value if type(value) in PLAIN else decode(value, f"{path}.attrs.{key:.200}")
                    for key, value in attrs.items()
                },
                args=texts(record, "args", path),
                origin=read_origin(record, path),
                origins=texts(record, "origins", path) if "origins" in record else (),
            )
        except GraphError as error:
            raise SerializationError.of(error, path) from None
        except SerializationError as error:
            error.node = name
            raise
        for tensor in node.outputs:
            scope.define(tensor)
        return node

    def __repr__(self) -> str:
        return f"OpNode({self.name!r}, {self.op_type!r})"


def _restored(kind: type[OpNode], facts: tuple[Any, ...], args: Any, origin: Origin, origins: Any) -> OpNode:
    return kind(*facts, args=args, origin=origin, origins=origins)


def read_origin(record: dict[str, Any], path: str) -> Origin:
    found = (record.get("module", ""), record.get("call", 0), record.get("module_class", ""), record.get("source", ""))
    if tuple(map(type, found)) == (str, int, str, str) and record.keys().isdisjoint(_RARE):
        return Origin(*found)
    return Origin(
        optional(record, "module", str, path) or "",
        optional(record, "call", int, path) or 0,
        optional(record, "module_class", str, path) or "",
        optional(record, "source", str, path) or "",
        tuple(texts(record, "outer", path)),
        optional(record, "function", str, path) or "",
    )


def _read_outputs(record: dict[str, Any], name: str, path: str) -> list[TensorMeta]:
    """Read the outputs of a node; an output that names its producer must name this node."""
    outputs = read_tensors(record, "outputs", path)
    for index, tensor in enumerate(outputs):
        if tensor.producer_node is not None and (tensor.producer_node, tensor.index) != (name, index):
            other = f"output {tensor.index} of {tensor.producer_node!r:.80}"
            message = f"output {index} of {name!r:.80} says that it is {other}"
            raise SerializationError(message, f"{path}.outputs[{index}].producer_node", rule="R7", node=name)
    return outputs


def copy_value(value: Any) -> Any:
    if isinstance(value, list):
        return [copy_value(item) for item in value]
    return {key: copy_value(item) for key, item in value.items()} if isinstance(value, dict) else value
