"""Further inputs and weights for a verification, derived from the given ones: zeros and ones hide errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_ir.errors import ExpressionError
from torch_ir.ir import IR, evaluate
from torch_ir.ops.torch_internals import MODULE_TABLES, dense_memory_key, pytree
from torch_ir.run.compiled_plan import Sizes
from torch_ir.run.executor import flatten_call, read_sizes
from torch_ir.verify.reference_run import Call, named_tensors

Weights = dict[str, torch.Tensor]
_SCALES = {
    "shuffled inputs": 1.0,
    "shuffled inputs at -1/100 of their scale": -0.01,  # small enough that an epsilon matters
    "shuffled inputs at 4 times their scale": 4.0,
    "shuffled inputs at 50 times their scale": 50.0,  # large enough to reach bounds
    "inputs of zeros": 0.0,  # where < and <= differ
}
BOTH_SIGNS = "shuffled inputs of both signs"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_STEPS = ((1, 2, 3, 4, 6, 8, 16), (-1, -2, -4))  # changes of size; of each tuple, the first that the graph admits


@dataclass
class Probe:
    """A call that the model should accept, with a label, and replacements for constant weights."""

    about: str
    call: Call
    weights: Weights
    may_be_refused: bool = False  # without a note: integers may be indices, which are bounded


def probes(ir: IR, model: nn.Module, call: Call) -> Iterator[Probe]:
    """Yield the given inputs shuffled, at several scales, and at other sizes that the graph admits."""
    generator = torch.Generator().manual_seed(0)
    weights = _drawn_weights(ir, model, generator)
    for about, scale in _SCALES.items():
        yield Probe(about, _changed(call, partial(_drawn, generator=generator, scale=scale)), weights)
    if any(map(_is_one_signed, pytree.tree_leaves(call))):
        yield Probe(BOTH_SIGNS, _changed(call, partial(_with_both_signs, generator=generator)), weights)
    if any(map(_is_constant_integer, pytree.tree_leaves(call))):
        others = _changed(call, partial(_other_integers, generator=generator))
        yield Probe("integers of other values", others, weights, may_be_refused=True)
    values = flatten_call(ir, *call)
    dims = {id(value): tensor.shape for value, tensor in zip(values, ir.graph_inputs, strict=True)}
    for sizes in _other_sizes(ir, values):
        about = "inputs with " + ", ".join(f"{name} = {size}" for name, size in sizes.items())
        resized = _changed(call, partial(_resized, dims=dims, sizes=sizes))
        yield Probe(about, _changed(resized, partial(_drawn, generator=generator)), weights)


def other_values(call: Call) -> Call:
    """Return the call with floats shuffled and halved, so that sums differ too, and integers reordered."""
    return _changed(call, partial(_drawn, generator=torch.Generator().manual_seed(1), scale=0.5))


def is_constant(value: torch.Tensor) -> bool:
    """Whether all elements of a tensor are equal."""
    dense = value if value.layout == torch.strided else value.to_dense()
    flat = dense.flatten()
    return flat.numel() > 0 and bool(flat[0] == flat[-1]) and bool((flat == flat[0]).all())


def _changed(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call:
    changed: Call = pytree.tree_map_only(torch.Tensor, change, call)
    return changed


def _drawn(value: torch.Tensor, generator: torch.Generator, scale: float = 1.0) -> torch.Tensor:
    """Return a similar tensor: floats are shuffled and scaled, integers only reordered."""
    if value.layout != torch.strided or value.is_quantized or value.numel() == 0:
        return value
    made = value.detach().clone()
    if value.is_floating_point() or value.is_complex():
        wide = torch.complex128 if value.is_complex() else torch.float64
        fresh = torch.randn(value.shape, generator=generator) if is_constant(value) else _shuffled(made, generator)
        fresh = fresh.to(wide)  # float8 supports almost no arithmetic
        return made.copy_(fresh * (scale if _has_both_signs(fresh) else abs(scale)))
    if value.dtype != torch.bool:
        return made.copy_(_reordered(made, generator))
    is_fresh = is_constant(value)
    return made.copy_(torch.rand(value.shape, generator=generator) < 0.75 if is_fresh else _shuffled(made, generator))


def _is_constant_integer(value: Any) -> bool:
    is_integer = isinstance(value, torch.Tensor) and value.dtype in _INTEGERS and value.layout == torch.strided
    return is_integer and is_constant(value)


def _other_integers(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Replace constant integers by ones drawn from zero to just above their value; keep all others."""
    if not _is_constant_integer(value):
        return value
    largest = min(int(value.flatten()[0]) + 1, torch.iinfo(value.dtype).max)
    if value.numel() == 1:
        return torch.full_like(value, largest)
    drawn = torch.randint(min(0, largest - 1), largest + 1, value.shape, generator=generator)
    return drawn.to(value)


