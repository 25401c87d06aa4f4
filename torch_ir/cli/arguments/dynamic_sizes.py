"""Named sizes of inputs: the sizes to capture with, and the `dynamic_shapes` for torch.export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.input_specs import InputSpec
from torch_ir.cli.arguments.size_specs import DimRange, parse_affine
from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ir.sizes.expressions import names_in

if TYPE_CHECKING:
    import inspect

# Sizes to capture with: distinct, even, and never 0 or 1, which torch specialises on.
_SAMPLES = (8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64)


def choose_sizes(specs: Sequence[InputSpec], dims: Mapping[str, DimRange]) -> dict[str, int]:
    """Choose a size for every named dimension, inside its range and different from all others if possible."""
    names = list(dict.fromkeys(name for spec in specs for dim in spec.shape for name in sorted(names_in(dim))))
    for name in dims:
        if name not in names:
            raise CommandError(f"no input has a size {name!r}{did_you_mean(name, names)}")
    taken = {dim for spec in specs for dim in spec.shape if isinstance(dim, int)}
    sizes: dict[str, int] = {}
    for name in names:
        dim = dims.get(name, DimRange())
        low, high = max(2, dim.low or 0), dim.high if dim.high is not None else max(1024, 2 * (dim.low or 0))
        inside = [size for size in (*_SAMPLES, *range(low, min(high, low + 100) + 1)) if low <= size <= high]
        free = [size for size in inside if size not in taken]
        sizes[name] = next(iter(free or inside), high) if dim.only is None else dim.only
        taken.add(sizes[name])
    return sizes


def dynamic_shapes(bound: inspect.BoundArguments, dims: Mapping[str, DimRange]) -> dict[str, Any] | None:
    """Return the dynamic sizes, nested like the arguments; None if there are none."""
    from torch.export import Dim

    made: dict[str, Any] = {}

    def varying(spec: InputSpec) -> dict[int, Any] | None:
        found = {}
        for index, size in enumerate(spec.shape):
            affine = parse_affine(size) if isinstance(size, str) else None
            if affine is None or (dim := dims.get(affine.name, DimRange())).only is not None:
                continue
            root = made.setdefault(affine.name, Dim(affine.name, min=dim.low, max=dim.high))
            scaled = root if affine.times == 1 else affine.times * root
            found[index] = scaled + affine.plus if affine.plus else scaled
        return found or None

    shapes = {name: map_specs(value, varying) for name, value in bound.arguments.items()}
    return shapes if made else None


def map_specs(value: Any, change: Callable[[InputSpec], Any]) -> Any:
    """Apply `change` to every spec in a nested argument."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_specs(item, change) for item in value)
    if isinstance(value, dict):
        return {name: map_specs(item, change) for name, item in value.items()}
    return change(value)
