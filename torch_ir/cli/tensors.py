"""Tensors for input specs: on meta, random, or from files. Torch is imported when the first one is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.inputs import DimRange, InputSpec
from torch_ir.errors import CommandError, TorchIRError, did_you_mean, first_line
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.ir.expressions import names_in
from torch_ir.ir.symbols import solve

if TYPE_CHECKING:
    import torch

Sizes = dict[str, int]


def meta_tensor(spec: InputSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """A tensor without values, or the one in the file."""
    import torch

    from torch_ir.ops.names import TORCH_DTYPES

    if spec.file is not None:
        return load_tensor(spec)
    try:
        return torch.empty(_shape(spec, sizes), dtype=TORCH_DTYPES[spec.dtype], device="meta")
    except (RuntimeError, TypeError, OverflowError) as error:
        raise CommandError(f"torch cannot make {spec.text}: {str(error).partition(chr(10))[0]}") from None


def random_tensor(
    shape: Sequence[int], dtype: str, generator: torch.Generator, below: int | None = None
) -> torch.Tensor:
    """Normal numbers, or whole ones from 0 to `below` (2 if it is None)."""
    import torch

    from torch_ir.ops.names import TORCH_DTYPES

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
    """A value for every input of a graph: as its spec says, else random in the graph's own shape."""
    import torch

    sizes = _fixed(dims, ir)
    chosen = _by_input(ir, specs)
    generator = torch.Generator().manual_seed(seed)
    given: dict[TensorMeta, torch.Tensor] = {}
    for tensor, spec in chosen.items():
        if spec.file is not None:
            given[tensor] = load_tensor(spec)
        else:
            given[tensor] = random_tensor(_shape(spec, sizes), spec.dtype, generator, spec.below)
    _read_sizes(ir, given, sizes)
    numbers = {symbol.tensor: symbol.name for symbol in ir.symbols.values() if symbol.dim is None}
    return [
        given[tensor]
        if tensor in given
        else sizes[_known(numbers[tensor], sizes, tensor.name)]
        if tensor in numbers
        else random_tensor(_graph_shape(tensor, sizes), tensor.dtype, generator)
        for tensor in ir.graph_inputs
    ]


def load_tensor(spec: InputSpec) -> torch.Tensor:
    """The tensor in a .pt, .npy or .safetensors file; of several, the one with the input's name."""
    import torch

    path = Path(spec.file or "")
    if not path.is_file():
        raise CommandError(f"no such file: {path}")
    try:
        found = _read(path)
    except ImportError as error:
        raise CommandError(f"reading {path} needs {error.name}") from None
    except TorchIRError:
        raise
    except Exception as error:  # numpy and torch raise whatever a damaged file leads them to
        raise CommandError(f"cannot read {path}: {first_line(error)}") from None
    if isinstance(found, dict):
        found = _pick(found, spec, path)
    if not isinstance(found, torch.Tensor):
        raise CommandError(f"{path} holds a {type(found).__name__}, not a tensor")
    return found


def _read(path: Path) -> Any:
    import torch

    from torch_ir.run import load_weights_safetensors

    if path.suffix == ".npy":
        import numpy

        return torch.from_numpy(numpy.load(path, allow_pickle=False))
    if path.suffix == ".safetensors":
        return load_weights_safetensors(path)
    if path.suffix in (".pt", ".pth"):
        return torch.load(path, map_location="cpu", weights_only=True)
    raise CommandError(f"{path}: values come as .pt, .npy or .safetensors")


def _pick(tensors: dict[str, Any], spec: InputSpec, path: Path) -> Any:
    if spec.name in tensors:
        return tensors[spec.name]
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    raise CommandError(f"{path} holds {len(tensors)} tensors, none called {spec.name!r}; name one: NAME=@{path}")


def _by_input(ir: IR, specs: Sequence[InputSpec]) -> dict[TensorMeta, InputSpec]:
    """Named specs to the inputs of that name, the others to the remaining inputs in order."""
    inputs = {tensor.name: tensor for tensor in ir.graph_inputs}
    chosen: dict[TensorMeta, InputSpec] = {}
    for spec in specs:
        if spec.name is not None:
            if spec.name not in inputs:
                known = ", ".join(inputs) or "none"
                hint = did_you_mean(spec.name, inputs) or f"; it has {known}"
                raise CommandError(f"the graph has no input {spec.name!r}{hint}")
            chosen[inputs[spec.name]] = spec
    free = [tensor for tensor in ir.graph_inputs if tensor not in chosen]
    unnamed = [spec for spec in specs if spec.name is None]
    if len(unnamed) > len(free):
        raise CommandError(f"{len(specs)} inputs are given, but the graph takes {len(ir.graph_inputs)}")
    return {**chosen, **dict(zip(free, unnamed, strict=False))}


def _fixed(dims: Mapping[str, DimRange], ir: IR) -> Sizes:
    """Sizes for this run: one number each, for symbols that the graph has."""
    for name, dim in dims.items():
        if name not in ir.symbols:
            raise CommandError(f"the graph has no size {name!r}{did_you_mean(name, ir.symbols)}")
        if dim.only is None:
            raise CommandError(
                f"running takes one size for {name!r}, not a range: --dim {name}={dim.high or dim.low or 4}"
            )
    return {name: dim.only for name, dim in dims.items() if dim.only is not None}


def _read_sizes(ir: IR, given: Mapping[TensorMeta, torch.Tensor], sizes: Sizes) -> None:
    """Let the inputs that are given say the sizes of those that are not."""
    for symbol in ir.symbols.values():
        tensor, dim = symbol.tensor, symbol.dim
        if tensor is None or dim is None or tensor not in given or given[tensor].dim() != len(tensor.shape):
            continue
        size = solve(tensor.shape[dim], symbol.name, given[tensor].shape[dim], sizes)
        if size is not None:
            sizes.setdefault(symbol.name, size)


def _shape(spec: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    return [dim if isinstance(dim, int) else sizes[_known(dim, sizes, spec.text)] for dim in spec.shape]


def _graph_shape(tensor: TensorMeta, sizes: Mapping[str, int]) -> list[int]:
    for dim in tensor.shape:
        for name in sorted(names_in(dim)):
            _known(name, sizes, tensor.name)
    return [int(evaluate(dim, sizes)) for dim in tensor.shape]


def _known(name: str, sizes: Mapping[str, int], place: str) -> str:
    if name not in sizes:
        raise CommandError(f"the input {place!r} needs a number for its size {name!r}: add --dim {name}=4")
    return name
