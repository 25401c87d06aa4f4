"""`torch-ir info`: a summary of a graph file."""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import add_graph, open_at_level
from torch_ir.cli.verb import add_json, add_level, argument, as_json

if TYPE_CHECKING:
    from torch_ir.ir import IR, TensorMeta

SUMMARY = "summarise an IR file"
EXAMPLES = """
model.json
model.json --json
model.json --json -o summary.json
model.json --level module
net.py:Net --input 1x3x224x224
"""
_MANY = 1_000_000  # from here on, a number is also given with three digits
_KINDS = {
    "parameter": "parameters", "stack": "parameters", "buffer": "buffers", "temporary": "buffers",
    "constant": "constants",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser)
    add_level(parser)
    add_json(parser)
    argument(parser, "-o --output FILE", "write to a file instead of printing")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.ir.files.atomic_write import write_text

    facts = {**summarise(open_at_level(arguments)), "digest": _digest(arguments.file)}
    text = as_json(facts) if arguments.json else _as_text(facts)
    if arguments.output is None:
        print(text)
    else:
        write_text(arguments.output, text)
    return 0


def summarise(ir: IR) -> dict[str, Any]:
    """Return the facts about a graph under the documented keys; with calls, also counts with functions inlined."""
    from torch_ir.ir.regroup.functions import further_entries, op_counts

    weights = {kind: _amount([param for param in ir.params if _kind(param) == kind]) for kind in _KINDS.values()}
    facts: dict[str, Any] = {
        "model_name": ir.model_name,
        "num_nodes": len(ir.nodes),
        "num_inputs": len(ir.graph_inputs),
        "num_outputs": len(ir.graph_outputs),
        "num_weights": len(ir.params),
        "total_parameters": weights["parameters"]["elements"],
        "input_shapes": {tensor.name: list(tensor.shape) for tensor in ir.graph_inputs},
        "output_shapes": {tensor.name: list(tensor.shape) for tensor in ir.graph_outputs},
        "op_distribution": dict(Counter(node.op_type for node in ir.nodes).most_common()),
        "weights": {kind: amount for kind, amount in weights.items() if amount["tensors"]},
        "weight_bytes": sum(amount["bytes"] for amount in weights.values()),
        "symbols": {name: {"min": symbol.min, "max": symbol.max} for name, symbol in ir.symbols.items()},
        "constraints": list(ir.constraints),
        "pytorch_version": ir.pytorch_version,
        "device": ir.device,
        "functions": {name: len(body.nodes) for name, body in ir.functions.items()},
        "entry_points": list(further_entries(ir)),
    }
    calls = Counter(str(node.attrs["function"]) for node in ir.nodes if node.is_call)
    if calls:
        inline = op_counts(ir)
        facts["function_calls"] = dict(calls)
        facts["num_nodes_inline"] = inline.total()
        facts["op_distribution_inline"] = dict(inline.most_common())
    return facts


def _kind(param: TensorMeta) -> str:
    return _KINDS[param.param.kind] if param.param else "parameters"


def _amount(tensors: list[TensorMeta]) -> dict[str, Any]:
    from torch_ir.ir.graph.attr_types import DTYPES

    counts = [math.prod(dim if isinstance(dim, int) else 0 for dim in tensor.shape) for tensor in tensors]
    return {
        "tensors": len(tensors),
        "elements": sum(counts),
        "bytes": sum(count * DTYPES[tensor.dtype] for count, tensor in zip(counts, tensors, strict=True)),
        "dtypes": dict(Counter(tensor.dtype for tensor in tensors).most_common()),
    }


def _digest(path: str) -> str | None:
    """Return the digest at the end of a graph file: equal graphs in one encoding have equal digests."""
    from torch_ir.formats.protobuf import is_protobuf, message_digest
    from torch_ir.ir.json.digest import LENGTH, stated_digest
    from torch_ir.ir.json.gzip_text import MAGIC, read_graph_text

    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        if is_protobuf(path):
            return message_digest(file.read())
        if file.read(len(MAGIC)) == MAGIC:
            end = read_graph_text(path).encode()
        else:
            file.seek(max(0, os.path.getsize(path) - LENGTH))
            end = file.read()
    stated = stated_digest(end)
    return stated.digest if stated else None


def _as_text(facts: dict[str, Any]) -> str:
    titles = {"Model": "model_name", "Nodes": "num_nodes", "Inputs": "num_inputs", "Outputs": "num_outputs"}
    lines = [f"{title}: {facts[key]}" for title, key in {**titles, "Weights": "num_weights"}.items()]
    if "num_nodes_inline" in facts:
        lines[1] += f" ({facts['num_nodes_inline']} with functions inlined)"
    from torch_ir.ir.text.amounts import count

    number = facts["total_parameters"]
    lines.append(f"Total parameters: {number:,}" + (f" ({count(number)})" if number >= _MANY else ""))
    tables = {
        "Input shapes": {name: shape_text(dims) for name, dims in facts["input_shapes"].items()},
        "Output shapes": {name: shape_text(dims) for name, dims in facts["output_shapes"].items()},
        "Op distribution": facts["op_distribution"],
        "Function calls": facts.get("function_calls"),
        "Op distribution, functions inlined": facts.get("op_distribution_inline"),
        "Entry points": {name: f"{facts['functions'][name]} nodes" for name in facts["entry_points"]},
        "Sizes": {name: _range(**bounds) for name, bounds in facts["symbols"].items()},
        "Weight kinds": {kind: _amount_text(**amount) for kind, amount in facts["weights"].items()},
        "Captured": {"torch": facts["pytorch_version"], "device": facts["device"], "digest": facts["digest"]},
    }
    for title, table in tables.items():
        if rows := [f"  {name}: {value}" for name, value in (table or {}).items() if value]:
            lines += ["", f"{title}:", *rows]
    return "\n".join(lines)


def counts_text(facts: Mapping[str, Any]) -> str:
    """Return the numbers of nodes, weights and parameters of a summary: `3 nodes, 2 weights, 12 parameters`."""
    from torch_ir.ir.text.amounts import parameters_text, plural

    counts = f"{plural(facts['num_nodes'], 'node')}, {plural(facts['num_weights'], 'weight')}"
    return f"{counts}, {parameters_text(facts['total_parameters'])}"


def shape_text(dims: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _range(min: int | None, max: int | None) -> str:
    return f"{'any' if min is None else min} to {'any' if max is None else max}"


def _amount_text(tensors: int, elements: int, bytes: int, dtypes: dict[str, int]) -> str:
    from torch_ir.ir.text.amounts import plural

    return f"{elements:,} in {plural(tensors, 'tensor')}, {bytes:,} bytes, {', '.join(dtypes)}"
