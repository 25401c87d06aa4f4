"""`torch-ir verify`: prove a graph file against the model that it came from."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from torch_ir.cli.verb import add_inputs, add_verb, load_graph, print_json

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
model.json net.py:Net
model.json net.py:Net --weights net.pt --input x=@image.npy
model.json my_package.models:make --dim batch=4 --rtol 1e-4 --json
model.json net.py:Net --localise
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "verify", "compare an IR file with the original model by running both", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    parser.add_argument(
        "model", metavar="MODULE:FACTORY", help="a class or function called without arguments, or a model"
    )
    parser.add_argument("-w", "--weights", metavar="FILE", help=".pt or .safetensors (default: the model's own)")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for everything random (default: 0)")
    parser.add_argument("--rtol", type=float, metavar="X", help="relative tolerance (default: by dtype)")
    parser.add_argument("--atol", type=float, metavar="X", help="absolute tolerance (default: by dtype)")
    parser.add_argument(
        "--no-probe", action="store_true", help="run on these inputs only, not on others drawn from them"
    )
    parser.add_argument("--localise", action="store_true", help="name the first node that differs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.inputs import parse_dims, parse_inputs

    specs, dims = parse_inputs(arguments.input), parse_dims(arguments.dim)
    import torch

    import torch_ir
    from torch_ir.cli.models import build_model, fill_model, load_factory
    from torch_ir.cli.tensors import graph_inputs
    from torch_ir.ir.structure import rebuild

    ir = load_graph(arguments.file)
    inputs = graph_inputs(ir, specs, dims, arguments.seed)
    factory = load_factory(arguments.model)
    torch.manual_seed(arguments.seed)
    model = build_model(factory, arguments.model)
    if arguments.weights:
        fill_model(model, arguments.weights)
    args, kwargs = rebuild(ir.input_tree, inputs)
    is_valid, report = torch_ir.verify_ir_with_state_dict(
        ir=ir,
        state_dict=model.state_dict(),
        original_model=model,
        test_inputs=args,
        test_kwargs=kwargs,
        rtol=arguments.rtol,
        atol=arguments.atol,
        probe=not arguments.no_probe,
        localise=arguments.localise,
    )
    if arguments.json:
        print_json(asdict(report))
    else:
        print(report)
    return 0 if is_valid else 1
