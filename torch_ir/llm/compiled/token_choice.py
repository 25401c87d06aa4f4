"""Choose the next token from logits, as graphs that run on the device: the most likely one, or a sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.ir import IR

SETTINGS = 3  # temperature, top_k, top_p
_MOST_PARTS = 512  # of a row of logits


class Greedy(nn.Module):
    """The most likely token; it is also written to `tokens` at column `place`."""

    def forward(self, logits: Tensor, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        token = _most_likely(logits[:, -1])
        return token, tokens.index_copy(1, place.reshape(1), token)


def _most_likely(logits: Tensor) -> Tensor:
    """Return the index of the first maximum of each row, by way of equal parts, which a GPU searches side by side."""
    batch, count = logits.shape
    parts = max(size for size in range(1, _MOST_PARTS + 1) if count % size == 0)
    best, at = logits.reshape(batch, parts, -1).max(-1)
    part = best.argmax(-1, keepdim=True)
    return part * (count // parts) + at.gather(-1, part)


class Sampled(nn.Module):
    """A random token; `uniform` has a number in [0, 1) for each token, and `settings` is read on the device."""

    def forward(
        self, logits: Tensor, tokens: Tensor, place: Tensor, uniform: Tensor, settings: Tensor
    ) -> tuple[Tensor, Tensor]:
        probabilities, order = candidates(logits[:, -1], settings)
        total = probabilities.cumsum(-1)
        drawn = uniform.index_select(1, place.reshape(1)) * total[:, -1:]
        at = (total <= drawn).sum(-1, keepdim=True).clamp(max=total.shape[-1] - 1)
        token = order.gather(-1, at)
        return token, tokens.index_copy(1, place.reshape(1), token)


def candidates(logits: Tensor, settings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of all tokens, in rising order, and the tokens; those filtered out have none.

    `settings` are the temperature, the number of most likely tokens to keep, and the sum of probabilities to keep. They
    apply in this order, as in `transformers`: equally likely tokens at the border of the second are all kept.
    """
    temperature, top_k, top_p = settings.unbind()
    scores, order = (logits.float() / temperature).sort(-1)
    count = scores.shape[-1]
    least = scores.index_select(-1, (count - top_k).long().reshape(1))
    scores = scores.masked_fill(scores < least, -torch.inf)
    is_last = torch.arange(count, device=logits.device) == count - 1
    rare = (scores.softmax(-1).cumsum(-1) <= 1 - top_p) & ~is_last
    return scores.masked_fill(rare, -torch.inf).softmax(-1), order


def choice_graph(logits: tuple[int, ...], dtype: torch.dtype, length: int, *, do_sample: bool) -> IR:
    """Return the choice as a graph, for logits of this shape and sequences of at most `length` tokens."""
    batch = logits[0]
    tokens, place = torch.zeros(batch, length, dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    inputs = [torch.zeros(logits, dtype=dtype), tokens, place]
    if do_sample:
        inputs += [torch.zeros(batch, length), torch.ones(SETTINGS)]
    module = Sampled() if do_sample else Greedy()
    return extract_ir(module.eval(), tuple(inputs), strict=False, model_name="choice")
