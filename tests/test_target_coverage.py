"""Coverage of a target: supported nodes, gaps and their reasons, islands, and useful decompositions."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import catalogue
import torch_ir
from tests.graphs import chain, mlp, tensor, weight
from tests.proof import captured, module, to_meta
from torch_ir import IR, Contract, GraphError, OpNode, SerializationError, Target, cost, coverage
from torch_ir.analysis.dependencies.partition import islands
from torch_ir.cli.dispatch import main
from torch_ir.ir.regroup.functions import outline
from torch_ir.targets.coverage_text import WIDTH, percent

ROOT = Path(__file__).resolve().parents[1]
NPU = ROOT / "examples" / "npu.toml"
LINEAR = Contract("npu", ["aten.linear"])
F = nn.functional


# -- what is supported ------------------------------------------------------------------------------------------------


def test_nodes_over_weights_are_counted_apart() -> None:
    """The host computes them once; they are neither gaps nor a boundary of an island."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3), nn.ReLU()).eval()
        ir = torch_ir.optimize(torch_ir.extract_ir(model, (torch.empty(1, 3, 8, 8),)), "basic")[0]
    report = coverage(ir, Contract("npu", ["aten.conv2d"]))
    assert ([gap.op_type for gap in report.gaps], report.node_count) == (["aten.relu.default"], 2)
    assert report.computed_once == report.to_dict()["computed_once"] == len(ir.nodes) - 2
    (island,) = report.islands
    assert island.bytes_in == 4 * 3 * 8 * 8
    assert f"\n{report.computed_once} more nodes over weights alone: computed once, on the host\n" in str(report)


def test_a_gap_says_what_where_why_and_how_much() -> None:
    ir = mlp()
    report = coverage(ir, LINEAR)
    (gap,) = report.gaps
    assert (gap.op_type, gap.why, gap.count) == ("aten.relu.default", "not in the contract", 1)
    assert (gap.shapes, gap.modules) == (("1x8 -> 1x8",), ("relu",))
    assert (report.node_count, report.supported_count) == (3, 2)
    assert report.share("flops") == 1
    assert report.share("nodes") == 2 / 3
    total = cost(ir).bytes
    assert isinstance(total, int)
    assert report.share("bytes") == 1 - 64 / total
    assert not report.is_complete


def test_everything_supported() -> None:
    report = coverage(mlp(), Contract("npu", ["aten.*"]))
    assert report.is_complete
    assert [report.share(by) for by in ("nodes", "flops", "bytes")] == [1, 1, 1]
    assert str(report).startswith("npu runs 3 of 3 nodes of SimpleMLP (100.0 %), 100.0 % of FLOPs, 100.0 % of bytes\n")
    assert len(report.islands) == 1


def test_one_operator_is_listed_once_for_each_reason() -> None:
    """With the dearest first."""
    ir = captured(module(lambda self, x: self.a(self.b(x)), a=nn.Linear(6, 7), b=nn.Linear(4, 6)), torch.randn(2, 4))
    report = coverage(ir, Contract("npu", [{"op": "aten.linear", "require": ["output.shape[-1] % 8 == 0"]}]))
    assert [gap.why for gap in report.gaps] == [
        f"needs output.shape[-1] % 8 == 0, but output.shape[-1] = {size}" for size in (7, 6)
    ]
    assert [gap.work.flops for gap in report.gaps] == [2 * 2 * 6 * 7, 2 * 2 * 4 * 6]


def test_assertions_are_not_judged() -> None:
    x, y = tensor("x", 2), tensor("relu", 2)
    nodes = [
        OpNode("a", "aten._assert_async.default", [x], [], args=["self"]),
        OpNode("relu", "aten.relu.default", [x], [y], args=["self"]),
        OpNode("b", "aten._assert_async.default", [y], [], args=["self"]),
    ]
    report = coverage(IR(nodes, [x], []), Contract("npu", ["aten.relu"]))
    assert (report.node_count, report.is_complete) == (1, True)
    assert report.border_bytes == (8, 0)


def test_a_misspelt_operator_is_an_error_when_something_is_missing() -> None:
    with pytest.raises(SerializationError, match=r"ops\[1\].op: torch has no operator 'aten.rellu'; did you mean"):
        coverage(mlp(), Contract("npu", ["aten.linear", "aten.rellu"]))


