"""`torch-ir shard`: the graph that every rank of a mesh runs, and what each of them holds and sends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.config import load_config
from torch_ir.cli.verb import add_verb, load_checked, print_json, save_graph
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.cli.verb import Verbs
    from torch_ir.ir import IR

_EXAMPLES = """
model.json --plan plan.json --mesh tp=8 -o rank.json
llama.json --plan hf:llama --mesh tp=8 -o rank.json
mixtral.json --plan checkpoint/ --experts --mesh tp=4 -o rank.json
model.json --mesh dp=2 --place-input 'x=shard(0)' -o rank.json
"""


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "shard", "divide a graph among ranks, without weights or a cluster", _EXAMPLES, run)
    parser.add_argument("file", metavar="FILE", help="an IR file")
    parser.add_argument(
        "--plan",
        metavar="PLAN",
        help="a JSON file from paths of modules to styles, or a configuration of transformers: hf:TYPE, a folder",
    )
    parser.add_argument("--experts", action="store_true", help="whole experts on each rank, by transformers' plan")
    parser.add_argument("--mesh", metavar="AXIS=RANKS", required=True, help="a name, and how many ranks: tp=8")
    for name in ("input", "output"):
        parser.add_argument(
            f"--place-{name}",
            action="append",
            default=[],
            metavar="NAME=PLACEMENT",
            help=f"where an {name} of the model lies, such as 'x=shard(0)' (default: whole on every rank); repeatable",
        )
    parser.add_argument("-o", "--output", metavar="FILE", help="where the graph goes; without it, nothing is kept")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.ir.regroup.functions import further_entries
    from torch_ir.sharding import shard

    axis, _, count = arguments.mesh.partition("=")
    if not count.isdecimal():
        raise CommandError(f"{arguments.mesh!r} is no mesh; write it as tp=8")
    inputs, outputs = _placements(arguments.place_input), _placements(arguments.place_output)
    ir = load_checked(arguments.file)
    plan, whole = _plan(arguments, ir, int(count))
    sharded = shard(ir, plan, {axis: int(count)}, inputs=inputs, outputs=outputs)
    if arguments.output:
        save_graph(sharded, arguments.output)
    entries = {name: _facts(body, sharded.functions[name]) for name, body in further_entries(ir).items()}
    facts = {"mesh": sharded.mesh, **_facts(ir, sharded), "whole": whole, "entries": entries}
    if arguments.json:
        print_json(facts)
    else:
        print("\n".join(_told(facts)))
    return 0


def _facts(ir: IR, sharded: IR) -> dict[str, Any]:
    """What one rank holds and sends, for one entry point."""
    from torch_ir.analysis import cost_report

    before, after = cost_report(ir), cost_report(sharded)
    return {
        "nodes": len(sharded.nodes),
        "params": after.total.params,
        "params_before": before.total.params,
        "sent": after.total.work.communication,
        "collectives": {row.name: {"count": row.count, "sent": row.work.communication} for row in after.collectives},
    }


def _plan(arguments: argparse.Namespace, ir: IR, ranks: int) -> tuple[dict[str, Any], list[str]]:
    """The rows of a plan, from a file of JSON or from transformers; and which stay whole for want of heads."""
    from torch_ir.ir.json.json_text import parse_json, read_text
    from torch_ir.sharding import transformers_plan

    if arguments.plan is None:
        return {}, []
    path = Path(arguments.plan)
    if path.suffix != ".json" or path.name == "config.json":
        config = load_config(arguments.plan)[0]
        usual = transformers_plan(config, ir, expert_parallel=arguments.experts)
        rows = transformers_plan(config, ir, ranks=ranks, expert_parallel=arguments.experts)
        return dict(rows), [path for path in rows if rows[path] != usual[path]]
    if arguments.experts:
        raise CommandError("--experts is for the plan of a configuration; a plan of your own says what experts do")
    given = parse_json(read_text(path))
    if not isinstance(given, dict):
        raise CommandError(f"{path} is no plan: it must be an object from paths of modules to styles")
    return given, []


def _placements(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals:
            raise CommandError(f"{text!r} is no placement; write it as 'x=shard(0)'")
        found[name] = place
    return found


def _told(facts: dict[str, Any]) -> Iterator[str]:
    from torch_ir.analysis.cost_model.table_text import human

    mesh = ", ".join(f"{axis} = {size}" for axis, size in facts["mesh"].items())
    yield f"{mesh}: one graph of {facts['nodes']} nodes for all ranks"
    yield f"each holds {human(facts['params'])} of {human(facts['params_before'])} parameters"
    yield from (f"whole on each, as its heads are too few: {path}" for path in facts["whole"])
    yield from _sent(facts)
    for name, entry in facts["entries"].items():
        yield f"{name}: {entry['nodes']} nodes"
        yield from (f"{name}: {line}" for line in _sent(entry))


def _sent(facts: dict[str, Any]) -> Iterator[str]:
    from torch_ir.analysis.cost_model.table_text import human

    for name, row in facts["collectives"].items():
        yield f"each sends {human(row['sent'], 'B')} in {row['count']} {name.split('.')[1]}"
