"""Generate with a step graph: the prompts in one step, then one token at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from torch_ir.errors import ExecutionError
from torch_ir.ir import IR, evaluate
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.llm.cache_layout import keyword_inputs
from torch_ir.llm.forms.form_inputs import POSITION
from torch_ir.llm.forms.step_graph import empty_cache
from torch_ir.run import IRExecutor

_TURNS = "window_table"  # the number of blocks that a sequence uses in turn
_MOST_TURNS = 1 << 16


class FormSteps:
    """A step graph, bound to weights."""

    takes_positions = False

    def __init__(self, ir: IR, weights: Mapping[str, Tensor]) -> None:
        self.ir = ir
        self.run = IRExecutor(ir, weights)
        self.names = {tensor.name for tensor in ir.graph_inputs}
        cache = next(iter(keyword_inputs(ir, "cache").values()))
        width = cache.shape[1]
        is_paged = not self.names.isdisjoint(("block_tables", "window_tables"))
        self.block = width if is_paged and isinstance(width, int) else 1

    def steps(self, count: int, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the logits of the last token after the prompts and every further step."""
        if "input_ids" not in inputs:
            raise ExecutionError("pass input_ids, the prompts")
        tokens = inputs["input_ids"]
        batch, taken = tokens.shape
        length = taken + count - 1
        blocks = -(-length // self.block)
        turns = self._turns(taken)
        cache = empty_cache(
            self.ir, batch=batch, slots=length, blocks=batch * blocks, window_blocks=batch * turns, room=taken
        )
        start = 0
        for _ in range(count):
            step = {**inputs, "input_ids": tokens, POSITION: torch.full((batch,), start), "cache": cache}
            output = self.run(**step, **self._further(batch, tokens.shape[1], start, blocks, turns))
            cache, last = output["cache"], output["logits"][:, -1:]
            start += tokens.shape[1]
            tokens = last.argmax(-1)
            yield last

    def _turns(self, count: int) -> int:
        """Return how many blocks a sequence uses in turn for steps of at most `count` tokens; 0 if it does not."""
        if "window_tables" not in self.names:
            return 0
        sizes = {str(self.ir.graph_inputs[0].shape[1]): count}
        texts = [text for text in self.ir.constraints if _TURNS in names_in(text)]
        for turns in range(1, _MOST_TURNS):
            if all(evaluate(text, {**sizes, _TURNS: turns}) for text in texts):
                return turns
        raise ExecutionError(f"no number of blocks below {_MOST_TURNS} satisfies {texts[0]}")

    def _further(self, batch: int, count: int, start: int, blocks: int, turns: int) -> dict[str, Tensor]:
        """Return the inputs that not every form has: the blocks of each row follow each other."""
        positions = torch.arange(start, start + count)
        rows = torch.arange(batch)[:, None]
        inputs = {
            "logits_at": torch.full((batch, 1), count - 1),
            "block_tables": rows * blocks + torch.arange(blocks),
            "slot_mapping": rows * blocks * self.block + positions,
        }
        if turns:
            inputs["window_tables"] = rows * turns + torch.arange(turns)
            inputs["window_mapping"] = rows * turns * self.block + positions % (turns * self.block)
        return {name: value for name, value in inputs.items() if name in self.names}
