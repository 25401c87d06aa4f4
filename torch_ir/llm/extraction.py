"""extract_llm: a language model of `transformers` in, its prefill and decode graphs out."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torch_ir.capture import extract_ir, meta_init
from torch_ir.capture.export.dynamic import keep_promises, loosened
from torch_ir.errors import CaptureWarning, ExportError, MissingExtraError
from torch_ir.ir import IR
from torch_ir.llm.cache_layout import DECODE, cache_outputs
from torch_ir.llm.quantized import refuse_quantized
from torch_ir.ops.torch_internals import pytree

_LEAST = 4  # places of a cache: a prompt of two or three tokens, and one more


def extract_llm(
    model: Any,
    *,
    batch: int | None = None,
    prompt: int | None = None,
    cache_length: int | None = None,
    padding: bool = False,
    all_logits: bool = False,
    encoder_input: torch.Tensor | None = None,
    model_name: str | None = None,
    blocks: str = "inline",
) -> IR:
    """Capture a language model as two graphs over one table of weights: the IR is prefill, its function is decode.

    `model` is a configuration of `transformers` or a model of its own, on meta or real. The cache is a dict of inputs
    and outputs (`layers.0.key`, ...); it grows with every token, or has `cache_length` places and a `position` input
    that says which are taken. `batch` and `prompt` fix sizes that otherwise vary. With `padding`, prompts may be
    padded on the left and `attention_mask` is an input. Only the logits of the last token are returned unless
    `all_logits`. `encoder_input` is an example for encoders that do not read token ids, such as those of speech.
    `blocks="function"` keeps layers that repeat as one function, in each graph.
    """
    model = build_on_meta(model)
    from torch_ir.llm.caches import Caches
    from torch_ir.llm.entry_points import DecoderOnly, EncoderDecoder, recomputed_after

    if encoder_input is None and model.main_input_name != "input_ids":
        raise ExportError(
            f"{type(model).__name__} reads {model.main_input_name}, not token ids: give an example as encoder_input"
        )
    if cache_length is not None and cache_length < _LEAST:
        raise ExportError(f"a cache of {cache_length} places is too short; it needs {_LEAST} or more")
    border = recomputed_after(model.config.get_text_config(decoder=True))
    if border is not None and cache_length is not None and cache_length > border:
        raise ExportError(
            f"{type(model).__name__} computes its whole cache anew after {border} tokens (longrope), which decode does "
            f"not; give a cache_length of {border} or less"
        )
    kind = EncoderDecoder if model.config.is_encoder_decoder else DecoderOnly
    calls = kind(model, Caches.of(model.config, cache_length), batch, prompt, padding, all_logits)
    if isinstance(calls, EncoderDecoder):
        calls.encoder_input = encoder_input
    unchecked = _count_positions(calls) if encoder_input is None else ""
    name = type(model).__name__ if model_name is None else model_name
    ir = _extract(calls.prefill(), name, blocks)
    if not cache_outputs(ir):
        raise ExportError(f"{type(model).__name__} keeps no cache from one token to the next")
    decode = _extract(calls.decode(ir), f"{name}.{DECODE}", blocks, loosely=cache_length is None)
    written = {target for target, _ in decode.mutations}
    # an encoder's weights are not decode's business; a table that every call writes anew is, though nothing reads it
    decode.params = [param for param in decode.params if param.consumers or param in written]
    ir.functions[DECODE] = decode
    if unchecked:
        told = f"prefill and decode of {type(model).__name__} were not tried on a tiny model; run verify_llm on weights"
        warnings.warn(CaptureWarning(f"{told} ({unchecked})"), stacklevel=2)
    return ir.check()


def _count_positions(calls: Any) -> str:
    """Choose who counts the positions of a prompt, the model or its caller; return why that could not be tried.

    Not every model counts as `generate` does, or can use a cache of fixed length: both are tried on a tiny model.
    """
    from torch_ir.llm.caches import Caches
    from torch_ir.llm.self_check import LENGTH, UNCHECKED, difference

    length = None if calls.caches.length is None else LENGTH
    form = ("a cache that grows" if length is None else "a cache of fixed length") + calls.padding * " and padding"
    found = ""
    for calls.counts_from_zero in (False, True):

        def tiny_calls(tiny: Any, counts_from_zero: bool = calls.counts_from_zero) -> Any:
            caches = Caches.of(tiny.config, length)
            return type(calls)(tiny, caches, padding=calls.padding, counts_from_zero=counts_from_zero)

        found = difference(calls.model, tiny_calls, f"{form}, {calls.counts_from_zero}")
        if not found or found.startswith(UNCHECKED):
            return found
    other = "cache_length" if length else "padding" if calls.padding else ""
    raise ExportError(
        f"{type(calls.model).__name__} with {form} does not generate through prefill and decode what it generates by "
        f"itself ({found} on a tiny model); " + (f"extract it without {other}" if other else "no form of it is known")
    )


def build_on_meta(model: Any) -> Any:
    """The model itself, or one built without weights from a configuration."""
    with meta_init():
        return build(model)


def build(model: Any) -> Any:
    """The model itself, or one built from a configuration, with random weights."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("extracting language models", "transformers", "transformers") from None
    if isinstance(model, transformers.PreTrainedConfig):
        refuse_quantized(model)
        kinds = ("Seq2SeqLM", "SpeechSeq2Seq") if model.is_encoder_decoder else ("CausalLM",)
        factories = [getattr(transformers, f"AutoModelFor{kind}") for kind in kinds]
        fitting = [factory for factory in factories if type(model) in factory._model_mapping]
        if not fitting:
            raise ExportError(f"transformers has no language model for a configuration of {model.model_type!r}")
        model = fitting[0].from_config(model)
    if not isinstance(model, transformers.PreTrainedModel):
        raise ExportError(f"extract_llm takes a configuration or a model of transformers, not {model!r:.80}")
    if getattr(model, "hf_quantizer", None) is None:  # loaded weights are quantised, built ones are not
        refuse_quantized(model.config)
    if not model.can_generate() or not _is_causal(model):
        raise ExportError(f"{type(model).__name__} does not generate text, or not with this configuration")
    return model.eval()


def _is_causal(model: Any) -> bool:
    """Whether tokens see only those before them; an encoder with a head would not, though it has a `generate`."""
    told = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    return any(told) or not told or model.config.is_encoder_decoder


def _extract(call: Any, name: str, blocks: str, loosely: bool = False) -> IR:
    """The graph of one entry point; `loosely` where torch would try long, and fail, to prove what the sizes promise."""
    varying = call.dynamic_shapes if pytree.tree_leaves(call.dynamic_shapes) else None
    loosely = loosely and varying is not None
    asked = loosened(varying) if loosely else varying
    ir = extract_ir(
        call.model,
        (),
        kwargs=call.inputs,
        dynamic_shapes=asked,
        strict=False,
        model_name=name,
        blocks="inline" if loosely else blocks,
    )
    if not loosely:
        return ir
    keep_promises(ir, call.model, ((), call.inputs), call.dynamic_shapes)
    # only now do the caches of all layers have sizes of the same names, and only so are the layers equal
    return ir.fold_blocks() if blocks == "function" else ir
