"""The progress line: on a terminal, after two seconds, and removed at the end."""

import logging
import re
import sys
import time

import pytest

from tests.command_line import ERASE, ROOT, Terminal, command, start
from tests.test_draw import mlp
from torch_ir.cli import progress as module
from torch_ir.cli.progress import _Line, progress, show_progress

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals on Windows")
# a slow target, like a large model: it takes until the line is there, or as long as the line would take to appear
SLOW = """\
import time

from torch_ir import Target
from torch_ir.cli import progress

npu = Target("npu")
until = time.monotonic() + 2.6
while not progress._line._is_shown if progress._line else time.monotonic() < until:
    time.sleep(0.01)
print("loaded")
"""
TALKING = """\
import sys, time
from torch_ir.cli import progress as module
from torch_ir.cli.progress import progress, show_progress

def await_line():
    while not module._line._is_shown:
        time.sleep(0.01)

with progress("working"):
    await_line()
    print("half a line", end="", flush=True)
    show_progress("tidying \\x1b[2J" + "x" * 200)
    time.sleep(0.6)
    print(", and the rest", flush=True)
    await_line()
    print("to stderr", file=sys.stderr)
    await_line()
"""


@pytest.fixture
def folder(tmp_path):
    mlp().save(tmp_path / "model.json")
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def test_a_verb_that_takes_long_says_so_at_a_terminal_alone(folder, programs):
    """With --quiet, with NO_COLOR, on a dumb terminal and in pipes, only the output is written."""
    words = [*start(programs), "lower", "model.json", "--target", "slow.py:npu"]
    wide = {"folder": folder, "columns": 120}  # the table is not cut
    watched = Terminal(*words, **wide)
    others = [
        Terminal(*words, "--quiet", **wide),
        Terminal(*words, **wide, NO_COLOR="1"),
        Terminal(*words, **wide, TERM="dumb"),
    ]
    piped = command(*words[-4:], folder=folder, programs=programs)
    assert watched.wait() == piped.returncode == 0
    assert re.search(rf"{re.escape(ERASE)}torch-ir lower \d+ s", watched.text)
    assert watched.screen == piped.stdout
    assert piped.stdout.startswith("loaded\nnpu: ")
    assert piped.stderr == ""
    assert not re.search(r"[\r\x1b]", piped.stdout)
    for other in others:
        assert other.wait() == 0
        assert other.text == piped.stdout


def test_the_line_makes_way_for_everybody():
    """It is removed before other output, waits for the end of a line, fits the terminal and escapes text."""
    terminal = Terminal(sys.executable, "-c", TALKING, columns=40, folder=ROOT)
    assert terminal.wait() == 0
    assert terminal.screen == "half a line, and the rest\nto stderr\n"
    assert re.search(rf"{re.escape(ERASE)}working \d+ s", terminal.text)
    drawn = re.findall(rf"{re.escape(ERASE)}(tidying[^\r\n]*)", terminal.text)
    assert drawn
    assert all(len(line) < 40 and "…" in line and "\x1b" not in line for line in drawn)


DEEP = """\
import time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList(Slow(4, 4) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""


IMPATIENT = """\
from torch_ir.cli import main, progress

progress._PATIENCE, progress._TICK = 0.1, 0.02
raise SystemExit(main(["extract", "deep.py:Deep", "-i", "2x4", "-o", "deep.json"]))
"""


def test_the_line_names_the_layer_that_is_captured(folder):
    """It says which of how many, and about how long the others take."""
    (folder / "deep.py").write_text(DEEP)
    terminal = Terminal(sys.executable, "-c", IMPATIENT, folder=folder, columns=160)
    assert terminal.wait() == 0
    shown = re.findall(r"layers\.(\d+) \((\d+) of 6\) \d+ s, about (\d+) s left", terminal.text)
    assert shown
    assert all(int(number) == int(name) + 1 for name, number, _ in shown)
    assert all(int(left) <= 60 for _, _, left in shown)  # 0.1 s a layer on an idle machine


def test_messages_about_a_graph_name_it(monkeypatch):
    """The graph of a language model is named before what is done with it, and a share gives an estimate."""
    monkeypatch.setattr("torch_ir.cli.progress.is_watched", lambda: True)
    texts = []
    with progress("working"):
        for text, facts in (("graph 2 of 2, decode", {"graph": True}), ("step 1", {}), ("half", {"share": (1, 2)})):
            logging.getLogger("torch_ir.capture").info(text, extra=facts)
            texts.append((module._line.text, module._line.share))
    assert texts == [
        ("graph 2 of 2, decode", 0),
        ("graph 2 of 2, decode: step 1", 0),
        ("graph 2 of 2, decode: half", 0.5),
    ]


def test_nothing_is_touched_where_nobody_watches(capsys):
    """In a pipe there is neither thread nor stream of ours."""
    before = sys.stdout, sys.stderr
    with progress("working"):
        show_progress("still working")
        assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("", "")


def test_the_rest_is_estimated(monkeypatch):
    """From the share that is done and the elapsed time; without a share there is no estimate."""
    written = []
    line = _Line("working")
    line.end()
    monkeypatch.setattr(line, "_write", written.append)
    monkeypatch.setattr(line, "_start", time.monotonic() - 30)
    line._draw()
    line.text, line.share = "3 of 4 models", 3 / 4
    line._draw()
    assert [text.removeprefix(ERASE) for text in written] == ["working 30 s", "3 of 4 models 30 s, about 10 s left"]
