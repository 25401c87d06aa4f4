"""Buffers that forward assigns anew: where torch does not see that, they are written to when forward is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from torch_ir.capture.walk import walk
from torch_ir.errors import ConversionError

GOES_ON = "so that its next call would go on from another"  # words of a refusal that holds for every road
_aten = torch.ops.aten
_CASTS = (_aten.to.dtype, _aten.to.dtype_layout, _aten._to_copy.default, _aten.alias.default, _aten.detach.default)
NodeOf = Callable[[torch.Tensor], "fx.Node | None"]


def traced_node(tensor: torch.Tensor) -> fx.Node | None:
    """The node of a tensor in the graph that torch is tracing."""
    mode = get_proxy_mode()
    found = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if found is None else found.proxy.node


@contextmanager
def assignments_written(model: nn.Module, node_of: NodeOf = traced_node) -> Iterator[None]:
    """`self.mean = new` becomes a write to the buffer at the end of forward; torch forgets what submodules assign.

    A buffer that gets another shape or dtype is a memo that forward makes to fit, and is left alone; the model is
    refused where forward reads what such a buffer held before.
    """
    paths: dict[nn.Module, str] = {}
    for path, module in walk(model):
        paths.setdefault(module, f"{path}." if path else "")
    tables = [(path, module._buffers) for module, path in paths.items() if module._buffers]
    before: list[dict[str, Any]] = []

    def remember(*_: Any) -> None:
        before[:] = [dict(table) for _, table in tables]

    def write(_module: nn.Module, _args: Any, result: Any) -> Any:
        assigned = [
            (path + name, old, new)
            for (path, table), held in zip(tables, before, strict=True)
            for name, old in held.items()
            if isinstance(old, torch.Tensor) and isinstance(new := table.get(name), torch.Tensor) and new is not old
        ]
        replaced = []
        for name, old, new in assigned:
            if (old.shape, old.dtype) == (new.shape, new.dtype):
                replaced.append((old, new))
            elif _goes_on(node_of(old), node_of(new)):
                told = f"forward reads the buffer {name!r} and gives it another shape or dtype, {GOES_ON} value"
                raise ConversionError(f"cannot capture {type(model).__name__}: {told}; keep its shape and dtype")
        if replaced:
            result = _apart_from(result, [old for old, _ in replaced])
        for old, new in replaced:
            old.copy_(new)
        return result

    hooks = [model.register_forward_pre_hook(remember), model.register_forward_hook(write)] if tables else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def drop_memos(module: fx.GraphModule) -> None:
    """Erase the writes that torch adds for buffers of the model itself, where one would get another shape."""
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and _sizes(node) != _sizes(node.args[0]):
            module.graph.erase_node(node)


def _sizes(node: fx.Node) -> list[str]:
    return [str(size) for size in node.meta["val"].shape]  # as text, so that no symbol is decided on


def _goes_on(old: fx.Node | None, new: fx.Node | None) -> bool:
    """Whether a graph reads a buffer otherwise than to cast it once and for all."""
    while new is not None and new is not old and new.target in _CASTS:
        new = new.all_input_nodes[0]
    return old is not None and new is not old and any(_reads(user) for user in old.users)


def _reads(user: fx.Node) -> bool:
    return user.target not in (_aten.sym_size.int, _aten._assert_tensor_metadata.default)


def _apart_from(result: Any, written: Sequence[torch.Tensor]) -> Any:
    """What forward returns keeps the values that it has, also where it lies in the memory of a buffer."""

    def own(tensor: torch.Tensor) -> torch.Tensor:
        shares = any(torch._C._is_alias_of(tensor, old) for old in written)  # type: ignore[attr-defined]  # torch's own
        return tensor.clone() if shares else tensor

    return pytree.tree_map_only(torch.Tensor, own, result)
