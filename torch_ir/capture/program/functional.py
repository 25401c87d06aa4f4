"""The functional form: each value is computed once and never written to.

A call that writes becomes its functional variant (twin) during conversion, and readers read the new value, so that
operators stay whole (see `functional_writes.py`). Other writes go through torch's functionalisation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from torch_ir.capture.program.autocast_calls import with_casts_inside
from torch_ir.capture.program.lift_constants import copied, graphs, with_explicit_inputs
from torch_ir.capture.program.lower_out_dtype import with_wide_results
from torch_ir.capture.program.provenance import user_line
from torch_ir.capture.program.writing_branches import without_writes_in_branches
from torch_ir.capture.quiet import quiet
from torch_ir.errors import ConversionError, first_line
from torch_ir.ir.graph.operator_sets import DROPOUTS
from torch_ir.ops.effects import gives_its_input, may_pass_on, mutated_arguments, updates_statistics
from torch_ir.ops.schema import bind
from torch_ir.ops.shared_by_threads import decomposing
from torch_ir.ops.torch_internals import (
    DispatchKey,
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    call_kernel,
    memory_key,
    schema_of,
    updated,
)
from torch_ir.ops.view_inverse import repeats_elements

# Regions that only control autograd or autocast: functionalisation removes them.
_REGIONS = frozenset(("wrap_with_set_grad_enabled", "wrap_with_autocast"))
_INSTANCE_NORM = torch.ops.aten.instance_norm.default
# Views whose inverse in torch's functionalisation adds up differences, or loses elements.
_PUT_BACK_BADLY = frozenset(
    (
        *(torch.ops.aten.expand.default, torch.ops.aten.expand_as.default, torch.ops.aten.broadcast_to.default),
        torch.ops.aten.unfold.default,
    )
)
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


@dataclass(frozen=True)
class Twin:
    """The functional variant of a call that writes, and its result."""

    operator: OpOverload
    value: torch.Tensor


Twins = dict[fx.Node, Twin]


def standard_form(program: ExportedProgram) -> tuple[ExportedProgram, Twins | None]:
    """Return a program with explicit inputs, and the twins of its writing calls; None if one has no twin."""
    for step in (with_explicit_inputs, with_wide_results, without_writes_in_branches):
        program = step(program)
    twins: Twins = {}
    is_plain = all(_add_twins(module, twins) for module in graphs(program.graph_module))
    return program, twins if is_plain else None


def functionalised(program: ExportedProgram) -> ExportedProgram:
    """Return a program without writes, made by torch's functionalisation, which renames nodes."""
    program = with_casts_inside(program)
    for module in graphs(program.graph_module):
        _refuse_lost_writes(module)
    return _functionalise(_without_idle_dropout(program))


def _functionalise(program: ExportedProgram) -> ExportedProgram:
    """Run torch's functionalisation without decompositions; a custom operator that writes returns copies."""
    from torch_ir.ops.torch_internals import export_config

    whole_arguments = export_config.patch(enable_auto_functionalized_v2_for_export=False)
    try:
        with whole_arguments, quiet(), decomposing():
            functional: ExportedProgram = program.run_decompositions({_INSTANCE_NORM: _instance_norm})
            return functional
    except Exception as error:  # torch raises many types
        raise ConversionError(f"torch cannot functionalise the captured graph: {first_line(error)}") from error


def _refuse_lost_writes(module: fx.GraphModule) -> None:
    """Raise where torch's functionalisation would compute other numbers than the model."""
    for node in module.graph.nodes:
        written = mutated_arguments(node.target) if isinstance(node.target, OpOverload) else ()
        for name in written:
            views = list(_views(bind(node.target, node.args, node.kwargs).get(name)))
            reason = ""
            if any(view.target in _PUT_BACK_BADLY or _has_overlap(view.meta["val"]) for view in views):
                reason = (
                    "forward writes to an overlapping, expanded or unfolded tensor, which torch cannot functionalise; "
                    "clone it first"
                )
            elif any(map(_is_idle_dropout, views)) and _has_another_form(node, views[0]):
                reason = (
                    "forward changes the shape of the result of an inactive dropout, which is its input; clone it first"
                )
            if reason:
                line = user_line(node.meta.get("stack_trace") or "")
                raise ConversionError(f"{line}: {reason}" if line else reason)


def _has_another_form(call: fx.Node, written: fx.Node) -> bool:
    """Whether an in-place call changes the shape or strides of its input, as `t_` does."""
    return _has_tensor(call) and bool(_form(call.meta["val"]) != _form(written.meta["val"]))


