"""Convert DOT text to SVG and PNG with Graphviz in a child process, so that a crash does no harm."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from torch_ir.errors import DrawError, MissingExtraError
from torch_ir.escaping import in_html
from torch_ir.ir.files.temporary_folders import TemporaryFolder, explained
from torch_ir.processes.process_end import ending
from torch_ir.processes.program import Program

PATIENCE = 300  # seconds; Graphviz may take very long on thousands of boxes
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


def picture(dot: str, kind: str, patience: int = PATIENCE) -> bytes:
    """Return the image of a DOT graph: `svg`, `png` or `pdf`."""
    command = _command(kind)
    with TemporaryFolder() as folder:
        with explained():
            environment = _with_font(folder)
            (folder / "graph.dot").write_bytes(dot.encode())
        with open(folder / "graph.dot", "rb") as stdin:
            program = Program(command, stdin=stdin, environment=environment)
        try:
            is_in_time = program.wait(patience)
        finally:
            status = program.end()
    if not is_in_time:
        raise DrawError(f"Graphviz did not finish in {patience} seconds; draw fewer nodes, or write .dot or .mmd")
    if status or not program.stdout:
        raise DrawError(f"cannot draw the graph: Graphviz {ending(status, stderr=program.stderr)}")
    return bytes(program.stdout)


def with_tips(svg: bytes, tips: Mapping[str, str]) -> bytes:
    """Set the tooltip of each box, by its id, as its title in the SVG."""

    def titled(found: re.Match[str]) -> str:
        return found[1] + in_html(tips.get(found[2], ""))

    return re.sub(r'( class="(?:node|edge|cluster)">\n<title>)([^<]*)', titled, svg.decode()).encode()


def _command(kind: str) -> list[str]:
    if sys.executable and importlib.util.find_spec("pygraphviz") is not None:
        return [sys.executable, "-c", _DRAW, kind]
    program = shutil.which("dot")
    if program is None:
        raise MissingExtraError(f"drawing .{kind} files", "pygraphviz or Graphviz's `dot`", "draw")
    return [program, f"-T{kind}", *(["-Gdpi=144"] if kind == "png" else [])]


def _with_font(folder: Path) -> dict[str, str]:
    """Return an environment in which Linux finds at least the bundled font; without any, text shows as boxes."""
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
