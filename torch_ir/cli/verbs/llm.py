"""`torch-ir llm`: capture prefill and decode of a language model in one file, and map its KV cache."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.model_kinds import GRAPHS
from torch_ir.cli.progress import show_progress, watch_layers
from torch_ir.cli.verb import (
    DIFFERENT,
    add_blocks,
    add_dequantize,
    add_json,
    argument,
    check_least,
    load_checked,
    save_graph,
    show,
    terminal_width,
)
from torch_ir.cli.verbs.info import counts_text, shape_text, summarise
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.arguments.input_specs import InputSpec
    from torch_ir.ir import IR

SUMMARY = "capture prefill and decode of a language model, with KV cache"
EXAMPLES = """
"hf:llama?num_hidden_layers=8" -o llama.json
path/to/checkpoint -o model.json --batch 1 --cache-length 2048 --json
my_package.models:make_config -o model.json --padding
"hf:gpt2?n_layer=2&n_embd=64&n_head=2" -o tiny.json --verify 8
path/to/llava -o llava.json --input @processed.npz
path/to/checkpoint -o adapted.json --lora path/to/adapter
llama.json -o adapted.json --lora path/to/adapter
llama.json -o paged.json --form paged --block-size 16 --cache-dtype int8
llama.json
"""
_SHOWN = 8
_REWRITES = ("lora", "lora_input", "form")
_OF_FORMS = ("rolling", "cache_dtype", "max_length")  # options that need --form
_TEXT_ONLY = 2  # graphs of a model without encoders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(
        parser,
        "model MODEL",
        "hf:TYPE?key=value&..., a folder with a config.json, or net.py:make, a function that returns a config "
        "or a model; an IR file to show, or to rewrite with --lora and --form",
    )
    argument(parser, "-o --output FILE", "the IR file to write")
    argument(parser, "--lora FOLDER", "merge a LoRA adapter of PEFT into the weights")
    argument(
        parser,
        "--lora-input FOLDER...",
        "take a LoRA adapter of PEFT as an input that each row of the batch chooses; repeatable",
    )
    argument(parser, "--batch N", "fix the batch size (default: it varies)", type=int)
    argument(parser, "--prompt N", "fix the length of the prompt (default: it varies)", type=int)
    argument(parser, "--cache-length N", "a cache of fixed length N (default: it grows)", type=int)
    argument(parser, "--padding", "take an attention mask, for padded prompts")
    argument(parser, "--all-logits", "return the logits of every token")
    argument(parser, "--encoder-input SPEC", "the input of an encoder that takes no token ids, such as 1x80x3000")
    argument(
        parser,
        "--input SPEC...",
        "for a model with encoders of images, videos or sound, what its processor returns: @FILE.npz, or each "
        "input, such as input_ids=i64[1,40] and pixel_values=1x3x336x336; whole numbers of a file that an encoder "
        "reads, such as the sizes of images, are part of the graph; repeatable",
    )
    add_blocks(parser)
    argument(
        parser,
        "--weight-layout WHOSE",
        "read weights as a `checkpoint` stores them (default), or as the `model` has them in its state_dict",
        choices=("checkpoint", "model"),
        default="checkpoint",
    )
    argument(
        parser,
        "--form LAYOUT",
        "write one graph for every step, k tokens of each sequence at its position, over a cache of `slots` or "
        "`paged`, with block tables",
        words=("slots", "paged"),
    )
    argument(parser, "--block-size N", "entries of a block of --form paged", type=int, default=16)
    argument(parser, "--rolling", "--form: sliding windows keep what they read")
    argument(
        parser,
        "--cache-dtype DTYPE",
        "--form: store the cache as int8 or float8_e4m3fn",
        words=("int8", "float8_e4m3fn"),
    )
    argument(parser, "--max-length N", "--form: the longest sequence, if not the model's", type=int)
    add_dequantize(parser)
    argument(
        parser,
        "--checkpoint PATH",
        "a checkpoint whose headers say which weights are quantised, and in which dtypes they are stored "
        "(default: the one in MODEL, if that is a folder with weights)",
    )
    argument(parser, "--name NAME", "the name of the model in the file (default: its class)")
    argument(parser, "--verify N", "generate N tokens with random weights and compare with the model", type=int)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    if arguments.output is None:
        if not os.path.isfile(arguments.model):
            what = f"{arguments.model!r} is not an IR file"
            if not os.path.exists(arguments.model) and arguments.model.endswith(GRAPHS):
                what = f"no such file: {arguments.model}"
            raise CommandError(f"{what}; to capture a model, add -o FILE")
        ir, facts = _load(arguments.model), {"file": arguments.model}
    elif _is_graph(arguments):
        start = time.perf_counter()
        ir, facts = _saved(_rewritten(_load(arguments.model), arguments), arguments, start)
    else:
        ir, facts = _extract(arguments)
    from dataclasses import asdict

    from torch_ir.llm import cache_map, entry_map
    from torch_ir.llm.forms.step_graph import is_form
    from torch_ir.llm.joined_entries import entry_graphs

    if is_form(ir):
        facts = {"step": summarise(ir), "cache": _form_cache(ir), **facts}
        show(arguments, lambda: facts, lambda: "\n".join(_form_lines(facts)))
        return 0 if facts.get("is_valid", True) else DIFFERENT
    graphs = {name: summarise(graph) for name, graph in entry_graphs(ir).items()}
    cache = [asdict(tensor) for tensor in cache_map(ir)]
    facts = {**graphs, "cache": cache, **facts}
    if len(graphs) > _TEXT_ONLY:
        facts["features"] = [asdict(edge) for edge in entry_map(ir) if edge.argument != "cache"]
    show(arguments, lambda: facts, lambda: "\n".join(_lines(facts)))
    return 0 if facts.get("is_valid", True) else DIFFERENT


def _load(path: str) -> IR:
    """Load the graph of a language model."""
    from torch_ir.llm.cache_layout import DECODE
    from torch_ir.llm.forms.step_graph import is_form

    ir = load_checked(path)
    if not is_form(ir) and DECODE not in ir.functions:
        raise CommandError(f"{path} is not the graph of a language model; torch-ir llm MODEL -o FILE captures one")
    return ir


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise CommandError for options that do not go together."""
    check_least(arguments, 1, "batch", "prompt", "cache_length", "verify")
    if arguments.form is None and (name := next((each for each in _OF_FORMS if getattr(arguments, each)), None)):
        raise CommandError(f"--{name.replace('_', '-')} is an option of --form")
    rewrites = [f"--{name.replace('_', '-')}" for name in _REWRITES if getattr(arguments, name)]
    if rewrites and arguments.output is None:
        raise CommandError(f"a rewritten graph is written to -o FILE; add it, or leave out {rewrites[0]}")
    if arguments.verify and (arguments.lora or arguments.lora_input):
        raise CommandError("--verify compares with the model alone; leave it out, or leave out --lora")
    if arguments.verify and _is_graph(arguments):
        raise CommandError("--verify needs the model; pass its name in place of the file")


