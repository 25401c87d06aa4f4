"""`ir.specialize` of a graph with open sizes, compared with a capture at those sizes.

python -m tests.specialised [NAME ...]      the catalogue and sixty architectures, or those named; prints a line each
"""

import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import catalogue
from tests.architectures import NEEDS_VALUES, NOT_CAPTURED, architectures
from tests.proof import to_meta
from torch_ir import IR, GraphError, OpNode, TensorMeta, TorchIRError, diff, extract_ir
from torch_ir.ir.sizes.specialize import replace_symbols
from torch_ir.ops.torch_internals import combine_args

SAME = "same bytes"
NOTHING_VARIES = "no size varies"
# Differences of a graph with open sizes from one with fixed sizes; torch's own, and none changes a result.
WHOLE = "slices of a whole dimension"  # x[:, :n], x[:, None]: left out, or an alias, where the size is a number
ENDS = "the ends of a slice"  # None beside a symbol, 0 or the largest number beside a number
DATA = "assertions on sizes that depend on the data"  # stated with the ranges of the other sizes
_BATCH_OF_ONE = ("rnn", "static_cache")  # entries that take no other
STRIDES = "strides of images of one pixel"  # which torch takes for channels-last at a fixed batch only
NAMED = frozenset((SAME, NOTHING_VARIES, WHOLE, ENDS, DATA, STRIDES))
_SLICES = ("aten.slice.Tensor", "aten.slice_scatter.default")
_STEPS = (1, 2, 3, 4, 5, 6, 8, 16)  # tried in this order, until the graph holds for the sizes


class Case(NamedTuple):
    """A model on meta with its inputs."""

    name: str
    model: nn.Module
    call: tuple[tuple[Any, ...], dict[str, Any]]


def of_catalogue(names: Collection[str] = ()) -> Iterator[Case]:
    """Every model of the catalogue, or those named."""
    for entry in catalogue.entries() if not names else map(catalogue.find, names):
        with torch.device("meta"):
            model = entry.build()
        call = (entry.inputs(), entry.kwargs())
        is_one = entry.name in _BATCH_OF_ONE
        yield Case(entry.name, model, to_meta(call) if is_one else pytree.tree_map_only(torch.Tensor, _of_two, call))


def _of_two(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on meta whose first size is not 1, which torch takes for fixed."""
    shape = tuple(tensor.shape)
    return torch.empty((2, *shape[1:]) if shape[:1] == (1,) else shape, dtype=tensor.dtype, device="meta")


def of_architectures(count: int = 60) -> Iterator[Case]:
    usable = [each for each in architectures() if each.name not in {*NEEDS_VALUES, *NOT_CAPTURED}]
    for each in usable[:: len(usable) // count][:count]:
        with torch.device("meta"):
            model = each.build()
        yield Case(each.name, model, ((), to_meta(each.inputs())))


def _varying(case: Case) -> Any:
    """The first size of every tensor varies, and the second of one that is no image."""

    def asked(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        dims = range(2 if leaf.ndim in (2, 3) else min(leaf.ndim, 1))
        return {dim: Dim.AUTO for dim in dims if leaf.shape[dim] > 1} or None

    combined: Any = combine_args(case.model, *case.call)
    return pytree.tree_map(asked, combined)


def compare(case: Case) -> str:
    """Compare both graphs: the same bytes, the named differences, or the unknown ones."""
    args, kwargs = case.call
    ir = extract_ir(case.model, args, kwargs=kwargs, dynamic_shapes=_varying(case))
    chosen = _specialised(ir, [leaf for leaf in pytree.tree_leaves(case.call) if isinstance(leaf, torch.Tensor)])
    if isinstance(chosen, str):
        return chosen
    tensors = (torch.empty(given.shape, dtype=getattr(torch, given.dtype)) for given in chosen.graph_inputs)
    made = iter([tensor.to("meta") for tensor in tensors])
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(made), case.call)
    fixed = extract_ir(case.model, args, kwargs=kwargs)
    if chosen.to_json() == fixed.to_json():
        return SAME
    named = _settled(chosen) | _settled(fixed)
    found = diff(chosen, fixed).differences
    if found and all(" with strides " in line for line in found):
        named, found = named | {STRIDES}, ()
    return "\n".join(found) or ", ".join(sorted(named))


def _settled(ir: IR) -> set[str]:
    """Remove the differences that are named from a graph and its functions, and say which there were."""
    found: set[str] = set()
    for graph in (ir, *ir.functions.values()):
        found |= _without_data(graph)
        for node in list(graph.nodes):
            if node.op_type in _SLICES and None in (node["start"], node["end"]):
                start, end = node["start"], node["end"]
                node.attrs = {**node.attrs, "start": start or 0, "end": sys.maxsize if end is None else end}
                found.add(ENDS)
            source = _unchanged(node)
            if source is not None:
                node.output.replace_all_uses_with(source)
                graph.erase(node)
                found.add(WHOLE)
    return found


def _without_data(graph: IR) -> set[str]:
    """Number the symbols that nodes define from zero, without their ranges and assertions."""
    ours = [symbol for symbol in graph.symbols.values() if symbol.tensor not in graph.graph_inputs]
    replace_symbols(graph, {symbol.name: f"data{number}" for number, symbol in enumerate(ours)})
    for symbol in ours:
        symbol.min = symbol.max = None
    asserted = [node for node in graph.nodes if node.op_type == "aten._assert_scalar.default"]
    graph.erase(asserted)
    return {DATA} if asserted else set()


def _unchanged(node: OpNode) -> TensorMeta | None:
    """The operand that a node returns as it is, if it takes or replaces a dimension as a whole."""
    if node.op_type == "aten.alias.default":
        return node["self"]
    if node.op_type not in _SLICES or (node["start"], node["step"]) != (0, 1):
        return None
    operand = node["src"] if node.op_type == _SLICES[1] else node["self"]
    is_whole = operand.shape == node["self"].shape == node.output.shape
    return operand if is_whole else None


def _specialised(ir: IR, tensors: list[torch.Tensor]) -> IR | str:
    if len(tensors) != len(ir.graph_inputs):
        return "other inputs"
    sizes = {
        dim: tensor.shape[at]
        for tensor, given in zip(tensors, ir.graph_inputs, strict=True)
        for at, dim in enumerate(given.shape)
        if dim in ir.symbols
    }
    if not sizes:
        return NOTHING_VARIES
    told = ""
    for step in _STEPS:
        try:
            return ir.specialize(**{name: size + step for name, size in sizes.items()})
        except GraphError as error:
            told = str(error)
    return f"no other size: {told}"


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    for case in (*of_catalogue(), *of_architectures()):
        if names and case.name not in names:
            continue
        try:
            outcome = compare(case)
        except TorchIRError as error:
            outcome = f"{type(error).__name__}: {error}"
        count[outcome] += 1
        print(f"{case.name}: {outcome}", flush=True)
    print(*(f"{number}: {outcome}" for outcome, number in count.most_common()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
