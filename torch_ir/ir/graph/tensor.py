"""TensorMeta: a tensor's name, shape and dtype; inside a graph, also its producer and consumers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir.graph.attr_types import DTYPES
from torch_ir.ir.graph.constant_data import TensorData
from torch_ir.ir.graph.read_only import ListView
from torch_ir.ir.json.json_fields import Dim, allow_keys, field, optional, read_dims, read_dtype, texts

if TYPE_CHECKING:
    from torch_ir.ir.graph.node import OpNode

_KEYS = frozenset(("name", "shape", "dtype", "producer_node", "producer_output_idx", "stride", "placement"))
_SHORT = frozenset(("name", "shape", "dtype"))
PARAM_KINDS = ("parameter", "buffer", "stack", "temporary", "constant")
STACK = "stack"
INDEX = "*"  # in the key of a stack: 0, 1, ...


@dataclass(frozen=True)
class Param:
    """Source of the values of a weight.

    `keys` are its names in a state dict; several when weights are tied. A `stack` has one key with one `*`: its values
    are the tensors of a state dict that have 0, 1, ... in place of the `*`, stacked along the first dimension. A
    `temporary` is a non-persistent buffer and a `constant` a plain tensor: neither is in a state dict, so `data` holds
    their values when they are known.
    """

    keys: tuple[str, ...]
    kind: str = "parameter"
    data: TensorData | None = None

    @property
    def in_state_dict(self) -> bool:
        return self.kind in ("parameter", "buffer", STACK)

    @property
    def is_learnt(self) -> bool:
        """Whether this is a parameter, or several stacked."""
        return self.kind in ("parameter", STACK)


class TensorMeta:
    """A value of the graph, shared by its producer and its consumers."""

    __slots__ = (
        "_producer_name", "_uses", "dtype", "index", "name", "param", "placement", "producer", "shape", "stride",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        shape: Iterable[Dim],
        dtype: str,
        producer_node: str | None = None,
        producer_output_idx: int = 0,
        *,
        stride: Iterable[Dim] | None = None,
        param: Param | None = None,
        placement: Iterable[str] | None = None,
    ) -> None:
        self.name = name
        self.shape: tuple[Dim, ...] = tuple(shape)
        self.dtype = dtype
        self.stride: tuple[Dim, ...] | None = None if stride is None else tuple(stride)  # None: row-major
        self.param = param
        # placement on each mesh axis of a sharded graph: "shard(0)", "replicate" or "partial(sum)"
        self.placement: tuple[str, ...] | None = None if placement is None else tuple(placement)
        self.producer: OpNode | None = None
        self.index = producer_output_idx
        self._producer_name = producer_node
        self._uses: dict[OpNode, int] = {}

    @property
    def consumers(self) -> list[OpNode]:
        """The nodes that read this tensor, in order, once per read; read-only."""
        readers = (node for node, count in self._uses.items() for _ in range(count))
        return ListView(readers, "assign the inputs of a node: node.inputs = (...)")

    @property
    def producer_node(self) -> str | None:
        """Name of the producer; None for inputs and weights."""
        return self.producer.name if self.producer is not None else self._producer_name

    @property
    def producer_output_idx(self) -> int:
        """Index among the producer's outputs; the same as `index`."""
        return self.index

    @property
    def key(self) -> str | None:
        """State-dict key; None if this is not a weight."""
        return self.param.keys[0] if self.param else None

    @property
    def stored_keys(self) -> tuple[str, ...]:
        """The state-dict keys that a weight may be read from: those of its members if it is a stack."""
        if self.param is None or self.param.kind != STACK:
            return self.param.keys if self.param else ()
        return tuple(self.param.keys[0].replace(INDEX, str(index)) for index in range(int(self.shape[0])))

    @property
    def is_static(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(dim, int) for dim in self.shape)

    def replace_all_uses_with(self, other: TensorMeta) -> None:
        """Replace this tensor by `other` in every reader, including the graph outputs."""
        if other is not self:
            for node in tuple(self._uses):
                node.replace_input(self, other)

    def agree_with(self, read: TensorMeta) -> None:
        """Raise GraphError if a reader's restatement of this tensor contradicts it."""
        for key in ("shape", "dtype", "stride", "placement"):
            restated_value = getattr(read, key)
            if restated_value != getattr(self, key) and (restated_value is not None or key in _SHORT):
                message = f"{self.name!r:.80} is made as {_facts(self):.200}, but read as {_facts(read):.200}"
                raise GraphError(message, f"$.{key}", rule="R7")
        made_by = (self.producer_node or self.name, self.index)
        if read.producer_node is not None and made_by != (read.producer_node, read.index):
            message = f"but a reader says output {read.index} of {read.producer_node!r:.80}"
            message = f"{self.name!r:.80} is output {self.index} of {made_by[0]!r:.80}, {message}"
            key = "producer_node" if made_by[0] != read.producer_node else "producer_output_idx"
            raise GraphError(message, f"$.{key}", rule="R7")

    def copy(self, name: str | None = None) -> TensorMeta:
        """Return the same description as a tensor outside of any graph."""
        return TensorMeta(
            name or self.name, self.shape, self.dtype, stride=self.stride, param=self.param, placement=self.placement
        )

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and deepcopy: only the description. Nodes restore the links, so that recursion stays shallow."""
        facts = (self.name, self.shape, self.dtype, self._producer_name, self.index)
        return _restored, (type(self), facts, self.stride, self.param, self.placement)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON record of the tensor."""
        record: dict[str, Any] = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}
        if self.producer_node is not None:
            record["producer_node"] = self.producer_node
            record["producer_output_idx"] = self.index
        _add_layout(self, record)
        return record

    @classmethod
    def from_dict(cls, record: dict[str, Any], path: str = "$") -> TensorMeta:
        """Build a tensor from its record; `path` is its JSON path for error messages."""
        allow_keys(record, _KEYS, path)
        strides = field(record, "stride", list, path) if "stride" in record else None
        producer = optional(record, "producer_node", str, path)
        index = optional(record, "producer_output_idx", int, path) or 0
        if index and producer is None:
            message = "`producer_output_idx` without `producer_node`"
            raise SerializationError(message, f"{path}.producer_output_idx", rule="R7")
        return cls(
            field(record, "name", str, path),
            read_dims(field(record, "shape", list, path), f"{path}.shape"),
            read_dtype(field(record, "dtype", str, path), f"{path}.dtype"),
            producer,
            index,
            stride=None if strides is None else read_dims(strides, f"{path}.stride"),
            placement=texts(record, "placement", path) if "placement" in record else None,
        )

    def __repr__(self) -> str:
        return f"TensorMeta({self.name!r}, {self.shape}, {self.dtype!r})"


