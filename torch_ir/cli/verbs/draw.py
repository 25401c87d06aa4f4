"""`torch-ir draw`: a graph file as a picture, alone or beside another one; `visualize` has the documented defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import add_graph, open_at_level
from torch_ir.cli.verb import add_level, add_verb, load_at_level
from torch_ir.errors import CommandError, GraphError, printable

if TYPE_CHECKING:
    from torch_ir.cli.parser import Verbs
    from torch_ir.draw.elements import Scene
    from torch_ir.ir import IR

_EXAMPLES = """
model.json -o model.png
model.json --depth 2 --fold -o model.svg
model.json --focus layers.0.attn --radius 2 -o attention.png
model.json --heat flops --set batch=8 -o cost.png
before.json --against after.json -o diff.png
net.py:Net --input 1x3x224x224 -o net.png
model.json --format model-explorer -o model-explorer.json
"""
_MODEL_EXPLORER = "model-explorer"
_FORMATS = ("png", "svg", "dot", "mermaid", "md", _MODEL_EXPLORER)
_MANY_BOXES = 1000
_UNITS = {"flops": "FLOPs", "bytes": "B"}


def add_parser(verbs: Verbs) -> None:
    parser = add_verb(verbs, "draw", "draw an IR file", _EXAMPLES, run, other_names=("visualize",))
    add_graph(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=".png and .svg are drawn, .dot is Graphviz text, others are Mermaid text"
    )
    parser.add_argument(
        "--format", choices=_FORMATS, metavar="NAME", help=f"whatever the file is called: {', '.join(_FORMATS)}"
    )
    what = parser.add_argument_group("what is drawn (default: what is easy to read; `visualize`: the first 30 nodes)")
    what.add_argument("--depth", type=int, metavar="N", help="one box for each module at this depth")
    what.add_argument("--fold", action="store_true", help="draw equal layers that follow each other once")
    add_level(what)
    what.add_argument(
        "--focus", action="append", default=[], metavar="NAME", help="only around this node or module; repeatable"
    )
    what.add_argument("--radius", type=int, metavar="N", help="how many boxes around it (default: 3)")
    what.add_argument(
        "--max-nodes",
        type=int,
        metavar="N",
        help="the first N nodes (with --fold or --depth: 300 unless told); 0 draws all",
    )
    weights = what.add_mutually_exclusive_group()
    weights.add_argument("--weights", action="store_true", default=None, help="draw the weights")
    weights.add_argument("--no-weights", action="store_false", dest="weights", help="leave the weights out")
    what.add_argument("--assertions", action="store_true", help="draw the nodes that only assert, too")
    colours = parser.add_argument_group("colours")
    colours.add_argument("--heat", choices=tuple(_UNITS), metavar="COST", help="colour by cost: flops or bytes")
    colours.add_argument(
        "--set", action="append", default=[], metavar="NAME=SIZE", help="a size that the graph leaves open; repeatable"
    )
    colours.add_argument("--against", metavar="FILE", help="draw this file beside it, and what differs in colour")
    colours.add_argument("--no-legend", action="store_true", help="do not explain the colours")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    ir = _flat(open_at_level(arguments), arguments)
    if arguments.format == _MODEL_EXPLORER:
        _write_model_explorer(ir, arguments)
    else:
        _write(_pair(ir, arguments) if arguments.against else _scene(ir, arguments), arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    if arguments.radius is not None and not arguments.focus:
        raise CommandError("--radius says how far around --focus NAME is drawn; there is no --focus")
    if arguments.set and not (arguments.heat or arguments.against):
        raise CommandError("--set gives sizes to costs; it needs --heat or --against")
    if arguments.heat and arguments.against:
        raise CommandError("--heat and --against both colour boxes; choose one")
    if arguments.format == _MODEL_EXPLORER and arguments.against:
        raise CommandError("Model Explorer files hold one model; draw --against as png, svg, dot or mermaid")
    if arguments.format == "png" and not arguments.output:
        raise CommandError("a PNG needs a file: -o FILE")


def _flat(ir: IR, arguments: argparse.Namespace) -> IR:
    """The graph with blocks inline where nodes are asked for by name; a folded picture opens them itself."""
    from torch_ir.ir.regroup.repeated_blocks import has_blocks

    is_asked = arguments.level is not None or arguments.leaf
    by_name = arguments.depth is not None or arguments.focus or arguments.heat or arguments.against
    return ir.at_level("aten") if by_name and not is_asked and has_blocks(ir) else ir


def _scene(ir: IR, arguments: argparse.Namespace) -> Scene:
    from torch_ir.draw.scene import build_scene

    options = _options(arguments)
    if arguments.heat:
        options |= {"heat": _costs(ir, arguments), "unit": _UNITS[arguments.heat]}
    return _told([ir], lambda **view: build_scene(ir, **{**view, **options}), arguments)


def _pair(before: IR, arguments: argparse.Namespace) -> Scene:
    from torch_ir.analysis import diff
    from torch_ir.draw.drawn_pairs import build_pair

    after = _flat(load_at_level(argparse.Namespace(**{**vars(arguments), "file": arguments.against})), arguments)
    marks = diff(before, after).marks()
    titles = Path(arguments.file).name, Path(arguments.against).name
    heading = (before.model_name or "before and after", _change(before, after, arguments))
    options = {"include_weights": False, **_options(arguments)}
    return _told(
        [before, after],
        lambda **view: build_pair(before, after, marks, titles, heading, **{**view, **options}),
        arguments,
    )


def _told(graphs: list[IR], build: Callable[..., Scene], arguments: argparse.Namespace) -> Scene:
    """The scene that was asked for, or else one that is easy to read; what it leaves out is said on stderr."""
    from torch_ir.draw.view_options import MOST_BOXES, legible
    from torch_ir.ir.regroup.repeated_blocks import has_blocks

    is_level_told = arguments.level is not None or bool(arguments.leaf)
    if not is_level_told and any(map(has_blocks, graphs)):
        build = partial(build, open_calls=True)
    is_told = arguments.fold or arguments.depth is not None or arguments.max_nodes is not None or arguments.focus
    if arguments.verb == "visualize" or is_told:
        return build()
    most = MOST_BOXES // len(graphs)  # two graphs stand side by side in strips, which are not cut into columns
    scene, told = legible(graphs, build, most_boxes=most, may_collapse=not is_level_told)
    if told and not arguments.quiet:
        print(printable(f"{told}; --max-nodes 0 draws every node"), file=sys.stderr)
    return scene


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as options of a scene."""
    asked = {
        "max_nodes": arguments.max_nodes,
        "include_weights": arguments.weights,
        "depth": arguments.depth,
        "radius": arguments.radius,
        "focus": arguments.focus or None,
        "fold": arguments.fold or None,
        "assertions": arguments.assertions or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _costs(ir: IR, arguments: argparse.Namespace) -> dict[str, float]:
    from torch_ir.analysis import cost
    from torch_ir.analysis.shapes.size_polynomials import weight_of
    from torch_ir.cli.arguments.size_specs import parse_sizes

    rows = cost(ir, parse_sizes(arguments.set)).per_run.nodes
    return {row.node.name: weight_of(getattr(row, arguments.heat)) for row in rows}


def _change(before: IR, after: IR, arguments: argparse.Namespace) -> str:
    """Nodes, FLOPs and bytes of both, in one line; nodes alone, where the cost of an operator is not known."""
    from torch_ir.analysis import cost
    from torch_ir.analysis.cost_model.table_text import human
    from torch_ir.cli.arguments.size_specs import parse_sizes

    sizes, rows = parse_sizes(arguments.set), {"nodes": [str(len(ir.nodes)) for ir in (before, after)]}
    try:
        runs = [cost(ir, sizes).per_run for ir in (before, after)]
    except GraphError:
        pass
    else:
        rows["nodes"] = [str(len(run.nodes)) for run in runs]
        rows["FLOPs"] = [human(run.flops) for run in runs]
        rows["bytes moved"] = [human(run.bytes, "B") for run in runs]
    told = (f"{name} {one}" if one == other else f"{name} {one} → {other}" for name, (one, other) in rows.items())
    return f"per run: {', '.join(told)}"


def _write(scene: Scene, arguments: argparse.Namespace) -> None:
    from torch_ir.draw.picture_files import PICTURES, as_text, drawn, write_scene

    kind, legend = arguments.format or "", False if arguments.no_legend else None
    suffix = Path(arguments.output or "").suffix.lower().removeprefix(".")
    if (kind or suffix) in PICTURES and not arguments.quiet:
        _hint(len(scene.boxes))
    if arguments.output is not None:
        write_scene(scene, arguments.output, kind, legend)
    else:
        print(drawn(scene, kind, legend).decode() if kind in PICTURES else as_text(scene, kind, legend))


def _hint(boxes: int) -> None:
    """Say before it begins what may take long, and what to do instead."""
    if boxes > _MANY_BOXES:
        print(
            f"Graphviz may need minutes for {boxes} boxes; --depth, --fold or --focus draw less, "
            "and `torch-ir explore` shows every node at once",
            file=sys.stderr,
            flush=True,
        )


def _write_model_explorer(ir: IR, arguments: argparse.Namespace) -> None:
    import json

    from torch_ir.draw.model_explorer import to_model_explorer
    from torch_ir.ir.files.atomic_write import write_text

    heat = _costs(ir, arguments) if arguments.heat else None
    with_weights = arguments.weights is not False
    record = to_model_explorer(ir, heat=heat, unit=arguments.heat or "", include_weights=with_weights)
    text = json.dumps(record, indent=1) + "\n"
    if arguments.output is None:
        print(text, end="")
    else:
        write_text(Path(arguments.output), text)
