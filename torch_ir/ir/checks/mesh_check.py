"""Judge what a sharded graph says of ranks: axes, placements, and between whom collectives are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.checks.json_paths import tensor_path
from torch_ir.ir.graph.name_grammar import is_symbol
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.placements import PLACEMENT, REDUCTIONS
from torch_ir.ir.graph.tensor import TensorMeta

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_INT64 = 1 << 63
COLLECTIVE = "_c10d_functional."  # begins the names of operators that speak with other ranks


def check_mesh(ir: IR, tensors: Iterable[TensorMeta], mesh: Mapping[str, int], outer: IR | None) -> None:
    """In a sharded graph, a tensor says for each axis of the mesh how it lies there, and collectives are along one."""
    for axis, size in mesh.items():
        if not is_symbol(axis) or type(size) is not int or not 1 <= size < _INT64:
            message = f"the mesh cannot have an axis {axis!r:.80} of size {size!r:.80}"
            raise GraphError(message, f"$.mesh.{axis!s:.200}", rule="R4" if is_symbol(axis) else "R6")
    for tensor in tensors:
        if tensor.placement is not None:
            _check_placement(ir, tensor, tensor.placement, mesh, outer)
    if ir.mesh:
        _check_ends(ir)
    for number, node in enumerate(ir.nodes):
        if node.op_type.startswith(COLLECTIVE):
            _check_collective(node, mesh, f"$.nodes[{number}].attrs")


def _check_ends(ir: IR) -> None:
    """What a sharded graph takes, gives and leaves in its weights says how it lies: callers put the pieces together."""
    for tensor in dict.fromkeys((*ir.graph_inputs, *ir.returns.inputs)):
        if tensor.placement is None:
            axes = ", ".join(map(str, ir.mesh))
            message = (
                f"{tensor!r:.200} has no placement on {axes:.80}; callers must know how it lies, such as replicate"
            )
            raise GraphError(message, tensor_path(ir, tensor, None), rule="R7")


def _check_placement(
    ir: IR, tensor: TensorMeta, placement: tuple[str, ...], mesh: Mapping[str, int], outer: IR | None
) -> None:
    if len(placement) != len(mesh):
        message = f"{tensor!r:.200} has {len(placement)} placements on a mesh of {len(mesh)} axes"
        raise GraphError(message, f"{tensor_path(ir, tensor, outer)}.placement", rule="R7")
    for index, text in enumerate(placement):
        found = PLACEMENT.fullmatch(text)
        dim = found["dim"] if found else None
        if not found or (dim and (dim.startswith("-") or int(dim) >= len(tensor.shape))):
            message = f"{tensor!r:.200} cannot be placed as {text!r:.80}"
            raise GraphError(message, f"{tensor_path(ir, tensor, outer)}.placement[{index}]", rule="R5")


def _check_collective(node: OpNode, mesh: Mapping[str, int], path: str) -> None:
    """A collective names an axis of the mesh, never a group of processes, and as many ranks as there are."""
    attrs: Mapping[str, Any] = node.attrs
    if "group_name" not in attrs:
        return
    axis = attrs["group_name"]
    if not isinstance(axis, str) or axis not in mesh:
        message = f"{node!r:.200} speaks with {axis!r:.80}, which is no axis of the mesh"
        hint = suggestion(axis, mesh) if isinstance(axis, str) else ""
        raise GraphError(message, f"{path}.group_name", rule="R10", node=node.name, hint=hint)
    if attrs.get("group_size", mesh[axis]) != mesh[axis]:
        message = f"{node!r:.200} speaks with {attrs['group_size']!r:.40} ranks, but axis {axis!r} has {mesh[axis]}"
        raise GraphError(message, f"{path}.group_size", rule="R7", node=node.name)
    if attrs.get("reduce_op", "sum") not in REDUCTIONS:
        message = f"{node!r:.200} reduces by {attrs['reduce_op']!r:.40}"
        raise GraphError(message, f"{path}.reduce_op", rule="R5", node=node.name)
