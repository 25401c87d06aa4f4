"""A graph into a file: SVG and PNG through Graphviz, DOT and Mermaid as text."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import EllipsisType

from torch_ir.draw.dot import to_dot
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene
from torch_ir.errors import DrawError, MissingExtraError
from torch_ir.ir import IR
from torch_ir.ir.writing import write_bytes, write_text

_PATIENCE = 300  # seconds; Graphviz may need for ever on thousands of boxes
_FONT = Path(__file__).with_name("fonts") / "DejaVuSans.ttf"
_DRAW = """\
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
if sys.argv[1] == "png":
    graph.graph_attr["dpi"] = "144"
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


def render(
    ir: IR,
    path: str | os.PathLike[str],
    max_nodes: int | EllipsisType | None = ...,
    include_weights: bool | None = None,
    placeholders: Collection[str] = (),
    fold: bool = False,
    open_calls: bool = False,
) -> None:
    """Draw a graph into a file; the suffix says how: .svg, .png, .dot, .md, and Mermaid text for any other.

    `fold` draws equal layers that follow each other once, `open_calls` with what is inside calls. Unless asked
    otherwise, a picture shows the first 30 nodes with their weights, and a folded one the first 300 without;
    `max_nodes=0` shows all.
    """
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    scene = build_scene(ir, max_nodes, include_weights, placeholders, fold, open_calls)
    if kind in ("svg", "png"):
        write_bytes(target, _graphviz(to_dot(scene), kind))
    elif kind == "dot":
        write_text(target, to_dot(scene))
    elif kind == "md":
        write_text(target, f"```mermaid\n{to_mermaid(scene)}\n```\n")
    else:
        write_text(target, to_mermaid(scene))


def _graphviz(dot: str, kind: str) -> bytes:
    """The picture, drawn by a child process: whatever Graphviz does there, this one lives."""
    command = _command(kind)
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, input=dot.encode(), capture_output=True, timeout=_PATIENCE, env=_with_font(Path(folder))
            )
        except subprocess.TimeoutExpired:
            raise DrawError(
                f"Graphviz did not finish in {_PATIENCE} seconds; draw fewer nodes, or write .dot or .mmd"
            ) from None
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        raise DrawError(f"Graphviz could not draw the graph: {said[-1]}")
    return done.stdout


def _command(kind: str) -> list[str]:
    if sys.executable and importlib.util.find_spec("pygraphviz") is not None:
        return [sys.executable, "-c", _DRAW, kind]
    program = shutil.which("dot")
    if program is None:
        raise MissingExtraError(f"drawing .{kind} files", "pygraphviz or Graphviz's `dot`", "draw")
    return [program, f"-T{kind}", *(["-Gdpi=144"] if kind == "png" else [])]


def _with_font(folder: Path) -> dict[str, str]:
    """An environment in which a Linux machine has at least the font that is shipped here, else text shows as boxes."""
    environment = dict(os.environ)
    if sys.platform == "linux" and "FONTCONFIG_FILE" not in environment:
        shutil.copy(_FONT, folder)
        settings = folder / "torch_ir.conf"
        settings.write_text(
            '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n'
            f"<fontconfig><dir>{folder}</dir><cachedir>{folder}</cachedir>"
            '<include ignore_missing="yes">fonts.conf</include></fontconfig>\n'
        )
        environment["FONTCONFIG_FILE"] = str(settings)
    return environment
