"""Extract the prefill and decode graphs of a `transformers` language model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.capture import extract_ir, meta_init
from torch_ir.capture.export.dynamic import keep_promises, loosened
from torch_ir.entries.entry_feeds import EXTENSION, list_weights
from torch_ir.errors import CaptureWarning, Cause, ExportError, MissingExtraError
from torch_ir.ir import IR, evaluate
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.ir.sizes.expressions import names_in
from torch_ir.llm.cache_layout import DECODE, cache_outputs
from torch_ir.llm.checkpoint_layout import PLACES, to_checkpoint_layout
from torch_ir.llm.in_place import cache_in_place
from torch_ir.llm.joined_entries import ENCODE, PROJECT, describe_entries, join_encoders
from torch_ir.llm.projector import split_projector
from torch_ir.llm.quantized import quantization_of
from torch_ir.ops.effects import is_opaque
from torch_ir.ops.tested_versions import OLDEST_TRANSFORMERS, is_before
from torch_ir.ops.torch_internals import pytree
from torch_ir.run.weight_files import WeightSource

if TYPE_CHECKING:
    from torch_ir.llm.entry_points import Call, DecoderOnly
    from torch_ir.llm.multimodal import Multimodal

_log = logging.getLogger("torch_ir.llm")  # the command line shows it as progress
PAST = "past"  # the size of the cache in decode
_LAYOUTS = ("checkpoint", "model")
_ENCODER_DECODERS = ("Seq2SeqLM", "SpeechSeq2Seq")  # kinds of AutoModelFor...
_DECODERS = ("CausalLM", "ImageTextToText", "MultimodalLM")
_LEAST = 4  # cache length: a prompt of two or three tokens, and one more


def extract_llm(
    model: Any,
    *,
    batch: int | None = None,
    prompt: int | None = None,
    cache_length: int | None = None,
    in_place: bool = False,
    padding: bool = False,
    all_logits: bool = False,
    encoder_input: torch.Tensor | None = None,
    inputs: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    blocks: str = "inline",
    weight_layout: str = "checkpoint",
    dequantize: str = "prologue",
    checkpoint: WeightSource | None = None,
) -> IR:
    """Capture a language model as two graphs over one table of weights: the IR is prefill, its function is decode.

    `model` is a `transformers` configuration or model, on meta or with weights. The cache is a dict of inputs and
    outputs (`layers.0.key`, ...); it grows with every token, or has a fixed `cache_length` and a `position` input.
    With `in_place`, the graphs change the fixed cache instead of returning it (`cache_in_place`).
    `batch` and `prompt` fix sizes that are dynamic by default. With `padding`, prompts may be padded on the left and
    `attention_mask` is an input. Only the logits of the last token are returned unless `all_logits`. `encoder_input` is
    an example for encoders that do not read token ids, such as those of speech. `inputs` are what the processor of a
    model of images, videos or sound returns: each encoder and projector becomes a function (`encode_image`,
    `project_image`), and prefill takes their results; that of an encoder-decoder runs the encoder. Whole numbers that
    an encoder reads, such as the sizes of images, are part of its graph; on meta, they are not. `blocks="function"`
    keeps repeated layers as calls of one function, in each graph. The graphs read the weights as checkpoints of
    `transformers` store them, or, with `weight_layout="model"`, as the `state_dict` of the model has them; `dequantize`
    and `checkpoint` are those of `to_checkpoint_layout`.
    """
    for name, value, known in (("weight_layout", weight_layout, _LAYOUTS), ("dequantize", dequantize, PLACES)):
        if value not in known:
            raise ExportError(f"unknown {name} {value!r}; expected one of {', '.join(known)}")
    model = build_on_meta(model)
    quantization_of(model)  # refused before capture if it is not understood
    from torch_ir.llm.caches import Caches
    from torch_ir.llm.encoder_decoder import EncoderDecoder
    from torch_ir.llm.entry_points import DecoderOnly, recomputed_after
    from torch_ir.llm.multimodal import Multimodal

    if encoder_input is None and inputs is None and model.main_input_name != "input_ids":
        raise ExportError(
            f"{type(model).__name__} reads {model.main_input_name}, not token ids; pass an example as encoder_input"
        )
    if in_place and cache_length is None:
        raise ExportError("a cache that grows cannot be kept in place; pass cache_length, too")
    if cache_length is not None and cache_length < _LEAST:
        raise ExportError(f"cache_length must be at least {_LEAST}, not {cache_length}")
    border = recomputed_after(model.config.get_text_config(decoder=True))
    if border is not None and cache_length is not None and cache_length > border:
        raise ExportError(
            f"{type(model).__name__} recomputes its whole cache after {border} tokens (longrope), which decode does "
            f"not; use a cache_length of at most {border}"
        )
    kind = EncoderDecoder if model.config.is_encoder_decoder else DecoderOnly if inputs is None else Multimodal
    calls = kind(model, Caches.of(model.config, cache_length), batch, prompt, padding, all_logits)
    if isinstance(calls, EncoderDecoder):
        calls = replace(calls, encoder_input=encoder_input, example=inputs or {})
    reads_text = encoder_input is None and (inputs is None or not isinstance(calls, EncoderDecoder))
    unchecked = _count_positions(calls) if reads_text else ""
    name = type(model).__name__ if model_name is None else model_name
    encoders = {}
    if isinstance(calls, Multimodal):
        calls = replace(calls, example=inputs or {})
        encoders = _encoders(calls, name, blocks)
    graphs = len(encoders) + 2
    _log.info("graph %d of %d, prefill", graphs - 1, graphs, extra={"graph": True})
    ir = _prefill(calls, name, blocks)
    if not cache_outputs(ir):
        raise ExportError(f"{type(model).__name__} keeps no cache from one token to the next")
    _log.info("graph %d of %d, decode", graphs, graphs, extra={"graph": True})
    decode = _extract(calls.decode(ir), f"{name}.{DECODE}", blocks, loosely=cache_length is None)
    _exclude_empty_cache(decode)
    written = {target for target, _ in decode.mutations}
    # drop the encoder's weights; keep tables that every call writes, even if unused
    decode.params = [param for param in decode.params if param.consumers or param in written]
    ir.functions[DECODE] = decode
    if isinstance(calls, Multimodal):
        _join(ir, calls)
    if unchecked:
        note = f"prefill and decode of {type(model).__name__} were not checked on a tiny model; run verify_llm"
        warnings.warn(CaptureWarning(f"{note} ({unchecked})"), stacklevel=2)
    ir.check()
    if weight_layout == "checkpoint":
        ir = to_checkpoint_layout(ir, model, dequantize=dequantize, checkpoint=checkpoint)
    list_weights(ir)
    return cache_in_place(ir) if in_place else ir.check()


def _prefill(calls: DecoderOnly, name: str, blocks: str) -> IR:
    """Capture prefill; if the length of the prompt cannot vary, the error says how to fix it."""
    from torch_ir.llm.multimodal import Multimodal

    try:
        if isinstance(calls, Multimodal):
            return _with_or_without_values(calls.prefill, name, blocks)
        return _extract(calls.prefill(), name, blocks)
    except ExportError as error:
        if calls.prompt is not None or error.cause is not Cause.SIZE_CANNOT_VARY:
            raise
        advice = "fix the length of the prompt with prompt=N, or --prompt N"
        raise ExportError(f"{error}; {advice}", cause=Cause.SIZE_CANNOT_VARY) from error


def _exclude_empty_cache(decode: IR) -> None:
    """Start the range of `past` at 1 if the model decides on whether there is a past."""
    past = decode.symbols.get(PAST)
    if past is not None and any(
        names_in(text) == {PAST} and not evaluate(text, {PAST: 0}) for text in decode.constraints
    ):
        past.min = 1


def _encoders(calls: Multimodal, name: str, blocks: str) -> dict[str, IR]:
    """Capture the encoders that the inputs use, by modality."""
    read = calls.reads()
    for at, modality in enumerate(read):
        _log.info("graph %d of %d, %s encoder", at + 1, len(read) + 2, modality, extra={"graph": True})
        encoder = partial(calls.encoder, modality)  # for the given sizes of images or, if that fails, for all sizes
        calls.encoded[modality] = _with_or_without_values(encoder, f"{name}.{ENCODE}{modality}", blocks)
    return calls.encoded


def _join(ir: IR, calls: Multimodal) -> None:
    """Add the encoders and projectors to the prefill graph, and the map of all entry points."""
    join_encoders(ir, calls.encoded)
    for modality, graph in calls.encoded.items():
        tower = calls.tower(modality)
        if tower and (projector := split_projector(graph, tower, modality)) is not None:
            ir.functions[PROJECT + modality] = projector
    ir.extensions[EXTENSION] = describe_entries(ir)


def _with_or_without_values(make_call: Callable[..., Call], name: str, blocks: str) -> IR:
    """Capture a call with values of its inputs as part of the graph; if that fails, without."""
    call = make_call(is_fixed=True)
    try:
        return _extract(call, name, blocks)
    except ExportError:
        if not call.fixed:
            raise
        with suppress(ExportError):
            return _extract(make_call(is_fixed=False), name, blocks)
        raise


def _count_positions(calls: Any) -> str:
    """Choose whether the model or its caller computes the positions; return why that could not be checked, or "".

    Not every model counts like `generate` or supports a cache of fixed length: both are checked on a tiny model.
    """
    from torch_ir.llm.caches import Caches
    from torch_ir.llm.tiny_check import LENGTH, UNCHECKED, difference

    length = None if calls.caches.length is None else LENGTH
    form = ("a cache that grows" if length is None else "a cache of fixed length") + calls.padding * " and padding"
    unchecked: dict[bool | None, str] = {}
    found = ""
    for counts_from_zero in (False, True, None):

        def tiny_calls(tiny: Any, counts_from_zero: bool | None = counts_from_zero) -> Any:
            caches = Caches.of(tiny.config, length)
            return type(calls)(tiny, caches, padding=calls.padding, counts_from_zero=counts_from_zero)

        result = difference(calls.model, tiny_calls, f"{form}, {counts_from_zero}")
        if not result:
            calls.counts_from_zero = counts_from_zero
            return ""
        if result.startswith(UNCHECKED):
            unchecked[counts_from_zero] = result
        else:
            found = result
    if unchecked:
        calls.counts_from_zero = next(iter(unchecked))
        return unchecked[calls.counts_from_zero]
    other = "cache_length" if length else "padding" if calls.padding else ""
    raise ExportError(
        f"{type(calls.model).__name__} with {form} generates other tokens through prefill and decode than through "
        f"generate ({found} on a tiny model); " + (f"extract it without {other}" if other else "it is not supported")
    )


def build_on_meta(model: Any) -> Any:
    """Return the model itself, or build one on meta from a configuration."""
    with uncollected(), meta_init():
        return build(model)


def build(model: Any) -> Any:
    """Return the model itself, or build one with random weights from a configuration."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("extracting language models", "transformers", "transformers") from None
    if is_before(transformers.__version__, OLDEST_TRANSFORMERS):
        package = f"transformers {OLDEST_TRANSFORMERS} or newer, and {transformers.__version__} is installed"
        raise MissingExtraError("extracting language models", package, "transformers")
    if isinstance(model, transformers.PreTrainedConfig):
        kinds = _ENCODER_DECODERS if model.is_encoder_decoder else _DECODERS
        factories = [getattr(transformers, f"AutoModelFor{kind}") for kind in kinds]
        fitting = [factory for factory in factories if type(model) in factory._model_mapping]
        if not fitting:
            raise ExportError(f"transformers has no language model for a configuration of {model.model_type!r}")
        model = fitting[0].from_config(model)
    if not isinstance(model, transformers.PreTrainedModel):
        raise ExportError(f"expected a configuration or model of transformers, not {model!r:.80}")
    if type(model).forward is torch.nn.Module.forward:
        from torch_ir.llm.generating_module import generating_module

        inner = type(generating_module(model)).__name__
        raise ExportError(f"{type(model).__name__} has no forward; extract the module that generates text, its {inner}")
    if not model.can_generate() or not _is_causal(model):
        raise ExportError(f"{type(model).__name__} does not generate text, or not with this configuration")
    return model.eval()


