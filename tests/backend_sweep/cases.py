"""The cases: operator calls as models, with several sets of values for their tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.backend_sweep.values import value_sets
from tests.operators.cases import Call, chosen_samples, database
from torch_ir import IR, TorchIRError, extract_ir
from torch_ir.ir import OpNode
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
    def weights(self) -> dict[str, Tensor]:
        """The values of the graph's weights, by the names of their tensors."""
        held = self.model.state_dict() if self.model is not None else {}
        return {tensor.name: held[key] for tensor in self.ir.params if (key := tensor.key) in held}

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
            special = has_special_values(operator.name)
            case = made_case(f"{name} {dtype} #{index}", name, dtype, model, tensors, special=special)
            if case is not None:
                yield case


def has_special_values(operator: str) -> bool:
    """Whether an operator is tried with adversarial values."""
    return operator not in DRAWN_ONLY and not operator.startswith(LAPACK)


def made_case(
    name: str,
    operator: str,
    dtype: str,
    model: nn.Module,
    tensors: Sequence[Tensor],
    *,
    special: bool = True,
    ir: IR | None = None,
    writes: bool = False,
) -> Case | None:
    """The case of a model, or None where eager or the capture refuses it, or nothing could be compared.

    With `writes`, the model may change its inputs, and fill memory that was not initialised.
    """
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
    case = Case(name, operator, dtype, ir, runs, model)
    if ir.symbols or len(ir.graph_outputs) != len(runs["sample"][1]) or not is_comparable(ir, case.weights, writes):
        return None
    return case


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


def is_comparable(ir: IR, weights: Collection[str] = (), writes: bool = False) -> bool:
    """Whether a graph returns the same each time: nothing random, no memory as it is, nothing changed."""
    has_data = (tensor.name in weights or (tensor.param and tensor.param.data) for tensor in ir.params)
    if ir.functions or not all(has_data) or any(target.param or not writes for target, _ in ir.mutations):
        return False
    return not any(
        is_random(node) or (is_uninitialised(node) and not (writes and _is_filled(node))) for node in ir.nodes
    )


def _is_filled(node: OpNode) -> bool:
    """Whether all elements of new memory are written before they are read."""
    return all(reader.op_type == "aten.copy.default" for made in node.outputs for reader in made.consumers)
