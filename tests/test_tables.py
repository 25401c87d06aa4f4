"""Tables fit the terminal, and are complete everywhere else."""

import sys

import pytest
import torch
from torch import nn

import torch_ir
from tests.command_line import Terminal, command, start
from torch_ir.ir.text.text_table import aligned, cut

ROWS = [["name", "count", "share", "where"], ["encoder.layers.0", "12", "50.0 %", "a"], ["x", "1", "3.0 %", "b, c"]]


def test_columns_are_aligned():
    """Names to the left, numbers to the right, and no blanks at the end."""
    assert aligned(ROWS, left=(0, 3)) == [
        "name              count   share  where",
        "encoder.layers.0     12  50.0 %  a",
        "x                     1   3.0 %  b, c",
    ]


def test_the_least_columns_go_first():
    """Only as many as must, and a line above the table names them."""
    assert aligned(ROWS, left=(0, 3), width=38, least=(2, 1))[1] == "encoder.layers.0     12  50.0 %  a"
    note, _, first, *_ = aligned(ROWS, left=(0, 3), width=37, least=(2, 1))
    assert (note, first) == (f"(too narrow for: {ROWS[0][2]})", "encoder.layers.0     12  a")
    note, _, first, *_ = aligned(ROWS, left=(0, 3), width=29, least=(2, 1))
    assert (note, first) == (f"(too narrow for: {ROWS[0][1]}, {ROWS[0][2]})", "encoder.layers.0  a")


def test_the_long_column_is_cut_last():
    """A name loses its beginning, a sentence its end, and neither all of it."""
    assert aligned(ROWS, left=(0, 3), width=20, least=(2, 1))[2] == "…der.layers.0  a"
    assert aligned(ROWS, left=(0, 3), width=1, least=(2, 1))[2] == "…er.layers.0  a"
    assert cut("a sentence of some length", 12) == "a sentence …"
    assert cut("model.layers.*.mlp \N{MULTIPLICATION SIGN}80", 12) == "…s.*.mlp \N{MULTIPLICATION SIGN}80"
    assert cut("short", 12) == cut("short", None) == "short"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals on Windows")
def test_a_narrow_terminal_sees_what_matters_most(tmp_path):
    """The table of `cost` is as wide as the terminal at most; in a pipe nothing is left out."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))).eval()
    torch_ir.extract_ir(layers, (torch.ones(1, 4),), strict=False).save(tmp_path / "model.json")
    words = ["cost", str(tmp_path / "model.json"), "--device", "peak=312TFLOPs,bw=2.0TB/s"]
    narrow = Terminal(*start(), *words, columns=50)
    piped = command(*words).stdout
    assert narrow.wait() == 0
    tables = [text.split("\n\n")[1].splitlines() for text in (narrow.text, piped)]
    assert tables[0].pop(0) == "(too narrow for: share, share, FLOPs/byte, share)"
    assert tables[0][-2] == "-" * max(map(len, tables[0][:-2]))
    assert max(map(len, tables[0])) <= 50 < max(map(len, tables[1]))
    assert tables[0][0].split() == ["module", "FLOPs", "bytes", "params", "time", "bound"]
    assert tables[1][0].split()[:7] == ["module", "FLOPs", "share", "bytes", "share", "FLOPs/byte", "params"]
    assert len(tables[0]) == len(tables[1])
