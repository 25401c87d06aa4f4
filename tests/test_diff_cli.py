"""`torch-ir diff`: text, Markdown and JSON output, costs, and exit status."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.graphs import mlp, weight
from tests.test_blocks import pair
from torch_ir import IR, OpNode, TensorMeta
from torch_ir.analysis.cost_model.budget import Budget
from torch_ir.analysis.cost_model.delta import cost_delta, cost_deltas
from torch_ir.analysis.graph_diff.differ import IGNORABLE
from torch_ir.analysis.graph_diff.node_diff import STATUSES
from torch_ir.cli.dispatch import main
from torch_ir.cli.verbs import diff as verb
from torch_ir.errors import CommandError, GraphError
from torch_ir.formats import save_protobuf
from torch_ir.ir import Symbol

Tell = Callable[..., tuple[int, str]]


@pytest.fixture
def tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Compare two graph files; return the status and the output."""

    def told(one: IR, other: IR, *options: str) -> tuple[int, str]:
        for name, ir in (("one.json", one), ("other.json", other)):
            ir.save(tmp_path / name)
        status = main(["diff", str(tmp_path / "one.json"), str(tmp_path / "other.json"), *options])
        return status, capsys.readouterr().out

    return told


def changed() -> IR:
    ir = pair()
    ir.nodes[3].attrs["alpha"] = 2
    return ir


def wider(size: int = 16) -> IR:
    """The model of the documentation with another hidden layer."""
    ir = mlp()
    for tensor in (ir.nodes[0].output, ir.nodes[1].output):
        tensor.shape = (1, size)
    for param, shape in zip(ir.params, ((size, 4), (size,), (2, size), (2,)), strict=True):
        param.shape = shape
    return ir.check()


def test_for_people(tell: Tell) -> None:
    """A summary, the differing nodes by module, and the difference in cost."""
    status, out = tell(mlp(), wider())
    assert status == 3
    assert (
        out
        == """\
2 changed, 1 same

@@ signature @@
~ weight 'fc1.weight': float32[8, 4] / float32[16, 4]
~ weight 'fc1.bias': float32[8] / float32[16]
~ weight 'fc2.weight': float32[2, 8] / float32[2, 16]

@@ fc1 @@
~ linear, aten.linear.default: returns float32[1, 8] / float32[1, 16]

@@ relu @@
~ relu, aten.relu.default: returns float32[1, 8] / float32[1, 16]

                     before  after   change
nodes per run             3      3
nodes computed once       0      0
MACs                     48     96  +100.0%
FLOPs                    96    192  +100.0%
bytes moved           384 B  736 B   +91.7%
peak memory            64 B  128 B  +100.0%
parameters read          58    114   +96.6%
weights               232 B  456 B   +96.6%

op                   nodes      FLOPs   change       bytes   change
aten.linear.default      2  96 -> 192  +100.0%  320 -> 608   +90.0%
aten.relu.default        1          0            64 -> 128  +100.0%
"""
    )


