"""`torch_ir.llm.compile`: a language model compiled for generation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_ir.backends import compile as compile_graph
from torch_ir.backends.bind_together import bind_together
from torch_ir.backends.placement import find_device
from torch_ir.errors import CommandError, ExecutionError
from torch_ir.ir import IR
from torch_ir.llm.cache_layout import CACHE, decode_graph, keyword_inputs
from torch_ir.llm.compiled.decode_step import POSITION, TOKEN, cache_length, check_servable, prefill_graph, step_graph
from torch_ir.llm.compiled.read_ahead import tokens_of
from torch_ir.llm.compiled.requests import Request, Sizes, checked
from torch_ir.llm.compiled.token_choice import SETTINGS, choice_graph
from torch_ir.llm.generation import blank
from torch_ir.llm.in_place import cache_in_place
from torch_ir.ops.neutral_state import neutral, neutral_steps
from torch_ir.ops.torch_types import TORCH_DTYPES
from torch_ir.run.executor import IRExecutor
from torch_ir.run.stored import Weight
from torch_ir.run.weight_files import WeightSource, weights_for, weights_from

_log = logging.getLogger("torch_ir.llm")  # the command line shows it as progress
_BACKENDS = ("inductor", "torch")  # those that update inputs in place
_BATCH = "batch"


@neutral
def compile(
    ir: IR,
    weights: WeightSource,
    *,
    device: str | torch.device = "cpu",
    backend: str = "inductor",
    batch: int | None = None,
    level: str | None = "full",
) -> CompiledLLM:
    """Compile the graphs of `extract_llm(..., cache_length=N)` for generation.

    Prefill and decode share one cache, which stays in place. A step of decode includes the choice of the next token and
    runs without Python; on a GPU, it is one CUDA graph. `batch` fixes a dynamic batch size; without it, that is 1.
    `backend="torch"` needs no C++ compiler and calls the operators one by one. `level` is that of `optimize`.
    """
    if backend not in _BACKENDS:
        raise CommandError(f"{backend!r:.60} does not update a cache in place; use {' or '.join(_BACKENDS)}")
    check_servable(ir)
    place = find_device(device)
    ir = _with_batch(ir, batch)
    if not keyword_inputs(ir, CACHE):
        ir = cache_in_place(ir)
    return CompiledLLM(ir, weights_for([ir], weights_from(weights)), place, backend, level)


def _with_batch(ir: IR, batch: int | None) -> IR:
    if _BATCH in decode_graph(ir).symbols:
        return ir.specialize(batch=1 if batch is None else batch)
    given = next(tensor for tensor in decode_graph(ir).graph_inputs if tensor.name == TOKEN).shape[0]
    if batch not in (None, given):
        raise ExecutionError(f"the graphs have a batch of {given}, not {batch}")
    return ir


class CompiledLLM:
    """A compiled language model; it generates one batch at a time.

    Sampled steps are compiled on first use. Prefill and decode share their weights; the given ones are not kept where
    the graphs read others, computed from them.
    """

    def __init__(
        self, ir: IR, weights: Mapping[str, Weight], device: torch.device, backend: str, level: str | None
    ) -> None:
        graphs = prefill_graph(ir), decode_graph(ir)
        prefill, (self._decode, self._weights) = bind_together(graphs, weights, device, level)
        self._options: dict[str, Any] = {"backend": backend, "level": None, "device": device, "verify": False}
        self._device = device
        cache = keyword_inputs(self._decode, CACHE)
        token = next(tensor for tensor in self._decode.graph_inputs if tensor.name == TOKEN)
        logits = self._decode.graph_outputs[0]
        self._logits: tuple[Any, ...] = logits.shape
        self._dtype = TORCH_DTYPES[logits.dtype]
        length = cache_length(self._decode)
        prompt = next(symbol for symbol in ir.symbols.values()) if ir.symbols else None
        fixed: Any = ir.graph_inputs[0].shape[1]
        self.sizes = Sizes(
            int(token.shape[0]),
            length,
            int(logits.shape[-1]),
            int(prompt.min or 1) if prompt else fixed,
            min(int(prompt.max or length), length) if prompt else fixed,
        )
        self._cache = {name: blank(tensor, {}, device) for name, tensor in cache.items()}
        self._token = torch.zeros(tuple(map(int, token.shape)), dtype=torch.int64, device=device)
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._tokens = torch.zeros(self.sizes.batch, length + 1, dtype=torch.int64, device=device)
        self._uniform = torch.zeros(self.sizes.batch, length + 1, device=device)
        self._settings = torch.ones(SETTINGS, device=device)
        self._steps: dict[bool, tuple[IRExecutor, Callable[[], Any]]] = {}
        self._request: Request | None = None  # the one that uses the buffers
        _log.info("compiling prefill", extra={"graph": True})
        self._prefill = compile_graph(*prefill, **self._options)
        self._first(
            torch.zeros(self.sizes.batch, min(max(self.sizes.shortest, 8), self.sizes.longest), dtype=torch.int64)
        )
        self._step(False)

    @neutral
    def generate(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        eos_token_id: int | Collection[int] | None = None,
        pad_token_id: int | None = None,
    ) -> Tensor:
        """Return the new tokens as int64[batch, tokens] on the host; it ends early where every row has ended.

        Rows that have ended are padded with `pad_token_id`, by default an end token. Without `seed`, torch's random
        numbers are used.
        """
        options = (do_sample, temperature, top_k, top_p, seed, eos_token_id, pad_token_id)
        request = checked(self.sizes, input_ids, max_new_tokens, *options)
        if request.ends:
            return torch.stack(list(self._stream(request)), dim=1)
        step, taken = self._begin(request), request.prompt.shape[1]
        for _ in range(max_new_tokens - 1):
            step()
        return self._tokens[:, taken : taken + max_new_tokens].to("cpu", copy=True)

    def stream(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        eos_token_id: int | Collection[int] | None = None,
        pad_token_id: int | None = None,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate` one by one, as int64[batch] on the host."""
        options = (do_sample, temperature, top_k, top_p, seed, eos_token_id, pad_token_id)
        return neutral_steps(self._stream(checked(self.sizes, input_ids, max_new_tokens, *options)))

    def _stream(self, request: Request) -> Iterator[Tensor]:
        step = self._begin(request)
        ended = torch.zeros(self.sizes.batch, dtype=torch.bool)
        ends = torch.tensor(sorted(request.ends))
        for token in tokens_of(self._tokens, request.prompt.shape[1], request.new_tokens, step):
            token = token.masked_fill(ended, request.padding)
            ended |= torch.isin(token, ends) if len(ends) else False
            yield token
            if bool(ended.all()):
                return
            if self._request is not request:
                raise ExecutionError("another generation has started on this model, which serves one at a time")

    def _begin(self, request: Request) -> Callable[[], Any]:
        """Run prefill and choose the first token; return the function that makes one more."""
        self._request = request
        do_sample = request.settings is not None
        choice, step = self._step(do_sample)
        if request.settings is not None:
            self._settings.copy_(torch.tensor(request.settings))
            source = None if request.seed is None else torch.Generator().manual_seed(request.seed)
            self._uniform.copy_(torch.rand(self._uniform.shape, generator=source))
        if request.prompt.shape[1] < self.sizes.shortest:
            self._decode_prompt(request.prompt, step)
            return step
        logits = self._first(request.prompt)
        drawn = (self._uniform, self._settings) if do_sample else ()
        token, tokens = choice.run([logits, self._tokens, self._position, *drawn]).outputs
        self._token.copy_(token)
        self._tokens.copy_(tokens)
        return step

    def _first(self, prompt: Tensor) -> Tensor:
        """Fill the cache from a prompt; return the logits of its last token."""
        self._position.fill_(prompt.shape[1])
        outputs: tuple[Tensor, ...] = self._prefill.run([prompt.to(self._device), *self._cache.values()])
        return outputs[0][:, -1:]

    def _decode_prompt(self, prompt: Tensor, step: Callable[[], Any]) -> None:
        """Decode a prompt that is too short for prefill from an empty cache; the last step chooses the first token."""
        for tensor in self._cache.values():
            tensor.zero_()
        for position, token in enumerate(prompt.split(1, dim=1)):
            self._token.copy_(token)
            self._position.fill_(position)
            step()

    def _step(self, do_sample: bool) -> tuple[IRExecutor, Callable[[], Any]]:
        """Return the choice alone, for the first token, and a step of decode with it."""
        if do_sample not in self._steps:
            _log.info("compiling decode, %s", "sampled" if do_sample else "greedy", extra={"graph": True})
            choice = choice_graph(self._logits, self._dtype, self.sizes.length + 1, do_sample=do_sample)
            graph = step_graph(self._decode, choice)
            compiled = compile_graph(graph, self._weights, **self._options)
            values = {TOKEN: self._token, POSITION: self._position, "tokens": self._tokens}
            values |= {"uniform": self._uniform, "settings": self._settings}
            names = {tensor: name for name, tensor in keyword_inputs(self._decode, CACHE).items()}
            caches = {tensor.name: self._cache[name] for tensor, name in names.items()}
            buffers = [{**values, **caches}[tensor.name] for tensor in graph.graph_inputs]
            self._steps[do_sample] = IRExecutor(choice, {}, device=self._device), compiled.bound(buffers)
        return self._steps[do_sample]
