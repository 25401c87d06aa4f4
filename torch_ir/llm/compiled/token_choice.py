"""Choose the next token from logits, as graphs that run on the device: the most likely one, or a sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torch_ir.capture import extract_ir
from torch_ir.ir import IR

SETTINGS = 3  # temperature, top_k, top_p


class Greedy(nn.Module):
    """The most likely token; it is also written to `tokens` at column `place`."""

    def forward(self, logits: Tensor, tokens: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        token = logits[:, -1].argmax(-1, keepdim=True)
        return token, tokens.index_copy(1, place.reshape(1), token)


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