def test_equal_files(tell: Tell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Function form, flat form and protobuf of one graph are equal; names are compared only on request."""
    assert tell(pair(), pair().fold_blocks(), "--origins") == (0, "the graphs are equal\n")
    save_protobuf(pair(), tmp_path / "one.pb")
    pair().save(tmp_path / "one.json")
    assert main(["diff", str(tmp_path / "one.json"), str(tmp_path / "one.pb"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_equal"]
    other = pair()
    other.nodes[0].name = "first"
    assert tell(pair(), other) == (0, "the graphs are equal\n")
    assert tell(pair(), other, "--names")[1].splitlines() == [
        "the graphs are equal",
        "1 renamed, 3 same",
        "",
        "@@ layers.0 @@",
        "= mul_0 -> first, aten.mul.Tensor",
    ]


def test_only_some_nodes(tell: Tell) -> None:
    other = changed()
    other.nodes[0].op_type = "aten.div.Tensor"
    _, out = tell(pair(), other, "--only", "added,changed")
    assert [line for line in out.splitlines() if line.startswith(("+", "-", "~", "@"))] == [
        "@@ layers.0 @@",
        "+ mul_0: float32[2, 3] = aten.div.Tensor(self=x, other=w0)",
        "@@ layers.1 @@",
        "~ add_1, aten.add.Tensor: alpha 1 / 2",
    ]


def test_json(tell: Tell) -> None:
    """Everything: every node, costs, and exceeded budgets."""
    status, out = tell(pair(), changed(), "--json")
    assert status == 3
    record = json.loads(out)
    assert record["differences"] == ["node 3, aten.add.Tensor: alpha 1 / 2"]
    assert record["summary"] == {"added": 0, "removed": 0, "changed": 1, "renamed": 0, "same": 3}
    assert record["nodes"][3] == {
        "status": "changed",
        "first": "add_1",
        "second": "add_1",
        "op_type": "aten.add.Tensor",
        "module": "layers.1",
        "details": ["alpha 1 / 2"],
    }
    (costs,) = record["costs"]
    assert costs["before"]["nodes"] == costs["after"]["nodes"] == 4
    assert (costs["entry_point"], costs["rows"], record["over_budget"]) == ("", [], [])


def test_markdown(tell: Tell) -> None:
    """Tables, and a collapsed, coloured block of nodes, in which `!` marks a change."""
    status, out = tell(mlp(), wider(), "--markdown", "--exit-zero", "--fail-on", "flops+5%")
    assert status == 0
    assert out.startswith("**Over budget**: FLOPs grew from 96 to 192, +100.0%; the budget is flops+5%\n\n**The graphs")
    assert "\n| FLOPs | 96 | 192 | +100.0% |\n" in out
    assert "~~~~diff\n2 changed, 1 same\n" in out
    assert "\n! linear, aten.linear.default: returns" in out
    assert tell(mlp(), mlp(), "--markdown")[1] == "**The graphs are equal**: 3 same\n"


def test_a_comment_is_not_too_long(tell: Tell) -> None:
    """A pull request comment has a maximum length, and the last line says how much is omitted."""
    long = pair()
    long.params += [weight(f"spare_{number}_{'x' * 60}", 3) for number in range(1000)]
    _, out = tell(pair(), long, "--markdown")
    assert len(out) < 60_000
    assert "lines more\n" in out


@pytest.mark.parametrize(
    ("budget", "status"),
    [
        ("flops+100%", 0),
        ("flops+99%", 3),
        ("flops+96", 0),
        ("flops+95", 3),
        ("nodes+0", 0),
        ("nodes", 0),
        ("flops", 3),
        ("bytes+1kB", 0),
        ("peak + 0.5 %", 3),
        ("nodes+0,params+1", 3),
    ],
)
def test_budgets(tell: Tell, budget: str, status: int) -> None:
    """With a budget, only exceeding it is a failure."""
    assert tell(mlp(), wider(), "--fail-on", budget)[0] == status
    assert tell(wider(), mlp(), "--fail-on", budget)[0] == 0


@pytest.mark.parametrize("text", ["flop+5%", "flops-5%", "", "flops+5%%", "5%", "flops>5%"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(CommandError, match="invalid budget"):
        Budget.parse(text)


def test_status(tell: Tell) -> None:
    assert tell(pair(), changed())[0] == 3
    assert tell(pair(), changed(), "--exit-zero")[0] == 0
    assert tell(pair(), changed(), "--fail-on", "nodes+0")[0] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--only", "add"], "changed, renamed, same; did you mean 'added'?"),
        (["--ignore", "names"], "--ignore: unknown word 'names'; expected order, weights"),
        (["--top", "0"], "--top must be at least 1"),
        (["--fail-on", "flop"], "did you mean 'flops'?"),
        (["--set", "batch=8"], "unknown size 'batch'"),
    ],
)
def test_bad_options(options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair().save(tmp_path / "one.json")
    assert main(["diff", str(tmp_path / "one.json"), str(tmp_path / "one.json"), *options]) == 1
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair().save(tmp_path / "one.json")
    assert main(["diff", str(tmp_path / "one.json"), str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_colours_are_for_terminals(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\033" not in tell(pair(), changed())[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\033[33m~ add_1" in tell(pair(), changed())[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in tell(pair(), changed())[1]


def open_batch(hidden: int) -> IR:
    """A linear layer over a batch of any size."""
    x, w = TensorMeta("x", ("batch", 4), "float32"), weight("w", hidden, 4)
    out = TensorMeta("out", ("batch", hidden), "float32")
    node = OpNode("out", "aten.linear.default", [x, w], [out], {"bias": None}, args=["input", "weight"])
    return IR([node], [x], [out], params=[w], symbols=[Symbol("batch", 1, None, x, 0)]).check()


def _spaced(text: str) -> str:
    return " ".join(text.split())


def test_open_sizes(tell: Tell) -> None:
    """Amounts are expressions, and numbers once the size is known."""
    _, out = tell(open_batch(8), open_batch(16))
    assert "FLOPs 64*batch 128*batch +100.0%" in _spaced(out)
    assert "open sizes: batch; changes assume 1024 for each" in out
    _, out = tell(open_batch(8), open_batch(16), "--set", "batch=2")
    assert "FLOPs 128 256 +100.0%" in _spaced(out)
    with pytest.raises(GraphError, match="unknown size 'bath'; did you mean 'batch'"):
        cost_delta(open_batch(8), open_batch(8), sizes={"bath": 1})


def entry(decode: IR) -> IR:
    """A file with two entry points."""
    ir = pair()
    ir.functions["decode"] = decode
    return ir


def test_every_entry_point(tell: Tell) -> None:
    """Functions without callers are separate graphs: each is compared, with its own costs and budgets."""
    status, out = tell(entry(mlp()), entry(wider()), "--fail-on", "flops+0")
    assert status == 3
    assert "4 same\n\nfunction decode: 2 changed, 1 same" in out
    assert "\ndecode:\n" in out
    assert out.endswith("over budget: decode: FLOPs grew from 96 to 192, +100.0%; the budget is flops+0\n")
    assert [*cost_deltas(entry(mlp()), entry(wider()))] == ["", "decode"]
    sized = cost_deltas(entry(open_batch(8)), entry(open_batch(16)), sizes={"batch": 2})
    assert sized["decode"].after.flops == 256  # the other entry point has no such size


def test_costs_by_module() -> None:
    """The largest change comes first; unchanged modules are omitted."""
    delta = cost_delta(mlp(), wider(), by="module")
    assert [row.name for row in delta.rows] == ["fc1", "fc2", "relu"]
    with pytest.raises(GraphError, match="unknown grouping 'layer'; expected one of op, module"):
        cost_delta(mlp(), mlp(), by="layer")


@pytest.mark.parametrize(("mine", "its"), [(verb._STATUSES, STATUSES), (verb._IGNORABLE, IGNORABLE)])
def test_the_words_of_the_command_line(mine: Any, its: Any) -> None:
    """They are repeated there, so that help needs no import."""
    assert mine == its
