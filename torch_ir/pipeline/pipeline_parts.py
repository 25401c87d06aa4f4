"""The parts of a training pipeline: forward, backward and update of each stage, and when each runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode
from torch_ir.pipeline.stages import is_pipeline

PHASES = ("forward", "backward", "norm", "clip", "update")  # of one step, in order
FORWARD, BACKWARD, NORM, CLIP, UPDATE = PHASES
_NAME = re.compile(rf"stage(\d{{1,6}})_({'|'.join(PHASES)})", re.ASCII)


@dataclass(frozen=True)
class Part:
    """One phase of one stage."""

    phase: str
    stage: int

    @property
    def name(self) -> str:
        return f"stage{self.stage}_{self.phase}"

    @property
    def is_repeated(self) -> bool:
        """Whether the part runs for each micro-batch, and not once for all."""
        return self.phase in (FORWARD, BACKWARD)

    def order(self, stages: int) -> tuple[int, int]:
        """Return the place in the order of execution: backward runs from the last stage to the first."""
        at = stages - 1 - self.stage if self.phase == BACKWARD else self.stage
        return PHASES.index(self.phase), at

    @staticmethod
    def of(node: OpNode) -> Part:
        """Return the part that a call runs, by its name."""
        found = _NAME.fullmatch(node.name)
        if found is None:
            raise PipelineError(f"{node!r} is not a part of a training pipeline, such as stage0_forward")
        return Part(found[2], int(found[1]))


def is_training_pipeline(ir: IR) -> bool:
    """Whether a graph is a pipeline of a training step."""
    return is_pipeline(ir) and all(_NAME.fullmatch(node.name) for node in ir.nodes)


def parts_of(ir: IR) -> dict[Part, OpNode]:
    """Return the calls of a training pipeline by part; raise PipelineError if it is none."""
    if not is_training_pipeline(ir):
        raise PipelineError("the graph is not a pipeline of a training step; make one with split")
    found = {Part.of(node): node for node in ir.nodes}
    missing = sorted(set(range(stages_of(ir))) - {part.stage for part in found})
    if missing:
        raise PipelineError(f"the pipeline has no stage {missing[0]}")
    return found


def stages_of(ir: IR) -> int:
    """Return the number of stages of a training pipeline."""
    return 1 + max(Part.of(node).stage for node in ir.nodes)


def one_forward_one_backward(stage: int, stages: int, batches: int) -> list[tuple[str, int]]:
    """Return what a stage runs for each micro-batch, in order: warm-up, then a forward and a backward in turn.

    >>> one_forward_one_backward(1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = min(stages - 1 - stage, batches)
    line = [(FORWARD, number) for number in range(ahead)]
    for number in range(batches - ahead):
        line += [(FORWARD, ahead + number), (BACKWARD, number)]
    return line + [(BACKWARD, number) for number in range(batches - ahead, batches)]
