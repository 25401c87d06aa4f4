"""Chakra execution traces, read by an independent reader: work, dependencies, collectives, messages between stages."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.adversarial.nodes import op_node
from tests.adversarial.shapes import SHAPES
from tests.chakra_reader import COLLECTIVES, Node, read_trace
from tests.command_line import failure
from tests.cpu_time import at_most
from tests.graphs import mlp, tensor
from tests.proof import captured, module
from torch_ir import IR, GraphError, OpNode
from torch_ir.analysis import Roofline
from torch_ir.cli.dispatch import main
from torch_ir.errors import CommandError, SerializationError
from torch_ir.pipeline import split
from torch_ir.sharding import shard
from torch_ir.simulators import to_chakra, write_ranks
from torch_ir.simulators.chakra_file import trace_bytes
from torch_ir.simulators.trace_nodes import TraceNode

PLAN = {"a": "colwise", "b": "rowwise"}


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x).relu()) + x


def layers(count: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(*(Layer() for _ in range(count))).eval()


def sharded(ranks: int = 2) -> IR:
    plan = {f"{at}.{name}": style for at in range(4) for name, style in PLAN.items()}
    return shard(captured(layers(), torch.randn(3, 8)), plan, {"tp": ranks})


def traced(ir: IR, folder: Path, **options: object) -> list[Node]:
    to_chakra(ir, folder, **options)  # type: ignore[arg-type]  # options of one test each
    version, nodes = read_trace(folder / "stage0.et")
    assert version == "0.0.4"
    assert [node.id for node in nodes] == list(range(len(nodes)))
    assert all(dep < node.id for node in nodes for dep in node.data_deps)
    return nodes


def test_nodes_work_and_dependencies(tmp_path: Path) -> None:
    """The view is left out: what reads it waits for what it shows."""
    ir = captured(module(lambda self, x: x.relu().reshape(8, 3).t() @ x.exp().reshape(8, 3)), torch.randn(4, 6))
    nodes = traced(ir, tmp_path, device=Roofline(1e6, 1e9))
    assert [(node.name, node.type, node.data_deps) for node in nodes] == [
        ("relu", "COMP", []), ("exp", "COMP", []), ("matmul", "COMP", [0, 1]),
    ]  # fmt: skip
    product = 2 * 3 * 8 * 3
    assert nodes[2].attrs["num_ops"] == product
    assert nodes[2].attrs["tensor_size"] == 4 * (24 + 24 + 9)
    assert nodes[2].attrs["is_cpu_op"] == 0
    assert [node.duration for node in nodes] == [1, 1, product]


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    model, x = layers(), torch.randn(3, 8)
    with FlopCounterMode(display=False) as counter:
        model(x)
    nodes = traced(captured(model, x), tmp_path)
    assert sum(int(node.attrs["num_ops"]) for node in nodes) == counter.get_total_flops()


def test_collectives_of_a_sharded_graph(tmp_path: Path) -> None:
    nodes = traced(sharded(), tmp_path)
    found = [node for node in nodes if node.type == "COLL"]
    assert {(COLLECTIVES[int(node.attrs["comm_type"])], node.attrs["comm_size"]) for node in found} == {
        ("ALL_REDUCE", 3 * 8 * 4)
    }
    assert len(found) == 4
    assert {node.attrs["pg_name"] for node in found} == {"tp"}
    assert all(nodes[dep].attrs["op_type"] == "aten.linear.default" for node in found for dep in node.data_deps)


def finished(traces: dict[int, list[Node]], groups: dict[str, list[int]]) -> bool:
    """Run all ranks: a collective starts when its group has arrived, a receive when its message was sent."""
    done: dict[int, set[int]] = {rank: set() for rank in traces}
    sent: Counter[tuple[object, ...]] = Counter()
    arrived: dict[tuple[str, int], set[int]] = {}
    rounds: Counter[tuple[int, str]] = Counter()
    waiting: dict[int, tuple[str, int]] = {}
    moved = True
    while moved:
        moved = False
        for rank, nodes in traces.items():
            node = next((each for each in nodes if each.id not in done[rank]), None)
            if node is None or not done[rank].issuperset(node.data_deps):
                continue
            ends = (
                node.attrs.get("comm_src"),
                node.attrs.get("comm_dst"),
                node.attrs.get("comm_tag", 0),
                node.attrs.get("comm_size"),
            )
            if node.type == "SEND":
                assert ends[0] == rank
                sent[ends] += 1
            elif node.type == "RECV":
                assert ends[1] == rank
                if not sent[ends]:
                    continue
                sent[ends] -= 1
            elif node.type == "COLL":
                group = str(node.attrs["pg_name"])
                assert rank in groups[group]
                if rank not in waiting:
                    waiting[rank] = group, rounds[rank, group]
                    rounds[rank, group] += 1
                    arrived.setdefault(waiting[rank], set()).add(rank)
                    moved = True
                if arrived[waiting[rank]] != set(groups[group]):
                    continue
                del waiting[rank]
            done[rank].add(node.id)
            moved = True
    return all(len(done[rank]) == len(nodes) for rank, nodes in traces.items()) and not any(sent.values())


def test_all_ranks_of_a_pipeline_run_to_the_end(tmp_path: Path) -> None:
    """Two replicas of two stages of two ranks each."""
    index = to_chakra(split(sharded(), 2), tmp_path, replicas=2)
    assert (index["ranks"], index["stages"], index["mesh"]) == (8, 2, {"tp": 2})
    groups = write_ranks(tmp_path, range(8), tmp_path / "ranks")
    assert sorted(groups.values()) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert json.loads((tmp_path / "ranks" / "comm_group.json").read_text()) == groups
    traces = {rank: read_trace(tmp_path / "ranks" / f"workload.{rank}.et")[1] for rank in range(8)}
    assert [Counter(node.type for node in traces[rank])["SEND"] for rank in range(8)] == [1, 1, 0, 0] * 2
    assert finished(traces, groups)
    del traces[7]
    assert not finished(traces, groups)


def test_many_ranks_share_files(tmp_path: Path) -> None:
    begin = time.perf_counter()
    index = to_chakra(split(sharded(), 2), tmp_path, replicas=8192)
    write_ranks(tmp_path, [32767], tmp_path)
    assert time.perf_counter() - begin < 60
    assert index["ranks"] == 32768
    assert sorted(path.name for path in tmp_path.glob("*.et")) == ["stage0.et", "stage1.et", "workload.32767.et"]
    received = [node for node in read_trace(tmp_path / "workload.32767.et")[1] if node.type == "RECV"]
    assert [(node.attrs["comm_src"], node.attrs["comm_dst"]) for node in received] == [(32765, 32767)]


def test_open_sizes_are_named(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("rows")},)
    ir = captured(layers(1), torch.randn(4, 8), dynamic_shapes=shapes)
    with pytest.raises(GraphError, match="depends on rows; a trace needs numbers"):
        to_chakra(ir, tmp_path)
    assert not list(tmp_path.iterdir())
    assert to_chakra(ir, tmp_path, sizes={"rows": 2})["ranks"] == 1


def test_wrong_folders_and_ranks_are_refused(tmp_path: Path) -> None:
    to_chakra(sharded(), tmp_path)
    with pytest.raises(CommandError, match="unknown rank 2; the traces are of 2 ranks"):
        write_ranks(tmp_path, [2], tmp_path)
    with pytest.raises(CommandError, match="replicas must be at least 1"):
        to_chakra(sharded(), tmp_path, replicas=0)
    trace = tmp_path / "stage0.et"
    trace.write_bytes(trace.read_bytes()[:-1])
    with pytest.raises(SerializationError, match="the trace is cut off"):
        write_ranks(tmp_path, [0], tmp_path)
    index = tmp_path / "index.json"
    index.write_text(index.read_text().replace('"tp": 2', '"tp": 0'))
    with pytest.raises(SerializationError, match="do not fit together"):
        write_ranks(tmp_path, [0], tmp_path)
    index.write_text("{}")
    with pytest.raises(SerializationError, match="format is None"):
        write_ranks(tmp_path, [0], tmp_path)


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    split(sharded(), 2).save("pipeline.json")
    words = ["convert", "pipeline.json", "--to", "chakra", "-o", "traces", "--device", "peak=1T,bw=1T"]
    assert main([*words, "--replicas", "4", "--ranks", "0-2,15"]) == 0
    assert capsys.readouterr().out.startswith("traces: 16 ranks in 2 files, ")
    found = {path.name for path in (tmp_path / "traces" / "ranks").glob("*.et")}
    assert found == {f"workload.{rank}.et" for rank in (0, 1, 2, 15)}
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 4
    assert "--replicas is for --to chakra" in failure(
        capsys, "convert", "pipeline.json", "-o", "x.pb", "--replicas", "2"
    )
    assert "is a file; --to chakra writes a folder" in failure(
        capsys, "convert", "pipeline.json", "--to", "chakra", "-o", "pipeline.json"
    )
    assert "is not a list of ranks" in failure(capsys, *words, "--ranks", "x")


def test_numbers_that_a_trace_cannot_hold_are_refused(tmp_path: Path) -> None:
    """Work beyond 64 bits, times on a device that takes for ever, and ranks beyond 32 bits."""
    a, b, y = tensor("a", 1 << 28, 1 << 28), tensor("b", 1 << 28, 1 << 28), tensor("y", 1 << 28, 1 << 28)
    product = IR([OpNode("y", "aten.mm.default", [a, b], [y], args=["self", "mat2"])], [a, b], [y])
    with pytest.raises(GraphError, match=r"the work of 'y' is \d+, more than the 2\*\*63 - 1 of a trace"):
        to_chakra(product, tmp_path / "traces")
    with pytest.raises(GraphError, match=r"more than the 2\*\*63 - 1 of a trace"):
        to_chakra(mlp(), tmp_path / "traces", device=Roofline(1e-30, 1e-30))
    with pytest.raises(CommandError, match="4294967296 ranks, more than the 2147483647 of Chakra"):
        to_chakra(mlp(), tmp_path / "traces", replicas=1 << 32)
    assert not (tmp_path / "traces").exists()


def test_a_node_that_waits_for_very_many_is_in_the_trace(tmp_path: Path) -> None:
    """Else each of n views would list up to n nodes; the last operator still waits for all, one after the other."""
    ir = SHAPES["empty joins"](6000)
    last = op_node("last", "sum.default", [ir.nodes[-1].output], (), dtype=None)
    ir = IR([*ir.nodes, last], ir.graph_inputs, [last.output])
    to_chakra(ir, tmp_path / "traces")
    nodes = read_trace(tmp_path / "traces" / "stage0.et")[1]
    waits = {node.id: set(node.data_deps) for node in nodes}
    assert max(map(len, waits.values())) <= 1002
    reached, left = set[int](), [nodes[-1].id]
    while left:
        new = waits[left.pop()] - reached
        reached |= new
        left += new
    assert {node.name for node in nodes if node.id in reached} >= {f"y{number}" for number in range(2000)}


def test_a_group_is_listed_once(tmp_path: Path) -> None:
    """A trace of 3,000 collectives among a million ranks."""
    nodes = [TraceNode("sum", "COMM_COLL_NODE", (), {"comm_type": 0, "comm_size": 8, "pg_name": "tp"}, 0)] * 3000
    (tmp_path / "stage0.et").write_bytes(trace_bytes(nodes))
    index = {"format": "torch-ir-chakra", "ranks": 1 << 20, "stages": 1, "mesh": {"tp": 1 << 20}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with at_most(20):
        assert [len(ranks) for ranks in write_ranks(tmp_path, [0], tmp_path / "ranks").values()] == [1 << 20]
