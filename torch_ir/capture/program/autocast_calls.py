"""Apply autocast inside composite operators, such as `einsum`, which torch.export keeps whole.

In eager mode, the operators that a composite one calls are cast. torch.export resolves a region of autocast for the
calls that it records, so that a composite operator would be computed in the dtype of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from torch_ir.capture.instrument import without_libraries
from torch_ir.capture.program.lift_constants import copied, graphs
from torch_ir.capture.quiet import quiet
from torch_ir.ops.torch_internals import (
    DispatchKey,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    has_autocast_kernel,
    pytree,
    schema_of,
    updated,
)

_REGION = "wrap_with_autocast"
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_ORIGIN = ("stack_trace", "nn_module_stack", "custom", "from_node")
Autocast = Callable[[], AbstractContextManager[Any]]


def with_casts_inside(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which autocast regions have, in place of composite calls that it changes, what they call."""
    if not any(str(node.target) == _REGION for module in graphs(program.graph_module) for node in module.graph.nodes):
        return program
    changed = copied(program.graph_module)
    with quiet(), without_libraries():
        for module in graphs(changed):
            for region in [node for node in module.graph.nodes if str(node.target) == _REGION]:
                device, dtype, is_enabled, _, called = region.args[:5]
                body = module.get_submodule(called.target)
                if is_enabled and isinstance(body, fx.GraphModule):
                    _open_calls(body, device, dtype)
    return updated(program, changed, program.graph_signature)


def _open_calls(body: fx.GraphModule, device: str, dtype: torch.dtype) -> None:
    autocast = partial(torch.autocast, device, dtype, cache_enabled=False)
    known: dict[str, bool] = {}
    for node in list(body.graph.nodes):
        if not isinstance(node.target, OpOverload) or not may_cast_inside(node.target, device):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        key = str((node.target, args, kwargs))
        if key not in known:
            known[key] = casts_inside(node.target, args, kwargs, autocast)
        if known[key]:
            _replace(body, node, autocast)
    body.recompile()


def may_cast_inside(target: OpOverload, device: str) -> bool:
    """Whether an operator consists of others, and is not cast itself."""
    is_composite = target.has_kernel_for_dispatch_key(_COMPOSITE) and not schema_of(target).is_mutable
    return is_composite and not has_autocast_kernel(target, device)


def casts_inside(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], autocast: Autocast) -> bool:
    """Whether a composite operator calls others in other dtypes under autocast; the arguments are fake tensors."""
    leaves = pytree.tree_leaves((args, kwargs))
    mode = next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)
    if mode is None:
        return False
    with torch.no_grad(), mode:
        with autocast():
            cast = _calls(target, args, kwargs)
        return cast is not None and cast != _calls(target, args, kwargs)


def _calls(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """Return the operators that a call runs, with the dtypes of their results; None if it fails."""
    log = _Log()
    with log, suppress(Exception):  # any error of an operator, such as operands of different dtypes
        target(*args, **kwargs)
        return log.calls
    return None


class _Log(TorchDispatchMode):
    """Lists the operators that run, with the dtypes of their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.calls: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, [getattr(leaf, "dtype", None) for leaf in pytree.tree_leaves(made)]))
        return made


def _replace(body: fx.GraphModule, node: fx.Node, autocast: Autocast) -> None:
    """Put what a call consists of in its place."""
    given = list(dict.fromkeys(node.all_input_nodes))
    target: Any = node.target

    def call(*values: Any) -> Any:
        known = dict(zip(given, values, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        with torch.no_grad(), autocast():
            return target(*args, **kwargs)

    traced = make_fx(call, tracing_mode="symbolic")(*(each.meta["val"] for each in given))
    places = dict(zip(traced.graph.find_nodes(op="placeholder"), given, strict=True))
    origin = {name: node.meta[name] for name in _ORIGIN if name in node.meta}
    with body.graph.inserting_before(node):
        for step in traced.graph.nodes:
            if step.op == "call_function":
                places[step] = body.graph.node_copy(step, places.__getitem__)
                places[step].meta.update(origin)
    (made,) = traced.graph.output_node().args
    _connect(node, fx.map_arg(made, places.__getitem__))
    body.graph.erase_node(node)


def _connect(node: fx.Node, made: Any) -> None:
    """Let readers of a call read what was made, one by one if it is several tensors."""
    if isinstance(made, fx.Node):
        node.replace_all_uses_with(made)
        return
    for reader in list(node.users):
        reader.replace_all_uses_with(made[reader.args[1]])
        reader.graph.erase_node(reader)
