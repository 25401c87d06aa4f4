"""Torch's database of higher-order operators; each sample is a form."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

from tests.forms.form import VERIFIED, Family, Outcome, refused, unbuilt
from tests.operators.cases import Call, samples_of

family = Family("torch's higher-order samples")
# Samples that are not carried.
EXCEPTIONS = {
    "inline_asm_elementwise_simple": unbuilt("a kernel for GPUs"),
    "local_map_hop_simple": refused("torch.export's own verifier refuses `local_map_hop`"),
    "register_hook_simple": unbuilt("hooks a gradient; there are none in inference"),
}


def _add(operator: Any) -> None:
    name = f"{operator.name}_{operator.variant_test_name}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        (sample,) = samples_of(operator, torch.float32)
    args = (sample.input, *sample.args)
    tensors = tuple(leaf for leaf in pytree.tree_leaves((args, sample.kwargs)) if isinstance(leaf, Tensor))
    make = partial(_build, operator, args, sample.kwargs, tensors)
    family.add(name, make, (tensors,), on_meta=False, expected=EXCEPTIONS.get(name, Outcome(VERIFIED)))


def _build(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: tuple[Tensor, ...]) -> Call:
    made = Call(operator.get_op(), args, kwargs)
    made(*(tensor.clone() for tensor in tensors))  # some have no kernel here
    return made.eval()


for operator in hop_db:
    _add(operator)
