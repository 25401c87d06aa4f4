"""Sizes that vary: what the user asked for, what the model decides on them, and which it fixes all the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sympy
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim
from torch.export.dynamic_shapes import _combine_args, _tree_map_with_path

from torch_ir.capture.provenance import is_users
from torch_ir.ir import IR, Slot
from torch_ir.ops.pytree import values_along

DECISIONS = "torch_ir_decisions"  # where a graph module keeps them


@contextmanager
def recorded_decisions(dynamic_shapes: Any) -> Iterator[list[sympy.Basic]]:
    """What the user's code decides on sizes while it is traced.

    Torch takes every size that varies for 2 or more, so that `if n == 1` is decided and leaves no guard behind.
    """
    made: list[sympy.Basic] = []
    if dynamic_shapes is None:
        yield made
        return
    decide: Callable[[torch.SymBool], bool] = torch.SymBool.__bool__

    def record(condition: torch.SymBool) -> bool:
        outcome = decide(condition)
        frame = sys._getframe(1)
        if frame.f_code.co_filename == torch.__file__ and frame.f_back is not None:  # `if n:` asks `n != 0`
            frame = frame.f_back
        if is_users(frame.f_code.co_filename):
            made.append(condition.node.expr if outcome else sympy.Not(condition.node.expr))
        return outcome

    # torch asks the user's frame whether it stands in an assertion; this one must pass for a frame of torch
    record.__code__ = record.__code__.replace(co_filename=torch.__file__)
    torch.SymBool.__bool__ = record  # type: ignore[method-assign]  # torch offers no hook
    try:
        yield made
    finally:
        torch.SymBool.__bool__ = decide  # type: ignore[method-assign]  # put back


def requested_minimums(dynamic_shapes: Any) -> dict[str, int]:
    """The lower bounds that the user gave to named dimensions."""
    dims = pytree.tree_leaves(dynamic_shapes, is_leaf=lambda leaf: hasattr(leaf, "min"))
    roots = [getattr(dim, "root", dim) for dim in dims]  # 2*seq speaks of seq
    return {dim.__name__: dim.min for dim in roots if isinstance(getattr(dim, "min", None), int)}


def fixed_sizes(
    ir: IR, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> list[str]:
    """Dimensions that were asked to vary (`Dim.AUTO`), but have one size in the graph; a line for each."""
    asked = dict(_asked(model, args, kwargs, dynamic_shapes))
    return [
        f"dimension {dim} of {ir.graph_inputs[leaf].name!r} is always {ir.graph_inputs[leaf].shape[dim]}"
        for _, leaf, value in values_along(ir.input_tree, (args, dict(kwargs)))
        if isinstance(leaf, Slot)
        for dim in asked.get(id(value), ())
        if isinstance(ir.graph_inputs[leaf].shape[dim], int)
    ]


def _asked(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> Iterator[tuple[int, list[int]]]:
    """For each tensor, by its identity, the dimensions that were asked to vary."""
    if not isinstance(dynamic_shapes, (dict, tuple, list)):
        return
    combined: Any = _combine_args(model, args, kwargs)
    if not isinstance(dynamic_shapes, dict):
        combined = type(dynamic_shapes)(combined.values())
    found: list[tuple[Any, Any]] = []
    _tree_map_with_path(
        lambda path, value, asked: found.append((value, asked)), combined, dynamic_shapes, tree_name="inputs"
    )
    for value, asked in found:
        if isinstance(value, torch.Tensor) and isinstance(asked, (dict, tuple, list)):
            dims = asked.items() if isinstance(asked, dict) else enumerate(asked)
            yield id(value), [dim for dim, size in dims if getattr(size, "type", None) == Dim.AUTO.type]