def test_where_there_are_no_flops_nothing_of_them_is_missing() -> None:
    report = coverage(chain("aten.neg.default", "aten.abs.default"), Contract("npu", ["aten.neg"]), decompose=False)
    assert (report.share("flops"), report.share("bytes")) == (1, 0.5)
    assert report.to_dict()["unsupported"][0]["flops"] == {"total": 0, "share": 0}


def test_an_unknown_measure() -> None:
    with pytest.raises(GraphError, match="unknown measure 'flop'; expected one of nodes, flops, bytes"):
        coverage(mlp(), LINEAR).share("flop")


# -- sizes that are open ----------------------------------------------------------------------------------------------


def test_open_sizes_are_named_where_a_share_needs_them() -> None:
    ir = captured(
        module(lambda self, x: self.a(x).relu() + x.shape[0], a=nn.Linear(4, 8)),
        torch.randn(6, 4),
        dynamic_shapes=({0: Dim("batch")},),
    )
    report = coverage(ir, LINEAR)
    assert report.share("nodes") < 1
    hint = "batch: set them with --dim batch=8, or in Python with sizes={'batch': 8}"
    with pytest.raises(GraphError, match=f"the share of bytes depends on {hint}"):
        report.share("bytes")
    assert report.to_dict()["bytes"]["share"] is None
    assert f"shares depend on {hint}\n" in str(report)
    assert coverage(ir, LINEAR, sizes={"batch": 4}).share("flops") == 1


@pytest.mark.parametrize(("low", "high", "size"), [(2, 6, 6), (2, 64, 8), (16, 64, 16)])
def test_the_size_that_is_named_can_be_given(low: int, high: int, size: int) -> None:
    """It is within the range of the size, so the suggestion works."""
    x = torch.randn(high - 1, 4)
    ir = captured(module(lambda self, x: x.relu()), x, dynamic_shapes=({0: Dim("batch", min=low, max=high)},))
    assert f"--dim batch={size}, or in Python" in str(coverage(ir, LINEAR))
    assert coverage(ir, LINEAR, sizes={"batch": size}).share("bytes") == 0


def test_a_target_of_fixed_sizes_is_judged_at_the_sizes_given() -> None:
    ir = captured(module(lambda self, x: x.relu()), torch.randn(6, 4), dynamic_shapes=({0: Dim("batch")},))
    contract = Contract("npu", ["aten.relu"], static=True)
    assert [gap.why for gap in coverage(ir, contract).gaps] == ["self has symbolic sizes: batch"]
    assert coverage(ir, contract, sizes={"batch": 2}).is_complete


# -- functions --------------------------------------------------------------------------------------------------------


def test_a_call_counts_whole_where_the_target_names_it() -> None:
    """Else the nodes inside count."""
    ir = mlp()
    outline(ir, ir.nodes[:2], "front", "mylib.LinearRelu")
    whole = coverage(ir, Contract("npu", ["aten.linear", "mylib.LinearRelu"]))
    assert (whole.node_count, whole.is_complete, whole.share("flops")) == (2, True, 1)
    inside = coverage(ir, LINEAR)
    assert (inside.node_count, [gap.op_type for gap in inside.gaps]) == (3, ["aten.relu.default"])
    assert len(ir.nodes) == 2  # the graph itself is as it was
    assert whole.work == inside.work


def test_a_call_that_breaks_a_limit_may_still_be_taken_apart() -> None:
    """Into the nodes of its body."""
    ir = captured(module(lambda self, x: self.a(x), a=nn.Conv2d(4, 8, 3, stride=2)), torch.randn(1, 4, 9, 9))
    layers = ir.at_level("module")
    rows = [{"op": "torch.nn.Conv2d", "attrs": {"stride": 1}}, "aten.conv2d"]
    report = coverage(layers, Contract("npu", rows))
    assert [(gap.op_type, gap.why) for gap in report.gaps] == [("torch.nn.Conv2d", "stride is [2, 2], not 1")]
    assert [found.into for found in report.decompositions or ()] == [("aten.conv2d.default",)]
    assert coverage(layers, Contract("npu", ["torch.nn.Conv2d"])).is_complete


