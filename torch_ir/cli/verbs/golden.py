"""`torch-ir golden`: write the values of every node, for comparison with another runtime."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.arguments.graph_argument import MODELS
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_inputs, add_json, add_seed, add_verb, load_checked, read_weights, show
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json net.py:Net -o pack
model.json net.py:Net --weights net.safetensors --input x=@image.npy -o pack
model.json --weights net.safetensors --only encoder.layers.0 -o pack
model.json --weights random --with-weights --every 10 -o pack
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "golden", "write the value of every node of an IR file", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help=f"the original model, with which the graph is compared first: {MODELS}",
    )
    parser.add_argument("-w", "--weights", metavar="FILE", help=".pt, .safetensors, or `random` (default: the model's)")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    add_seed(parser)
    parser.add_argument(
        "--only", action="append", default=[], metavar="MODULE", help="only nodes of this module; repeatable"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every n-th node, and the outputs")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="fail if the pack would exceed this size")
    parser.add_argument("--with-weights", action="store_true", help="include the weights in the pack")
    parser.add_argument("-o", "--output", metavar="PACK", required=True, help="the folder to write")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.input_specs import read_inputs

    specs, dims = read_inputs(arguments)
    if arguments.model is None and arguments.weights is None:
        raise CommandError("a pack needs weights: name the model, or pass --weights")
    import torch

    import torch_ir
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.cli.models.find import find_model
    from torch_ir.cli.models.model_weights import build_filled
    from torch_ir.golden.pack import read_pack
    from torch_ir.ops.pytree import call_of

    ir = load_checked(arguments.file)
    args, kwargs = call_of(ir.input_tree, graph_inputs(ir, specs, dims, arguments.seed))
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
