"""Decomposition: apply torch's decompositions until only operators of a chosen set are left.

decompose(ir)                                   # to core ATen
decompose(ir, ["aten.mm", "aten.add.Tensor"])   # to a target's operators, as far as torch's rules reach
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import torch

from torch_ir.analysis.shapes.open_sizes import Points, edges_of
from torch_ir.analysis.values.node_memo import once_per_form
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import CommandError, ShapeError, did_you_mean
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import FreeNames, taken_names
from torch_ir.ir.regroup.functions import FUSED, inline_all
from torch_ir.ops.decompose import may_be_conjugated
from torch_ir.ops.schema import find_operator, operator_names
from torch_ir.ops.torch_internals import OpOverload
from torch_ir.passes.clean.propagate_sizes import always_holds
from torch_ir.passes.decompose.open_size_rules import decomposed_at_all_sizes
from torch_ir.passes.pass_registry import named_pass
from torch_ir.passes.pipeline import optimize
from torch_ir.rewrite.change_log import current_journal
from torch_ir.rewrite.pattern import names_op

_NAME = "decompose"
CORE, CORE_ATEN = "core", "core-aten"  # the same set
PRIMS = "prims"
SETS = (CORE_ATEN, PRIMS, CORE)
_IDLE_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"


def decompose(ir: IR, to: str | Iterable[str] = CORE) -> IR:
    """Return a copy with only operators of the chosen set, as far as torch can decompose the others.

    The set is core ATen or a list of operators; `aten.add` means all its overloads.
    """
    chosen = to if isinstance(to, str) else ",".join(to)
    return optimize(ir, passes=[decompose_to.with_options(to=chosen)])[0]


@named_pass(_NAME, may_raise=["nodes", "flops", "bytes", "peak"])
def decompose_to(ir: IR, to: str = CORE) -> int:
    """Decompose operators until only core ATen, `prims`, or those that `to` lists, separated by commas, are left.

    before   y = layer_norm(x, [8], w, b)
    after    y, mean, rstd = native_layer_norm(x, [8], w, b)

    Fused calls outside the set are inlined first, and assertions that cannot fail are dropped. Operators without a rule
    in torch stay.
    """
    is_allowed = set_of(to)
    count = inline_all(ir, lambda call: call.op_type.startswith(FUSED) and not is_allowed(call.op_type))
    return count + Decomposing(ir, is_allowed, prims=to == PRIMS).run()


def set_of(to: str) -> Callable[[str], bool]:
    """Return a predicate: whether an operator is in the set that the text names."""
    if to in (CORE, CORE_ATEN):
        return _is_core
    if to == PRIMS:
        return lambda op_type: op_type.startswith("prims.")
    names = [name.strip() for name in to.split(",") if name.strip()]
    if not names:
        raise CommandError(
            "the operator set is empty; list operators, as in to='aten.mm,aten.add.Tensor', or use to='core'"
        )
    for name in names:
        _check_name(name)
    return lambda op_type: any(names_op(name, op_type) for name in names)


def _is_core(op_type: str) -> bool:
    operator = find_operator(op_type)
    return isinstance(operator, OpOverload) and torch.Tag.core in operator.tags


def _check_name(name: str) -> None:
    if name.startswith(FUSED) or find_operator(name) is not None:
        return
    known = operator_names(name.partition(".")[0])
    if not any(names_op(name, op_type) for op_type in known):
        near = did_you_mean(name, {*known, *(op_type.rpartition(".")[0] for op_type in known), *SETS})
        raise CommandError(f"unknown operator {name!r}{near}")


class Decomposing:
    """One run over a graph; torch decomposes each distinct form of node once."""

    def __init__(self, ir: IR, is_allowed: Callable[[str], bool], *, prims: bool = False) -> None:
        self.ir = ir
        self.is_allowed = is_allowed
        self.prims = prims  # whether parts may be torch's primitives
        self.know = Knowledge.of(ir)
        self.names = FreeNames(taken_names(ir))
        self._bodies = once_per_form(self._decomposed)
        self.moved: set[TensorMeta] = set()  # tensors whose strides changed
        self.journal = current_journal()
        self.count = 0

    def run(self) -> int:
        self.ir.nodes = [part for node in self.ir.nodes for part in self._parts(node, ())]
        return self.count

    def _parts(self, node: OpNode, inside: Sequence[str]) -> list[OpNode]:
        """Return the nodes that finally replace a node; `inside` lists the operators it was decomposed from."""
        self._update_strides(node)
        if self.is_allowed(node.op_type) or not isinstance(find_operator(node.op_type), OpOverload):
            return [node]
        if always_holds(node, self.know):
            node.inputs = ()
            self.count += 1
            self.journal.changed(_NAME, node.name, node.origins)
            return []
        body = "its decomposition contains the operator itself" if node.op_type in inside else self._body(node)
        steps, why = ([], body) if isinstance(body, str) else self._placed(node, body)
        if why:
            self._leave(node, why)
            return [node]
        self.count += 1
        self.journal.changed(_NAME, node.name, node.origins)
        return [part for step in steps for part in self._parts_of_step(step, (*inside, node.op_type))]

    def _leave(self, node: OpNode, why: str) -> None:
        """Note that a node cannot be replaced."""
        self.journal.decline(_NAME, node.name, f"{node.op_type}: {why}")

    def _parts_of_step(self, step: OpNode, inside: Sequence[str]) -> list[OpNode]:
        """Return the nodes that finally replace a step; one that stays has the results that its kernel returns."""
        parts = self._parts(step, inside)
        if parts == [step] and len(step.outputs) > 1:  # the shape and dtype of statistics depend on the device
            for made, known in zip(step.outputs, self.know.shapes.of(step) or (), strict=False):
                made.shape, made.dtype = known.shape, known.dtype
        return parts

    def _body(self, node: OpNode) -> IR | str:
        # a form does not include whether a tensor is conjugated, which decides whether torch's rule may be used
        return self._decomposed(node) if any(map(may_be_conjugated, node.inputs)) else self._bodies(node)

    def _decomposed(self, node: OpNode) -> IR | str:
        if node.op_type == "aten.batch_norm.default" and not node["training"] and self.is_allowed(_IDLE_BATCH_NORM):
            return self._idle_batch_norm(node)
        return decomposed_at_all_sizes(node, self.ir.device, self._sizes, prims=self.prims)

    def _sizes(self) -> tuple[Points, Points]:
        return self.know.shapes.points, self._edges

    @cached_property
    def _edges(self) -> Points:
        return edges_of(self.ir)

    def _by_rule(self, node: OpNode, rule: Callable[..., Any]) -> IR | str:
        """Return what a rule, a function of the operator's arguments written in torch, computes, or why it cannot."""
        return decomposed_at_all_sizes(node, self.ir.device, self._sizes, rule)

    def _idle_batch_norm(self, node: OpNode) -> IR:
        """Return batch norm in inference as its core operator, which torch's own rule skips."""
        given = [
            TensorMeta(name, t.shape, t.dtype, stride=t.stride) for name, t in zip(node.args, node.inputs, strict=True)
        ]
        left_out = ("training", "cudnn_enabled")
        rest = {name: value for name, value in node.attrs.items() if name not in left_out}
        tensors, attrs, made = self.know.call(_IDLE_BATCH_NORM, {**{t.name: t for t in given}, **rest})
        for index, tensor in enumerate(made):
            tensor.name = f"made_{index}"
        return IR([OpNode("made", _IDLE_BATCH_NORM, tensors.values(), made, attrs, args=tensors)], given, made[:1])

    def _placed(self, node: OpNode, body: IR) -> tuple[list[OpNode], str]:
        """Return copies of a body's nodes in place of a node, or the reason why they cannot replace it."""
        here: dict[TensorMeta, TensorMeta] = dict(zip(body.graph_inputs, node.inputs, strict=True))
        steps = []
        for step in body.nodes:
            name = self.names.free(step.op_type.split(".")[1])
            for made in step.outputs:
                here[made] = made.copy(name if len(step.outputs) == 1 else self.names.free(f"{name}_{made.index}"))
            steps.append(step.copy(here.__getitem__, name))
            steps[-1].origin, steps[-1].origins = node.origin, node.origins
        pairs = [(old, here[new]) for old, new in zip(node.outputs, body.graph_outputs, strict=True)]
        if why := next(filter(None, (self._objection(old, new) for old, new in pairs)), ""):
            for step in reversed(steps):
                step.inputs = ()
            return [], why
        for old, new in pairs:
            self.moved.update([new] if old in self.moved or old.stride != new.stride else ())
            old.replace_all_uses_with(new)
        node.inputs = ()
        return steps, ""

    def _objection(self, old: TensorMeta, new: TensorMeta) -> str:
        """Return why a part's result cannot replace the node's; empty if it can."""
        return self.know.objection(old, new)

    def _update_strides(self, node: OpNode) -> None:
        """Infer a node's output strides again if its inputs' strides changed: torch's rules depend on them."""
        if self.moved.isdisjoint(node.inputs):
            return
        try:
            made = self.know.shapes.of(node)
        except ShapeError:
            if node.op_type != "aten.view.default":
                raise
            node.op_type, node.attrs = "aten.reshape.default", {"shape": node["size"]}  # copies if it must
            made = self.know.shapes.of(node)
        for old, new in zip(node.outputs, made or (), strict=False):
            if old.stride != new.stride:
                old.stride = new.stride
                self.moved.add(old)