def conditional() -> IR:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.cond(y.sum() > 0, lambda y: self.a(y), lambda y: self.a(y).tanh(), (y,)) * 3

    return captured(module(forward, a=nn.Linear(4, 4)), torch.randn(2, 4))


def test_bodies_of_control_flow_are_judged() -> None:
    """A node that runs them is supported if all of them are; islands inside count where it is not."""
    plain = ["aten.mul", "aten.sum", "aten.gt", "aten.linear"]
    full = coverage(conditional(), Contract("npu", [*plain, "aten.tanh", "higher_order.cond"]))
    assert full.is_complete
    assert len(full.islands) == 1
    part = coverage(conditional(), Contract("npu", [*plain, "higher_order.cond"]))
    assert {gap.op_type: gap.why for gap in part.gaps} == {
        "aten.tanh.default": "not in the contract",
        "higher_order.cond": "its body has unsupported operators",
    }
    assert [piece.function for piece in part.islands] == ["", "", "true_graph_0", "false_graph_0"]
    assert part.islands[2].bytes_in == 2 * 4 * 4  # the weight of the body stays on the device
    assert part.work.flops == 2 * (2 * 2 * 4 * 4)  # both branches


# -- islands ----------------------------------------------------------------------------------------------------------


def spans(ir: IR, *outside: str) -> list[str]:
    found = islands(ir, {node for node in ir.nodes if node.op_type not in outside})
    return [" ".join(node.name for node in island.nodes) for island in found]


def test_an_unsupported_node_cuts_a_chain() -> None:
    ir = chain("aten.neg.default", "aten.abs.default", "aten.sin.default", "aten.relu.default", "aten.exp.default")
    assert spans(ir) == ["neg abs sin relu exp"]
    assert spans(ir, "aten.sin.default") == ["neg abs", "relu exp"]
    found = islands(ir, {node for node in ir.nodes if node.name != "sin"})
    assert [(island.bytes_in, island.bytes_out) for island in found] == [(24, 24), (24, 24)]


def diamond(*names: str) -> IR:
    """a, then b and c from it, then d from both."""
    x, a, b, c, d = (tensor(name, 2) for name in ("x", *names))
    return IR(
        [
            OpNode(names[0], "aten.neg.default", [x], [a], args=["self"]),
            OpNode(names[1], "aten.abs.default", [a], [b], args=["self"]),
            OpNode(names[2], "aten.sin.default", [a], [c], args=["self"]),
            OpNode(names[3], "aten.add.Tensor", [b, c], [d], {"alpha": 1}, args=["self", "other"]),
        ],
        [x],
        [d],
    )


def test_an_island_is_convex() -> None:
    """No value of an island may return to it through a node outside: here `a b` and `d`, not `a b d`."""
    assert spans(diamond("a", "b", "c", "d")) == ["a b c d"]
    assert spans(diamond("a", "b", "c", "d"), "aten.sin.default") == ["a b", "d"]


def test_a_detour_that_starts_elsewhere_does_not_cut() -> None:
    """`c` is unsupported but reads nothing of the island: `a b d` runs in one piece after it."""
    assert spans(diamond("a", "b", "c", "d"), "aten.neg.default", "aten.sin.default") == ["b d"]


def test_weights_do_not_cross_and_a_tensor_crosses_once() -> None:
    x, w, y, z = tensor("x", 4, 4), weight("w", 4, 4), tensor("y", 4, 4), tensor("z", 4, 4)
    nodes = [
        OpNode("y", "aten.mm.default", [x, w], [y], args=["self", "mat2"]),
        OpNode("z", "aten.add.Tensor", [y, x], [z], {"alpha": 1}, args=["self", "other"]),
    ]
    ir = IR(nodes, [x], [y, z], params=[w])
    (island,) = islands(ir, set(ir.nodes))
    assert (island.bytes_in, island.bytes_out) == (64, 128)


