"""Write the graph of one rank: nodes, collectives, and rank-dependent values.

The rank along an axis is a weight of the graph, `mesh.tp`, bound at run time; values that depend on it alone, such as
the rank's own rows of a tensor, are computed once. So one graph serves all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.size_polynomials import product
from torch_ir.errors import ShapeError, ShardError
from torch_ir.ir import IR, Dim, Expr, MemoryFormat, OpNode, Origin, Param, TensorMeta
from torch_ir.ir.graph.free_names import fresh, taken_names
from torch_ir.ir.graph.placements import REPLICATE, Padded, Partial, Placement, Routed, Shard, rank_key

NEW = {"dtype": None, "layout": None, "device": None, "pin_memory": None}  # the defaults of a factory function
_NOWHERE = Origin()


class Route(NamedTuple):
    """Exchange of rows with the ranks of their experts, on one rank."""

    ends: TensorMeta  # of the rows of each of the rank's experts
    slots: TensorMeta  # where each received row is among them
    back: TensorMeta  # where each of the rank's own rows is among those that come back


class Writer:
    """Writes the nodes of one graph; in a function, rank-dependent values are additional inputs.

    Without `infers`, torch is not asked for results whose shape is known, and names are not unique: for estimates.
    """

    def __init__(
        self, ir: IR, shapes: Shapes, axis: str, ranks: int, is_function: bool, *, infers: bool = True
    ) -> None:
        self.axis, self.ranks = axis, ranks
        self._first: list[OpNode] = []  # nodes that depend on the rank alone, before all others
        self.written: list[OpNode] = []  # the others
        self.decided: dict[tuple[Any, ...], TensorMeta] = {}  # rank-dependent values
        self.rank: TensorMeta | None = None
        self.routes: dict[Routed, Route] = {}
        self.origin = _NOWHERE
        self._shapes = shapes
        self._is_function, self._infers = is_function, infers
        self._is_deciding = False
        self._taken = taken_names(ir)

    def add(
        self,
        op_type: str,
        inputs: Mapping[str, TensorMeta],
        attrs: Mapping[str, Any],
        name: str = "",
        hints: Sequence[Dim] = (),
        shape: Iterable[Dim] | None = None,
        dtype: str = "",
    ) -> TensorMeta:
        """Add a node with one output, named after its operator; `hints` are sizes that it may have.

        `shape` is that of the output if it is known, and `dtype` its dtype if not that of `self`, or the first input.
        """
        if not self._infers and shape is not None:
            name = name or op_type.split(".")[1]
            made = [TensorMeta(name, shape, dtype or inputs.get("self", next(iter(inputs.values()))).dtype)]
            self.append(OpNode(name, op_type, inputs.values(), made, attrs, args=inputs, origin=self.origin))
            return made[0]
        made = self.add_several(op_type, inputs, attrs, name, hints)
        if len(made) != 1:
            raise ShardError(f"{op_type} has {len(made)} results")
        return made[0]

    def add_several(
        self,
        op_type: str,
        inputs: Mapping[str, TensorMeta],
        attrs: Mapping[str, Any],
        name: str = "",
        hints: Sequence[Dim] = (),
    ) -> list[TensorMeta]:
        """Add a node with any number of outputs."""
        made = self.results(op_type, inputs, attrs, hints)
        if not made:
            raise ShardError(f"no shape inference for {op_type}")
        name = name or op_type.split(".")[1]
        name = fresh(name, self._taken) if self._infers else name
        for number, tensor in enumerate(made):
            tensor.name = fresh(f"{name}_{number}", self._taken) if len(made) > 1 else name
        self.append(OpNode(name, op_type, inputs.values(), made, attrs, args=inputs, origin=self.origin))
        return made

    @property
    def nodes(self) -> list[OpNode]:
        return [*self._first, *self.written]

    def append(self, node: OpNode) -> None:
        (self._first if self._is_deciding else self.written).append(node)

    def results(
        self, op_type: str, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any], hints: Sequence[Dim] = ()
    ) -> list[TensorMeta] | None:
        """Infer the results of a call on local tensors."""
        try:
            return self._shapes.results(op_type, inputs, attrs, hints)
        except ShapeError as error:
            where = f"{self.origin.module}: " if self.origin.module else ""
            raise ShardError(f"{where}{error}; on shards for {self.ranks} ranks") from None

    def moved(self, tensor: TensorMeta, before: Placement, after: Placement) -> TensorMeta:
        """Redistribute a value from one placement to another."""
        if before == after or (isinstance(after, Partial) and after.is_of(before)):
            return tensor
        if isinstance(before, Routed) or isinstance(after, Routed):
            return self._returned(tensor, before, after)
        if isinstance(before, Padded):
            whole = self.cut(self._gathered(tensor, Shard(before.dim)), before.dim, before.size)
            return self.moved(whole, REPLICATE, after)
        if isinstance(after, Padded):
            return self.pieces(self.moved(tensor, before, REPLICATE), after)
        if isinstance(before, Partial) and isinstance(after, Partial):
            return self._once(self._reduced(tensor, before, REPLICATE))
        if isinstance(before, Partial):
            return self._reduced(tensor, before, after)
        if isinstance(before, Shard):
            whole = self._gathered(tensor, before)
            return self.moved(whole, REPLICATE, after)
        return self.pieces(tensor, after) if isinstance(after, Shard) else self._once(tensor)

    def pieces(self, tensor: TensorMeta, place: Shard) -> TensorMeta:
        """Select the rank's own shard of a replicated tensor; padding repeats its last elements."""
        size = int(tensor.shape[place.dim])
        index = self.padded_rows(size, place.unit) if isinstance(place, Padded) else self.rows(size, place.parts)
        shape = _with(tensor, place, place.own(size, self.ranks))
        inputs = {"self": tensor, "index": index}
        return self.add("aten.index_select.default", inputs, {"dim": place.dim}, "pieces", shape=shape)

    def without_padding(self, tensor: TensorMeta, place: Padded) -> TensorMeta:
        """Return a piece with zeros for padding."""
        inside = self._decided(("inside", place.size, place.unit), (place.own(place.size, self.ranks),), "bool")
        if behind := len(tensor.shape) - place.dim - 1:
            inside = self.viewed(inside, [*inside.shape, *[1] * behind])
        inputs = {"condition": inside, "self": tensor}
        return self.add("aten.where.ScalarOther", inputs, {"other": 0}, "inside", shape=tensor.shape)

    def cut(self, tensor: TensorMeta, dim: int, size: int) -> TensorMeta:
        """Return the first elements of a dimension."""
        shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
        return self.add(
            "aten.slice.Tensor", {"self": tensor}, {"dim": dim, "start": 0, "end": size, "step": 1}, shape=shape
        )

    def _once(self, tensor: TensorMeta) -> TensorMeta:
        """Turn a replicated value into a partial sum: the first rank has it, the others have zeros."""
        inputs = {"condition": self.is_first(), "self": tensor}
        return self.add("aten.where.ScalarOther", inputs, {"other": 0}, "once", shape=tensor.shape)

    def _gathered(self, tensor: TensorMeta, place: Shard) -> TensorMeta:
        """Gather the shards of all ranks; the collective joins along the first dimension."""
        attrs = {"group_size": self.ranks, "group_name": self.axis}
        given = self.contiguous(tensor)
        shape = (product(self.ranks, tensor.shape[0]), *tensor.shape[1:])
        whole = self._waited("_c10d_functional.all_gather_into_tensor.default", {"input": given}, attrs, shape)
        if place == Shard(0):
            return whole
        size, (before, after) = int(tensor.shape[place.dim]), _around(tensor, place)
        apart = [self.ranks, *before, size // place.parts, *after]
        order = [*range(1, len(before) + 1), 0, *range(len(before) + 1, len(apart))]
        return self._rearranged(whole, apart, order, [*tensor.shape[: place.dim], size * self.ranks, *after])

    def _reduced(self, tensor: TensorMeta, before: Partial, after: Placement) -> TensorMeta:
        """Sum the terms of all ranks; scatter the result if each needs only its own shard."""
        reduction = "sum" if before.reduction == "avg" else before.reduction
        attrs: dict[str, Any] = {"reduce_op": reduction, "group_name": self.axis}
        if isinstance(after, Shard):
            given, local = self._ready_to_scatter(tensor, after)
            attrs = {"reduce_op": reduction, "group_size": self.ranks, "group_name": self.axis}
            shape = local if given.shape[1:] == local[1:] else (1, *local)
            made = self._waited("_c10d_functional.reduce_scatter_tensor.default", {"input": given}, attrs, shape)
            made = made if made.shape == local else self.viewed(made, local)
        else:
            made = self._waited("_c10d_functional.all_reduce.default", {"input": tensor}, attrs, tensor.shape)
        if before.reduction == "avg":
            made = self.add("aten.div.Scalar", {"self": made}, {"other": self.ranks}, shape=made.shape)
        return made

    def _ready_to_scatter(self, tensor: TensorMeta, place: Shard) -> tuple[TensorMeta, tuple[Any, ...]]:
        """Arrange the shards one after the other, as the collective takes them; also return the shape of a shard."""
        size = int(tensor.shape[place.dim])
        local = _with(tensor, place, size // self.ranks)
        if place == Shard(0):
            return self.contiguous(tensor), local
        before, after = _around(tensor, place)
        apart = [*before, self.ranks, size // self.ranks // place.parts, *after]
        order = [len(before), *range(len(before)), *range(len(before) + 1, len(apart))]
        return self._rearranged(tensor, apart, order, [self.ranks, *local]), local

    def _rearranged(self, tensor: TensorMeta, apart: list[Any], order: list[int], together: list[Any]) -> TensorMeta:
        split = self.viewed(tensor, apart)
        turned = self.add("aten.permute.default", {"self": split}, {"dims": order}, shape=[apart[dim] for dim in order])
        moved = [dim for dim in order if apart[dim] != 1]
        if not self._infers and moved != sorted(moved):
            turned.stride = tuple(range(1, len(order) + 1))  # any that is not row-major
        return self.contiguous(self.viewed(turned, together))

    def viewed(self, tensor: TensorMeta, shape: Sequence[Any]) -> TensorMeta:
        """Return a tensor with another shape."""
        sizes = [Expr(size) if isinstance(size, str) else size for size in shape]
        return self.add("aten.reshape.default", {"self": tensor}, {"shape": sizes}, shape=shape)

    def contiguous(self, tensor: TensorMeta) -> TensorMeta:
        """Make a tensor contiguous: collectives ignore strides."""
        if tensor.stride is None:
            return tensor
        attrs = {"memory_format": MemoryFormat("contiguous_format")}
        return self.add("aten.clone.default", {"self": tensor}, attrs, shape=tensor.shape)

    def _waited(
        self, op_type: str, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any], shape: Sequence[Dim]
    ) -> TensorMeta:
        return self.received(self._begun(op_type, inputs, attrs, shape))

    def _begun(
        self, op_type: str, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any], shape: Sequence[Dim]
    ) -> TensorMeta:
        hints = [product(self.ranks, size) for tensor in inputs.values() for size in tensor.shape[:1]]
        return self.add(op_type, inputs, attrs, hints=hints, shape=shape)

    def received(self, begun: TensorMeta) -> TensorMeta:
        """Wait for a collective that has begun."""
        return self.add("_c10d_functional.wait_tensor.default", {"tensor": begun}, {}, shape=begun.shape)

    def exchanged(self, tensor: TensorMeta) -> TensorMeta:
        """Send the n-th of equal pieces of the first dimension to the n-th rank, and join the received ones."""
        sizes = [int(tensor.shape[0]) // self.ranks] * self.ranks
        attrs = {"output_split_sizes": sizes, "input_split_sizes": sizes, "group_name": self.axis}
        op_type = "_c10d_functional.all_to_all_single.default"
        return self._waited(op_type, {"input": self.contiguous(tensor)}, attrs, tensor.shape)

    def broadcast(self, tensor: TensorMeta, rank: int) -> TensorMeta:
        """Begin to send the tensor of one rank to all others, which get it with `received`."""
        attrs = {"src": rank, "group_name": self.axis}
        given = {"input": self.contiguous(tensor)}
        return self._begun("_c10d_functional.broadcast.default", given, attrs, tensor.shape)

    def chosen(self, tensor: TensorMeta, index: TensorMeta, name: str = "") -> TensorMeta:
        """Select rows by their numbers."""
        inputs, shape = {"self": tensor, "index": index}, (*index.shape, *tensor.shape[1:])
        return self.add("aten.index_select.default", inputs, {"dim": 0}, name, shape=shape)

    def require(self, condition: TensorMeta, message: str) -> None:
        """Add an assertion with this message."""
        name = fresh("assert_async", self._taken) if self._infers else "assert_async"
        self.append(
            OpNode(name, "aten._assert_async.msg", [condition], [], {"assert_msg": message}, args=["self"],
                   origin=self.origin)
        )  # fmt: skip

    def _returned(self, tensor: TensorMeta, before: Placement, after: Placement) -> TensorMeta:
        """Send the rows of experts back to the ranks of their tokens; nothing else is made of sorted rows."""
        route = self.routes.get(before) if isinstance(before, Routed) else None
        if route is None or not isinstance(before, Routed) or after != before.returned(int(route.back.shape[0])):
            where = self.origin.module or tensor.name
            raise ShardError(f"{where}: {tensor.name!r} is sorted by expert on each rank and cannot be gathered")
        return self.chosen(self.exchanged(self.chosen(tensor, route.slots)), route.back)

    # -- rank-dependent values ----------------------------------------------------------------------------------------

    def first_of(self, size: Any, most: int | None = None) -> TensorMeta:
        """Return the start of the rank's own shard of `size`, at most `most`, as a tensor of one number."""
        is_less = most is not None and size * (self.ranks - 1) > most
        return self._decided(("begin", size, most) if is_less else ("first", size), (1,), "int64")

    def is_first(self) -> TensorMeta:
        """Return whether this is the first rank, as a tensor of one bool."""
        return self._decided(("is_first",), (1,), "bool")

    def rows(self, size: int, parts: int = 1) -> TensorMeta:
        """Return the rank's own indices of a dimension."""
        return self._decided(("rows", size, parts), (size // self.ranks,), "int64")

    def padded_rows(self, size: int, unit: int = 1) -> TensorMeta:
        """Return the rank's own indices of a dimension in padded pieces; padding has the last index."""
        return self._decided(("padded", size, unit), (Padded(0, unit=unit).own(size, self.ranks),), "int64")

    def shared_rows(self, size: int, group: int) -> TensorMeta:
        """Return the shared items of the rank's own indices, where each `group` of neighbours shares one."""
        own = -(-size // self.ranks)
        count = own if group % own else 1  # all may share one
        return self._decided(("shared", size, group), (count,), "int64")

    def causal_mask(self, queries: int, keys: int) -> TensorMeta:
        """Return which keys each of the rank's own queries attends to: those up to its position."""
        return self._decided(("causal", queries, keys), (queries // self.ranks, keys), "bool")

    def _decided(self, key: tuple[Any, ...], shape: tuple[int, ...], dtype: str) -> TensorMeta:
        if key not in self.decided:
            name = "_".join([self.axis, *map(str, key)])
            if self._is_function:
                self.decided[key] = TensorMeta(fresh(name, self._taken), shape, dtype)
            else:
                self.decided[key] = self._computed(key, name)
        return self.decided[key]

    def like(self, key: tuple[Any, ...], tensor: TensorMeta) -> TensorMeta:
        """Return the rank-dependent value for an additional input of a function."""
        return self._decided(key, tuple(map(int, tensor.shape)), tensor.dtype)

    def _computed(self, key: tuple[Any, ...], name: str) -> TensorMeta:
        """Compute a rank-dependent value from the rank."""
        around, self.origin, before, self._is_deciding = self.origin, _NOWHERE, self._is_deciding, True
        try:
            return self._from_rank(self._rank_number(), name, *key)
        finally:
            self.origin, self._is_deciding = around, before

    def _from_rank(self, rank: TensorMeta, name: str, kind: str, *numbers: int) -> TensorMeta:
        made: dict[str, Callable[..., TensorMeta]] = {
            "is_first": lambda: self.add("aten.eq.Scalar", {"self": rank}, {"other": 0}, name),
            "first": lambda size: self.add("aten.mul.Scalar", {"self": rank}, {"other": size}, name),
            "begin": lambda size, most: self._clamped(self.first_of(size), most, name),
            "rows": lambda size, parts: self._rows(size, parts, name),
            "padded": lambda size, unit: self._clamped(self._positions(size, unit), size - 1, name),
            "inside": lambda size, unit: self.add(
                "aten.lt.Scalar", {"self": self._positions(size, unit)}, {"other": size}, name
            ),
            "shared": lambda size, group: self._groups(size, group, name),
            "causal": lambda queries, keys: self._visible(queries, keys, name),
        }
        return made[kind](*numbers)

    def _rows(self, size: int, parts: int, name: str) -> TensorMeta:
        own = size // self.ranks // parts
        first = self.first_of(own)
        places = self.add("aten.arange.default", {}, {"end": own * parts, **NEW})
        if parts > 1:  # skip the shards of other ranks in each packed part
            attrs = {"other": own, "rounding_mode": "floor"}
            part = self.add("aten.div.Scalar_mode", {"self": places}, attrs)
            gap = self.add("aten.mul.Scalar", {"self": part}, {"other": size // parts - own})
            places = self.add("aten.add.Tensor", {"self": places, "other": gap}, {"alpha": 1})
        return self.add("aten.add.Tensor", {"self": places, "other": first}, {"alpha": 1}, name)

    def _positions(self, size: int, unit: int) -> TensorMeta:
        """Return the rank's own indices in padded pieces, also those behind the end."""
        own = Padded(0, unit=unit).own(size, self.ranks)
        places = self.add("aten.arange.default", {}, {"end": own, **NEW})
        return self.add("aten.add.Tensor", {"self": places, "other": self.first_of(own)}, {"alpha": 1})

    def _clamped(self, numbers: TensorMeta, most: int, name: str) -> TensorMeta:
        return self.add("aten.clamp.default", {"self": numbers}, {"min": None, "max": most}, name)

    def _visible(self, queries: int, keys: int, name: str) -> TensorMeta:
        rows = self.add("aten.unsqueeze.default", {"self": self.rows(queries)}, {"dim": 1})
        columns = self.add("aten.arange.default", {}, {"end": keys, **NEW})
        return self.add("aten.ge.Tensor", {"self": rows, "other": columns}, {}, name)

    def _groups(self, size: int, group: int, name: str) -> TensorMeta:
        own = -(-size // self.ranks)
        if group % own:
            places = self.padded_rows(size) if size % self.ranks else self.rows(size)
        else:
            places = self.first_of(own, size - 1)
        return self.add("aten.div.Scalar_mode", {"self": places}, {"other": group, "rounding_mode": "floor"}, name)

    def _rank_number(self) -> TensorMeta:
        if self.rank is None:
            name = fresh(f"{self.axis}_rank", self._taken)
            self.rank = TensorMeta(name, (1,), "int64", param=Param((rank_key(self.axis),), "constant"))
        return self.rank


def _with(tensor: TensorMeta, place: Shard, size: int) -> tuple[Dim, ...]:
    """Return the shape with another size of the sharded dimension."""
    return (*tensor.shape[: place.dim], size, *tensor.shape[place.dim + 1 :])


def _around(tensor: TensorMeta, place: Shard) -> tuple[list[Any], list[Any]]:
    """Return the sizes before the sharded dimension, including packed parts, and those after it."""
    packed = [place.parts] if place.parts > 1 else []
    return [*tensor.shape[: place.dim], *packed], list(tensor.shape[place.dim + 1 :])
