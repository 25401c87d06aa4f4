"""One rank of a mesh: its index along each axis, its process groups, and its pieces of tensors.

A graph only names the axes of its mesh. The processes are bound here, when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.placements import Padded, Shard, rank_key, stored_placement
from torch_ir.run.stored import StoredTensor, Weight
from torch_ir.run.stored_piece import StoredPiece

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Rank:
    """A rank's index along each axis, and the name of its process group there."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, mesh: DeviceMesh, ir: IR) -> Rank:
        """Return this process as a rank of the mesh that a graph is for."""
        names = mesh.mesh_dim_names or ()
        sizes = dict(zip(names, mesh.shape, strict=True)) if names else {}
        for axis, size in ir.mesh.items():
            if sizes.get(axis) != size:
                there = ", ".join(f"{name} = {count}" for name, count in sizes.items()) or "axes without names"
                raise ExecutionError(f"the graph is for {size} ranks on axis {axis!r}, but the mesh has {there}")
        groups = {axis: mesh.get_group(axis).group_name for axis in ir.mesh}
        return cls({axis: mesh.get_local_rank(axis) for axis in ir.mesh}, groups)

    def constants(self) -> dict[str, torch.Tensor]:
        """Return the weights of a graph that hold the rank's indices."""
        return {rank_key(axis): torch.tensor([number], device="cpu") for axis, number in self.numbers.items()}

    def weights(self, ir: IR, weights: Mapping[str, Weight]) -> dict[str, Weight]:
        """Return the rank's pieces of weights; pieces are returned unchanged."""
        found = dict(weights)
        for param in ir.params:
            for key in param.param.keys if param.param and param.placement else ():
                if key in weights:
                    found[key] = self.piece(ir, param, weights[key])
        return found

    def piece(self, ir: IR, tensor: TensorMeta, value: Any) -> Any:
        """Return the rank's piece of a whole tensor."""
        if tensor.placement is None or tuple(value.shape) == tensor.shape:
            return value
        for (axis, size), text in zip(ir.mesh.items(), tensor.placement, strict=True):
            place = stored_placement(text)
            if not isinstance(place, Shard) or place.dim >= len(value.shape):
                continue
            if isinstance(place, Padded):
                value = _padded(value, place, size, self.numbers[axis])
            else:
                value = _cut(value, place, size, self.numbers[axis])
        return value


def _cut(value: Any, place: Shard, ranks: int, number: int) -> Any:
    """Return one of equal pieces along a dimension; an indivisible value is returned whole, for others to refuse."""
    size = value.shape[place.dim]
    own = size // (ranks * place.parts)
    if own * ranks * place.parts != size:
        return value
    starts = [part * (size // place.parts) + number * own for part in range(place.parts)]
    if isinstance(value, StoredTensor):
        whole = value if isinstance(value, StoredPiece) else StoredPiece.of(value)
        return whole.cut(place.dim, [(start, start + own) for start in starts])
    pieces = [value.narrow(place.dim, start, own) for start in starts]
    return pieces[0].clone() if len(pieces) == 1 else torch.cat(pieces, place.dim)


def _padded(value: Any, place: Padded, ranks: int, number: int) -> Any:
    """Return one of the pieces that `torch.chunk` cuts, with zeros behind it if it is shorter than the first.

    A value of another size is returned whole, for others to refuse.
    """
    dim, own = place.dim, place.own(place.size, ranks)
    if value.shape[dim] != place.size:
        return value
    start, stop = (min(at * own, place.size) for at in (number, number + 1))
    if isinstance(value, StoredTensor):
        whole = value if isinstance(value, StoredPiece) else StoredPiece.of(value)
        return whole.cut(dim, [(start, stop)], own)
    piece = value.new_zeros((*value.shape[:dim], own, *value.shape[dim + 1 :]))
    piece.narrow(dim, 0, stop - start).copy_(value.narrow(dim, start, stop - start))
    return piece


def joined(pieces: list[Any], place: Shard) -> torch.Tensor:
    """Join the pieces of all ranks, without padding."""
    if isinstance(place, Padded):
        return torch.cat(pieces, place.dim).narrow(place.dim, 0, place.size)
    if place.parts == 1:
        return torch.cat(pieces, place.dim)
    parts = [piece.chunk(place.parts, place.dim) for piece in pieces]
    return torch.cat([piece[part] for part in range(place.parts) for piece in parts], place.dim)


def whole_signature(ir: IR) -> IR:
    """Return a copy of a sharded graph whose inputs and weights have their whole shapes; it cannot run."""
    copy = ir.clone()
    for tensor in (*copy.graph_inputs, *copy.params):
        shape = list(tensor.shape)
        for size, text in reversed(list(zip(ir.mesh.values(), tensor.placement or (), strict=False))):
            place = stored_placement(text)
            if isinstance(place, Shard):
                shape[place.dim] = place.size if isinstance(place, Padded) else int(shape[place.dim]) * size
        tensor.shape = tuple(shape)
    numbers = {rank_key(axis) for axis in ir.mesh}
    copy.params = [param for param in copy.params if param.key not in numbers]
    return copy


NO_RANK = Rank()