def _restored(kind: type[TensorMeta], facts: tuple[Any, ...], stride: Any, param: Any, placement: Any) -> TensorMeta:
    return kind(*facts, stride=stride, param=param, placement=placement)


class Scope:
    """The tensors defined so far while a file is read; readers' records are resolved to them."""

    def __init__(self) -> None:
        self.tensors: dict[str, TensorMeta] = {}
        self._restated: dict[str, dict[str, Any]] = {}

    def define(self, tensor: TensorMeta) -> None:
        """Make this tensor available to readers."""
        self.tensors[tensor.name] = tensor
        self._restated.pop(tensor.name, None)

    def find(self, records: list[Any], path: str) -> list[TensorMeta]:
        """Resolve readers' records to tensors; whatever a record restates must match."""
        found = []
        for index, record in enumerate(records):
            name = record.get("name") if type(record) is dict else None
            if type(name) is str and name in self.tensors and _is_same(self._expected_record(name), record):
                found.append(self.tensors[name])
                continue
            read = TensorMeta.from_dict(record, f"{path}[{index}]")
            made = self.tensors.get(read.name, read)
            try:
                made.agree_with(read)
            except GraphError as error:
                raise SerializationError.of(error, f"{path}[{index}]") from None
            found.append(made)
        return found

    def _expected_record(self, name: str) -> dict[str, Any]:
        """Return the record that readers use for a tensor, built at first use."""
        if name not in self._restated:
            self._restated[name] = restated(self.tensors[name])
        return self._restated[name]


def read_tensors(record: dict[str, Any], key: str, path: str) -> list[TensorMeta]:
    """Read the list of tensors under `key` of a record."""
    found = field(record, key, list, path)
    return [
        TensorMeta(item["name"], item["shape"], item["dtype"])
        if _is_short(item)
        else TensorMeta.from_dict(item, f"{path}.{key}[{index}]")
        for index, item in enumerate(found)
    ]


def bare(tensor: TensorMeta) -> dict[str, Any]:
    """Return the record of a tensor at its definition."""
    record: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
    _add_layout(tensor, record)
    return record


def _add_layout(tensor: TensorMeta, record: dict[str, Any]) -> None:
    if tensor.stride is not None:
        record["stride"] = list(tensor.stride)
    if tensor.placement is not None:
        record["placement"] = list(tensor.placement)


def restated(tensor: TensorMeta) -> dict[str, Any]:
    """Return the record of a tensor at a reader."""
    record: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
    if tensor.param is None:
        producer = tensor.producer
        record["producer_node"] = tensor.name if producer is None else producer.name
        record["producer_output_idx"] = tensor.index
    return record


def _is_short(record: Any) -> bool:
    """Whether this is the common case: a valid record of a name, a static shape and a dtype."""
    if type(record) is not dict or record.keys() != _SHORT or type(record["shape"]) is not list:
        return False
    for dim in record["shape"]:
        if type(dim) is not int or dim < 0:
            return False
    return type(record["name"]) is str and type(record["dtype"]) is str and record["dtype"] in DTYPES


def _is_same(expected: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether a record is exactly the expected one; in Python, 1 equals True and 1.0."""
    if expected != record or list(map(type, expected["shape"])) != list(map(type, record["shape"])):
        return False
    return type(record.get("producer_output_idx", 0)) is int


def _facts(tensor: TensorMeta) -> str:
    strides = "" if tensor.stride is None else f" with strides {list(tensor.stride)}"
    placed = "" if tensor.placement is None else f" placed {', '.join(tensor.placement)}"
    return f"{tensor.dtype}{list(tensor.shape)}{strides}{placed}"[:200]
