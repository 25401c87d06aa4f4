"""Replace the check of a model that a prompt has a token for each feature, which reads values, by an assertion."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_ir.capture.instrument import intercepted, set_attribute

_MASKS = "get_placeholder_mask"  # of models: where features replace embeddings of tokens
_CHECK = "torch_compilable_check"  # of transformers, in the modules of its models


class _WithoutValues(TorchFunctionMode):
    """Format tensors without their values: the text of an error that is not raised."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "?" if func is Tensor.__format__ else func(*args, **(kwargs or {}))


def _unchecked(method: Any) -> AbstractContextManager[None]:
    """Skip the checks of values in the module of transformers that a method belongs to."""
    module = sys.modules[inspect.unwrap(method).__module__]
    if not hasattr(module, _CHECK):
        return nullcontext()
    return intercepted(module, _CHECK, lambda original, *args, **kwargs: None)


@contextmanager
def counted_placeholders(owner: Any) -> Iterator[None]:
    """Assert in the graph that a prompt has a token for each feature; the check of the model reads values."""
    original = getattr(owner, _MASKS, None)
    if original is None:
        yield
        return
    signature = inspect.signature(original)
    names = [name for name in signature.parameters if name.endswith("features")]

    def counted(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        with _WithoutValues(), _unchecked(original):
            found = original(*args, **kwargs)
        for name, mask in zip(names, found if isinstance(found, tuple) else (found,), strict=False):
            features = given.get(name)
            if isinstance(features, Tensor) and mask.dim() == 3:
                tokens, width = mask[..., 0].sum(), given.get("inputs_embeds", features).shape[-1]
                message = f"the prompt has not as many tokens for {name.replace('_', ' ')} as there are"
                torch.ops.aten._assert_async.msg(tokens * width == features.numel(), message)
        return found

    with set_attribute(owner, _MASKS, counted):
        yield
