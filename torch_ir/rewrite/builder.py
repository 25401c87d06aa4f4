"""The builder, with which a rule creates nodes; it handles names, origins, defaults and shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, Union

from torch_ir.errors import GraphError
from torch_ir.ir import Dim, Dtype, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.graph.origins import origin_for

# How the results of a replacement may differ for NaN and infinities; verification accepts nothing else.
REORDERS = "NaN from infinities, such as inf - inf, may become an infinity or a number"
CUTS = "NaN may become a number, and an infinity NaN"
SPREADS = "NaN and infinities may change results that did not depend on them"
Number = Union[bool, int, float, complex]
_Call = tuple[dict[str, TensorMeta], dict[str, Any], list[TensorMeta]]  # inputs, attributes, outputs


class Knowledge(Protocol):
    """Facts about operators and the graph for rewriting; see `torch_ir.analysis.values`."""

    def call(self, op_type: str, arguments: Mapping[str, Any], hints: Sequence[Dim] = ()) -> _Call: ...

    def is_weight(self, tensor: TensorMeta) -> bool: ...

    def scalar_of(self, tensor: TensorMeta) -> Number | None: ...

    def value_of(self, tensor: TensorMeta) -> Any: ...

    def is_home(self, device: str | None) -> bool: ...

    def is_idle(self, node: OpNode) -> bool: ...

    def passes_shape_rule(self, node: OpNode) -> bool: ...

    def agree(self, one: TensorMeta, other: TensorMeta) -> bool: ...

    def objection(self, old: TensorMeta, new: TensorMeta) -> str: ...

    def replace(self, old: TensorMeta, new: TensorMeta) -> None: ...


class Builder:
    """Creates the nodes that replace others, `replaced`; the new nodes go before the last of these."""

    def __init__(self, context: Knowledge, names: Callable[[], FreeNames], replaced: Sequence[OpNode]) -> None:
        self.nodes: list[OpNode] = []
        self.non_finite: tuple[str, ...] = ()
        self._context = context
        self._names = names
        self._replaced = list(replaced)

    @property
    def replaced(self) -> Sequence[OpNode]:
        """The nodes that the new ones replace."""
        return self._replaced

    @cached_property
    def _hints(self) -> list[Dim]:
        """Likely sizes of new tensors."""
        made = [tensor for node in self._replaced for tensor in node.outputs]
        return [dim for tensor in made for dim in (*tensor.shape, *(tensor.stride or ()))]

    @property
    def _origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for node in self._replaced for name in node.origins))

    def op(self, op_type: str, /, **arguments: Any) -> TensorMeta:
        """Add a node and return its only output; omitted arguments have their defaults.

        g.op("aten.mul.Tensor", self=x, other=scale)
        """
        return self._only(op_type, self._context.call(op_type, arguments, self._hints))

    def ops(self, op_type: str, /, **arguments: Any) -> tuple[TensorMeta, ...]:
        """Add a node and return its outputs, for operators with several outputs, none, or a list.

        values, indices = g.ops("aten.max.dim", self=x, dim=0)
        """
        return self._add(op_type, self._context.call(op_type, arguments, self._hints))

    def cast(self, tensor: TensorMeta, dtype: str) -> TensorMeta:
        """Return a tensor in this dtype: the tensor itself, or the output of a new `aten.to.dtype`."""
        return tensor if tensor.dtype == dtype else self.op("aten.to.dtype", self=tensor, dtype=Dtype(dtype))

    def like(self, node: OpNode, /, **changed: Any) -> TensorMeta:
        """Add the same call with some arguments changed, and return its output."""
        made = self.op(node.op_type, **{**arguments_of(node), **changed})
        self._add_origins(node)
        return made

    def likes(self, node: OpNode, /, **changed: Any) -> tuple[TensorMeta, ...]:
        """Add the same call with some arguments changed, and return its outputs."""
        made = self.ops(node.op_type, **{**arguments_of(node), **changed})
        self._add_origins(node)
        return made

    def _only(self, op_type: str, call: _Call) -> TensorMeta:
        if len(call[2]) != 1:
            message = f"{op_type} has {len(call[2])} outputs, but g.op returns one"
            raise GraphError(message, hint="use g.ops, which returns a tuple")
        return self._add(op_type, call)[0]

    def _add(self, op_type: str, call: _Call) -> tuple[TensorMeta, ...]:
        """Create the node of a call, with free names."""
        inputs, attrs, outputs = call
        names = self._names()
        name = names.free(op_type.split(".")[1])
        for index, made in enumerate(outputs):
            made.name = name if len(outputs) == 1 else names.free(f"{name}_{index}")
        node = OpNode(
            name,
            op_type,
            inputs.values(),
            outputs,
            attrs,
            args=inputs,
            origin=origin_for(self._replaced),
            origins=self._origins,
        )
        self.nodes.append(node)
        return node.outputs

    def _add_origins(self, node: OpNode) -> None:
        """Put the origins of a node first among those of the last new node."""
        self.nodes[-1].origins = tuple(dict.fromkeys((*node.origins, *self._origins)))

    def stands_for(self, *nodes: OpNode | None) -> None:
        """Count further nodes, besides those of the pattern, as replaced by the new nodes."""
        self._replaced[:0] = [node for node in nodes if node is not None]

    def may_change(self, *non_finite: str) -> None:
        """Declare how results may differ for NaN and infinities: `REORDERS`, `CUTS`, `SPREADS`."""
        self.non_finite = non_finite

    def is_weight(self, tensor: TensorMeta) -> bool:
        """Whether a tensor depends only on weights and constants, so that what is computed from it is computed once."""
        return self._context.is_weight(tensor)

    def is_home(self, device: str | None) -> bool:
        """Whether everything is on that device, or on a single one if None, so that nothing moves."""
        return self._context.is_home(device)

    def scalar_of(self, tensor: TensorMeta) -> Number | None:
        """Return the number that every element of a tensor is known to be without weights; None if there is none."""
        return self._context.scalar_of(tensor)

    def value_of(self, tensor: TensorMeta) -> Any:
        """Return the value of a tensor, which must not be modified; None if it is unknown without weights, or large."""
        return self._context.value_of(tensor)


def arguments_of(node: OpNode) -> dict[str, Any]:
    """Return every argument of a call by name: tensors, attributes, and lists of tensors as lists."""
    names = dict.fromkeys(full.partition(".")[0] for full in (*node.args, *node.attrs))
    return {name: node[name] for name in names}
