"""Assignments to buffers and parameters in forward become writes at the end of forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from torch_ir.capture.walk import walk
from torch_ir.errors import Cause, ConversionError
from torch_ir.ops.torch_internals import buffer_table, parameter_table, pytree, share_memory

_aten = torch.ops.aten
_COPY = _aten.copy_.default
_CASTS = (_aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default, _aten.alias.default, _aten.detach.default)
NodeOf = Callable[[torch.Tensor], "fx.Node | None"]


def traced_node(tensor: torch.Tensor) -> fx.Node | None:
    """Return the node of a tensor in the graph that torch is tracing."""
    mode = get_proxy_mode()
    found = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if found is None else found.proxy.node


@contextmanager
def assignments_written(model: nn.Module, node_of: NodeOf = traced_node) -> Iterator[None]:
    """Turn `self.mean = new` into a write to the buffer or parameter at the end of forward.

    torch.export drops assignments in submodules, and writes those of the model itself in the order of names, so that
    two swapped buffers would read each other's new values. A buffer that gets another shape or dtype is a cache, and
    is not written; the model is refused if forward reads its old value.
    """
    paths: dict[nn.Module, str] = {}
    for path, module in walk(model):
        paths.setdefault(module, f"{path}." if path else "")
    tables: list[tuple[nn.Module, str, dict[str, Any]]] = [
        (module, path, table)
        for module, path in paths.items()
        for table in (buffer_table(module), parameter_table(module))
        if table and isinstance(table, dict)  # those of a scripted module are of another type
    ]
    before: list[dict[str, Any]] = []

    def remember(*_: Any) -> None:
        before[:] = [dict(table) for _, _, table in tables]

    def write(_module: nn.Module, _args: Any, result: Any) -> Any:
        assigned = [
            (module, path, name, old, new)
            for (module, path, table), held in zip(tables, before, strict=True)
            for name, old in held.items()
            if isinstance(old, torch.Tensor) and isinstance(new := table.get(name), torch.Tensor) and new is not old
        ]
        replaced = []
        for module, path, name, old, new in assigned:
            if (old.shape, old.dtype) == (new.shape, new.dtype):
                replaced.append((module, name, old, new))
            elif _goes_on(node_of(old), node_of(new)):
                raise ConversionError(
                    f"cannot capture {type(model).__name__}: forward reads the buffer {path + name!r} and assigns a "
                    "tensor of another shape or dtype to it, which a graph cannot return; keep its shape and dtype",
                    cause=Cause.BUFFER_CHANGES_FORM,
                )
        if not replaced:
            return result
        with torch.no_grad():
            written = [old for _, _, old, _ in replaced]
            result = _apart_from(result, written)
            for old, new in zip(written, _apart_from([new for *_, new in replaced], written), strict=True):
                old.copy_(new)
        for module, name, old, _ in replaced:
            setattr(module, name, old)  # so that torch.export, which tracks assignments, sees the written tensor
        return result

    with ExitStack() as hooks:
        if tables:
            hooks.enter_context(model.register_forward_pre_hook(remember))
            hooks.enter_context(model.register_forward_hook(write))
        yield


def drop_memos(module: fx.GraphModule) -> None:
    """Erase writes that torch.export adds for buffers of the model itself: repeated ones, or to another shape."""
    for node in list(module.graph.nodes):
        if node.target is _COPY and (_sizes(node) != _sizes(node.args[0]) or _is_again(node)):
            module.graph.erase_node(node)


def _is_again(node: fx.Node) -> bool:
    """Whether a call repeats the copy before it."""
    target, source = node.args[:2]
    return isinstance(source, fx.Node) and source.target is _COPY and source.args[0] is target and not node.users


def _sizes(node: fx.Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]  # comparing symbols would add guards


def _goes_on(old: fx.Node | None, new: fx.Node | None) -> bool:
    """Whether a graph reads a buffer for anything but its cast to the new value."""
    while new is not None and new is not old and new.target in _CASTS:
        new = new.all_input_nodes[0]
    return old is not None and new is not old and any(_reads(user) for user in old.users)


def _reads(user: fx.Node) -> bool:
    return user.target not in (_aten.sym_size.int, _aten._assert_tensor_metadata.default)


def _apart_from(result: Any, written: Sequence[torch.Tensor]) -> Any:
    """Clone results that share memory with a buffer, so that they keep their values when it is written."""

    def own(tensor: torch.Tensor) -> torch.Tensor:
        shares = any(share_memory(tensor, old) for old in written)
        return tensor.clone() if shares else tensor

    return pytree.tree_map_only(torch.Tensor, own, result)
