"""Call operators on the samples of torch's database, and compare the process state before and after each call."""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.operators.cases import cases
from torch_ir.ops.effects import mutated_arguments, updates_statistics
from torch_ir.ops.schema import bind
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.run.numeric_settings import settings


class Probe(TorchDispatchMode):
    """Records every operator call, and changes that its schema does not declare."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.changes: dict[str, str] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        bound = bind(func, args, kwargs)
        written = mutated_arguments(func)
        held = [leaf for name, value in bound.items() if name not in written for leaf in _tensors(value)]
        copies = [_bytes(tensor) for tensor in held]
        before = _state()
        result = func(*args, **kwargs)
        after = _state()
        self.seen[str(func)] += 1
        if torch.Tag.nondeterministic_seeded in func.tags:
            before.pop("generator"), after.pop("generator")
        for name in before:
            if before[name] != after[name]:
                self.changes[str(func)] = name
        if [_bytes(tensor) for tensor in held] != copies and not updates_statistics(func, bound):
            self.changes[str(func)] = "an argument that its schema does not say"
        return result


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> Any:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return None
    return from_tensor(tensor)


def _state() -> dict[str, Any]:
    return {
        "generator": torch.get_rng_state().numpy().tobytes(),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "files": (os.getcwd(), sorted(os.listdir()), sorted(os.listdir("/proc/self/fd"))),
        **settings(),
    }


def probe(operators: Iterable[Any], samples: int) -> Probe:
    """Every sample of these operators of the database."""
    found = Probe()
    for operator in operators:
        for case in cases(operator, samples):
            try:
                with torch.no_grad(), found:
                    case.model(*[tensor.clone() for tensor in case.tensors])
            except Exception:  # samples that are meant to fail
                continue
    return found
