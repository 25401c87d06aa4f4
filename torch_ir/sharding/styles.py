"""Parallel styles: how the weights, inputs and outputs of a module are placed.

Names are those of transformers' plans. Torch's ParallelStyle objects are accepted too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_ir.errors import ShardError, did_you_mean
from torch_ir.ir.graph.placements import REPLICATE, Padded, Partial, Placement, Shard, counted, parse

_TURNED = ("Embedding", "Conv1D")  # suffixes of classes with transposed weights


@dataclass(frozen=True)
class Style:
    """The placements of one module; None keeps the present placement.

    `matrix` applies to weights of two or more dimensions, `vector` to biases. Inputs placed as `taken` are
    redistributed to `inputs`; all of them if `taken` is None.
    """

    matrix: Placement = REPLICATE
    vector: Placement = REPLICATE
    inputs: Placement | None = None
    outputs: Placement | None = None
    taken: Placement | None = None
    is_linear: bool = False  # dimensions refer to the weight of nn.Linear
    is_gathered: bool = False  # weights are stored in shards, and gathered before each use
    is_ring: bool = False  # attention keeps keys and values sharded
    capacity: float | None = None  # rows that a rank may send to another one's experts, as a multiple of the mean

    def of_weight(self, rank: int, module_class: str) -> Placement:
        """Return the placement of a weight with that many dimensions."""
        if rank == 1:
            return counted(self.vector, rank)
        place = counted(self.matrix, rank)
        if isinstance(place, Shard) and self.is_linear and module_class.endswith(_TURNED):
            other = {rank - 1: rank - 2, rank - 2: rank - 1}
            place = Shard(other.get(place.dim, place.dim), place.parts)
        return place

    def entering(self, place: Placement, rank: int, is_index: bool) -> Placement:
        """Return the required placement of an input that arrives as `place`."""
        if self.inputs is None or is_index or (self.taken is not None and counted(self.taken, rank) != place):
            return place
        return _fitting(self.inputs, rank, place)

    def leaving(self, place: Placement, rank: int) -> Placement:
        """Return the placement of an output that is computed as `place`."""
        return place if self.outputs is None else _fitting(self.outputs, rank, place)


def _fitting(wanted: Placement, rank: int, place: Placement) -> Placement:
    """Return the wanted placement, unless the tensor lacks that dimension, or is padded there."""
    wanted = counted(wanted, rank)
    if isinstance(place, Padded) and wanted == Shard(place.dim):
        return place
    return place if isinstance(wanted, Shard) and not 0 <= wanted.dim < rank else wanted


_COLWISE = Style(Shard(-2), Shard(-1), REPLICATE, is_linear=True)
_COLWISE_WHOLE = replace(_COLWISE, outputs=REPLICATE)
_ROWWISE = Style(Shard(-1), REPLICATE, Shard(-1), REPLICATE, is_linear=True)
STYLES: dict[str, Style] = {
    "colwise": _COLWISE,
    "rowwise": _ROWWISE,
    "colwise_gather_output": _COLWISE_WHOLE,
    "colwise_rep": _COLWISE_WHOLE,
    "rowwise_split_input": _ROWWISE,
    "rowwise_rep": _ROWWISE,
    "packed_colwise": Style(Shard(-2, 2), Shard(-1, 2), REPLICATE),
    "packed_rowwise": Style(Shard(-1, 2), REPLICATE, Shard(-1, 2), REPLICATE),
    "embedding_rowwise": Style(Shard(0), outputs=REPLICATE),
    "embedding_colwise": Style(Shard(1), outputs=REPLICATE),
    "sequence_parallel": Style(inputs=Shard(1)),
    "replicate": Style(),
    "replicated_with_grad_allreduce": Style(),
    "mla_kv_a_proj": Style(),
    "all_reduce": Style(outputs=REPLICATE),
    "moe_tp_experts": Style(outputs=REPLICATE),
    "grouped_gemm": Style(Shard(0), Shard(0)),
    "ep_dispatch_experts": Style(outputs=REPLICATE),
    "ep_router": Style(),
    "fsdp": Style(is_gathered=True),
    "ring": Style(is_ring=True),
}
_NAMES = (*STYLES, "all_to_all")
_TABLE = ("matrix", "vector", "inputs", "outputs", "taken")  # fields that a table may have
_ALL_TO_ALL = re.compile(r"all_to_all(?:\((?P<capacity>\d{1,6}(?:\.\d{1,6})?)\))?", re.ASCII)
_SHORT = {"sequence": "sequence_parallel", "expert": "grouped_gemm", "experts": "ep_dispatch_experts"}


def style_of(given: Any, where: str) -> Style:
    """Return a style from its name, a table of placements, or torch's object."""
    if isinstance(given, Style):
        return given
    if isinstance(given, str):
        if found := _ALL_TO_ALL.fullmatch(given):
            return _dispatching(found["capacity"], where)
        name = _SHORT.get(given, given)
        if name not in STYLES:
            raise ShardError(f"plan for {where!r:.80}: unknown style {given!r:.80}{did_you_mean(given, _NAMES)}")
        return STYLES[name]
    if isinstance(given, Mapping):
        return _from_table(given, where)
    return _from_torch(given, where)


