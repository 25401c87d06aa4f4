"""Requests to a compiled language model, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from torch_ir.errors import ExecutionError

_SEEDS = 1 << 64  # torch takes 64 bits, signed or not


@dataclass(frozen=True)
class Request:
    """One prompt for each row of the batch, and how to continue them."""

    prompt: Tensor
    new_tokens: int
    settings: tuple[float, ...] | None  # temperature, top_k, top_p; None takes the most likely token
    seed: int | None
    ends: frozenset[int]
    padding: int


@dataclass(frozen=True)
class Sizes:
    """What a compiled model takes: at most `longest` tokens in a prompt; fewer than `shortest` are decoded."""

    batch: int
    length: int  # of the cache
    vocabulary: int
    shortest: int
    longest: int


def checked(
    sizes: Sizes,
    input_ids: Any,
    max_new_tokens: int,
    do_sample: bool,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    eos_token_id: int | Collection[int] | None,
    pad_token_id: int | None,
) -> Request:
    """Return the request; raise ExecutionError for what the model cannot do."""
    prompt = _checked_prompt(sizes, input_ids)
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise ExecutionError(f"max_new_tokens must be a positive integer, not {max_new_tokens!r:.60}")
    taken = prompt.shape[1]
    if taken + max_new_tokens - 1 > sizes.length:
        most = sizes.length - taken + 1
        raise ExecutionError(
            f"a prompt of {taken} tokens leaves room for {most} new ones in a cache of {sizes.length}, not for "
            f"{max_new_tokens}"
        )
    if not isinstance(eos_token_id, (int, list, tuple, set, frozenset, NoneType)):
        raise ExecutionError(f"eos_token_id must be a token or a list of tokens, not {eos_token_id!r:.60}")
    if type(pad_token_id) not in (int, NoneType):
        raise ExecutionError(f"pad_token_id must be a token, not {pad_token_id!r:.60}")
    if seed is not None and (type(seed) is not int or not -_SEEDS // 2 <= seed < _SEEDS):
        raise ExecutionError(f"seed must be an integer of 64 bits, not {seed!r:.60}")
    ends = {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id or ())
    for end in ends:
        if type(end) is not int or not 0 <= end < sizes.vocabulary:
            raise ExecutionError(f"eos_token_id {end!r:.60} is not a token from 0 to {sizes.vocabulary - 1}")
    padding = pad_token_id if pad_token_id is not None else min(ends, default=0)
    settings = _checked_settings(sizes, temperature, top_k, top_p) if do_sample else None
    return Request(prompt, max_new_tokens, settings, seed, frozenset(ends), padding)


def _checked_prompt(sizes: Sizes, input_ids: Any) -> Tensor:
    if not isinstance(input_ids, Tensor) or input_ids.dtype not in (torch.int64, torch.int32) or input_ids.dim() != 2:
        shown = f"{input_ids.dtype}{list(input_ids.shape)}" if isinstance(input_ids, Tensor) else repr(input_ids)
        raise ExecutionError(f"input_ids must be a tensor of integers with sizes [batch, tokens], not {shown:.80}")
    batch, taken = input_ids.shape
    if batch != sizes.batch:
        raise ExecutionError(
            f"the model was compiled for a batch of {sizes.batch}, not {batch}; pass batch={batch} to compile"
        )
    if not 1 <= taken <= sizes.longest:
        raise ExecutionError(f"a prompt must have 1 to {sizes.longest} tokens, not {taken}")
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= sizes.vocabulary:
        wrong = low if low < 0 else high
        raise ExecutionError(f"input_ids contain {wrong}, which is not a token from 0 to {sizes.vocabulary - 1}")
    return input_ids.to(torch.int64)


def _checked_settings(sizes: Sizes, temperature: float, top_k: int | None, top_p: float) -> tuple[float, ...]:
    for name, value in {"temperature": temperature, "top_p": top_p}.items():
        if not isinstance(value, (int, float)):
            raise ExecutionError(f"{name} must be a number, not {value!r:.60}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ExecutionError(f"temperature must be positive, not {temperature!r:.60}; for 0, use do_sample=False")
    if top_k is not None and (type(top_k) is not int or top_k < 0):
        raise ExecutionError(f"top_k must be a number of tokens, or 0 for all of them, not {top_k!r:.60}")
    if not 0 < top_p <= 1:
        raise ExecutionError(f"top_p must be above 0 and at most 1, not {top_p!r:.60}")
    return temperature, min(top_k or sizes.vocabulary, sizes.vocabulary), top_p