def _is_causal(model: Any) -> bool:
    """Whether attention is causal; an encoder with a head is not, although it has a `generate`."""
    flags = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    is_text_only = model.config.get_text_config(decoder=True) is model.config  # else masks may decide
    return any(flags) or not flags or model.config.is_encoder_decoder or not is_text_only


def _extract(call: Any, name: str, blocks: str, loosely: bool = False) -> IR:
    """Extract one entry point; `loosely` where torch would try long, and fail, to prove the ranges of sizes."""
    varying = call.dynamic_shapes if pytree.tree_leaves(call.dynamic_shapes) else None
    loosely = loosely and varying is not None
    shapes = loosened(varying) if loosely else varying
    ir = extract_ir(
        call.model,
        (),
        kwargs=call.inputs,
        dynamic_shapes=shapes,
        strict=False,
        model_name=name,
        fixed=call.fixed,
        blocks="inline" if loosely else blocks,
    )
    opaque = next((node for node in ir.all_nodes() if is_opaque(node)), None)
    if opaque is not None:
        raise ExportError(f"{name}: data leaves torch at {opaque['place']}, so that no graph can generate")
    if not loosely:
        return ir
    keep_promises(ir, call.model, ((), call.inputs), call.dynamic_shapes)
    # only now do the caches of all layers have equal size names, so that the layers are equal
    return ir.fold_blocks() if blocks == "function" else ir
