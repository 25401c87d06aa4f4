"""The cases: operator calls as models, with several sets of values for their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.backend_sweep.values import value_sets
from tests.operators.cases import Call, chosen_samples, database
from torch_ir import IR, TorchIRError, extract_ir
from torch_ir.ops.effects import is_random, is_uninitialised

DTYPES = ("float32", "int64", "bool", "uint8", "bfloat16", "float64", "int32", "float16", "int8", "int16")
LARGEST = 20_000  # elements of all inputs and outputs of a case
# with extreme values eager allocates all memory, or crashes inside LAPACK
DRAWN_ONLY = frozenset(
    ["bincount", "repeat_interleave", "histc", "histogramdd", "geqrf", "lu", "lu_solve", "lu_unpack", "ormqr"]
)
LAPACK = ("linalg", "svd", "pca", "cholesky", "pinverse", "qr", "logdet", "matrix_exp", "triangular", "cov", "corrcoef")


@dataclass
class Case:
    """A call, its graph, and by name the input values with the results of eager."""

    name: str
    operator: str
    dtype: str
    ir: IR
    runs: dict[str, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)
    model: nn.Module | None = None

    @property
    def op_types(self) -> list[str]:
        return [node.op_type for node in self.ir.nodes]


def operator_cases(dtype: str, part: int, parts: int, samples: int, every: int = 1) -> Iterator[Case]:
    """The cases of one of several equal parts of the operator database in a dtype."""
    kind = getattr(torch, dtype)
    for operator in database()[::every][part::parts]:
        if kind not in operator.supported_dtypes("cpu"):
            continue
        name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
        for index, sample in chosen_samples(operator, kind, samples):
            model = Call(operator.get_op(), (sample.input, *sample.args), sample.kwargs).eval()
            leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            special = operator.name not in DRAWN_ONLY and not operator.name.startswith(LAPACK)
            case = made_case(f"{name} {dtype} #{index}", name, dtype, model, tensors, special=special)
            if case is not None:
                yield case


def made_case(
    name: str,
    operator: str,
    dtype: str,
    model: nn.Module,
    tensors: Sequence[Tensor],
    *,
    special: bool = True,
    ir: IR | None = None,
) -> Case | None:
    """The case of a model, or None where eager or the capture refuses it, or nothing could be compared."""
    runs = {}
    for values, given in value_sets(tensors, dtype, special):
        wanted = eager(model, given)
        if wanted is None and values == "sample":
            return None
        if wanted is not None:
            runs[values] = (given, wanted)
    try:
        ir = ir or extract_ir(model, tuple(tensors), strict=False)
    except TorchIRError:
        return None
    if ir.symbols or not is_comparable(ir) or len(ir.graph_outputs) != len(runs["sample"][1]):
        return None
    return Case(name, operator, dtype, ir, runs, model)


def eager(model: nn.Module, given: Sequence[Tensor]) -> list[Tensor] | None:
    """Return the model's flat results; None if it raises, or returns anything but strided tensors."""
    try:
        with torch.no_grad():
            found = pytree.tree_leaves(model(*(tensor.clone() for tensor in given)))
    except Exception:  # samples and values that are meant to fail
        return None
    fits = all(isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_quantized for leaf in found)
    size = sum(leaf.numel() for leaf in (*found, *given)) if fits else 0
    return [leaf.clone() for leaf in found] if found and fits and size < LARGEST else None


def is_comparable(ir: IR) -> bool:
    """Whether a graph returns the same each time: nothing random, no memory as it is, nothing changed."""
    if ir.mutations or ir.functions or any(tensor.param is None or tensor.param.data is None for tensor in ir.params):
        return False
    return not any(is_uninitialised(node) or is_random(node) for node in ir.nodes)