def _views(written: Any) -> Iterator[fx.Node]:
    """Yield a tensor, and the tensors that it is a view of."""
    node = written if _memory(written) else None
    while node is not None:
        yield node
        call, memory = node.all_input_nodes[0] if node.target is operator.getitem else node, _memory(node)
        node = next((it for it in call.all_input_nodes if _memory(it) == memory), None)


def _memory(node: Any) -> int | None:
    """Return a key that is equal for tensors that share memory; None inside torch.vmap, which has none."""
    is_plain = has_storage(node) and isinstance(node.meta["val"], FakeTensor)
    return memory_key(node.meta["val"]) if is_plain else None


def _has_overlap(tensor: torch.Tensor) -> bool:
    return repeats_elements(tensor.shape, tensor.stride())


def _instance_norm(*args: Any) -> Any:
    """Decompose it if it updates running statistics, which its schema does not declare; else keep it whole."""
    if not updates_statistics(_INSTANCE_NORM, bind(_INSTANCE_NORM, args, {})):
        return NotImplemented
    return call_kernel(_INSTANCE_NORM, _COMPOSITE, *args)


def _without_idle_dropout(program: ExportedProgram) -> ExportedProgram:
    """Replace inactive dropout by its input, which it returns; functionalisation would treat it as a copy."""
    if not any(_passes_on(node) for module in graphs(program.graph_module) for node in module.graph.nodes):
        return program
    changed = copied(program.graph_module)
    for module in graphs(changed):
        for node in filter(_passes_on, module.graph.nodes):
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
        module.recompile()
    return updated(program, changed, program.graph_signature)


def _passes_on(node: fx.Node) -> bool:
    """Whether a call returns its input itself, which its schema does not declare."""
    if _is_idle_dropout(node):
        return True
    if not isinstance(node.target, OpOverload) or not may_pass_on(node.target):
        return False
    source = node.all_input_nodes[0]
    return _memory(source) == _memory(node) is not None and _form(source.meta["val"]) == _form(node.meta["val"])


def _is_idle_dropout(node: fx.Node) -> bool:
    target: Any = node.target
    return str(target) in DROPOUTS and gives_its_input(str(target), bind(target, node.args, node.kwargs))


def _add_twins(module: fx.GraphModule, twins: Twins) -> bool:
    """Add the twins of a graph's writing calls to `twins`; False if one has none."""
    known: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            if str(target) in _REGIONS:
                return False
        elif isinstance(target, OpOverload):
            if updates_statistics(target, bind(target, node.args, node.kwargs)):
                return False
            if schema_of(target).is_mutable and not _add_twin(node, target, twins, known):
                return False
        elif node.op == "call_function" and target is not operator.getitem and _has_tensor(node):
            return False
    return True


def _add_twin(node: fx.Node, target: OpOverload, twins: Twins, known: dict[str, torch.Tensor]) -> bool:
    """Infer the result of a twin; equal calls are inferred once."""
    written = bind(target, node.args, node.kwargs).get("self")
    twin = functional_twin(target) if mutated_arguments(target) == ("self",) else None
    if twin is None or not isinstance(written, fx.Node) or not has_storage(written):
        return False
    key = str((twin, fx.map_arg((node.args, node.kwargs), lambda argument: _form(argument.meta["val"]))))
    if key not in known:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        with torch.no_grad(), written.meta["val"].fake_mode:
            known[key] = twin(*args, **kwargs)
    twins[node] = Twin(twin, known[key])
    return True


def _has_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def has_storage(node: Any) -> bool:
    return _has_tensor(node) and node.meta["val"].layout == torch.strided


def _form(value: Any) -> Any:
    """Return dtype, shape and strides as text: comparing symbolic sizes would add guards."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return str(value)
    return value.dtype, _written(value.shape), _written(value.stride())


def _written(sizes: Iterable[Any]) -> list[str]:
    return [str(size) for size in sizes]


_OTHER_TWINS = {torch.ops.aten.normal_.default: torch.ops.aten.normal_functional.default}


def functional_twin(target: OpOverload) -> OpOverload | None:
    """`aten.relu_.default` -> `aten.relu.default`, if it takes the same arguments."""
    if target in _OTHER_TWINS:
        return _OTHER_TWINS[target]
    namespace, name, overload = str(target).split(".")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    twin = getattr(packet, overload, None) if packet is not None else None
    if not isinstance(twin, OpOverload) or schema_of(twin).is_mutable:
        return None
    return twin if _signature(twin) == _signature(target) else None


def _signature(target: OpOverload) -> list[tuple[str, str]]:
    """Return the arguments with their types; some twins have another name for the written one."""
    first, *others = schema_of(target).arguments
    return [("", str(first.type)), *((argument.name, str(argument.type)) for argument in others)]
