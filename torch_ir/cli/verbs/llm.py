"""`torch-ir llm`: capture prefill and decode of a language model in one file, and map its KV cache."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.progress import show_progress, watch_layers
from torch_ir.cli.verb import (
    DIFFERENT,
    add_dequantize,
    add_json,
    add_verb,
    load_checked,
    save_graph,
    show,
    terminal_width,
)
from torch_ir.cli.verbs.info import shape_text, summarise
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.arguments.input_specs import InputSpec
    from torch_ir.cli.verb import Verbs
    from torch_ir.ir import IR

_EXAMPLES = """
"hf:llama?num_hidden_layers=8" -o llama.json
path/to/checkpoint -o model.json --batch 1 --cache-length 2048 --json
my_package.models:make_config -o model.json --padding
"hf:gpt2?n_layer=2&n_embd=64&n_head=2" -o tiny.json --verify 8
path/to/llava -o llava.json --input @processed.npz
path/to/checkpoint -o adapted.json --lora path/to/adapter
llama.json -o adapted.json --lora path/to/adapter
llama.json
"""
_SHOWN = 8
_TEXT_ONLY = 2  # graphs of a model without encoders


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "llm", "capture prefill and decode of a language model, with KV cache", _EXAMPLES, run)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="hf:TYPE?key=value&..., a folder with a config.json, or net.py:make, a function that returns a config "
        "or a model; without -o, an IR file to show; with --lora, also an IR file to adapt",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the IR file to write")
    parser.add_argument(
        "--lora",
        metavar="FOLDER",
        help="merge a LoRA adapter of PEFT into the weights; MODEL may also be an IR file of this verb",
    )
    parser.add_argument(
        "--lora-input",
        action="append",
        default=[],
        metavar="FOLDER",
        help="take a LoRA adapter of PEFT as an input that each row of the batch chooses; repeatable",
    )
    parser.add_argument("--batch", type=int, metavar="N", help="fix the batch size (default: it varies)")
    parser.add_argument("--prompt", type=int, metavar="N", help="fix the length of the prompt (default: it varies)")
    parser.add_argument("--cache-length", type=int, metavar="N", help="a cache of fixed length N (default: it grows)")
    parser.add_argument("--padding", action="store_true", help="take an attention mask, for padded prompts")
    parser.add_argument("--all-logits", action="store_true", help="return the logits of every token")
    parser.add_argument(
        "--encoder-input", metavar="SPEC", help="the input of an encoder that takes no token ids, such as 1x80x3000"
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="for a model with encoders of images, videos or sound, what its processor returns: @FILE.npz, or each "
        "input, such as input_ids=i64[1,40] and pixel_values=1x3x336x336; whole numbers of a file that an encoder "
        "reads, such as the sizes of images, are part of the graph; repeatable",
    )
    parser.add_argument(
        "--blocks",
        default="inline",
        metavar="HOW",
        help="repeated layers: `inline` (default), or as calls of one `function`",
    )
    parser.add_argument(
        "--weight-layout",
        default="checkpoint",
        metavar="WHOSE",
        help="read weights as a `checkpoint` stores them (default), or as the `model` has them in its state_dict",
    )
    add_dequantize(parser)
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="a checkpoint whose headers say which weights are quantised, and in which dtypes they are stored "
        "(default: the one in MODEL, if that is a folder with weights)",
    )
    parser.add_argument("--name", help="the name of the model in the file (default: its class)")
    parser.add_argument(
        "--verify", type=int, metavar="N", help="generate N tokens with random weights and compare with the model"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    is_adapted = bool(arguments.lora or arguments.lora_input)
    if is_adapted and (arguments.verify or arguments.output is None):
        problem = (
            "--verify compares with the model alone" if arguments.verify else "an adapted graph is written to -o FILE"
        )
        raise CommandError(f"{problem}; {'leave it out, or' if arguments.verify else 'add it, or'} leave out --lora")
    if arguments.output is None:
        if not os.path.isfile(arguments.model):
            raise CommandError(f"{arguments.model!r} is not an IR file; to capture a model, add -o FILE")
        ir, facts = load_checked(arguments.model), {"file": arguments.model}
    elif is_adapted and os.path.isfile(arguments.model):
        ir, facts = _saved(_adapted(load_checked(arguments.model), arguments), arguments, time.perf_counter())
    else:
        ir, facts = _extract(arguments)
    from dataclasses import asdict

    from torch_ir.llm import cache_map, entry_map
    from torch_ir.llm.joined_entries import entry_graphs

    graphs = {name: summarise(graph) for name, graph in entry_graphs(ir).items()}
    cache = [asdict(tensor) for tensor in cache_map(ir)]
    facts = {**graphs, "cache": cache, **facts}
    if len(graphs) > _TEXT_ONLY:
        facts["features"] = [asdict(edge) for edge in entry_map(ir) if edge.argument != "cache"]
    show(arguments, lambda: facts, lambda: "\n".join(_lines(facts)))
    return 0 if facts.get("is_valid", True) else DIFFERENT


def _extract(arguments: argparse.Namespace) -> tuple[IR, dict[str, Any]]:
    for option in ("batch", "prompt", "cache_length", "verify"):
        if (size := getattr(arguments, option)) is not None and size < 1:
            raise CommandError(f"--{option.replace('_', '-')} must be at least 1, not {size}")
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
    ir, facts = _saved(_adapted(ir, arguments), arguments, start)
    return ir, facts | (_verify(ir, arguments, processed) if arguments.verify else {})


def _adapted(ir: IR, arguments: argparse.Namespace) -> IR:
    """Return the graph with the adapters of the command line, or the graph itself."""
    from torch_ir.llm import lora_as_inputs, merge_lora

    if arguments.lora:
        ir = merge_lora(ir, arguments.lora)
    return lora_as_inputs(ir, arguments.lora_input) if arguments.lora_input else ir


def _saved(ir: IR, arguments: argparse.Namespace, start: float) -> tuple[IR, dict[str, Any]]:
    """Write the file, and return the graph with the facts about it."""
    save_graph(ir, arguments.output)
    seconds = round(time.perf_counter() - start, 3)
    return ir, {"file": arguments.output, "file_bytes": os.path.getsize(arguments.output), "seconds": seconds}


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


def _lines(facts: dict[str, Any]) -> list[str]:
    from torch_ir.analysis.cost_model.table_text import parameters_text, plural
    from torch_ir.analysis.cost_model.text_table import aligned
    from torch_ir.llm.joined_entries import ENCODE, PROJECT

    prefill, decode, cache = facts["prefill"], facts["decode"], facts["cache"]
    seconds = f" in {facts['seconds']:.2f} s" if "seconds" in facts else ""
    before = [name for name in facts if name.startswith((ENCODE, PROJECT))]
    lines = [
        f"{prefill['model_name']}: prefill {plural(prefill['num_nodes'], 'node')}, "
        f"decode {plural(decode['num_nodes'], 'node')}, {plural(prefill['num_weights'], 'weight')}, "
        f"{parameters_text(prefill['total_parameters'])}{seconds} -> {facts['file']}"
    ]
    lines += [
        f"{name}: {plural(facts[name]['num_nodes'], 'node')}, {plural(facts[name]['num_weights'], 'weight')}, "
        f"{parameters_text(facts[name]['total_parameters'])}"
        for name in before
    ]
    rows = [
        (each["name"], f"{each['dtype']}{shape_text(each['shape'])}", each["prefill_output"], each["decode_input"],
         each["decode_output"] or "(unchanged)", str(each["bytes"]))
        for each in cache[:_SHOWN]
    ]  # fmt: skip
    rows.insert(0, ("cache", "type", "prefill output", "decode input", "decode output", "bytes"))
    lines += aligned(rows, left=range(6), width=terminal_width(), least=(5, 2, 4), long=1)
    if len(cache) > _SHOWN:
        lines.append(f"... {len(cache) - _SHOWN} more; --json lists all")
    if "verification" in facts:
        lines.append(f"verification {'PASSED' if facts['is_valid'] else 'FAILED'}: {facts['verification']}")
    return lines
