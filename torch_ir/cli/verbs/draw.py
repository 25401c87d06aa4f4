"""`torch-ir draw`: draw a graph file, alone or beside another; `visualize` has the documented defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import DIM_OR_SIZE, add_graph, open_against, open_at_level, sizes_of
from torch_ir.cli.verb import add_level, add_sizes, argument, check_least
from torch_ir.errors import CommandError, GraphError, printable

if TYPE_CHECKING:
    from torch_ir.draw.elements import Scene
    from torch_ir.ir import IR

SUMMARY = "draw an IR file"
EXAMPLES = """
model.json -o model.png
model.json --depth 2 --fold -o model.svg
model.json --focus layers.0.attn --radius 2 -o attention.png
model.json --heat flops --dim batch=8 -o cost.png
before.json --against after.json -o diff.png
net.py:Net --input 1x3x224x224 -o net.png
model.json --format model-explorer -o model-explorer.json
"""
_MODEL_EXPLORER = "model-explorer"
_FORMATS = ("png", "svg", "dot", "mermaid", "md", _MODEL_EXPLORER)
_MANY_BOXES = 1000
_MOST_COMPARED = 50_000  # nodes of a drawn pair with calls inlined, unless the file has more than a tenth of that
_UNITS = {"flops": "FLOPs", "bytes": "B"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help=DIM_OR_SIZE)
    argument(
        parser, "-o --output FILE", ".png, .svg and .pdf are drawn, .dot is Graphviz text, others are Mermaid text"
    )
    argument(parser, "--format NAME", f"the format, instead of the suffix: {', '.join(_FORMATS)}", choices=_FORMATS)
    what = parser.add_argument_group("content (default: an easily readable view; `visualize`: the first 30 nodes)")
    argument(what, "--depth N", "one box per module at this depth", type=int)
    argument(what, "--fold", "draw consecutive equal layers once")
    add_level(what)
    argument(what, "--focus NAME...", "draw only around this node or module; repeatable")
    argument(what, "--radius N", "distance from --focus in boxes (default: 3)", type=int)
    argument(
        what, "--max-nodes N", "draw the first N nodes (default with --fold or --depth: 300); 0 draws all", type=int
    )
    weights = what.add_mutually_exclusive_group()
    argument(weights, "--weights", "draw the weights", default=None)
    argument(weights, "--no-weights", "leave the weights out", action="store_false", dest="weights")
    argument(what, "--assertions", "also draw assertions")
    colours = parser.add_argument_group("colours")
    argument(colours, "--heat COST", "colour by cost: flops or bytes", choices=tuple(_UNITS))
    add_sizes(colours, with_dim=False)
    argument(colours, "--against FILE", "draw this file beside it, with differences in colour")
    argument(colours, "--no-legend", "leave out the legend")


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    ir = _flat(open_at_level(arguments, ["input"]), arguments)
    if arguments.format == _MODEL_EXPLORER:
        _write_model_explorer(ir, arguments)
    else:
        _write(_pair(ir, arguments) if arguments.against else _scene(ir, arguments), arguments)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise CommandError for options that are invalid or would have no effect."""
    check_least(arguments, 0, "max_nodes")
    if arguments.radius is not None and not arguments.focus:
        raise CommandError("--radius is the distance from --focus NAME; add --focus")
    if sizes_of(arguments) and not (arguments.heat or arguments.against):
        raise CommandError("--dim gives sizes for costs; add --heat or --against")
    if arguments.heat and arguments.against:
        raise CommandError("--heat and --against both colour boxes; choose one")
    if arguments.format == _MODEL_EXPLORER and arguments.against:
        raise CommandError("a Model Explorer file contains one model; draw --against as png, svg, dot or mermaid")
    if arguments.format == "png" and not arguments.output:
        raise CommandError("a PNG needs a file: -o FILE")