def _has_both_signs(value: torch.Tensor) -> bool:
    return not value.is_complex() and bool((value < 0).any()) and bool((value > 0).any())


def _is_one_signed(value: Any) -> bool:
    """Return whether a float tensor has only one sign; constants and two-valued tensors (masks) do not count."""
    is_plain = isinstance(value, torch.Tensor) and value.is_floating_point() and value.layout == torch.strided
    if not is_plain or value.numel() == 0:
        return False
    wide = value.detach().to(torch.float64)
    is_mask = bool(((wide == wide.min()) | (wide == wide.max())).all())
    return not is_mask and not _has_both_signs(wide)


def _with_both_signs(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the tensor shuffled, with the sign of each element flipped with probability 1/2."""
    drawn = _drawn(value, generator)
    if not _is_one_signed(value):
        return drawn
    signs = torch.rand(value.shape, generator=generator, dtype=torch.float64) < 0.5
    flipped = torch.where(signs.to(value.device), -1.0, 1.0)
    return drawn.copy_(drawn.to(torch.float64) * flipped)


def _shuffled(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(value.numel(), generator=generator).to(value.device)
    return value.flatten()[order].view(value.shape)


def _reordered(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Permute integers along their longest dimension; ascending ones (offsets, positions) are kept."""
    if value.dim() == 0:
        return value
    longest = max(range(value.dim()), key=value.size)
    ascends = bool((value.diff(dim=longest) >= 0).all())
    order = torch.randperm(value.size(longest), generator=generator).to(value.device)
    return value if ascends else value.index_select(longest, order)


def _drawn_weights(ir: IR, model: nn.Module, generator: torch.Generator) -> Weights:
    """Return replacements for constant weights, such as the ones and zeros of an untrained model; signs are kept.

    Weights that share memory are not replaced.
    """
    keys = {key for param in ir.params if param.param and param.param.in_state_dict for key in param.param.keys}
    kept = {id(tensor) for module in model.modules() if _keeps_tensors(module) for tensor in _registered(module)}
    tensors = {id(tensor): tensor for _, tensor in named_tensors(model)}
    owners = Counter(dense_memory_key(tensor) for tensor in tensors.values())
    made: dict[torch.Tensor, torch.Tensor] = {}
    for name, tensor in named_tensors(model):
        is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_floating_point()
        if owners[dense_memory_key(tensor)] > 1:
            continue
        if name in keys and is_plain and tensor not in made and id(tensor) not in kept and is_constant(tensor):
            factors, offsets = torch.rand(2, *tensor.shape, generator=generator, dtype=torch.float64)
            made[tensor] = (tensor.detach().cpu() * (0.5 + factors) + 0.1 * offsets).to(tensor)
    return {name: made[tensor] for name, tensor in named_tensors(model) if tensor in made}


def _keeps_tensors(module: nn.Module) -> bool:
    """Whether a module has tensors besides its registered ones: aliases of its weights, or values derived from them."""
    own = [value for name, value in vars(module).items() if name not in MODULE_TABLES]
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(own))


def _registered(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _other_sizes(ir: IR, values: Sequence[Any]) -> Iterator[Sizes]:
    given = read_sizes(ir, values)
    free = [
        symbol.name for symbol in ir.symbols.values() if symbol.tensor in ir.graph_inputs and symbol.dim is not None
    ]
    for steps in _STEPS if free else ():
        tried = ({**given, **{name: given[name] + step for name in free}} for step in steps)
        found = next((sizes for sizes in tried if _allows(ir, sizes)), None)
        if found is not None:
            yield found


def _allows(ir: IR, sizes: Sizes) -> bool:
    """Whether the graph admits these sizes."""
    try:
        dims = [evaluate(dim, sizes) for tensor in ir.graph_inputs for dim in tensor.shape]
        fits = all(evaluate(text, sizes) for text in ir.constraints)
    except (ExpressionError, ZeroDivisionError):
        return False
    return fits and min(dims) > 0 and all(ir.symbols[name].admits(size) for name, size in sizes.items())


def _resized(value: torch.Tensor, dims: Mapping[int, Sequence[int | str]], sizes: Sizes) -> torch.Tensor:
    """Crop or repeat a tensor to other sizes; integers repeat their last element, and what is empty gets zeros."""
    for dim, text in enumerate(dims.get(id(value), ())):
        wanted, size = int(evaluate(text, sizes)), value.size(dim)
        if not size:
            value = value.new_zeros(*value.shape[:dim], wanted, *value.shape[dim + 1 :])
        elif wanted != size:
            places = torch.arange(wanted, device=value.device)
            is_number = value.is_floating_point() or value.is_complex()
            value = value.index_select(dim, places % size if is_number else places.clamp(max=size - 1))
    return value