@pytest.mark.parametrize("seed", range(40))
def test_islands_of_random_graphs(seed: int) -> None:
    """Every chosen node is in one island; islands are connected and convex, run in some order, and cannot be joined."""
    generator = random.Random(seed)
    made = [tensor("x", 2)]
    nodes = []
    for index in range(generator.randint(1, 30)):
        read = [generator.choice(made[-generator.choice((2, 5, 30)) :]) for _ in range(2)]
        made.append(tensor(f"t{index}", 2))
        nodes.append(OpNode(f"n{index}", "aten.add.Tensor", read, [made[-1]], args=["self", "other"]))
    ir = IR(nodes, made[:1], made[-1:])
    share = generator.choice((0.3, 0.6, 0.9))
    chosen = {node for node in nodes if generator.random() < share}
    found = islands(ir, chosen)
    place = {node: index for index, island in enumerate(found) for node in island.nodes}
    assert place.keys() == chosen
    assert sum(len(island.nodes) for island in found) == len(chosen)
    piece = {node: f"island {place[node]}" if node in place else node.name for node in nodes}
    edges = {name: set[str]() for name in piece.values()}
    for node in nodes:
        for producer in (read.producer for read in node.inputs if read.producer is not None):
            edges[piece[producer]] |= {piece[node]} - {piece[producer]}
    later = {name: _reached(edges, name) for name in edges}
    assert all(name not in reached for name, reached in later.items())  # so each is convex
    for name, readers in edges.items():
        for reader in readers:
            if name.startswith("island") and reader.startswith("island"):
                assert any(reader in later[other] for other in readers - {reader}), (name, reader)
    for island in found:
        assert _is_connected(set(island.nodes))


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    reached, pending = set[str](), list(edges[start])
    while pending:
        if (name := pending.pop()) not in reached:
            reached.add(name)
            pending += edges[name]
    return reached


def _is_connected(nodes: set[OpNode]) -> bool:
    pending = [next(iter(nodes))]
    seen = set(pending)
    while pending:
        node = pending.pop()
        near = {read.producer for read in node.inputs} | {user for made in node.outputs for user in made.consumers}
        pending += (new := near & nodes - seen)  # type: ignore[arg-type]
        seen |= new  # type: ignore[arg-type]
    return seen == nodes


# -- decompositions ---------------------------------------------------------------------------------------------------


def test_decompositions_that_make_the_graph_legal() -> None:
    """As few steps as needed: `silu` falls into operators that are there, and no further."""
    ir = captured(module(lambda self, x: F.silu(self.a(x)), a=nn.Linear(4, 8)), torch.randn(2, 4))
    (found,) = coverage(ir, Contract("npu", ["aten.linear", "aten.sigmoid", "aten.mul"])).decompositions or ()
    assert (found.op_type, found.is_legal) == ("aten.silu.default", True)
    assert found.into == ("aten.sigmoid.default", "aten.mul.Tensor")


def test_decompositions_go_on_until_all_is_supported_or_nothing_helps() -> None:
    ir = captured(module(lambda self, x: x.softmax(-1).topk(1)[0]), torch.randn(2, 4))
    parts = ["aten.amax", "aten.sub", "aten.exp", "aten.div"]
    short = coverage(ir, Contract("npu", parts)).decompositions or ()
    assert {found.op_type: found.missing for found in short} == {
        "aten.softmax.int": {"aten.sum.dim_IntList": "not in the contract"},
        "aten.topk.default": {"aten.topk.default": "torch has no decomposition of it"},
    }
    enough = coverage(ir, Contract("npu", [*parts, "aten.sum.*"])).decompositions or ()
    assert [found.is_legal for found in enough if found.op_type == "aten.softmax.int"] == [True]
    assert coverage(ir, Contract("npu", parts), decompose=False).decompositions is None


def test_limits_hold_for_the_parts_too() -> None:
    ir = captured(module(lambda self, x: F.silu(x)), torch.randn(2, 4))
    rows = [{"op": "aten.sigmoid", "rank": 4}, "aten.mul"]
    (found,) = coverage(ir, Contract("npu", rows)).decompositions or ()
    assert found.missing == {"aten.sigmoid.default": "self has rank 2, not 4"}
    assert "aten.silu.default remains: it needs sigmoid.default (self has rank 2, not 4)" in str(
        coverage(ir, Contract("npu", rows))
    )


# -- a target with handlers -------------------------------------------------------------------------------------------


