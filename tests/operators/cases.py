"""The cases: an operator of torch's database, a dtype, one of its sample inputs, and how it is called."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
SEED = 42  # the one that the database itself sets inside operators that draw random numbers


class Call(nn.Module):
    """One call of an operator as a model: its tensors are inputs, everything else is fixed."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.function = function
        self.fixed = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = self.spec.unflatten(leaves)
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class Case:
    """A named call with its tensors."""

    operator: str
    dtype: str
    form: str  # "functional" or "in-place"
    sample: int
    model: Call
    tensors: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        return f"{self.operator} {self.form} {self.dtype} #{self.sample}"


@cache
def database() -> tuple[Any, ...]:
    """Torch's operator database; importing it takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    return tuple(op_db)


def cases(operator: Any, samples: int) -> Iterator[Case]:
    """Up to `samples` calls in each dtype and form of an operator, the same ones every time."""
    name = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
    forms = {"functional": operator.get_op(), "in-place": operator.get_inplace()}
    for dtype in DTYPES:
        if dtype not in operator.supported_dtypes("cpu"):
            continue
        for index, sample in chosen_samples(operator, dtype, samples):
            for form, function in forms.items():
                if function is None or (form == "in-place" and sample.broadcasts_input):
                    continue
                model = Call(function, (sample.input, *sample.args), sample.kwargs).eval()
                leaves = pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
                tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
                yield Case(name, str(dtype).removeprefix("torch."), form, index, model, tensors)


def samples_of(operator: Any, dtype: torch.dtype) -> list[Any]:
    """Return the database's samples for a dtype, without its search of the stack for a test of torch.

    That look takes most of the time, since among thousands of modules it finds the file of every frame.
    """
    asking = ("torch.testing._internal.common_utils", "torch.testing._internal.opinfo.core")
    with ExitStack() as stack:
        for module in asking:
            stack.enter_context(mock.patch(f"{module}.extract_test_fn", return_value=None))
        return list(operator.sample_inputs("cpu", dtype, requires_grad=False))


def chosen_samples(operator: Any, dtype: torch.dtype, count: int) -> list[tuple[int, Any]]:
    """The first sample, and others drawn by the operator's name."""
    torch.manual_seed(0)
    try:
        found = list(enumerate(samples_of(operator, dtype)))
    except Exception:  # the database itself cannot create inputs of some dtypes
        return []
    drawn = random.Random(operator.name).sample(found[1:], min(count - 1, max(0, len(found) - 1)))
    return [*found[:1], *sorted(drawn, key=lambda pair: pair[0])]
