"""Split a training step into stages, each with a forward, a backward and an update part.

    loss, saved... = pipeline.stage(x, w, function=@stage1_forward)
    grad... = pipeline.stage(saved..., w, function=@stage1_backward)
    w_new... = pipeline.stage(grad..., w, m, v, function=@stage1_update)

Forward is cut as a model is. Backward and update of a layer belong to the stage of its forward. If gradients are
clipped, each stage computes the norms of its gradients, and stage 0 combines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.origins import modules_around
from torch_ir.ir.graph.training_parts import BACKWARD, OPTIMIZER, forward_path, part_of_path
from torch_ir.ir.regroup.functions import STAGE, outline
from torch_ir.pipeline.copied_nodes import own_nodes, with_common
from torch_ir.pipeline.layer_of_node import layer_of, layer_of_path
from torch_ir.pipeline.pipeline_parts import CLIP, NORM, PHASES, UPDATE, Part
from torch_ir.pipeline.stages import stage_of

_FORWARD, _BACKWARD = PHASES[:2]


def split_training(ir: IR, forward: IR, depth: int) -> IR:
    """Return the pipeline of a training step whose forward part is cut like this pipeline."""
    parts = _Parts(ir, _stages_by_layer(forward, depth), len(forward.nodes), depth)
    copy = ir.clone()
    rows = parts.rows()
    for (part, _), nodes in zip(rows, with_common(copy, [names for _, names in rows]), strict=True):
        if part.name in copy.functions:
            raise PipelineError(f"the graph already has a function {part.name!r}")
        outline(copy, nodes, part.name, STAGE).name = part.name
    _refuse_shared(copy)
    _refuse_other_sums(copy)
    return copy.check()


def _stages_by_layer(forward: IR, depth: int) -> dict[str, set[int]]:
    """Return the stages that contain nodes of each layer, except for modules around other layers."""
    found: dict[str, set[int]] = {}
    for number in range(len(forward.nodes)):
        for node in stage_of(forward, number).nodes:
            found.setdefault(layer_of(node, depth), set()).add(number)
    around = {path for layer in found for path in modules_around(layer) if path != layer}
    return {layer: stages for layer, stages in found.items() if layer not in around}


class _Parts:
    """The part of the pipeline that each node belongs to."""

    def __init__(self, ir: IR, layers: Mapping[str, set[int]], stages: int, depth: int) -> None:
        self._layers, self._stages, self._depth = layers, stages, depth
        self._of: dict[TensorMeta, Part] = {}
        self._rows: dict[Part, list[str]] = {}
        self._running = 0  # the stage of the forward node before
        for node in own_nodes(ir):
            part = self._part(node)
            self._of.update(dict.fromkeys(node.outputs, part))
            self._rows.setdefault(part, []).append(node.name)

    def rows(self) -> list[tuple[Part, list[str]]]:
        """Return the names of the nodes of each part, in the order of execution for one batch."""
        return sorted(self._rows.items(), key=lambda row: row[0].order(self._stages))

    def _part(self, node: OpNode) -> Part:
        before = [self._of[tensor] for tensor in node.inputs if tensor in self._of]
        wanted = _PLACED[part_of_path(node.origin.module)](self, node, before)
        return max([wanted, *before], key=lambda part: part.order(self._stages))

    def _layer(self, node: OpNode) -> int | None:
        """Return the stage of the layer of a node; None if the layer is in no stage or in several."""
        found = self._layers.get(layer_of_path(forward_path(node.origin.module), self._depth), set())
        return next(iter(found)) if len(found) == 1 else None

    def _in_forward(self, node: OpNode, before: Sequence[Part]) -> Part:
        if any(part.phase != _FORWARD for part in before):  # scaled gradients
            return self._in_update(node, before)
        stage = self._layer(node)
        if stage is None:
            stage = max((part.stage for part in before), default=self._running)
        self._running = max(self._running, stage)
        return Part(_FORWARD, stage)

    def _in_backward(self, node: OpNode, before: Sequence[Part]) -> Part:
        stage = self._layer(node)
        if stage is None:
            stage = min((part.stage for part in before), default=self._stages - 1)
        return Part(_BACKWARD, stage)

    def _in_update(self, node: OpNode, before: Sequence[Part]) -> Part:
        stages = {part.stage for part in before if part.phase != CLIP}
        if node.origin.module != OPTIMIZER and (own := self._layer(node)) is not None:
            return Part(UPDATE, own)
        if len(stages) > 1:
            return Part(CLIP, 0)
        is_later = any(part.phase in (CLIP, UPDATE) for part in before)
        if not stages:
            return Part(CLIP, 0)
        return Part(UPDATE if is_later else NORM, stages.pop())


_PLACED = {"": _Parts._in_forward, BACKWARD: _Parts._in_backward, OPTIMIZER: _Parts._in_update}


def _refuse_other_sums(pipeline: IR) -> None:
    """Raise if a later phase reads a result of forward or backward that is not a gradient, which would be summed."""
    repeated = {node for node in pipeline.nodes if Part.of(node).is_repeated}
    for node in repeated:
        for tensor in node.outputs:
            is_read = any(reader not in repeated and reader is not pipeline.returns for reader in tensor.consumers)
            if is_read and not tensor.dtype.startswith(("float", "bfloat")):
                raise PipelineError(f"the update reads {tensor!r} of {node.name}, which is not a gradient")


def _refuse_shared(pipeline: IR) -> None:
    """Raise if a weight that the step changes is read in several stages: the others would keep its old value."""
    stage = {node: Part.of(node).stage for node in pipeline.nodes}
    for target, _ in pipeline.mutations:
        stages = sorted({stage[reader] for reader in target.consumers if reader in stage})
        if target.param is not None and len(stages) > 1:
            raise PipelineError(
                f"{target.key!r} is updated, and read in stages {', '.join(map(str, stages))}, such as a tied weight; "
                "cut the model elsewhere, or untie it"
            )
