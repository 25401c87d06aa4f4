"""Generate tokens with the two graphs, and verify them against the model's own `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, TensorMeta, evaluate
from torch_ir.llm.cache_layout import CACHE, cache_map, decode_graph, keyword_inputs
from torch_ir.llm.checkpoint_layout import checkpoint_weights
from torch_ir.llm.forms.form_steps import FormSteps
from torch_ir.llm.forms.step_graph import is_form
from torch_ir.llm.image_positions import prompt_positions
from torch_ir.llm.joined_entries import ROWS, entry_graphs
from torch_ir.llm.run_encoders import Encoders
from torch_ir.ops.neutral_state import neutral
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run import IRExecutor
from torch_ir.run.tolerances import compare
from torch_ir.run.weight_files import weights_for, weights_read

_Step = Callable[..., Any]
_EVERY_STEP = ("lora", "adapter")  # inputs of all graphs, see lora_as_inputs


@neutral
def generate(ir: IR, weights: Mapping[str, Tensor], new_tokens: int, **inputs: Tensor) -> Tensor:
    """Generate greedily; return the tokens as int64[batch, new_tokens].

    `inputs` are the inputs of the prefill graph, by name; where the file has encoders, also theirs.
    """
    _check_count(new_tokens)
    return torch.cat([logits.argmax(-1) for logits in _steps(ir, weights).steps(new_tokens, inputs)], dim=1)


def verify_llm(ir: IR, model: Any, new_tokens: int, **inputs: Tensor) -> tuple[bool, str]:
    """Compare tokens and logits of the graphs with those of `model.generate`; return the verdict and a summary."""
    weights = model.state_dict()
    needed = (key for param in ir.params if param.param and param.param.in_state_dict for key in param.stored_keys[:1])
    if any(key not in weights for key in needed):
        weights = checkpoint_weights(model)
    return compare_steps(_steps(ir, weights), model, new_tokens, inputs)


def compare_steps(
    steps: Steps | FormSteps, model: Any, new_tokens: int, inputs: Mapping[str, Tensor], tolerance: float | None = None
) -> tuple[bool, str]:
    """Compare tokens and logits of prefill and decode with those of `model.generate`."""
    _check_count(new_tokens)
    own = _greedy(model, new_tokens, inputs)
    if steps.takes_positions and "position_ids" not in inputs:
        inputs = {**inputs, "position_ids": prompt_positions(model, inputs)}
    worst, tokens = 0.0, []
    for index, logits in enumerate(steps.steps(new_tokens, inputs)):
        difference = compare(_returned(own.logits[index], logits.dtype).unsqueeze(1), logits, tolerance, tolerance)
        if difference.reason:
            return False, f"token {index + 1}: {difference.reason}, max diff {difference.max_diff:.3g}"
        worst = max(worst, difference.max_diff)
        tokens.append(logits.argmax(-1))
    if not torch.equal(torch.cat(tokens, dim=1), own.sequences[:, -new_tokens:]):
        return False, "the logits are close, but the most likely token differs"
    return True, f"{new_tokens} tokens equal the model's own, max diff of logits {worst:.3g}"


def _check_count(new_tokens: int) -> None:
    if type(new_tokens) is not int or new_tokens < 1:
        raise ExecutionError(f"new_tokens must be a positive integer, not {new_tokens!r:.60}")


def example_prompt(ir: IR, length: int = 6, batch: int = 2) -> dict[str, Tensor]:
    """Return random inputs of the prefill graph; with a mask, the first prompt is padded on the left."""
    sizes = {"batch": batch, "seq": length, "source": length}
    inputs: dict[str, Tensor] = {}
    for tensor in ir.graph_inputs[:1] if is_form(ir) else ir.graph_inputs:
        shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
        inputs[tensor.name] = torch.randn(shape) if tensor.dtype.startswith("float") else torch.randint(3, 50, shape)
        if tensor.name == "attention_mask":
            inputs[tensor.name] = torch.ones(shape, dtype=torch.int64)
            inputs[tensor.name][0, : shape[1] // 3] = 0
        if tensor.name == "decoder_input_ids":
            inputs[tensor.name] = torch.full(shape, 2)
    return inputs


class Steps:
    """Prefill and decode as functions with keyword arguments, and the loop that calls them."""

    def __init__(
        self, prefill: _Step, decode: _Step, token: str, places: int | None, *, takes_positions: bool = False
    ) -> None:
        self.prefill, self.decode, self.token = prefill, decode, token
        self.places = places  # length of a fixed cache
        self.takes_positions, self.takes_position = takes_positions, places is not None
        self.shortest = 1  # prompt that prefill takes

    def steps(self, count: int, inputs: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the logits of the last token after prefill and every further step, as float[batch, 1, vocabulary]."""
        taken = inputs[self.token].shape[1] if self.token in inputs else 0
        if self.places is not None and taken + count - 1 > self.places:
            raise ExecutionError(f"{taken} + {count - 1} tokens exceed the cache length {self.places}")
        inputs = self.prefill_inputs(inputs)
        positions = inputs.get("position_ids")
        if self.takes_positions and positions is None:
            raise ExecutionError("pass position_ids; torch_ir.llm.prompt_positions(model, inputs) returns them")
        is_short = taken < self.shortest and inputs.keys() <= {self.token, CACHE, "attention_mask", *_EVERY_STEP}
        output = self._decode_prompt(inputs) if is_short else self.prefill(**inputs)
        kept: Any = inputs.get(CACHE, {})  # by prefill, in place
        cache = {**kept, **output.get(CACHE, {})}
        yield output["logits"][:, -1:]
        for position in range(taken, taken + count - 1):
            step = self._step(output["logits"][:, -1:].argmax(-1), cache, position, inputs)
            if positions is not None:
                step["position_ids"] = positions = positions[..., -1:] + 1
            output = self.decode(**step)
            cache |= output.get(CACHE, {})
            yield output["logits"][:, -1:]

    def _decode_prompt(self, inputs: Mapping[str, Any]) -> Any:
        """Decode a prompt that is too short for prefill, token by token from an empty cache."""
        tokens, mask = inputs[self.token], inputs.get("attention_mask")
        if mask is not None and not bool(mask.bool().all()):
            raise ExecutionError(f"a padded prompt must have at least {self.shortest} tokens, not {tokens.shape[1]}")
        cache, output = self.empty_cache(tokens.shape[0]), {}
        for position, token in enumerate(tokens.split(1, dim=1)):
            before = {**inputs, **({} if mask is None else {"attention_mask": mask[:, :position]})}
            output = self.decode(**self._step(token, cache, position, before))
            cache |= output.get(CACHE, {})
        return {**output, CACHE: cache}

    def _step(self, token: Tensor, cache: Mapping[str, Tensor], position: int, inputs: Mapping[str, Any]) -> Any:
        """Return the inputs of decode for one token; `inputs` has the mask of earlier tokens or of the prompt."""
        step = {self.token: token, "cache": cache, **{name: inputs[name] for name in _EVERY_STEP if name in inputs}}
        if self.takes_position:
            step["position"] = torch.tensor(position)
        if (mask := inputs.get("attention_mask")) is not None:
            step["attention_mask"] = self._mask(mask, position)
        return {**step, **{name: inputs[name][:, -1:] for name in ROWS if name in inputs}}

    def empty_cache(self, batch: int) -> dict[str, Tensor]:
        """Return the cache before the first token."""
        raise NotImplementedError

    def prefill_inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the inputs of prefill."""
        return inputs

    def _mask(self, mask: Tensor, position: int) -> Tensor:
        """Return the mask of one step: an encoder's is constant, a decoder's also covers generated tokens."""
        if self.token != "input_ids":
            return mask
        seen = pad(mask, (0, position + 1 - mask.shape[1]), value=1)
        return seen if self.places is None else pad(seen, (0, self.places - seen.shape[1]))


class Generator(Steps):
    """Both graphs, bound to one set of weights."""

    def __init__(self, ir: IR, weights: Mapping[str, Tensor]) -> None:
        decode = decode_graph(ir)
        weights = weights_for(entry_graphs(ir).values(), weights)
        names = [tensor.name for tensor in decode.graph_inputs]
        keys = [tensor for tensor in cache_map(ir) if tensor.name.endswith(".key")]
        places: Any = keys[0].shape[2] if keys and "position" in names else None
        super().__init__(
            IRExecutor(ir, weights, in_place=True),
            IRExecutor(decode, weights_read(decode, weights), in_place=True),
            next(name for name in names if name.endswith("input_ids")),
            places,
            takes_positions="position_ids" in names,
        )
        self.takes_position = "position" in names  # also without keys and values, whose number is the limit
        self.encoders = Encoders(ir, weights)
        self.kept = keyword_inputs(ir, CACHE)  # by prefill, if the cache is in place
        self._cache = keyword_inputs(decode, CACHE)
        length = next((tensor.shape[1] for tensor in ir.graph_inputs if tensor.name == self.token), 1)
        self.shortest = length if isinstance(length, int) else max(ir.symbols[length].min or 1, 1)

    def empty_cache(self, batch: int) -> dict[str, Tensor]:
        return {name: blank(tensor, {"batch": batch, "past": 0}) for name, tensor in self._cache.items()}

    def prefill_inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self.encoders.prefill_inputs(inputs)
        if not self.kept:
            return found
        sizes = {"batch": found[self.token].shape[0]}
        return {**found, CACHE: {name: blank(tensor, sizes) for name, tensor in self.kept.items()}}


def blank(tensor: TensorMeta, sizes: Mapping[str, int], device: torch.device | str = "cpu") -> Tensor:
    """Return a buffer of zeros for an input."""
    shape = [int(evaluate(dim, dict(sizes))) for dim in tensor.shape]
    return torch.zeros(shape, dtype=TORCH_DTYPES[tensor.dtype], device=device)


def _steps(ir: IR, weights: Mapping[str, Tensor]) -> Steps | FormSteps:
    return FormSteps(ir, weights_for([ir], weights)) if is_form(ir) else Generator(ir, weights)


def _returned(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the logits of `generate`, which are float32, in the dtype in which the model returned them, if it is this.

    Those that a model computed in bfloat16 are the same in it; others are not.
    """
    narrow = logits.to(dtype)
    return narrow if torch.equal(narrow.to(logits.dtype), logits) else logits


def _greedy(model: Any, new_tokens: int, inputs: Mapping[str, Tensor]) -> Any:
    """Generate greedily with the model itself, without end, forced or suppressed tokens."""
    from torch_ir.llm.generating_module import generating_module  # imports transformers

    modules = list({id(each): each for each in (model, generating_module(model))}.values())
    usual = [each.generation_config for each in modules]
    plain = type(usual[0])(max_new_tokens=new_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True)
    if "decoder_input_ids" in inputs:
        plain.decoder_start_token_id = int(inputs["decoder_input_ids"][0, 0])
    try:
        for each in modules:
            each.generation_config = plain
        return model.generate(**inputs)
    except Exception as error:  # any error of the model
        raise ExecutionError(f"{type(model).__name__} itself cannot generate: {first_line(error)}") from error
    finally:
        for each, own in zip(modules, usual, strict=True):
            each.generation_config = own