def _dispatching(capacity: str | None, where: str) -> Style:
    """Return the style of experts to which tokens are sent; without a capacity, every routing has room."""
    if capacity is not None and float(capacity) < 1:
        raise ShardError(f"plan for {where!r:.80}: the capacity of all_to_all must be at least 1, not {capacity}")
    return Style(capacity=math.inf if capacity is None else float(capacity))


def _from_table(given: Mapping[str, Any], where: str) -> Style:
    for name, text in given.items():
        if name not in _TABLE or not isinstance(text, str):
            raise ShardError(f"plan for {where!r}: {name!r} must be one of {', '.join(_TABLE)}, with a placement")
    placements: dict[str, Any] = {name: parse(text) for name, text in given.items()}
    return Style(**placements)


def _from_torch(given: Any, where: str) -> Style:
    """Convert a ParallelStyle of torch.distributed.tensor.parallel, by its class."""
    kind = type(given).__name__
    if kind == "ColwiseParallel":
        outputs = _one(given.output_layouts, where)
        return replace(_COLWISE, outputs=None if outputs == Shard(-1) else outputs)
    if kind == "RowwiseParallel":
        return replace(_ROWWISE, outputs=_one(given.output_layouts, where))
    if kind == "SequenceParallel":
        return Style(inputs=_one(given.sequence_sharding, where))
    if kind == "PrepareModuleInput":
        pairs = list(zip(_all(given.input_layouts), _all(given.desired_input_layouts), strict=True))
        wanted = given.desired_input_kwarg_layouts or {}
        pairs += [(layout, wanted[name]) for name, layout in (given.input_kwarg_layouts or {}).items()]
        changed = {
            (_place(one, where), _place(other, where)) for one, other in pairs if one is not None and one != other
        }
        if len(changed) > 1:
            raise ShardError(f"plan for {where!r}: PrepareModuleInput changes inputs in {len(changed)} ways; give one")
        taken, inputs = changed.pop() if changed else (None, None)
        return Style(inputs=inputs, taken=taken)
    if kind == "PrepareModuleOutput":
        return Style(outputs=_one(given.desired_output_layouts, where))
    raise ShardError(f"plan for {where!r:.80}: unknown style {kind:.80}; expected one of {', '.join(_NAMES)}")


def _all(layouts: Any) -> tuple[Any, ...]:
    return layouts if isinstance(layouts, tuple) else (layouts,) if layouts is not None else ()


def _one(layouts: Any, where: str) -> Placement:
    found = [layout for layout in _all(layouts) if layout is not None]
    if len(found) != 1:
        raise ShardError(f"plan for {where!r}: expected one layout, not {len(found)}")
    return _place(found[0], where)


def _place(layout: Any, where: str) -> Placement:
    """Convert a torch placement on one axis."""
    if layout.is_replicate():
        return REPLICATE
    if layout.is_partial():
        return Partial(layout.reduce_op)
    return Shard(layout.dim, getattr(layout, "split_factor", 1))
