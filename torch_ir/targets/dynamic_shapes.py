"""The symbolic sizes of a graph as `dynamic_shapes` of torch.export.

module = to_torch(ir, weights)
torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes_of(ir))
"""

from __future__ import annotations

from typing import Any

from torch_ir.ir import IR, Branch, Slot, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.sizes.expressions import evaluate, names_in
from torch_ir.ir.sizes.symbols import Symbol


def dynamic_shapes_of(ir: IR) -> dict[str, Any] | None:
    """Return the `dynamic_shapes` for `torch.export.export(to_torch(ir), ...)` by argument; None if sizes are fixed.

    A symbol becomes a `Dim` with its name and range, or `Dim.AUTO` if the graph is valid for only part of that range.
    """
    require_graph(ir, "dynamic_shapes_of")
    from torch_ir.targets.torch.nn_module import signature_of

    if ir.is_static:
        return None
    positional, keywords = ir.input_tree.items
    assert isinstance(positional, Branch)  # a tuple of arguments
    assert isinstance(keywords, Branch)  # a dict of keywords
    _, *arguments = signature_of(ir).parameters
    dims = {name: _dim(symbol, ir) for name, symbol in ir.symbols.items()}
    trees = zip(arguments, [*positional.items, *keywords.items], strict=True)
    return {name: _along(tree, ir, dims) for name, tree in trees}


def _dim(symbol: Symbol, ir: IR) -> Any:
    from torch.export import Dim

    is_bound = any(symbol.name in names_in(text) for text in ir.constraints)
    is_single = symbol.min is not None and symbol.min == symbol.max  # `Dim` cannot express it
    return Dim.AUTO if is_bound or is_single else Dim(symbol.name, min=symbol.min, max=symbol.max)


def _along(tree: Tree, ir: IR, dims: dict[str, Any]) -> Any:
    if isinstance(tree, Slot):
        return _spec(ir.graph_inputs[tree], ir, dims)
    if not isinstance(tree, Branch):
        return None
    items = [_along(item, ir, dims) for item in tree.items]
    if tree.kind == "dict":
        return dict(zip(tree.keys, items, strict=True))
    return tuple(items) if tree.kind == "tuple" else items


def _spec(tensor: TensorMeta, ir: IR, dims: dict[str, Any]) -> Any:
    from torch.export import Dim

    if any(symbol.tensor is tensor and symbol.dim is None for symbol in ir.symbols.values()):
        return Dim.DYNAMIC  # a number
    return {at: _size(dim, dims) for at, dim in enumerate(tensor.shape) if isinstance(dim, str)} or None


def _size(expression: str, dims: dict[str, Any]) -> Any:
    """Return a `Dim` or a linear function of one; `Dim.AUTO` for anything else."""
    from torch.export import Dim

    if expression in dims:
        return dims[expression]
    (name, *others) = names_in(expression)
    if others or not isinstance(dims[name], Dim):
        return Dim.AUTO
    offset, one, two = (evaluate(expression, {name: value}) for value in (0, 1, 2))
    slope = one - offset
    is_linear = slope > 0 and two == offset + 2 * slope
    return slope * dims[name] + offset if is_linear else Dim.AUTO
