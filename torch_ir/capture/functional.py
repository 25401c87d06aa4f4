"""The functional standard form: every value is made once and never written to.

Most in-place calls write to a fresh value that nobody else looks at (`relu_` after a convolution). Those are renamed
while the graph is converted, which costs nothing and keeps operators whole. Whatever writes to a view, an input or a
buffer goes through torch's own functionalisation.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._export import config as export_config
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram

from torch_ir.capture.branches import without_writes_in_branches
from torch_ir.capture.diagnosis import quiet
from torch_ir.capture.explicit import copied, graphs, with_explicit_inputs
from torch_ir.capture.wide_results import with_wide_results
from torch_ir.errors import ConversionError, first_line
from torch_ir.ops.facts import mutated_arguments, updates_statistics
from torch_ir.ops.schema import bind

# Regions that only steer autograd or autocast: functionalisation dissolves them.
_REGIONS = frozenset(("wrap_with_set_grad_enabled", "wrap_with_autocast"))
_INSTANCE_NORM = torch.ops.aten.instance_norm.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def standard_form(
    program: ExportedProgram, always_retraced: bool = False
) -> tuple[ExportedProgram, dict[fx.Node, OpOverload]]:
    """A program that writes to nothing, and the in-place calls that stand for their functional twins.

    Torch's own way names nodes anew; programs that are to be compared can all be made to go it.
    """
    for step in (with_explicit_inputs, with_wide_results, without_writes_in_branches):
        program = step(program)
    renamed: dict[fx.Node, OpOverload] = {}
    if not always_retraced and all(_is_functional(module, renamed) for module in graphs(program.graph_module)):
        return program, renamed
    return _functionalise(_without_idle_dropout(program)), {}


def _functionalise(program: ExportedProgram) -> ExportedProgram:
    """Torch's own way, with operators kept whole; a custom operator that writes becomes one call that gives copies."""
    whole_arguments = export_config.patch(enable_auto_functionalized_v2_for_export=False)
    try:
        with whole_arguments, quiet():
            functional: ExportedProgram = program.run_decompositions({_INSTANCE_NORM: _instance_norm})
            return functional
    except Exception as error:  # torch says it in many ways
        raise ConversionError(f"torch cannot functionalise the captured graph: {first_line(error)}") from error


def _instance_norm(*args: Any) -> Any:
    """Where it updates running statistics, its schema does not say so: write it out; else keep it whole."""
    if not updates_statistics(_INSTANCE_NORM, bind(_INSTANCE_NORM, args, {})):
        return NotImplemented
    return _INSTANCE_NORM._op_dk(_COMPOSITE, *args)


def _without_idle_dropout(program: ExportedProgram) -> ExportedProgram:
    """A program where dropout that drops nothing is its input, as when run; functionalisation takes it for a copy."""
    if not any(_is_idle_dropout(node) for module in graphs(program.graph_module) for node in module.graph.nodes):
        return program
    changed = copied(program.graph_module)
    for module in graphs(changed):
        for node in filter(_is_idle_dropout, module.graph.nodes):
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
        module.recompile()
    return program._update(changed, program.graph_signature)


def _is_idle_dropout(node: fx.Node) -> bool:
    if not _may_return_its_input(node.target) or "dropout" not in str(node.target):
        return False
    _, probability, training = node.args
    return training is False or bool(probability == 0.0)


def _is_functional(module: fx.GraphModule, renamed: dict[fx.Node, OpOverload]) -> bool:
    """Whether nothing is written to, but for in-place calls that can be renamed; those are added to `renamed`."""
    writers = []
    for node in module.graph.nodes:
        target = node.target
        if isinstance(target, HigherOrderOperator):
            if str(target) in _REGIONS:
                return False
        elif isinstance(target, OpOverload):
            if target._schema.is_mutable:
                writers.append(node)
            elif updates_statistics(target, bind(target, node.args, node.kwargs)):
                return False
        elif node.op == "call_function" and target is not operator.getitem and _has_tensor(node):
            return False
    if not writers:
        return True
    storages = _Storages(module.graph)
    for node in writers:
        twin = storages.functional_twin(node)
        if twin is None:
            return False
        renamed[node] = twin
    return True


