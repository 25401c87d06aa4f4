"""`torch-ir shard`: shard a graph over a mesh, and report what each rank stores and sends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.config import load_config, model_types
from torch_ir.cli.models.model_kinds import is_config
from torch_ir.cli.verb import add_json, argument, load_checked, save_graph, show
from torch_ir.errors import CommandError, SerializationError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.ir import IR

_MOST_DIGITS = 9
SUMMARY = "shard a graph over ranks, without weights or a cluster"
EXAMPLES = """
model.json --plan plan.json -o rank.json
model.json --plan styles.json --mesh tp=8 -o rank.json
llama.json --plan hf:llama --mesh tp=8 -o rank.json
mixtral.json --plan checkpoint/ --experts --mesh tp=4 -o rank.json
model.json --mesh dp=2 --place-input 'x=shard(0)' -o rank.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(
        parser,
        "--plan PLAN",
        "a plan of `torch-ir plan`, a JSON file that maps module paths to styles, or a transformers "
        "configuration: hf:TYPE, a folder",
    )
    argument(parser, "--experts", "expert parallelism, by transformers' plan")
    argument(parser, "--mesh AXIS=RANKS...", "axis name and number of ranks: tp=8 (default: all axes of a plan)")
    for name in ("input", "output"):
        argument(
            parser,
            f"--place-{name} NAME=PLACEMENT...",
            f"placement of an {name} of the model, such as 'x=shard(0)' (default: replicated); repeatable",
        )
    argument(parser, "-o --output FILE", "where to write the graph (default: report only)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.ir.regroup.functions import further_entries

    sharded, ir, whole = _by_whole_plan(arguments) or _along_one_axis(arguments)
    if arguments.output:
        save_graph(sharded, arguments.output)
    entries = {name: _facts(body, sharded.functions[name]) for name, body in further_entries(ir).items()}
    facts = {"mesh": sharded.mesh, **_facts(ir, sharded), "whole": whole, "entries": entries}
    show(arguments, lambda: facts, lambda: "\n".join(_lines(facts)))
    return 0


def _by_whole_plan(arguments: argparse.Namespace) -> tuple[IR, IR, list[str]] | None:
    """Shard along all axes of a file of `torch-ir plan`; None if that is not what --plan names."""
    from torch_ir.planning.plan_file import is_plan, load_plan

    path = Path(arguments.plan or "")
    if not _is_file(path) or not is_plan(_read_plan(path)):
        return None
    plan = load_plan(path)
    if arguments.mesh or arguments.experts or arguments.place_input or arguments.place_output:
        raise CommandError(f"{path} has its own mesh and placements; give it without --mesh, --experts and --place-...")
    if plan.devices == 1:
        raise CommandError(f"{path} is a plan for one device: there is nothing to divide")
    if not plan.axes:
        raise CommandError(f"{path} has pipeline stages only; give it to torch-ir split")
    ir = load_checked(arguments.file)
    return plan.shard(ir), ir, []


def _along_one_axis(arguments: argparse.Namespace) -> tuple[IR, IR, list[str]]:
    """Shard along one axis, by styles; also return the modules left whole because they have too few heads."""
    from torch_ir.sharding import shard

    axis, ranks = _mesh_axis([axis for words in arguments.mesh for axis in words.split(",")])
    inputs, outputs = _placements(arguments.place_input), _placements(arguments.place_output)
    ir = load_checked(arguments.file)
    plan, whole = _plan(arguments, ir, ranks)
    if not plan and not inputs and not outputs:
        raise CommandError(
            f"nothing would be divided over {axis}={ranks}; add --plan, such as hf:llama or plan.json, "
            "or --place-input NAME=PLACEMENT"
        )
    return shard(ir, plan, {axis: ranks}, inputs=inputs, outputs=outputs), ir, whole


def _mesh_axis(words: list[str]) -> tuple[str, int]:
    """Return the axis and its number of ranks of `--mesh tp=8`."""
    if not words:
        raise CommandError("--mesh is missing; write it as --mesh tp=8, or give a plan of torch-ir plan")
    if len(words) > 1:
        raise CommandError(
            f"--mesh takes one axis, not {len(words)}: {', '.join(words):.200}; shard the result along the next axis"
        )
    axis, equals, count = words[0].partition("=")
    if not axis or not equals:
        raise CommandError(f"{words[0]!r:.80} is not a mesh; write it as tp=8")
    if not (count.isascii() and count.isdecimal() and len(count) <= _MOST_DIGITS and int(count)):
        raise CommandError(
            f"--mesh {axis:.80}=...: the number of ranks must be an integer from 1 to {10**_MOST_DIGITS - 1:,}, "
            f"not {count!r:.80}"
        )
    return axis, int(count)


def _facts(ir: IR, sharded: IR) -> dict[str, Any]:
    """Return what one rank stores and sends, for one entry point."""
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
    """Return the plan, from a JSON file or transformers, and the modules left whole because they have too few heads."""
    from torch_ir.sharding import transformers_plan

    if arguments.plan is None:
        return {}, []
    path = Path(arguments.plan)
    if not _is_file(path):
        if not is_config(arguments.plan) and arguments.plan not in (types := model_types()):
            raise CommandError(
                f"--plan {arguments.plan!r:.80} is neither a .json file, nor a folder with a config.json, nor a model "
                f"type of transformers{did_you_mean(arguments.plan, types)}"
            )
        config = load_config(arguments.plan)[0]
        usual = transformers_plan(config, ir, expert_parallel=arguments.experts)
        rows = transformers_plan(config, ir, ranks=ranks, expert_parallel=arguments.experts)
        return dict(rows), [path for path in rows if rows[path] != usual[path]]
    if arguments.experts:
        raise CommandError("--experts applies to the plan of a configuration; your own plan already places the experts")
    return _read_plan(path), []


def _is_file(path: Path) -> bool:
    """Whether a plan is in a file, and not one of a configuration of transformers."""
    return path.suffix == ".json" and path.name != "config.json"


def _read_plan(path: Path) -> dict[str, Any]:
    from torch_ir.ir.json.json_text import parse_document, read_text

    text = read_text(path)
    try:
        return parse_document(text)
    except SerializationError as error:
        raise CommandError(f"{path} is not a plan, a JSON object that maps module paths to styles: {error}") from None


def _placements(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals:
            raise CommandError(f"{text!r} is not a placement; write it as 'x=shard(0)'")
        found[name] = place
    return found


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    from torch_ir.ir.text.amounts import count, parameters_text, plural

    mesh = ", ".join(f"{axis} = {size}" for axis, size in facts["mesh"].items())
    yield f"{mesh}: one graph of {plural(facts['nodes'], 'node')} for all ranks"
    yield f"each rank stores {count(facts['params'])} of {parameters_text(facts['params_before'])}"
    yield from (f"replicated, because it has too few heads: {path}" for path in facts["whole"])
    yield from _sent(facts)
    for name, entry in facts["entries"].items():
        yield f"{name}: {plural(entry['nodes'], 'node')}"
        yield from (f"{name}: {line}" for line in _sent(entry))


def _sent(facts: dict[str, Any]) -> Iterator[str]:
    from torch_ir.ir.text.amounts import human, plural

    for name, row in facts["collectives"].items():
        calls = plural(row["count"], f"{name.split('.')[1]} call")
        yield f"each rank sends {human(row['sent'], 'B')} in {calls}"
