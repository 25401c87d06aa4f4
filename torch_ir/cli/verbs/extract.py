"""`torch-ir extract`: capture a model as a graph file."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from torch_ir.cli.arguments.graph_argument import MODELS, check_leaf
from torch_ir.cli.stdout import STDOUT
from torch_ir.cli.verb import add_blocks, add_dequantize, add_inputs, add_json, add_level, argument, save_graph, show
from torch_ir.cli.verbs.info import counts_text, summarise
from torch_ir.errors import CommandError

SUMMARY = "capture a model as an IR file, without its weights"
EXAMPLES = """
net.py:Net --input 1x3x224x224 -o net.json
"hf:bert?num_hidden_layers=2&class=BertForMaskedLM" -o bert.json
"hf:mixtral?num_hidden_layers=2" --weight-layout checkpoint -o mixtral.json
timm:resnet50 --input "float32[batch,3,224,224]"
model.pt2 -o model.json
net.py:Net --input @inputs.npz --input flag=true -o - | wc -c
my_package.models:make --input "ids=i64[batch,seq]" --dim batch=1..32 -o model.json
net.py:Net --input x:1x8xbf16 --name small -o net.json --json
net.py:Branching --input 1x8 --explore 8 -o net.json
net.py:Routed --input x=@batch.npy --weights net.pt -o net.json
net.py:Tower --input patches=f32[16,96] --fixed "grid=[[1,4,4]]" -o tower.json
net.py:Deep --input 1x8 --blocks function -o net.json
net.py:Detour --input 1x8 --capture record --level module -o net.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "model MODEL", f"{MODELS}; language models without a KV cache (see `llm`)")
    add_inputs(parser, "the range of a named size, such as batch=1..32; repeatable")
    argument(
        parser,
        "--fixed NAME...",
        "an input whose values are part of the graph, such as the sizes of images: NAME=[[1,4,4]], or NAME with "
        "`--input NAME=@FILE`; repeatable",
    )
    argument(
        parser,
        "--capture HOW",
        "`export` with torch.export, `record` one run in Python, or `auto`: export, else record (default)",
        choices=("auto", "export", "record"),
        default="auto",
    )
    argument(parser, "--explore N", "limit of branches explored where Python branches on data (default: 16)", type=int)
    argument(
        parser,
        "--real",
        "capture on real values: initial weights, and random inputs where no file gives them "
        "(default: only for models that cannot be captured without)",
    )
    argument(parser, "-w --weights FILE", "capture on the weights of a .pt or .safetensors file or a folder")
    add_level(parser)
    add_blocks(parser)
    argument(
        parser,
        "--weight-layout WHOSE",
        "of models of transformers: read weights as a `checkpoint` stores them (default if it is quantised), or "
        "as the `model` has them in its state_dict (default otherwise)",
        choices=("checkpoint", "model"),
    )
    add_dequantize(parser)
    argument(parser, "--crosscheck", "compare the recording with torch.export's graph")
    argument(parser, "--name NAME", "the name of the model in the file (default: its class)")
    argument(parser, "-o --output FILE", "the IR file to write, or - for stdout (default: a new file, NAME.json)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.captured_model import capture

    captured = capture(
        arguments.model,
        arguments,
        real=arguments.real,
        weights=arguments.weights,
        capture=arguments.capture,
        explore=arguments.explore,
        level=arguments.level or "aten",
        leaf=arguments.leaf,
        blocks=arguments.blocks,
        crosscheck=arguments.crosscheck,
        layout=arguments.weight_layout,
        fixed=arguments.fixed,
        dequantize=arguments.dequantize,
        model_name=arguments.name,
    )
    check_leaf(arguments.leaf, captured.ir)
    path = _output(arguments.output, captured.ir.model_name)
    if path == STDOUT:
        sys.stdout.write(captured.ir.to_json())
    else:
        save_graph(captured.ir, path)
    facts = {**summarise(captured.ir), "seconds": round(captured.seconds, 3), **_written(path), "notes": captured.notes}
    with redirect_stdout(sys.stderr) if path == STDOUT else nullcontext():
        show(arguments, lambda: facts, lambda: _sentence(facts))
    return 0


def _output(given: str | None, model_name: str) -> str:
    """Return the output: as given, else a new file named after the model."""
    if given is not None:
        return STDOUT if given == "/dev/stdout" else given
    path = f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', model_name).lstrip('.') or 'model'}.json"
    if os.path.exists(path):
        raise CommandError(f"{path} already exists; to overwrite it, add -o {path}")
    return path


def _written(path: str) -> dict[str, Any]:
    """Return the file, its size and its side files; a stream has neither."""
    from torch_ir.ir.files.side_file import side_files

    if not os.path.isfile(path):
        return {"file": path, "file_bytes": None, "constants": []}
    return {
        "file": path,
        "file_bytes": os.path.getsize(path),
        "constants": [str(side) for side in side_files(Path(path))],
    }


def _sentence(facts: Mapping[str, Any]) -> str:
    place = "stdout" if facts["file"] == STDOUT else facts["file"]
    beside = "".join(f", constants in {path}" for path in facts["constants"])
    size = "" if facts["file_bytes"] is None else f" ({facts['file_bytes']:,} bytes{beside})"
    return f"{facts['model_name']}: {counts_text(facts)} in {facts['seconds']:.2f} s -> {place}{size}"
