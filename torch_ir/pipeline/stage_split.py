"""Split a graph into pipeline stages: by cost, by memory, or at given places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch_ir.analysis import Roofline
from torch_ir.analysis.memory.aliasing import counted_views, counting_functions
from torch_ir.analysis.shapes.size_polynomials import weight_of
from torch_ir.errors import PipelineError, did_you_mean
from torch_ir.ir import IR, OpNode
from torch_ir.ir.checks.work import bounded
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.origins import modules_around
from torch_ir.ir.graph.training_parts import EXTENSION, training_facts
from torch_ir.ir.regroup.functions import STAGE, further_entries, outline
from torch_ir.ir.text.amounts import human
from torch_ir.ops.effects import is_random, writes_in_place
from torch_ir.pipeline.copied_nodes import own_nodes, with_common
from torch_ir.pipeline.layer_of_node import layer_of
from torch_ir.pipeline.segments import Segment, segments_of
from torch_ir.pipeline.stage_cuts import Partition
from torch_ir.pipeline.stage_report import TYPICAL, held_by
from torch_ir.pipeline.stages import is_pipeline, stage_of
from torch_ir.pipeline.training_split import split_training

_SLACK = 1.05  # how much slower the slowest stage may be than the optimum to reduce traffic
_MOST_LOOKS = 10**8  # stages times nodes


@bounded
def split(
    ir: IR,
    stages: int | None = None,
    *,
    memory: float | None = None,
    at: Sequence[str] = (),
    depth: int = 1,
    anywhere: bool = False,
    device: Roofline = TYPICAL,
    sizes: Mapping[str, int] | None = None,
) -> IR:
    """Return an equivalent pipeline: `split(ir, 4)`, `split(ir, memory=2**36)`, `split(ir, at=[...])`.

    The time of the slowest stage is minimal, or up to 5 % more if that reduces traffic. With `memory`, no stage exceeds
    so many bytes, and without `stages` their number is minimal. Cuts are between layers: elements of module lists, with
    `depth` 2 also of nested lists; with `anywhere`, between any two nodes. `at` names the modules or nodes that later
    stages begin with. Symbolic sizes not in `sizes` count as 1024. Further entry points are cut before the same layers,
    so that each weight stays in its stage.
    """
    require_graph(ir, "split")
    _check_request(ir, stages, memory, at, depth, anywhere)
    _check_graph(ir)
    if EXTENSION in ir.extensions:
        return _of_training(ir, stages, memory, at, depth=depth, anywhere=anywhere, device=device, sizes=sizes)
    segments = segments_of(ir, depth=depth, anywhere=anywhere or bool(at), sizes=sizes or {}, device=device)
    if not segments:
        raise PipelineError("the graph has no nodes that stages could compute")
    if at:
        pipeline = _as_stages(ir, segments, _named(segments, at))
    elif memory is None:
        partition = Partition([segment.load for segment in segments])
        pipeline = _as_stages(ir, segments, _chosen(segments, partition, stages, math.inf, depth, anywhere))
    else:
        pipeline = _within(ir, segments, stages, memory, sizes or {}, depth, anywhere)
    entries = further_entries(ir)
    later = range(1, len(pipeline.nodes)) if entries else ()
    layers = [layer_of(own_nodes(stage_of(pipeline, number))[0], depth) for number in later]
    for name, entry in entries.items():
        try:
            pipeline.functions[name] = split(entry, at=layers)
        except PipelineError as error:
            raise PipelineError(f"entry point {name!r} cannot be cut before {', '.join(layers)}: {error}") from None
    return pipeline


def _of_training(
    ir: IR, stages: int | None, memory: float | None, at: Sequence[str], *, depth: int, anywhere: bool, **options: Any
) -> IR:
    """Return the pipeline of a training step, with its further entry points cut in the same places."""
    if memory is not None or anywhere:
        raise PipelineError("a training step is cut between layers into a number of stages; give `stages` or `at`")
    if training_facts(ir).get("micro_batches", 1) != 1:
        raise PipelineError("the step is captured for several micro-batches; capture it for one, and run several")
    entry = further_entries(ir).get("forward")
    if entry is None:
        raise PipelineError("the training step has no entry point 'forward', which decides where it is cut")
    forward = split(entry, stages, at=at, depth=depth, **options)
    pipeline = split_training(ir, forward, depth)
    for name, body in further_entries(ir).items():
        is_training = EXTENSION in body.extensions
        pipeline.functions[name] = split_training(body, forward, depth) if is_training else forward
    return pipeline


def _check_request(
    ir: IR, stages: int | None, memory: float | None, at: Sequence[str], depth: int, anywhere: bool
) -> None:
    if at and (stages is not None or memory is not None):
        raise PipelineError("give either `at`, or `stages` and `memory`, not both")
    if not at and stages is None and memory is None:
        raise PipelineError("give the number of stages, the memory of each, or `at`, where they begin")
    if anywhere and further_entries(ir):
        raise PipelineError(
            "anywhere=True is not possible with several entry points, which are cut between the same layers"
        )
    if isinstance(at, str):
        raise PipelineError(f"`at` must be a list of names: at=[{at!r}]")
    for name, number in (("stages", stages), ("memory", memory), ("depth", depth)):
        is_number = isinstance(number, (int, float) if name == "memory" else int)
        if number is not None and not (is_number and number >= 1):
            raise PipelineError(f"{name} must be at least 1, not {number!r}")


def _check_graph(ir: IR) -> None:
    """Raise PipelineError for graphs that cannot be split."""
    if is_pipeline(ir):
        raise PipelineError("the graph is already a pipeline")
    for node in ir.all_nodes():
        if writes_in_place(node):
            raise PipelineError(f"{node!r} writes in place, which other stages would not see")
        if is_random(node):
            raise PipelineError(f"{node!r} draws random numbers, which would differ from those of the whole model")
    for symbol in ir.symbols.values():
        if symbol.tensor and symbol.tensor.producer:
            raise PipelineError(f"the size {symbol.name!r} depends on data: it is only known from {symbol.tensor!r}")
    for tensor in ir.graph_outputs:
        if tensor.param:
            raise PipelineError(f"output {tensor.name!r} is a weight, which no stage computes")
    for target, value in ir.mutations:
        if value.producer is None:
            raise PipelineError(f"the new value of {target.name!r} is {value.name!r}, which no stage computes")


def _within(
    ir: IR,
    segments: Sequence[Segment],
    stages: int | None,
    memory: float,
    sizes: Mapping[str, int],
    depth: int,
    anywhere: bool,
) -> IR:
    """Return a pipeline whose stages fit into memory: chosen by a lower bound of their memory, then measured."""
    partition = Partition([segment.load for segment in segments], memory)
    while True:
        starts = _chosen(segments, partition, stages, memory, depth, anywhere)
        pipeline = _as_stages(ir, segments, starts)
        held = [weight_of(held_by(stage_of(pipeline, number), sizes)) for number in range(len(starts))]
        if max(held) <= memory:
            return pipeline
        for stage, (start, end) in zip(held, pairwise((*starts, len(segments))), strict=True):
            if stage > memory:
                partition.shorten(start, end)


def _chosen(
    segments: Sequence[Segment], partition: Partition, stages: int | None, memory: float, depth: int, anywhere: bool
) -> tuple[int, ...]:
    """Return the segments that stages start with."""
    is_finest = all(len(segment.nodes) == 1 for segment in segments)
    hint = (
        "" if anywhere or is_finest else f"; cut deeper with depth={depth + 1} (--depth), or anywhere=True (--anywhere)"
    )
    fewest = partition.fewest()
    count = stages or fewest
    if not fewest:
        raise PipelineError(f"{_too_large(segments, memory)}{hint}")
    if fewest > count:
        raise PipelineError(f"{count} stages of {_bytes(memory)} are too few; the graph needs at least {fewest}")
    if count > len(segments):
        kind = ("part" if anywhere else "layer") + "s" * (len(segments) != 1)
        raise PipelineError(f"the graph has {len(segments)} {kind}, too few for {count} stages{hint}")
    starts = partition.starts(count, partition.slowest(count) * _SLACK) or partition.starts(count, math.inf)
    if not starts:
        raise PipelineError(f"no cut into {count} stages keeps each within {_bytes(memory)}{hint}")
    return starts


def _too_large(segments: Sequence[Segment], memory: float) -> str:
    """Return why no stages fit into memory: a layer alone is too large, or with what it receives."""
    for segment in segments:
        needs = sum(segment.load.weights.values()) + segment.load.alive
        if needs > memory:
            name = f"layer {segment.layer!r}" if segment.layer else repr(segment.nodes[0])
            return f"{name} alone needs {_bytes(needs)}, more than the {_bytes(memory)} of a stage"
    return f"every cut has a stage that needs more than {_bytes(memory)}, including what it receives"


def _bytes(amount: float) -> str:
    return human(round(amount), "B")


def _named(segments: Sequence[Segment], at: Sequence[str]) -> tuple[int, ...]:
    """Return the segments that begin with the named modules or nodes."""
    starts = [0]
    first = _first_nodes(segments, set(at))
    for name in at:
        if name not in first:
            nodes = [node for segment in segments for node in segment.nodes]
            known = [name for node in nodes for name in (node.name, *modules_around(node.origin.module)[1:])]
            raise PipelineError(f"unknown module or node {name!r:.80}{did_you_mean(name, dict.fromkeys(known))}")
        found, node = first[name]
        if node is not segments[found].nodes[0]:
            raise PipelineError(f"no stage can begin with {name!r}: a buffer is read before it and changed after it")
        if found <= starts[-1]:
            problem = "begins the first stage anyway" if not found else f"does not come after {at[len(starts) - 2]!r}"
            raise PipelineError(f"{name!r} {problem}; list stages in execution order")
        starts.append(found)
    return tuple(starts)


def _first_nodes(segments: Sequence[Segment], names: set[str]) -> dict[str, tuple[int, OpNode]]:
    """Return the first node with each of these node or module names, and its segment."""
    found: dict[str, tuple[int, OpNode]] = {}
    for number, segment in enumerate(segments):
        for node in segment.nodes:
            for name in names.intersection((node.name, *modules_around(node.origin.module))):
                found.setdefault(name, (number, node))
    return found


def _as_stages(ir: IR, segments: Sequence[Segment], starts: Sequence[int]) -> IR:
    """Return the pipeline whose stages start with these segments."""
    if len(starts) * len(ir.nodes) > _MOST_LOOKS:  # cutting off a stage reads the nodes that are left
        raise PipelineError(f"a graph of {len(ir.nodes)} nodes cannot have {len(starts)} stages; ask for fewer")
    ends = [*starts[1:], len(segments)]
    rows = [
        [node.name for segment in segments[start:end] for node in segment.nodes]
        for start, end in zip(starts, ends, strict=True)
    ]
    _refuse_cut_storages(ir, {name: number for number, names in enumerate(rows) for name in names})
    copy = ir.clone()
    stages = with_common(copy, rows)
    functions, taken = Names(copy.functions), {node.name for node in copy.nodes}
    for number, nodes in enumerate(stages):
        taken.difference_update(node.name for node in nodes)
        call = outline(copy, nodes, fresh(f"stage{number}", functions), STAGE)
        call.name = fresh(f"stage{number}", taken)
    return copy.check()


def _refuse_cut_storages(ir: IR, stages: Mapping[str, int]) -> None:
    """Raise PipelineError if a stage would count in the storage of a view, of which it gets the elements alone."""
    counting = counting_functions(ir.functions)
    for node in ir.nodes:
        for tensor in counted_views(node, ir.functions, counting):
            if tensor.producer is not None and stages.get(tensor.producer.name) != stages.get(node.name):
                raise PipelineError(
                    f"{node!r} counts elements in the storage of {tensor.name!r}, which another stage would send "
                    "without the rest of it; cut elsewhere"
                )
