"""Check the mesh of a sharded graph: axes, placements and collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError, suggestion
from torch_ir.ir.checks.json_paths import tensor_path
from torch_ir.ir.graph.name_grammar import is_symbol
from torch_ir.ir.graph.node import OpNode
from torch_ir.ir.graph.placements import PLACEMENT, REDUCTIONS, Padded, Shard, stored_placement
from torch_ir.ir.graph.tensor import TensorMeta
from torch_ir.ir.json.json_fields import Dim

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

_INT64 = 1 << 63
COLLECTIVE = "_c10d_functional."  # prefix of collective operators


def check_mesh(ir: IR, tensors: Iterable[TensorMeta], mesh: Mapping[str, int], outer: IR | None) -> None:
    """Check the mesh axes, the placements of tensors on them, and the axes of collectives."""
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
    """Check that inputs, outputs and new weight values of a sharded graph have placements, which callers need."""
    for tensor in dict.fromkeys((*ir.graph_inputs, *ir.returns.inputs)):
        if tensor.placement is None:
            axes = ", ".join(map(str, ir.mesh))
            message = f"{tensor!r:.200} has no placement on {axes:.80}; expected for example replicate"
            raise GraphError(message, tensor_path(ir, tensor, None), rule="R7")


def _check_placement(
    ir: IR, tensor: TensorMeta, placement: tuple[str, ...], mesh: Mapping[str, int], outer: IR | None
) -> None:
    if len(placement) != len(mesh):
        message = f"{tensor!r:.200} has {len(placement)} placements on a mesh of {len(mesh)} axes"
        raise GraphError(message, f"{tensor_path(ir, tensor, outer)}.placement", rule="R7")
    shape = list(tensor.shape)  # without the axes that have been checked, last first
    for index, (text, ranks) in reversed(list(enumerate(zip(placement, mesh.values(), strict=True)))):
        if not _is_placed(text, ranks, shape):
            message = f"{tensor!r:.200} has an invalid placement {text!r:.80}"
            raise GraphError(message, f"{tensor_path(ir, tensor, outer)}.placement[{index}]", rule="R5")


def _is_placed(text: str, ranks: int, shape: list[Dim]) -> bool:
    """Whether pieces of this shape may have a placement; `shape` becomes that of what was cut."""
    found = PLACEMENT.fullmatch(text)
    if not found or (found["dim"] or "").startswith("-"):
        return False
    place = stored_placement(text)
    if not isinstance(place, Shard):
        return True
    if place.dim >= len(shape):
        return False
    own = shape[place.dim]
    if isinstance(place, Padded):
        shape[place.dim] = place.size
        return place.size % place.unit == 0 and own == place.own(place.size, ranks)
    shape[place.dim] = own * ranks if isinstance(own, int) else own
    return True


def _check_collective(node: OpNode, mesh: Mapping[str, int], path: str) -> None:
    """Check that a collective names a mesh axis, never a process group, and the right number of ranks."""
    attrs: Mapping[str, Any] = node.attrs
    if "group_name" not in attrs:
        return
    axis = attrs["group_name"]
    if not isinstance(axis, str) or axis not in mesh:
        message = f"{node!r:.200}: group_name {axis!r:.80} is not a mesh axis"
        hint = suggestion(axis, mesh) if isinstance(axis, str) else ""
        raise GraphError(message, f"{path}.group_name", rule="R10", node=node.name, hint=hint)
    if attrs.get("group_size", mesh[axis]) != mesh[axis]:
        message = f"{node!r:.200} has group_size {attrs['group_size']!r:.40}, but axis {axis!r} has {mesh[axis]}"
        raise GraphError(message, f"{path}.group_size", rule="R7", node=node.name)
    source = attrs.get("src", 0)
    if type(source) is not int or not 0 <= source < mesh[axis]:
        message = f"{node!r:.200} has src {source!r:.40}, but axis {axis!r} has {mesh[axis]} ranks"
        raise GraphError(message, f"{path}.src", rule="R7", node=node.name)
    for name, tensors in (("output_split_sizes", node.outputs), ("input_split_sizes", node.inputs)):
        if name in attrs and not _is_equal_split(attrs[name], tensors, mesh[axis]):
            message = f"{node!r:.200} has {name} {attrs[name]!r:.40}; expected {mesh[axis]} equal parts of dimension 0"
            raise GraphError(message, f"{path}.{name}", rule="R7", node=node.name)
    if attrs.get("reduce_op", "sum") not in REDUCTIONS:
        message = f"{node!r:.200} has an unknown reduce_op {attrs['reduce_op']!r:.40}"
        raise GraphError(message, f"{path}.reduce_op", rule="R5", node=node.name)


def _is_equal_split(sizes: Any, tensors: Sequence[TensorMeta], ranks: int) -> bool:
    """Whether these are the sizes of the messages of an all_to_all, which are equal; a mesh may have many ranks."""
    first = next((tensor.shape[0] for tensor in tensors if tensor.shape), None)
    if not isinstance(first, int) or not first or first % ranks or not isinstance(sizes, list):
        return False
    return len(sizes) == ranks and sizes.count(first // ranks) == ranks