def _is_graph(arguments: argparse.Namespace) -> bool:
    """Whether the model is an IR file to rewrite."""
    from torch_ir.cli.models.model_kinds import is_config

    is_rewritten = any(getattr(arguments, name) for name in _REWRITES)
    return is_rewritten and os.path.isfile(arguments.model) and not is_config(arguments.model)


def _extract(arguments: argparse.Namespace) -> tuple[IR, dict[str, Any]]:
    show_progress("importing torch and transformers")
    from torch_ir.cli.arguments.input_specs import parse_inputs

    specs = parse_inputs([arguments.encoder_input]) if arguments.encoder_input else []
    processed = parse_inputs(arguments.input)
    from torch_ir.capture import meta_init
    from torch_ir.cli.arguments.input_files import read_files
    from torch_ir.cli.arguments.input_values import meta_value
    from torch_ir.llm import extract_llm

    processed = read_files(processed)
    if any(spec.name is None for spec in processed):
        raise CommandError("--input of llm needs names, such as pixel_values=1x3x336x336")

    start = time.perf_counter()
    show_progress(f"building {arguments.model}")
    with meta_init():
        model = _build(arguments.model)
    show_progress("capturing prefill and decode")
    watch_layers(model)
    ir = extract_llm(
        model,
        batch=arguments.batch,
        prompt=arguments.prompt,
        cache_length=arguments.cache_length,
        padding=arguments.padding,
        all_logits=arguments.all_logits,
        blocks=arguments.blocks,
        weight_layout=arguments.weight_layout,
        dequantize=arguments.dequantize,
        checkpoint=arguments.checkpoint or _own_checkpoint(arguments),
        encoder_input=meta_value(read_files(specs)[0], {}) if specs else None,
        inputs={str(spec.name): meta_value(spec, {}) for spec in processed} or None,
        model_name=arguments.name,
    )
    ir, facts = _saved(_rewritten(ir, arguments), arguments, start)
    return ir, facts | (_verify(ir, arguments, processed) if arguments.verify else {})


def _rewritten(ir: IR, arguments: argparse.Namespace) -> IR:
    """Return the graph with the adapters and in the form of the command line, or the graph itself."""
    from torch_ir.llm import lora_as_inputs, merge_lora, to_cache_form

    if arguments.lora:
        ir = merge_lora(ir, arguments.lora)
    if arguments.lora_input:
        ir = lora_as_inputs(ir, arguments.lora_input)
    if arguments.form is None:
        return ir
    return to_cache_form(
        ir,
        arguments.form,
        block_size=arguments.block_size,
        rolling=arguments.rolling,
        cache_dtype=arguments.cache_dtype,
        max_length=arguments.max_length,
    )


