"""Values for inputs: meta tensors, random tensors, or the given ones. Torch is imported on first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.input_files import read_files
from torch_ir.cli.arguments.input_specs import InputSpec, Nothing
from torch_ir.cli.arguments.size_specs import DimRange
from torch_ir.errors import CommandError, did_you_mean
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.ir.sizes.symbols import Symbol, solve

if TYPE_CHECKING:
    import torch

Sizes = dict[str, int]


def meta_value(spec: InputSpec, sizes: Mapping[str, int]) -> Any:
    """Return a meta tensor, or the given value."""
    import torch

    from torch_ir.ops.torch_types import TORCH_DTYPES

    if spec.value is not Nothing:
        return spec.value
    try:
        return torch.empty(_numbers(spec.shape, sizes, spec.text), dtype=TORCH_DTYPES[spec.dtype], device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CommandError(f"torch cannot make {spec.text}: {str(error).partition(chr(10))[0]}") from None


def real_value(spec: InputSpec, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
    """Return a random tensor, or the given value."""
    if spec.value is not Nothing:
        return spec.value
    return random_tensor(_numbers(spec.shape, sizes, spec.text), spec.dtype, generator, spec.below)


def random_tensor(
    shape: Sequence[int], dtype: str, generator: torch.Generator, below: int | None = None
) -> torch.Tensor:
    """Return normally distributed floats, or integers from 0 up to `below` (default 2)."""
    import torch

    from torch_ir.ops.torch_types import TORCH_DTYPES

    wanted = TORCH_DTYPES[dtype]
    try:
        if wanted.is_complex:
            return torch.randn(shape, dtype=torch.complex128, generator=generator).to(wanted)
        if wanted.is_floating_point:
            return torch.randn(shape, generator=generator).to(wanted)
        return torch.randint(2 if below is None else below, tuple(shape), generator=generator).to(wanted)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CommandError(f"torch cannot make {dtype}{list(shape)}: {str(error).partition(chr(10))[0]}") from None


def graph_inputs(ir: IR, specs: Sequence[InputSpec], dims: Mapping[str, DimRange], seed: int) -> list[Any]:
    """Return a value for every input of a graph: as specified, else random in the graph's own shape."""
    import torch

    sizes = _fixed(dims, ir)
    generator = torch.Generator().manual_seed(seed)
    given: dict[TensorMeta, Any] = {}
    for tensor, spec in _by_input(ir, read_files(specs)).items():
        given[tensor] = real_value(spec, sizes, generator)
    _read_sizes(ir, given, sizes)
    numbers = {symbol.tensor: symbol.name for symbol in ir.symbols.values() if symbol.dim is None}
    return [
        given[tensor]
        if tensor in given
        else _number(ir, numbers[tensor], sizes, tensor.name)
        if tensor in numbers
        else random_tensor(_numbers(tensor.shape, sizes, tensor.name, ir.symbols), tensor.dtype, generator)
        for tensor in ir.graph_inputs
    ]


def graph_call(
    ir: IR, specs: Sequence[InputSpec], dims: Mapping[str, DimRange], seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the values of `graph_inputs` as the arguments and keywords of the model."""
    from torch_ir.ops.pytree import call_of

    return call_of(ir.input_tree, graph_inputs(ir, specs, dims, seed))


def _by_input(ir: IR, specs: Sequence[InputSpec]) -> dict[TensorMeta, InputSpec]:
    """Assign named specs to the inputs of that name, the others to the remaining inputs in order."""
    inputs = {tensor.name: tensor for tensor in ir.graph_inputs}
    chosen: dict[TensorMeta, InputSpec] = {}
    for spec in specs:
        if spec.name is not None and (tensor := _input_of(spec, spec.name, inputs)) is not None:
            chosen[tensor] = spec
    free = [tensor for tensor in ir.graph_inputs if tensor not in chosen]
    unnamed = [spec for spec in specs if spec.name is None]
    if len(unnamed) > len(free):
        raise CommandError(f"{len(specs)} inputs given, but the graph has {len(ir.graph_inputs)}")
    return {**chosen, **dict(zip(free, unnamed, strict=False))}


def _input_of(spec: InputSpec, name: str, inputs: Mapping[str, TensorMeta]) -> TensorMeta | None:
    """Return the input for a spec (`options.keys` is `options_keys`); None for a plain value from a file."""
    for known in (name, name.replace(".", "_")):
        if known in inputs:
            return inputs[known]
    if spec.is_plain:
        if spec.file is not None:
            return None
        raise CommandError(f"{name!r} is not a tensor input: its value was fixed at capture; leave it out")
    hint = did_you_mean(name, inputs) or f"; inputs: {', '.join(inputs) or 'none'}"
    raise CommandError(f"the graph has no input {name!r}{hint}")


def _fixed(dims: Mapping[str, DimRange], ir: IR) -> Sizes:
    """Return the sizes of this run: one number for each symbol of the graph that is given."""
    for name, dim in dims.items():
        if name not in ir.symbols:
            raise CommandError(f"the graph has no symbolic size {name!r}{did_you_mean(name, ir.symbols)}")
        if dim.only is None:
            raise CommandError(
                f"a run needs one size for {name!r}, not a range: --dim {name}={dim.high or dim.low or 4}"
            )
    return {name: dim.only for name, dim in dims.items() if dim.only is not None}


def _read_sizes(ir: IR, given: Mapping[TensorMeta, Any], sizes: Sizes) -> None:
    """Derive sizes from the given inputs."""
    import torch

    for symbol in ir.symbols.values():
        tensor, dim = symbol.tensor, symbol.dim
        value = given.get(tensor) if tensor is not None else None
        if tensor is None or dim is None or not isinstance(value, torch.Tensor) or value.dim() != len(tensor.shape):
            continue
        size = solve(tensor.shape[dim], symbol.name, value.shape[dim], sizes)
        if size is not None:
            sizes.setdefault(symbol.name, size)


def _numbers(
    shape: Sequence[int | str], sizes: Mapping[str, int], place: str, symbols: Mapping[str, Symbol] | None = None
) -> list[int]:
    _check_sizes(symbols or {}, dict.fromkeys(name for dim in shape for name in sorted(names_in(dim))), sizes, place)
    return [int(evaluate(dim, sizes)) for dim in shape]


def _number(ir: IR, name: str, sizes: Mapping[str, int], place: str) -> int:
    _check_sizes(ir.symbols, [name], sizes, place)
    return sizes[name]


def _check_sizes(symbols: Mapping[str, Symbol], names: Iterable[str], sizes: Mapping[str, int], place: str) -> None:
    """Raise CommandError for the symbolic sizes of an input that have no number."""
    missing = [name for name in names if name not in sizes]
    if missing:
        needed = "a number for its size" if len(missing) == 1 else "numbers for its sizes"
        options = " ".join(f"--dim {name}={symbols[name].example if name in symbols else 4}" for name in missing)
        raise CommandError(f"the input {place!r} needs {needed} {', '.join(map(repr, missing))}: add {options}")