def _may_return_its_input(target: Any) -> bool:
    """Such as dropout in inference, though its schema and its fake kernel do not say so."""
    return isinstance(target, OpOverload) and torch.Tag.maybe_aliasing_or_mutating in target.tags


def _has_tensor(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


class _Storages:
    """Which values of a graph share memory, and when each is read for the last time."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.parent: dict[int, int] = {}
        self.members: dict[int, list[fx.Node]] = {}
        self.results: dict[str, Any] = {}
        self.first: dict[fx.Node, fx.Node] = {}  # from a renamed in-place call to the value that it began with
        nodes = [node for node in graph.nodes if _has_storage(node)]
        for node in nodes:
            if _may_return_its_input(node.target) and _has_storage(node.args[0]):
                self.parent[self.root(_storage(node))] = self.root(_storage(node.args[0]))
        for node in nodes:
            self.members.setdefault(self.root(_storage(node)), []).append(node)

    def root(self, storage: int) -> int:
        while storage in self.parent and self.parent[storage] != storage:
            storage = self.parent[storage]
        return storage

    def functional_twin(self, node: fx.Node) -> OpOverload | None:
        """The operator that computes what an in-place call leaves behind, if nobody can tell the difference."""
        target = node.target
        assert isinstance(target, OpOverload)
        written = bind(target, node.args, node.kwargs).get("self")
        if mutated_arguments(target) != ("self",) or not isinstance(written, fx.Node) or not _has_storage(written):
            return None
        twin = _twin(target)
        if twin is None or self._result(node, twin, written) != _form(written.meta["val"]):
            return None  # in-place calls never promote
        value = self.first.get(written, written)
        # detach_ says in-place, yet changes no element
        if target is not torch.ops.aten.detach_.default and self._is_seen_elsewhere(value, node, written):
            return None
        self.first[node] = value
        return twin

    def _result(self, node: fx.Node, twin: OpOverload, written: fx.Node) -> Any:
        """Dtype, shape and strides of what the functional operator gives; the same question is asked once."""
        key = str((twin, fx.map_arg((node.args, node.kwargs), lambda argument: _form(argument.meta["val"]))))
        if key not in self.results:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
            with torch.no_grad(), written.meta["val"].fake_mode:
                self.results[key] = _form(twin(*args, **kwargs))
        return self.results[key]

    def _is_seen_elsewhere(self, value: fx.Node, node: fx.Node, written: fx.Node) -> bool:
        """Whether the write shows in more than `value` and its later names: an input, a buffer, a view read later."""
        at = self.position[node]
        for other in self.members[self.root(_storage(written))]:
            if other.op in ("placeholder", "get_attr"):
                return True
            read_later = any(self.position[user] > at for user in other.users)
            if self.position[other] < at and read_later and self.first.get(other, other) is not value:
                return True
        return False


def _has_storage(node: Any) -> bool:
    return _has_tensor(node) and node.meta["val"].layout == torch.strided


def _storage(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage()._cdata  # type: ignore[no-any-return]  # an address


def _form(value: Any) -> Any:
    """Dtype, shape and strides, comparable without asking what symbolic sizes may be."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return str(value)
    return value.dtype, _written(value.shape), _written(value.stride())


def _written(sizes: Iterable[Any]) -> list[str]:
    return [str(size) for size in sizes]


def _twin(target: OpOverload) -> OpOverload | None:
    """`aten.relu_.default` -> `aten.relu.default`, if it takes the same arguments."""
    namespace, name, overload = str(target).split(".")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None) if name.endswith("_") else None
    twin = getattr(packet, overload, None) if packet is not None else None
    if not isinstance(twin, OpOverload) or twin._schema.is_mutable:
        return None
    return twin if _signature(twin) == _signature(target) else None


def _signature(target: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in target._schema.arguments]
