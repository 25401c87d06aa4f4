"""The stages of a pipeline: each stage as a separate graph, and the values sent between them.

A pipeline is a graph whose nodes are all calls of stages. Results of one call that another reads are sent:

    hidden: float32[1, 16, 64] = pipeline.stage(ids=input_ids, w=p_embed, function=@stage0)
    logits: float32[1, 16, 256] = pipeline.stage(hidden=hidden, w=p_head, function=@stage1)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_ir.analysis.dependencies.slices import sizes_of, subgraph
from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.functions import STAGE, inline


@dataclass(frozen=True)
class Send:
    """A value that one stage sends to a later one."""

    value: TensorMeta
    source: int
    target: int


def is_pipeline(ir: IR) -> bool:
    """Whether a graph consists of stages only."""
    require_graph(ir, "is_pipeline")
    return bool(ir.nodes) and all(node.op_type == STAGE and node.is_call for node in ir.nodes)


def check_pipeline(ir: IR) -> IR:
    """Return the graph; raise PipelineError if it is not a pipeline."""
    if not is_pipeline(ir):
        raise PipelineError("the graph is not a pipeline; make one with split")
    return ir


def sends_of(ir: IR) -> list[Send]:
    """Return the values sent between stages, in the order of their computation."""
    require_graph(ir, "sends_of")
    number = {node: at for at, node in enumerate(check_pipeline(ir).nodes)}
    return [
        Send(value, source, target)
        for node, source in number.items()
        for value in node.outputs
        for target in sorted({number[reader] for reader in value.consumers if reader in number})
    ]


def stage_of(ir: IR, number: int) -> IR:
    """Return a stage as a separate graph: its inputs are model inputs and values that earlier stages send.

    It runs with the weights of the whole model. Its outputs are the values it sends and its model outputs.
    """
    require_graph(ir, "stage_of")
    stages = check_pipeline(ir).nodes
    if not 0 <= number < len(stages):
        raise PipelineError(f"unknown stage {number}; the pipeline has {len(stages)}, numbered from 0")
    call = stages[number]
    changes = [(target, value) for target, value in ir.mutations if value.producer is call]
    changed = [target for target, _ in changes if target.param is None]
    part = subgraph(ir, [*_inputs(ir, call), *changed], call.outputs)
    inline(part, part.nodes[0])
    inside = {tensor.name: tensor for tensor in part.tensors()}
    for target, _ in changes:
        if target.name not in inside:  # written but never read
            inside[target.name] = target.copy()
            part.params.append(inside[target.name])
    part.mutations = [(inside[target.name], inside[value.name]) for target, value in changes]
    part.model_name = f"{ir.model_name} stage {number}".strip()
    return part.check()


def _inputs(ir: IR, call: OpNode) -> Iterator[TensorMeta]:
    """Yield the inputs of a stage: what it reads, and a model input for each size that those do not determine."""
    read = [tensor for tensor in dict.fromkeys(call.inputs) if tensor.param is None]
    yield from read
    shown = {dim for tensor in read for dim in tensor.shape if isinstance(dim, str)}
    used = sizes_of([call], read, [ir.functions[call.attrs["function"]]])
    for symbol in ir.symbols.values():
        if symbol.name in used - shown and symbol.tensor in ir.graph_inputs and symbol.tensor not in read:
            yield symbol.tensor
