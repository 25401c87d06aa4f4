"""Bind weights to a graph and compute its prologue, whose results become weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torch_ir.analysis.values.prologue import crossing, split_prologue
from torch_ir.ir import IR, Limits, Param
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ops.neutral_state import NeutralState
from torch_ir.run.compiled_plan import Program
from torch_ir.run.memory_check import MemoryCheck
from torch_ir.run.stored import Weight, loaded
from torch_ir.run.weight_files import fit_weights


def bind(ir: IR, weights: Mapping[str, Weight]) -> tuple[IR, dict[str, torch.Tensor]]:
    """Return a copy without prologue, and its weights by key; weights that only the prologue reads are dropped."""
    given = [loaded(value).detach() for value in fit_weights(ir, weights, {})]
    ir = ir.clone()
    values = dict(zip(ir.params, given, strict=True))
    once, every = split_prologue(ir)
    ready = crossing(once, every, ir)
    if once:
        MemoryCheck(ir, Limits()).check({})
    with NeutralState():
        made = Program(ir, once, ir.params, ready)(*given, {})
    taken = {key for param in ir.params if param.param for key in param.param.keys}
    for tensor, value in zip(ready, made, strict=True):
        weight = tensor.copy()
        weight.param = Param((fresh(f"computed_{tensor.name}", taken),), "buffer")  # a name that nn.Module does not use
        tensor.replace_all_uses_with(weight)
        values[weight] = value
    for node in once:
        node.inputs = ()
    ir.nodes = every
    changing = {target for target, _ in ir.mutations}
    ir.params = [param for param in values if param.consumers or param in changing]
    return ir.check(), {param.key or param.name: values[param] for param in ir.params}
