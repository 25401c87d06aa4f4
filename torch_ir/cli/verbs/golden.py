"""`torch-ir golden`: write the values of every node, for comparison with another runtime."""

from __future__ import annotations

import argparse

from torch_ir.cli.arguments.graph_argument import MODELS
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_inputs, add_json, add_seed, argument, load_checked, read_weights, show
from torch_ir.errors import CommandError

SUMMARY = "write the value of every node of an IR file"
EXAMPLES = """
model.json net.py:Net -o pack
model.json net.py:Net --weights net.safetensors --input x=@image.npy -o pack
model.json --weights net.safetensors --only encoder.layers.0 -o pack
model.json --weights random --with-weights --every 10 -o pack
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(parser, "model MODEL", f"the original model, with which the graph is compared first: {MODELS}", nargs="?")
    argument(parser, "-w --weights FILE", ".pt, .safetensors, or `random` (default: the model's)")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    add_seed(parser)
    argument(parser, "--only MODULE...", "only nodes of this module; repeatable")
    argument(parser, "--every N", "every n-th node, and the outputs", type=int, default=1)
    argument(parser, "--max-bytes N", "fail if the pack would exceed this size", type=int)
    argument(parser, "--with-weights", "include the weights in the pack")
    argument(parser, "-o --output PACK", "the folder to write", required=True)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.input_specs import read_inputs

    specs, dims = read_inputs(arguments)
    if arguments.model is None and arguments.weights is None:
        raise CommandError("a pack needs weights: name the model, or pass --weights")
    import torch

    import torch_ir
    from torch_ir.cli.arguments.input_values import graph_call
    from torch_ir.cli.models.find import find_model
    from torch_ir.cli.models.model_weights import build_filled
    from torch_ir.golden.pack import read_pack

    ir = load_checked(arguments.file)
    args, kwargs = graph_call(ir, specs, dims, arguments.seed)
    torch.manual_seed(arguments.seed)
    model = build_filled(find_model(arguments.model), arguments.weights) if arguments.model else None
    weights = model.state_dict() if model is not None else read_weights(ir, arguments.weights, arguments.seed)
    show_progress(f"computing every node of {arguments.file}")
    torch_ir.write_golden(
        ir,
        weights,
        args,
        arguments.output,
        kwargs=kwargs,
        model=model,
        only=arguments.only,
        every=arguments.every,
        max_bytes=arguments.max_bytes,
        with_weights=arguments.with_weights,
        seed=arguments.seed,
    )
    pack = read_pack(arguments.output)
    size = sum(shard.size for shard in pack.files.values())
    record = {"values": len(pack.values), "files": len(pack.files), "bytes": size, "reference": pack.reference}
    text = f"{len(pack.values)} values of {pack.reference} -> {arguments.output} ({size:,} bytes)"
    show(arguments, lambda: record, lambda: text)
    return 0
