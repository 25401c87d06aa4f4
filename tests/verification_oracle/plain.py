"""The oracle: build models, call them as a user does, and record the results; torch_ir is not imported here.

python -m tests.verification_oracle.plain OUT NAME ...      runs the models of these names
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from tests.verification_oracle.subjects import find

_KINDS = (bool, int, float, complex, str, type(None))
TIMES = 2  # calls in a row on each set of inputs


def observed(name: str) -> list[Any]:
    """Return, for each set of inputs and a fresh model, the results and side effects of consecutive calls."""
    found: list[Any] = []
    for number in range(len(find(name).calls)):
        subject = find(name)
        runs: list[Any] = []
        try:
            for _ in range(TIMES):
                args, kwargs = copied(subject.calls[number])
                torch.manual_seed(0)
                with torch.no_grad():
                    output = subject.model(*args, **kwargs)
                results = pytree.tree_leaves(output)
                if unknown := [leaf for leaf in results if type(leaf) not in _KINDS and not isinstance(leaf, Tensor)]:
                    raise TypeError(f"returns a {type(unknown[0]).__name__}, which no other process can read")
                runs.append(copied((results, pytree.tree_leaves((args, kwargs)), dict(subject.model.state_dict()))))
        except Exception as error:  # any exception of the model on inputs of another model
            runs.append(f"{type(error).__name__}: {error}")
        found.append(runs)
    return found


def copied(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), tree)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.save({name: observed(name) for name in sys.argv[2:]}, sys.argv[1])
