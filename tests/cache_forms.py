"""Cache forms of every causal language model under random chunks, batches, drafts and pages, compared with `generate`.

python -m tests.cache_forms [NAME ...]      all architectures, or those named; prints a line each

A schedule serves several prompts of different lengths in one batch. Each step feeds every sequence some tokens: a piece
of its prompt, or its last token and a draft, of which random tokens are wrong. Rows with fewer tokens are padded.
"""

import logging
import random
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from tests.architectures import Architecture
from tests.language_models import NOT_CARRIED, language_models
from torch_ir import IR, GraphError, IRExecutor, TorchIRError, meta_init
from torch_ir.ir import evaluate
from torch_ir.llm import checkpoint_weights, extract_llm
from torch_ir.llm.forms import empty_cache, to_cache_form
from torch_ir.llm.generation import _greedy
from torch_ir.run.tolerances import compare

TOKENS = 6
SEEDS = range(3)
LENGTHS = (2, 5, 9)  # of prompts; tiny configurations have windows of 4 and more
MOST = 4  # tokens of a sequence in one step
BLOCK = 4
CAPACITY = 24
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_FLIPPED = 0.25  # of the error of rounding: entries on the border of two numbers may be rounded either way
FORMS: dict[str, dict[str, Any]] = {
    "slots": {},
    "paged": {"layout": "paged", "block_size": BLOCK},
    "rolling": {"rolling": True},
    "rolling pages": {"layout": "paged", "block_size": BLOCK, "rolling": True},
    "int8": {"cache_dtype": "int8"},
    "paged fp8": {"layout": "paged", "block_size": BLOCK, "cache_dtype": "float8_e4m3fn"},
}
FIXED = "pages, captured with a fixed cache"  # the layout of "paged"


@dataclass
class Sequence:
    """One sequence: its tokens, how many of them are in the cache, and the logits of each generated token."""

    tokens: list[int]
    prompt: int
    own: list[int]  # what the model generates
    cached: int = 0
    logits: list[Tensor] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) - self.prompt >= len(self.own)

    def fed(self, chance: random.Random) -> tuple[list[int], int]:
        """Return the tokens of the next step and how many of them are certain; the others are a draft."""
        pending = self.tokens[self.cached :][: chance.randint(1, MOST)]
        if self.cached + len(pending) < len(self.tokens) or self.is_done:
            return pending, len(pending)
        ahead = self.own[len(self.tokens) - self.prompt :][: chance.randint(0, MOST - len(pending))]
        return pending + [token if chance.random() < 0.6 else (token + 1) % 40 for token in ahead], len(pending)


def generated(
    step: IR, weights: Mapping[str, Tensor], prompts: list[Tensor], own: list[Any], seed: int
) -> list[Sequence]:
    """Generate by a random schedule; the drafts are the model's own tokens, some of them replaced."""
    chance = random.Random(seed)
    run = IRExecutor(step, weights)
    rows = [
        Sequence(prompt[0].tolist(), prompt.shape[1], result.sequences[0, prompt.shape[1] :].tolist())
        for prompt, result in zip(prompts, own, strict=True)
    ]
    state = _state(step, len(rows), chance)
    while not all(row.is_done for row in rows):
        fed = [row.fed(chance) for row in rows]
        width = max(len(tokens) for tokens, _ in fed)
        places = torch.tensor([row.cached for row in rows])
        inputs = {
            "input_ids": torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in fed]),
            "position": places,
            **state.inputs(places, [len(tokens) for tokens, _ in fed], width),
        }
        if any(tensor.name == "logits_at" for tensor in step.graph_inputs):
            inputs["logits_at"] = torch.arange(width).expand(len(rows), width)
        output = run(**inputs, cache=state.cache)
        state.cache = output["cache"]
        for row, (tokens, certain), logits in zip(rows, fed, output["logits"], strict=True):
            _accept(row, tokens, certain, logits)
    return rows


def _accept(row: Sequence, tokens: list[int], certain: int, logits: Tensor) -> None:
    """Accept the tokens of a draft up to the first that is not the most likely one."""
    row.cached += certain
    if row.cached < len(row.tokens) or row.is_done:
        row.cached = min(row.cached, len(row.tokens) - 1)  # a finished row repeats its last token
        return
    for at in range(certain - 1, len(tokens)):
        row.logits.append(logits[at])
        row.tokens.append(int(logits[at].argmax()))
        if row.is_done or at + 1 == len(tokens) or tokens[at + 1] != row.tokens[-1]:
            return
        row.cached += 1


