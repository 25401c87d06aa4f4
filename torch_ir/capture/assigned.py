"""Buffers that forward assigns anew: where torch does not see that, they are written to when forward is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx, nn

from torch_ir.capture.walk import modules


@contextmanager
def assignments_written(model: nn.Module) -> Iterator[None]:
    """`self.mean = new` becomes a write to the buffer at the end of forward; torch forgets what submodules assign.

    A buffer that gets another shape is a memo that forward makes to fit, and is left alone.
    """
    tables = [module._buffers for module in modules(model) if module._buffers]
    before: list[dict[str, Any]] = []

    def remember(*_: Any) -> None:
        before[:] = [dict(table) for table in tables]

    def write(_module: nn.Module, _args: Any, result: Any) -> Any:
        pairs = [
            (old, table.get(name)) for table, held in zip(tables, before, strict=True) for name, old in held.items()
        ]
        replaced = [(old, new) for old, new in pairs if old is not new and _is_alike(old, new)]
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


def _is_alike(old: Any, new: Any) -> bool:
    are_tensors = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return are_tensors and (old.shape, old.dtype) == (new.shape, new.dtype)


def _apart_from(result: Any, written: Sequence[torch.Tensor]) -> Any:
    """What forward returns keeps the values that it has, also where it lies in the memory of a buffer."""

    def own(tensor: torch.Tensor) -> torch.Tensor:
        shares = any(torch._C._is_alias_of(tensor, old) for old in written)  # type: ignore[attr-defined]  # torch's own
        return tensor.clone() if shares else tensor

    return pytree.tree_map_only(torch.Tensor, own, result)
