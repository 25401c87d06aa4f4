"""Run one step of a training pipeline over micro-batches, in the order of one forward, one backward.

losses and new weights are those of a loop over the micro-batches: gradients are summed and divided by their number
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.io_tree import rebuild
from torch_ir.pipeline.in_turn import made_by
from torch_ir.pipeline.pipeline_parts import PHASES, Part, one_forward_one_backward, parts_of, stages_of
from torch_ir.pipeline.stages import stage_of
from torch_ir.run.executor import IRExecutor, flat_inputs
from torch_ir.run.weight_files import WeightSource, weights_from, weights_read


@dataclass(frozen=True)
class TrainedStep:
    """Results of one step, averaged over the micro-batches, and the weights and state that it changes, by key."""

    outputs: Any
    state: dict[str, torch.Tensor]
    most_saved: tuple[int, ...]  # by stage: the most micro-batches whose activations it held at a time


def train_pipeline(ir: IR, batches: Sequence[Mapping[str, Any] | Sequence[Any]], weights: WeightSource) -> TrainedStep:
    """Run one step over micro-batches, each the inputs of the step: positional, or by name.

    The stages run in this process, each in its own order of one forward and one backward in turn.
    """
    require_graph(ir, "train_pipeline")
    if ir.mesh:
        raise PipelineError("the stages of a sharded step do not run in one process; run them without a mesh")
    run = _Run(ir, [_flat(ir, batch) for batch in batches], dict(weights_from(weights)))
    return run.finished()


def _flat(ir: IR, batch: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    is_named = isinstance(batch, Mapping)
    return flat_inputs(ir, () if is_named else tuple(batch), dict(batch) if isinstance(batch, Mapping) else {})


class _Run:
    """The values of one step: by micro-batch while they are needed, then summed."""

    def __init__(self, ir: IR, batches: Sequence[Sequence[Any]], weights: Mapping[str, Any]) -> None:
        if not batches:
            raise PipelineError("give at least one micro-batch")
        self.ir, self.count = ir, len(batches)
        self.parts, self.stages = parts_of(ir), stages_of(ir)
        graphs = {part: stage_of(ir, ir.nodes.index(call)) for part, call in self.parts.items()}
        self._runners = {part: IRExecutor(graph, weights_read(graph, weights)) for part, graph in graphs.items()}
        names = [tensor.name for tensor in ir.graph_inputs]
        self._values = [dict(zip(names, batch, strict=True)) for batch in batches]
        self._left = [self._readers() for _ in batches]  # parts that still read a value, by micro-batch
        self._sums: dict[str, Any] = {}
        self._changed: dict[str, torch.Tensor] = {}
        self._held = [0] * self.stages
        self._most = [0] * self.stages

    def _readers(self) -> dict[str, int]:
        repeated = {call for part, call in self.parts.items() if part.is_repeated}
        return {
            tensor.name: sum(reader in repeated for reader in dict.fromkeys(tensor.consumers))
            for call in repeated
            for tensor in call.outputs
        }

    def finished(self) -> TrainedStep:
        """Run all parts, and return the result of the step."""
        self._run_batches()
        self._sums = {name: _mean(value, self.count) for name, value in self._sums.items()}
        for part in sorted(self.parts, key=lambda part: part.order(self.stages)):
            if not part.is_repeated:
                self._sums.update(self._run(part, self._sums))
        outputs = [self._sums[tensor.name] for tensor in self.ir.graph_outputs]
        return TrainedStep(rebuild(self.ir.output_tree, outputs), self._changed, tuple(self._most))

    def _run_batches(self) -> None:
        """Run forward and backward of all micro-batches; a stage waits for what others send."""
        lines = [one_forward_one_backward(stage, self.stages, self.count) for stage in range(self.stages)]
        waiting = [
            list(reversed([row for row in line if self._has(row[0], stage)])) for stage, line in enumerate(lines)
        ]
        while any(waiting):
            ready = [stage for stage, line in enumerate(waiting) if line and self._is_ready(stage, *line[-1])]
            if not ready:
                raise PipelineError("the parts of the pipeline depend on each other in a cycle")
            for stage in ready:
                self._run_one(stage, *waiting[stage].pop())

    def _has(self, phase: str, stage: int) -> bool:
        return Part(phase, stage) in self.parts

    def _is_ready(self, stage: int, phase: str, batch: int) -> bool:
        inputs = self._runners[Part(phase, stage)].ir.graph_inputs
        return all(tensor.name in self._values[batch] for tensor in inputs)

    def _run_one(self, stage: int, phase: str, batch: int) -> None:
        part = Part(phase, stage)
        values, left = self._values[batch], self._left[batch]
        values.update(self._run(part, values))
        self._held[stage] += 1 if phase == PHASES[0] else -1
        self._most[stage] = max(self._most[stage], self._held[stage])
        self._add(self.parts[part], values)
        for tensor in dict.fromkeys((*self.parts[part].inputs, *self.parts[part].outputs)):
            if tensor.name in left:
                left[tensor.name] -= tensor in self.parts[part].inputs
                if left[tensor.name] <= 0:
                    values.pop(tensor.name, None)

    def _add(self, call: OpNode, values: Mapping[str, Any]) -> None:
        """Add the results that later phases read, or that the step returns, to their sums."""
        repeated = {other for part, other in self.parts.items() if part.is_repeated}
        for tensor in call.outputs:
            if any(reader not in repeated for reader in tensor.consumers):
                known = self._sums.get(tensor.name)
                self._sums[tensor.name] = values[tensor.name] if known is None else known + values[tensor.name]

    def _run(self, part: Part, values: Mapping[str, Any]) -> dict[str, Any]:
        runner = self._runners[part]
        outcome = runner.run([values[tensor.name] for tensor in runner.ir.graph_inputs])
        for target, value in outcome.mutations.items():
            self._changed[target.key or target.name] = value
        return made_by(runner.ir, outcome)


def _mean(value: Any, count: int) -> Any:
    return value / count if isinstance(value, torch.Tensor) and value.is_floating_point() and count > 1 else value
