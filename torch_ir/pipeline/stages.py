"""The stages of a pipeline: which graph is one, each stage as a graph of its own, and what is sent between them.

A pipeline is a graph whose nodes are all calls of stages. What one call makes and another reads is sent:

    hidden: float32[1, 16, 64] = pipeline.stage(ids=input_ids, w=p_embed, function=@stage0)
    logits: float32[1, 16, 256] = pipeline.stage(hidden=hidden, w=p_head, function=@stage1)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch_ir.analysis.dependencies.slices import sizes_of, subgraph
from torch_ir.errors import PipelineError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.regroup.functions import STAGE, inline


@dataclass(frozen=True)
class Send:
    """A value that one stage gives to a later one."""

    value: TensorMeta
    source: int
    target: int


def is_pipeline(ir: IR) -> bool:
    """Whether a graph is a line of stages and nothing else."""
    return bool(ir.nodes) and all(node.op_type == STAGE and node.is_call for node in ir.nodes)


def check_pipeline(ir: IR) -> IR:
    """The graph, if it is a pipeline."""
    if not is_pipeline(ir):
        raise PipelineError("the graph is no pipeline; make one of it with split")
    return ir


def sends_of(ir: IR) -> list[Send]:
    """What is sent, in the order in which it is made."""
    number = {node: at for at, node in enumerate(check_pipeline(ir).nodes)}
    return [
        Send(value, source, target)
        for node, source in number.items()
        for value in node.outputs
        for target in sorted({number[reader] for reader in value.consumers if reader in number})
    ]


def stage_of(ir: IR, number: int) -> IR:
    """A stage as a graph of its own: its inputs are those of the model, and what earlier stages send to it.

    It runs with the weights of the whole model. Its outputs are what it sends, and its part of the model's.
    """
    stages = check_pipeline(ir).nodes
    if not 0 <= number < len(stages):
        raise PipelineError(f"there is no stage {number}: the pipeline has {len(stages)}, from 0 on")
    call = stages[number]
    changes = [(target, value) for target, value in ir.mutations if value.producer is call]
    changed = [target for target, _ in changes if target.param is None]
    part = subgraph(ir, [*_inputs(ir, call), *changed], call.outputs)
    inline(part, part.nodes[0])
    inside = {tensor.name: tensor for tensor in part.tensors()}
    for target, _ in changes:
        if target.name not in inside:  # it is written and never read
            inside[target.name] = target.copy()
            part.params.append(inside[target.name])
    part.mutations = [(inside[target.name], inside[value.name]) for target, value in changes]
    part.model_name = f"{ir.model_name} stage {number}".strip()
    return part.check()


def _inputs(ir: IR, call: OpNode) -> Iterator[TensorMeta]:
    """What a stage is given: what it reads, and an input of the model for each size that nothing of that shows."""
    read = [tensor for tensor in dict.fromkeys(call.inputs) if tensor.param is None]
    yield from read
    shown = {dim for tensor in read for dim in tensor.shape if isinstance(dim, str)}
    used = sizes_of([call], read, [ir.functions[call.attrs["function"]]])
    for symbol in ir.symbols.values():
        if symbol.name in used - shown and symbol.tensor in ir.graph_inputs and symbol.tensor not in read:
            yield symbol.tensor
