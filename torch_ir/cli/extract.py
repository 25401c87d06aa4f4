"""`torch-ir extract`: a model of the user's own into a graph file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.info import summarise
from torch_ir.cli.verb import add_inputs, add_level, add_verb, print_json, save_graph

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs

_EXAMPLES = """
net.py:Net --input 1x3x224x224 -o net.json
my_package.models:make --input "ids=i64[batch,seq]" --dim batch=1..32 -o model.json
net.py:Net --input x:1x8xbf16 --name small -o net.json --json
net.py:Branching --input 1x8 --explore 8 -o net.json
net.py:Deep --input 1x8 --blocks function --stamp -o net.json
net.py:Detour --input 1x8 --capture record --level module -o net.json
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "extract", "capture a model as an IR file, without its weights", _EXAMPLES, run)
    parser.add_argument(
        "model", metavar="MODULE:FACTORY", help="a class or function called without arguments, or a model"
    )
    add_inputs(parser, "the range of a named size, such as batch=1..32; repeatable")
    parser.add_argument(
        "--capture",
        default="auto",
        metavar="HOW",
        help="`export` with torch.export, `record` one run in Python, or `auto`: the one, else the other (default)",
    )
    parser.add_argument(
        "--explore", type=int, metavar="N", help="ways to go at most where Python decides on data (default: 16)"
    )
    add_level(parser)
    parser.add_argument(
        "--blocks",
        default="inline",
        metavar="HOW",
        help="layers that repeat: `inline` (default), or as one `function` that is called once for each",
    )
    parser.add_argument("--stamp", action="store_true", help="run only some of the layers that are alike")
    parser.add_argument(
        "--crosscheck", action="store_true", help="compare what was recorded with what torch.export gives"
    )
    parser.add_argument("--name", help="the name of the model in the file (default: its class)")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the IR file to write")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.dynamic import choose_sizes, dynamic_shapes, map_specs
    from torch_ir.cli.inputs import parse_dims, parse_inputs

    specs, dims = parse_inputs(arguments.input), parse_dims(arguments.dim)
    sizes = choose_sizes(specs, dims)
    import torch_ir
    from torch_ir.cli.models import build_model, load_factory, match_inputs
    from torch_ir.cli.tensors import meta_tensor
    from torch_ir.ir.side_file import side_files

    factory = load_factory(arguments.model)
    start = time.perf_counter()
    with torch_ir.meta_init():
        model = build_model(factory, arguments.model)
    bound = match_inputs(model, specs)
    shapes = dynamic_shapes(bound, dims)
    for name, value in bound.arguments.items():
        bound.arguments[name] = map_specs(value, lambda spec: meta_tensor(spec, sizes))
    ir = torch_ir.extract_ir(
        model,
        bound.args,
        kwargs=bound.kwargs,
        strict=False,
        dynamic_shapes=shapes,
        capture=arguments.capture,
        explore=arguments.explore,
        level=arguments.level or "aten",
        leaf=arguments.leaf,
        blocks=arguments.blocks,
        stamp=arguments.stamp,
        crosscheck=arguments.crosscheck,
        model_name=arguments.name,
    )
    save_graph(ir, arguments.output)
    seconds = time.perf_counter() - start
    facts = {**summarise(ir), "seconds": round(seconds, 3), "file": arguments.output}
    facts["file_bytes"] = os.path.getsize(arguments.output)
    facts["constants"] = [str(path) for path in side_files(Path(arguments.output))]
    if arguments.json:
        print_json(facts)
    else:
        print(_sentence(facts))
    return 0


def _sentence(facts: Mapping[str, Any]) -> str:
    beside = "".join(f", constants in {path}" for path in facts["constants"])
    return (
        f"{facts['model_name']}: {facts['num_nodes']} nodes, {facts['num_weights']} weights, "
        f"{facts['total_parameters']:,} parameters in {facts['seconds']:.2f} s -> "
        f"{facts['file']} ({facts['file_bytes']:,} bytes{beside})"
    )
