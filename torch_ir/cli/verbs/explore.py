"""`torch-ir explore`: write a graph, or two side by side, as an interactive HTML page."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ir.cli.arguments.graph_argument import (
    DIM_OR_SIZE,
    add_graph,
    function_of,
    open_against,
    open_at_level,
    sizes_of,
)
from torch_ir.cli.models.model_kinds import is_model
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_level, add_sizes, argument
from torch_ir.errors import CommandError, printable
from torch_ir.ir.files.atomic_write import plain_target

if TYPE_CHECKING:
    from torch_ir.golden import Comparison
    from torch_ir.ir import IR

SUMMARY = "write an IR file as an interactive HTML page"
EXAMPLES = """
model.json
model.json -o model.html --open
model.json --dim batch=8 --dim seq=512
before.json --against after.json -o diff.html
llm.json --function decode
model.json --pack golden --dumps npu.safetensors --dumps gpu.npz
model.json --python --sources path/to/model
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_graph(parser, dim_help=DIM_OR_SIZE)
    argument(parser, "-o --output FILE", "the page (default: the name of the graph with .html)")
    argument(parser, "--open", "open the page in the browser")
    argument(parser, "--against FILE", "show this file beside it, with differences marked")
    add_level(parser)
    argument(parser, "--function NAME", "show a function of the graph instead, such as decode")
    argument(parser, "--pack PACK", "a golden pack, for errors of the runtimes in --dumps")
    argument(parser, "--dumps DUMPS...", "values of a runtime; repeatable, needs --pack")
    argument(parser, "--python", "show the Python that `convert` generates for each node")
    argument(parser, "--sources FOLDER", "show lines of the model's source below this folder")
    add_sizes(parser, with_dim=False)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.explorer import explore

    sizes = sizes_of(arguments)
    if bool(arguments.pack) != bool(arguments.dumps):
        raise CommandError("--pack and --dumps go together: the dumps of each runtime are compared with the pack")
    if arguments.sources and not Path(arguments.sources).is_dir():
        raise CommandError(f"{arguments.sources} is not a folder; --sources takes the folder with the model's source")
    first = open_at_level(arguments, ["input"])
    second = None if arguments.against is None else open_against(arguments, first)
    ir = function_of(first, arguments.function)
    other = None if second is None else function_of(second, arguments.function)
    target = Path(arguments.output) if arguments.output else _beside(arguments.file, ir)
    show_progress(f"writing {target}")
    titles = Path(arguments.file).name, Path(arguments.against or "").name
    values = _values(arguments)
    code = _python(ir) if arguments.python else ""
    explore(
        ir, target, against=other, sizes=sizes, titles=titles, values=values, python=code, sources=arguments.sources
    )
    counts = " and ".join(str(len(each.nodes)) for each in (ir, other) if each is not None)
    print(printable(f"{counts} nodes: {target}, {target.stat().st_size / 1e3:.0f} kB"))
    if arguments.open:
        _show(target)
    return 0


def _values(arguments: argparse.Namespace) -> dict[str, Comparison]:
    """Compare the dumps of each runtime with the pack; a runtime is named after its file or folder."""
    if not arguments.dumps:
        return {}
    import torch_ir

    found: dict[str, Comparison] = {}
    for dumps in arguments.dumps:
        show_progress(f"comparing {dumps} with {arguments.pack}")
        name = Path(dumps).stem
        found[f"{name} {len(found) + 1}" if name in found else name] = torch_ir.compare_golden(arguments.pack, dumps)
    return found


def _python(ir: IR) -> str:
    import torch_ir

    return torch_ir.to_python(ir)


def _beside(file: str, ir: IR) -> Path:
    """Return the default page: beside a file; in the current folder, under its name, for a model."""
    if is_model(file):
        return plain_target(Path(re.sub(r"\W+", "_", ir.model_name) or "model").with_suffix(".html"))
    return plain_target(Path(re.sub(r"\.gz$", "", file)).with_suffix(".html"))


def _show(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        raise CommandError(f"no browser found to open {page}")