def _flat(ir: IR, arguments: argparse.Namespace) -> IR:
    """Inline the blocks of a graph if nodes are selected by name; a folded picture opens them itself."""
    from torch_ir.ir.regroup.functions import check_size_inline
    from torch_ir.ir.regroup.repeated_blocks import has_blocks

    has_level = arguments.level is not None or arguments.leaf
    by_name = arguments.depth is not None or arguments.focus or arguments.heat or arguments.against
    if not by_name or has_level or not has_blocks(ir):
        return ir
    if arguments.against:
        check_size_inline(ir, _MOST_COMPARED)
    return ir.at_level("aten")


def _scene(ir: IR, arguments: argparse.Namespace) -> Scene:
    from torch_ir.draw.scene import build_scene

    options = _options(arguments)
    if arguments.heat:
        options |= {"heat": _costs(ir, arguments), "unit": _UNITS[arguments.heat]}
    return _built([ir], lambda **view: build_scene(ir, **{**view, **options}), arguments)


def _pair(before: IR, arguments: argparse.Namespace) -> Scene:
    from torch_ir.analysis import diff
    from torch_ir.analysis.graph_diff.events import paired_marks
    from torch_ir.draw.drawn_pairs import build_pair

    after = _flat(open_against(arguments, before), arguments)
    marks = paired_marks(diff(before, after))
    titles = Path(arguments.file).name, Path(arguments.against).name
    heading = (before.model_name or "before and after", _change(before, after, arguments))
    options = {"include_weights": False, **_options(arguments)}
    return _built(
        [before, after],
        lambda **view: build_pair(before, after, marks, titles, heading, **{**view, **options}),
        arguments,
    )


def _built(graphs: list[IR], build: Callable[..., Scene], arguments: argparse.Namespace) -> Scene:
    """Build the requested scene, or by default a readable one; what it leaves out is printed on stderr."""
    from torch_ir.draw.view_options import MOST_BOXES, legible
    from torch_ir.ir.regroup.repeated_blocks import has_blocks

    has_level = arguments.level is not None or bool(arguments.leaf)
    if not has_level and any(map(has_blocks, graphs)):
        build = partial(build, open_calls=True)
    has_view = arguments.fold or arguments.depth is not None or arguments.max_nodes is not None or arguments.focus
    if arguments.verb == "visualize" or has_view:
        return build()
    most = MOST_BOXES // len(graphs)  # two graphs are drawn side by side, without columns
    scene, note = legible(graphs, build, most_boxes=most, may_collapse=not has_level)
    if note and not arguments.quiet:
        print(printable(f"{note}; --max-nodes 0 draws every node"), file=sys.stderr)
    return scene


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given options as options of a scene."""
    given = {
        "max_nodes": arguments.max_nodes,
        "include_weights": arguments.weights,
        "depth": arguments.depth,
        "radius": arguments.radius,
        "focus": arguments.focus or None,
        "fold": arguments.fold or None,
        "assertions": arguments.assertions or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _costs(ir: IR, arguments: argparse.Namespace) -> dict[str, float]:
    from torch_ir.analysis import cost
    from torch_ir.analysis.shapes.size_polynomials import weight_of

    rows = cost(ir, sizes_of(arguments)).per_run.nodes
    return {row.node.name: weight_of(getattr(row, arguments.heat)) for row in rows}


def _change(before: IR, after: IR, arguments: argparse.Namespace) -> str:
    """Return nodes, FLOPs and bytes of both graphs in one line; only nodes if an operator has no cost formula."""
    from torch_ir.analysis import cost
    from torch_ir.ir.text.amounts import human

    sizes, rows = sizes_of(arguments), {"nodes": [str(len(ir.nodes)) for ir in (before, after)]}
    try:
        runs = [cost(ir, sizes).per_run for ir in (before, after)]
    except GraphError:
        pass
    else:
        rows["nodes"] = [str(len(run.nodes)) for run in runs]
        rows["FLOPs"] = [human(run.flops) for run in runs]
        rows["bytes moved"] = [human(run.bytes, "B") for run in runs]
    changes = (f"{name} {one}" if one == other else f"{name} {one} → {other}" for name, (one, other) in rows.items())
    return f"per run: {', '.join(changes)}"


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
    """Warn before a slow layout, and name the alternatives."""
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