class _Slots:
    def __init__(self, step: IR, rows: int) -> None:
        self.cache = empty_cache(step, batch=rows, slots=CAPACITY, room=MOST)

    def inputs(self, places: Tensor, counts: list[int], width: int) -> dict[str, Tensor]:
        return {}


class _Pool:
    """Blocks in random order, of which each row has some, and uses them in turn; a random one takes the padding."""

    def __init__(self, rows: int, blocks: int, chance: random.Random) -> None:
        self.size = rows * blocks + 3
        free = list(range(self.size))
        chance.shuffle(free)
        self.padding = free.pop() * BLOCK
        self.tables = torch.tensor([[free.pop() for _ in range(blocks)] for _ in range(rows)])

    def slots(self, positions: Tensor, is_padding: Tensor) -> Tensor:
        blocks = self.tables.gather(1, positions // BLOCK % self.tables.shape[1])
        return (blocks * BLOCK + positions % BLOCK).masked_fill(is_padding, self.padding)


class _Pages:
    """Pools of blocks: for layers that see everything, and for those with a window."""

    def __init__(self, step: IR, rows: int, chance: random.Random) -> None:
        self.names = {tensor.name for tensor in step.graph_inputs}
        needed = [text for text in step.constraints if "window_table" in text]
        turns = next(
            number
            for number in range(1, 99)
            if all(evaluate(text, {"window_table": number, "seq": MOST}) for text in needed)
        )
        self.pools = {
            ("block_tables", "slot_mapping"): _Pool(rows, CAPACITY // BLOCK, chance),
            ("window_tables", "window_mapping"): _Pool(rows, turns, chance),
        }
        whole, window = self.pools.values()
        self.cache = empty_cache(step, blocks=whole.size, window_blocks=window.size)
        for tensor in self.cache.values():  # what other sequences left behind
            tensor.copy_(torch.randint(-5, 6, tensor.shape))

    def inputs(self, places: Tensor, counts: list[int], width: int) -> dict[str, Tensor]:
        positions = places[:, None] + torch.arange(width)
        is_padding = torch.arange(width) >= torch.tensor(counts)[:, None]
        found = {}
        for (tables, mapping), pool in self.pools.items():
            if tables in self.names:
                found |= {tables: pool.tables, mapping: pool.slots(positions, is_padding)}
        return found


def _state(step: IR, rows: int, chance: random.Random) -> Any:
    is_paged = any(tensor.name in ("block_tables", "window_tables") for tensor in step.graph_inputs)
    return _Pages(step, rows, chance) if is_paged else _Slots(step, rows)


def prompts_for(model: Any, seed: int, lengths: tuple[int, ...] = LENGTHS) -> tuple[list[Tensor], list[Any]]:
    """Return random prompts of these lengths, and what the model generates for each."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 40, (1, length), generator=generator) for length in lengths]
    return prompts, [_greedy(model, TOKENS, {"input_ids": prompt}) for prompt in prompts]


def difference(step: IR, weights: Mapping[str, Tensor], prompts: list[Tensor], own: list[Any], seed: int) -> str:
    """Return in what a random schedule differs from the model's own tokens and logits; empty if in nothing."""
    for index, (row, result) in enumerate(zip(generated(step, weights, prompts, own, seed), own, strict=True)):
        expected = torch.cat(result.logits)
        found = compare(expected, torch.stack(row.logits), None, None)
        if found.reason:
            return f"sequence {index}: {found.reason}, max diff {found.max_diff:.3g}"
        if row.tokens[row.prompt :] != row.own:
            return f"sequence {index}: other tokens than generate"
    return ""


class QuantisedLayer(DynamicLayer):
    """A cache of transformers whose entries are rounded as they would be stored."""

    kind: torch.dtype

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return super().update(self._rounded(key_states), self._rounded(value_states), *args, **kwargs)

    def _rounded(self, states: Tensor) -> Tensor:
        largest = LARGEST[self.kind]
        scale = (states.abs().amax(-1, keepdim=True) / largest).clamp(min=1e-12)
        scaled = (states / scale).clamp(-largest, largest)
        return (scaled.round() if self.kind == torch.int8 else scaled).to(self.kind).float() * scale


@torch.no_grad()
def quantised_error(step: IR, weights: Mapping[str, Tensor], model: Any, dtype: str) -> tuple[float, float]:
    """Return how far the logits of a quantised cache are from those of the model with a cache rounded the same way, and
    how far these are from those without rounding, relative to the largest; the prompts are read in three chunks.
    """
    kind = type("Layer", (QuantisedLayer,), {"kind": getattr(torch, dtype)})
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    run, state = IRExecutor(step, weights), _state(step, 2, random.Random(0))
    eager = Cache(layers=[kind() for place in state.cache if place.endswith(".key")])
    error = rounding = 0.0
    plain = model(input_ids=ids, use_cache=False).logits
    for start, end in ((0, 4), (4, 8), (8, 9)):
        expected = model(input_ids=ids[:, start:end], past_key_values=eager).logits
        places = torch.full((2,), start)
        inputs = state.inputs(places, [end - start] * 2, end - start)
        chosen = torch.arange(end - start).expand(2, -1)
        output = run(input_ids=ids[:, start:end], position=places, logits_at=chosen, cache=state.cache, **inputs)
        state.cache = output["cache"]
        error = max(error, float((output["logits"] - expected).abs().max()))
        rounding = max(rounding, float((expected - plain[:, start:end]).abs().max()))
    largest = float(plain.abs().max())
    return error / largest, rounding / largest


def carry(architecture: Architecture, seeds: range = SEEDS) -> dict[str, str]:
    """Return for each form "equal", "refused: ..." or "different: ..."."""
    model: Any = architecture.build()
    with meta_init():
        bare = type(model)(model.config)
    try:
        ir = IR.from_json(extract_llm(bare).to_json())
        weights = checkpoint_weights(model)
    except TorchIRError as error:
        return dict.fromkeys(FORMS, f"not extracted: {error}")
    cases = [(seed, *prompts_for(model, seed)) for seed in seeds]

    def verdict(ir: IR, options: dict[str, Any]) -> str:
        try:
            step = to_cache_form(ir, **options)
        except GraphError as error:
            return "" if "no layer has a sliding window" in str(error) else f"refused: {error}"
        if dtype := options.get("cache_dtype"):
            off, rounding = quantised_error(step, weights, model, dtype)
            is_near = rounding > 0 and off <= _FLIPPED * rounding
            return "equal" if is_near else f"different: {off:.3g}, and rounding makes {rounding:.3g}"
        reasons = (difference(step, weights, prompts, own, seed) for seed, prompts, own in cases)
        return next((f"different: {reason}" for reason in reasons if reason), "equal")

    found = {form: verdict(ir, options) for form, options in FORMS.items()}
    with suppress(TorchIRError):  # not every model has a cache of fixed length
        found[FIXED] = verdict(extract_llm(bare, cache_length=CAPACITY), FORMS["paged"])
    return {form: each for form, each in found.items() if each}


def measure() -> dict[str, int | float | str]:
    """The figures of the full sweep."""
    verdicts = {each.name: carry(each) for each in causal_models()}
    rows: dict[str, int | float | str] = {
        "architectures": len(verdicts),
        "random schedules of each form": len(SEEDS),
    }
    for form in (*FORMS, FIXED):
        found = [verdict[form] for verdict in verdicts.values() if form in verdict]
        kinds = [sum(verdict.startswith(kind) for verdict in found) for kind in ("equal", "refused")]
        rows[f"{form}: equal to the model"] = f"{kinds[0]} of {len(found)}, {kinds[1]} refused"
    every = [verdict for found in verdicts.values() for verdict in found.values()]
    return {**rows, "wrong": sum(verdict.startswith("different") for verdict in every)}


def causal_models() -> list[Architecture]:
    return [each for each in language_models() if each.kind in ("causal", "moe") and each.name not in NOT_CARRIED]


def main(names: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    wrong = 0
    for each in causal_models():
        if not names or each.name in names:
            found = carry(each)
            wrong += any(verdict.startswith("different") for verdict in found.values())
            print(f"{each.name}: " + "; ".join(f"{form} {verdict}" for form, verdict in found.items()), flush=True)
    print(f"{wrong} different")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