def _saved(ir: IR, arguments: argparse.Namespace, start: float) -> tuple[IR, dict[str, Any]]:
    """Write the file, and return the graph with the facts about it."""
    save_graph(ir, arguments.output)
    seconds = round(time.perf_counter() - start, 3)
    return ir, {"file": arguments.output, "file_bytes": os.path.getsize(arguments.output), "seconds": seconds}


def _form_cache(ir: IR) -> list[dict[str, Any]]:
    from torch_ir.llm.cache_layout import cache_outputs, keyword_inputs

    made = cache_outputs(ir)
    return [
        {"name": name, "shape": tensor.shape, "dtype": tensor.dtype, "input": tensor.name, "output": made[name].name}
        for name, tensor in keyword_inputs(ir, "cache").items()
        if name in made
    ]


def _own_checkpoint(arguments: argparse.Namespace) -> str | None:
    """Return the folder of a model that has its weights there."""
    from torch_ir.run.weight_files import is_checkpoint

    text: str = arguments.model
    return text if is_checkpoint(text) else None


def _build(text: str) -> Any:
    """Build the model of a configuration or of the user's factory."""
    from torch_ir.cli.models.config import load_config, model_class
    from torch_ir.cli.models.factory import call_factory, load_factory
    from torch_ir.cli.models.model_kinds import is_config
    from torch_ir.cli.models.model_settings import split_settings
    from torch_ir.llm.extraction import build

    if not is_config(text) and ":" in text:
        place, settings = split_settings(text)
        return build(call_factory(load_factory(place), text, settings))
    config, name = load_config(text)
    return build(config if name is None else model_class(config, name)._from_config(config))


def _verify(ir: IR, arguments: argparse.Namespace, processed: Sequence[InputSpec]) -> dict[str, Any]:
    """Build the model again with random weights, generate with both and compare."""
    import torch

    from torch_ir.cli.arguments.input_values import real_value
    from torch_ir.cli.models.model_weights import refuse_large
    from torch_ir.llm.generation import example_prompt, verify_llm

    refuse_large(arguments.model, summarise(ir)["total_parameters"], "try --verify on fewer layers")
    show_progress(f"generating {arguments.verify} tokens")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    inputs = {str(spec.name): real_value(spec, {}, generator) for spec in processed} or example_prompt(ir)
    is_valid, summary = verify_llm(ir, _build(arguments.model), arguments.verify, **inputs)
    return {"is_valid": is_valid, "verification": summary}


def _form_lines(facts: dict[str, Any]) -> list[str]:
    from torch_ir.ir.text.text_table import aligned

    step, cache = facts["step"], facts["cache"]
    lines = [f"{step['model_name']}: step {counts_text(step)} -> {facts['file']}"]
    rows = [
        (each["name"], f"{each['dtype']}{shape_text(each['shape'])}", each["input"], each["output"])
        for each in cache[:_SHOWN]
    ]
    lines += aligned([("cache", "type", "input", "output"), *rows], left=range(4), width=terminal_width(), long=1)
    return lines + _last_lines(facts)


def _last_lines(facts: dict[str, Any]) -> list[str]:
    lines = []
    if (count := len(facts["cache"])) > _SHOWN:
        lines.append(f"... {count - _SHOWN} more; --json lists all")
    if "verification" in facts:
        lines.append(f"verification {'PASSED' if facts['is_valid'] else 'FAILED'}: {facts['verification']}")
    return lines


def _lines(facts: dict[str, Any]) -> list[str]:
    from torch_ir.ir.text.amounts import parameters_text, plural
    from torch_ir.ir.text.text_table import aligned
    from torch_ir.llm.joined_entries import ENCODE, PROJECT

    prefill, decode, cache = facts["prefill"], facts["decode"], facts["cache"]
    seconds = f" in {facts['seconds']:.2f} s" if "seconds" in facts else ""
    before = [name for name in facts if name.startswith((ENCODE, PROJECT))]
    lines = [
        f"{prefill['model_name']}: prefill {plural(prefill['num_nodes'], 'node')}, "
        f"decode {plural(decode['num_nodes'], 'node')}, {plural(prefill['num_weights'], 'weight')}, "
        f"{parameters_text(prefill['total_parameters'])}{seconds} -> {facts['file']}"
    ]
    lines += [f"{name}: {counts_text(facts[name])}" for name in before]
    rows = [
        (each["name"], f"{each['dtype']}{shape_text(each['shape'])}", each["prefill_output"], each["decode_input"],
         each["decode_output"] or "(unchanged)", str(each["bytes"]))
        for each in cache[:_SHOWN]
    ]  # fmt: skip
    rows.insert(0, ("cache", "type", "prefill output", "decode input", "decode output", "bytes"))
    lines += aligned(rows, left=range(6), width=terminal_width(), least=(5, 2, 4), long=1)
    return lines + _last_lines(facts)
