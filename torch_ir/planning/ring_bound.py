"""Whether attention in a ring can be faster than with gathered keys and values: a bound, so that few are searched."""

from __future__ import annotations

from torch_ir.ir import OpNode
from torch_ir.planning.prices import Prices

_PASSES = 6  # over the scores, which no fused kernel keeps: maximum, difference (2), power (2), sum


def may_pay(node: OpNode, prices: Prices, ranks: int) -> bool:
    """Whether a ring of so many neighbouring ranks may take less time.

    It takes at least the first message and all of attention with the scores in memory, and at least all messages;
    gathering takes two collectives and attention.
    """
    if ranks == 1:
        return False
    cluster, network = prices.cluster, prices.cluster.network
    query, key, value = node.inputs[:3]
    sizes = [prices.bytes(each) / ranks for each in (key, value)]
    gathered, message = sum(network.ring(ranks, 1, size) for size in sizes), network.chain(ranks, 1, sum(sizes))
    scores = prices.bytes(query) / ranks / int(query.shape[-1]) * int(key.shape[-2])
    attention = prices.seconds([node]) / ranks + ranks * sum(sizes) / cluster.device.bandwidth
    is_hidden = message + _PASSES * scores / cluster.device.bandwidth < gathered
    return is_hidden and ranks * message < gathered + attention