def test_a_target_with_handlers_is_measured_by_what_it_lowers() -> None:
    npu = Target("npu")
    npu.lowers("aten.linear")(lambda node: node.name)
    report = coverage(mlp(), npu)
    assert [(gap.op_type, gap.why) for gap in report.gaps] == [("aten.relu.default", "no lowering")]
    npu.lowers("aten.relu")(lambda node: node.name)
    assert coverage(mlp(), npu).is_complete


# -- the report -------------------------------------------------------------------------------------------------------


def test_the_report_fits_and_is_plain_json() -> None:
    for name in ("llama", "control_flow", "detection_head"):
        entry = catalogue.find(name)
        with torch_ir.meta_init():
            model = entry.build()
        ir = torch_ir.extract_ir(model, *to_meta((entry.inputs(),)), kwargs=to_meta(entry.kwargs()))
        report = coverage(ir, Contract.load(NPU))
        lines = str(report).splitlines()
        assert max(map(len, lines)) <= WIDTH
        record = json.loads(json.dumps(report.to_dict()))
        assert record["nodes"]["total"] == report.node_count
        assert sum(gap["count"] for gap in record["unsupported"]) == report.node_count - report.supported_count
        assert sum(len(piece["nodes"]) for piece in record["islands"]) == report.supported_count


def test_percents_are_rounded_down() -> None:
    """So that 100 % is all of it."""
    assert [percent(share) for share in (1.0, 0.9999, 0.5, 0.0, None)] == ["100.0 %", "99.9 %", "50.0 %", "0.0 %", "?"]


# -- the command ------------------------------------------------------------------------------------------------------


def saved(folder: Path) -> str:
    mlp().save(folder / "mlp.json")
    (folder / "npu.toml").write_text('ops = ["aten.linear"]')
    return str(folder / "mlp.json")


def test_the_command_prints_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = saved(tmp_path), str(tmp_path / "npu.toml")
    assert main(["coverage", file, "--target", target]) == 0
    assert capsys.readouterr().out == f"{coverage(mlp(), LINEAR)}\n"
    assert main(["coverage", file, "--target", target, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == coverage(mlp(), LINEAR).to_dict()


def test_too_little_coverage_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["coverage", saved(tmp_path), "--target", str(tmp_path / "npu.toml"), "--no-decompose"]
    assert main([*command, "--fail-under", "100", "--by", "flops"]) == 0
    capsys.readouterr()
    assert main([*command, "--fail-under", "67"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("npu runs 2 of 3 nodes")
    assert printed.err == "torch-ir: error: npu runs 66.6 % of nodes, less than 67 %\n"


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = saved(tmp_path), str(tmp_path / "npu.toml")
    assert main(["coverage", file, "--target", str(tmp_path / "none.toml")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["coverage", file, "--target", target, "--dim", "batch=4"]) == 1
    assert "unknown size 'batch'; open sizes: none" in capsys.readouterr().err
    assert main(["coverage", file, "--target", target, "--dim", "batch=1..4"]) == 1
    assert "the size 'batch' must be one number" in capsys.readouterr().err


@pytest.mark.parametrize(("ops", "options"), [('["aten.*"]', []), ('["aten.linear"]', ["--no-decompose"])])
def test_no_torch_where_nothing_is_taken_apart(tmp_path: Path, ops: str, options: list[str]) -> None:
    file = saved(tmp_path)
    (tmp_path / "npu.toml").write_text(f"ops = {ops}")
    command = ["coverage", file, "--target", str(tmp_path / "npu.toml"), *options]
    program = f"import sys; from torch_ir.cli.dispatch import main; main({command!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


def test_the_command_takes_a_target_as_python_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-t file.py:name`, with the same report as in Python."""
    code = tmp_path / "mynpu.py"
    code.write_text(
        'from torch_ir import Target\n\nnpu = Target("npu")\nnpu.lowers("aten.linear.default")(lambda node: {})\n'
    )
    file = tmp_path / "mlp.json"
    mlp().save(file)
    assert main(["coverage", str(file), "-t", f"{code}:npu", "--json"]) == 0
    npu = Target("npu")
    npu.lowers("aten.linear.default")(lambda node: {})
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(coverage(mlp(), npu).to_dict()))
    assert main(["coverage", str(file), "-t", f"{code}:Target"]) == 1
    assert "is not a Target" in capsys.readouterr().err
