"""Check how prefill and decode call a model, by generating with a tiny model of the same architecture."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torch_ir.capture.build_on_meta import real_init
from torch_ir.capture.instrument import exclusive
from torch_ir.errors import first_line
from torch_ir.llm.entry_points import DecoderOnly
from torch_ir.llm.generation import Steps, compare_steps
from torch_ir.llm.tiny_config import scaled, shrunk
from torch_ir.run.benchmark import threads

UNCHECKED = "not checked: "
LENGTH = 10  # fixed cache length of the tiny model
_TOKENS, _PROMPT = 4, 6
_TOLERANCE = 1e-3  # of logits; a wrong position or mask changes them far more
_SMALL = 500_000  # parameters of a model that is not shrunk
_LARGEST = 4_000_000  # parameters; a larger model would take longer than the capture
_known: dict[str, str] = {}  # cache by class, configuration and form


def difference(model: Any, make_calls: Callable[[Any], DecoderOnly], form: str) -> str:
    """Return how prefill and decode differ from `generate`; "" if they agree, a note if it cannot be checked.

    A tiny model of the same class with random weights is called like both graphs call it, without capturing anything.
    """
    key = f"{type(model).__qualname__} {form} {json.dumps(model.config.to_dict(), sort_keys=True, default=str)}"
    if key not in _known:
        _known[key] = _found(model, make_calls)
    return _known[key]


def _found(model: Any, make_calls: Callable[[Any], DecoderOnly]) -> str:
    with _alone(), real_init(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about tiny models
        torch.manual_seed(0)
        try:
            config = scaled(model.config) if _size(model) <= _SMALL else shrunk(model.config)
            with torch.device("meta"):
                size = _size(type(model)(config))
            if size > _LARGEST:
                return f"{UNCHECKED}a tiny {type(model).__name__} has {size} parameters"
            tiny = type(model)(config).float().eval()
            calls = make_calls(tiny)
            token = "decoder_input_ids" if tiny.config.is_encoder_decoder else "input_ids"
            steps = Steps(*calls.eager(), token, calls.caches.length, takes_positions=calls.has_positions)
            with torch.no_grad():
                is_valid, summary = compare_steps(steps, tiny, _TOKENS, _prompt(tiny, calls), _TOLERANCE)
        except Exception as error:  # the configuration cannot be shrunk, or the model cannot run like this
            return f"{UNCHECKED}{type(error).__name__}: {first_line(error)}"
    return "" if is_valid else summary


@contextmanager
def _alone() -> Iterator[None]:
    """Use one thread: on a busy machine, starting the others takes far longer than the products of a tiny model.

    The number of threads belongs to the whole process, so only one capture may change it at a time.
    """
    with exclusive(), threads(1):
        yield


def _size(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _prompt(tiny: Any, calls: DecoderOnly) -> dict[str, Tensor]:
    """Return random tokens; with a mask, the first prompt is padded on the left."""
    ids = torch.randint(3, tiny.config.get_text_config(decoder=True).vocab_size, (2, _PROMPT))
    mask = torch.ones_like(ids)
    mask[0, : _PROMPT // 3] = 0
    inputs = {"input_ids": ids, **({"attention_mask": mask} if calls.padding else {})}
    return inputs | ({"decoder_input_ids": torch.full((2, 1), 2)} if tiny.config.is_encoder_decoder else {})
