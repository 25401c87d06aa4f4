"""`torch-ir info`: what a graph file holds."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch_ir.cli.verb import add_level, add_verb, load_at_level

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs
    from torch_ir.ir import IR

_EXAMPLES = """
model.json
model.json --json
model.json --json -o summary.json
model.json --level module
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "info", "show what an IR file holds", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    add_level(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file instead of printing")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.ir.writing import write_text

    facts = summarise(load_at_level(arguments))
    text = json.dumps(facts, indent=2) if arguments.json else _as_text(facts)
    if arguments.output is None:
        print(text)
    else:
        write_text(arguments.output, text)
    return 0


def summarise(ir: IR) -> dict[str, Any]:
    """The facts about a graph, under the documented keys; one with calls also tells what it holds without them."""
    from torch_ir.ir.functions import op_counts

    facts: dict[str, Any] = {
        "model_name": ir.model_name,
        "num_nodes": len(ir.nodes),
        "num_inputs": len(ir.graph_inputs),
        "num_outputs": len(ir.graph_outputs),
        "num_weights": len(ir.params),
        "total_parameters": sum(_element_count(tensor.shape) for tensor in ir.params),
        "input_shapes": {tensor.name: list(tensor.shape) for tensor in ir.graph_inputs},
        "output_shapes": {tensor.name: list(tensor.shape) for tensor in ir.graph_outputs},
        "op_distribution": dict(Counter(node.op_type for node in ir.nodes).most_common()),
    }
    calls = Counter(str(node.attrs["function"]) for node in ir.nodes if node.is_call)
    if calls:
        inline = op_counts(ir)
        facts["function_calls"] = dict(calls)
        facts["num_nodes_inline"] = inline.total()
        facts["op_distribution_inline"] = dict(inline.most_common())
    return facts


def _element_count(shape: tuple[int | str, ...]) -> int:
    return math.prod(dim if isinstance(dim, int) else 0 for dim in shape)


def _as_text(facts: dict[str, Any]) -> str:
    titles = {"Model": "model_name", "Nodes": "num_nodes", "Inputs": "num_inputs", "Outputs": "num_outputs"}
    lines = [f"{title}: {facts[key]}" for title, key in {**titles, "Weights": "num_weights"}.items()]
    if "num_nodes_inline" in facts:
        lines[1] += f" ({facts['num_nodes_inline']} with functions put inline)"
    lines.append(f"Total parameters: {facts['total_parameters']:,}")
    tables = {
        "Input shapes": "input_shapes",
        "Output shapes": "output_shapes",
        "Op distribution": "op_distribution",
        "Calls of functions": "function_calls",
        "Op distribution, functions put inline": "op_distribution_inline",
    }
    for title, key in ((title, key) for title, key in tables.items() if key in facts):
        lines += ["", f"{title}:", *(f"  {name}: {value}" for name, value in facts[key].items())]
    return "\n".join(lines)
