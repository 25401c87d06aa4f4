"""Tensors of a checkpoint that a conversion reads, such as those of all experts, as few weights that are stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from torch_ir.ir import IR
from torch_ir.ir.graph.tensor import INDEX
from torch_ir.llm.quantized import StoredWeight

_PLAIN = ""  # the format of weights that are not quantised


@dataclass(frozen=True)
class Source:
    """Weights of a checkpoint that are stored alike: one, or `count` whose tensors are stacked."""

    form: StoredWeight  # of one of them
    tensors: Mapping[str, Tensor]  # by key, with `*` for the number of a member; on meta
    count: int | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key of the nodes that compute the weights."""
        function = self.form.dequantize
        options = function.keywords.items() if isinstance(function, partial) else ()
        kinds = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in self.tensors.values())
        return (self.count, self.form.format, *options, kinds)

    def weights(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the dequantised weights, one by one."""
        if self.count is None:
            return [self.form.dequantize(*tensors)]
        if self.form.takes_stacks:
            return self.form.dequantize(*tensors).unbind(0)
        members = zip(*(tensor.unbind(0) for tensor in tensors), strict=True)
        return [self.form.dequantize(*each) for each in members]


def plain_weight(key: str, tensor: Tensor) -> StoredWeight:
    """Return a weight that is not quantised."""
    return StoredWeight(_PLAIN, {key: tensor}, _same, takes_stacks=True)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def stacked_sources(
    patterns: Sequence[str], weights: Sequence[StoredWeight], dtypes: Mapping[str, torch.dtype]
) -> list[Source]:
    """Stack the weights of each pattern if they are numbered 0, 1, ... and stored alike; leave others single.

    `dtypes` are those of a given checkpoint: members must agree in them too.
    """
    found: list[Source] = []
    for _, group in groupby(zip(patterns, weights, strict=True), key=lambda pair: pair[0]):
        members = [weight for _, weight in group]
        stack = _stack(members, dtypes)
        found += [Source(weight, weight.tensors) for weight in members] if stack is None else [stack]
    return found


def _stack(members: Sequence[StoredWeight], dtypes: Mapping[str, torch.dtype]) -> Source | None:
    first = members[0]
    kinds = {Source(each, each.tensors).kind for each in members} if len(members) > 1 else set()
    if len(kinds) != 1:
        return None
    tensors: dict[str, Tensor] = {}
    for keys in zip(*(each.tensors for each in members), strict=True):
        template = _template(keys)
        if template is None or len({dtypes.get(key) for key in keys}) != 1:
            return None
        one = first.tensors[keys[0]]
        tensors[template] = one.new_empty((len(members), *one.shape))
    return Source(first, tensors, len(members))


def _template(keys: Sequence[str]) -> str | None:
    """Return the key with `*` for the number by which keys differ, if that is 0, 1, ... in order."""
    first, second = keys[0].split("."), keys[1].split(".")
    places = [at for at, pair in enumerate(zip(first, second, strict=False)) if pair == ("0", "1")]
    for at in places:
        template = ".".join([*first[:at], INDEX, *first[at + 1 :]])
        if INDEX not in keys[0] and all(template.replace(INDEX, str(n)) == key for n, key in enumerate(keys)):
            return template
    return None


def without_restacking(ir: IR) -> IR:
    """Replace a stack of all parts of a tensor by the tensor.

    before   a, b, c = unbind(x);  y = stack([a, b, c])
    after    y = x
    """
    for node in [node for node in ir.nodes if node.op_type == "aten.stack.default" and node["dim"] == 0]:
        parts = node.inputs[0].producer
        if parts is None or parts.op_type != "aten.unbind.int" or node.inputs != parts.outputs:
            continue
        if parts["dim"] == 0:
            node.output.replace_all_uses_with(parts["self"])
            ir.erase([node])
    unread = [node for node in ir.nodes if node.op_type == "aten.unbind.int"]
    ir.erase([node for node in unread if not any(tensor.consumers for tensor in node.outputs)])
    return ir.check()
