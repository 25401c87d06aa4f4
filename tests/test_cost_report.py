"""The report on cost: rows that add up, parameters, caches, times on a device, and the command that prints it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.graphs import mlp
from tests.proof import captured, captured_entry, module
from torch_ir import IR, GraphError, cost
from torch_ir.analysis import Roofline, cost_report, kv_cache, liveness
from torch_ir.analysis.cost_model.node_costs import Work
from torch_ir.analysis.shapes.size_polynomials import total
from torch_ir.cli import main
from torch_ir.errors import DeviceError
from torch_ir.ir.text.amounts import duration, human


def of_catalogue(name: str) -> IR:
    return captured_entry(name)


def open_sizes() -> IR:
    model = module(lambda self, x: self.b(torch.relu(self.a(x))), a=nn.Linear(4, 8), b=nn.Linear(8, 3))
    return captured(model, torch.randn(6, 5, 4), dynamic_shapes=({0: Dim("batch", max=64), 1: Dim("seq")},))


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["module", "op", "node"])
def test_rows_add_up(by: str) -> None:
    """Work and time are shared out; parameters that several rows read count in each, and once in the total."""
    ir = of_catalogue("resnet18")
    device = Roofline(1e12, 1e10)
    report = cost_report(ir, by, device=device)
    assert total(row.work.flops for row in report.rows) == report.total.work.flops == cost(ir).flops
    assert total(row.work.bytes for row in report.rows) == report.total.work.bytes
    assert sum(row.count for row in report.rows) == len(ir.nodes)
    assert sum(row.seconds for row in report.rows) == pytest.approx(report.total.seconds)
    assert total(row.params for row in report.rows) == report.total.params == 11_689_512
    assert [row.seconds for row in report.rows] == sorted((row.seconds for row in report.rows), reverse=True)


def test_a_module_counts_for_all_below() -> None:
    report = cost_report(of_catalogue("resnet18"), depth=1)
    rows = {row.name: row for row in report.rows}
    assert {"conv1", "layer1", "fc"} < set(rows) <= {"", *(name for name in rows if "." not in name)}
    assert rows["fc"].params == 513_000
    (whole,) = cost_report(of_catalogue("resnet18"), depth=0).rows
    assert whole.work == report.total.work


def test_rows_after_the_first_become_one() -> None:
    ir = of_catalogue("resnet18")
    report = cost_report(ir, "op", top=2)
    assert [row.name for row in report.rows][:2] == [row.name for row in cost_report(ir, "op").rows][:2]
    assert report.rows[2].name.endswith(" more")
    assert total(row.work.bytes for row in report.rows) == report.total.work.bytes


def test_calls_count_as_what_is_inside() -> None:
    """But a row of a node is the whole call; parameters are found wherever a call hands them in."""
    ir = of_catalogue("gpt")
    folded = ir.fold_blocks()
    assert folded.functions
    for by in ("op", "module"):
        flat, other = ({row.name: row.to_dict() for row in cost_report(each, by).rows} for each in (ir, folded))
        assert flat == other
    nodes = cost_report(folded, "node").rows
    assert {row.name for row in nodes} <= {node.name for node in folded.nodes}
    assert max(row.count for row in nodes) > 1


def test_a_wrong_grouping() -> None:
    with pytest.raises(GraphError, match="unknown grouping 'layer'; expected one of module, op, node"):
        cost_report(mlp(), "layer")


# -- once and per run -------------------------------------------------------------------------------------------------


def test_what_depends_on_weights_alone_is_told_apart() -> None:
    """It costs once; its parameters belong to the consumers of the result."""
    model = module(
        lambda self, x: x @ (self.w @ self.v).t(), w=nn.Parameter(torch.randn(3, 5)), v=nn.Parameter(torch.randn(5, 4))
    )
    costs = cost(captured(model, torch.randn(2, 4)))
    assert costs.once.flops == 2 * 3 * 5 * 4
    assert costs.per_run.flops == 2 * 2 * 3 * 4
    assert total([costs.once.bytes, costs.per_run.bytes]) == costs.bytes
    report = cost_report(captured(model, torch.randn(2, 4)), "op")
    assert (report.once.work.flops, report.total.work.flops) == (120, 48)
    assert {row.name: row.params for row in report.rows} == {"aten.matmul.default": 35}


def test_sizes_do_not_change_what_is_computed_once() -> None:
    """With a number for the length, `arange` would depend on nothing; the graph that runs still computes it."""
    ir = captured(module(lambda self, x: x + torch.arange(x.shape[0])), torch.randn(6), dynamic_shapes=({0: Dim("n")},))
    assert not cost(ir).once.nodes
    assert not cost(ir, sizes={"n": 5}).once.nodes


# -- caches -----------------------------------------------------------------------------------------------------------


def test_a_growing_cache() -> None:
    """Recognised by the name of the input; the grown cache, by its producer."""
    cache = kv_cache(of_catalogue("decoder_kv_cache"))
    assert cache.bytes_given == 2 * 2 * 4 * 7 * 8 * 4
    assert cache.bytes_left == 2 * 2 * 4 * 8 * 8 * 4


def test_a_cache_in_buffers() -> None:
    cache = kv_cache(of_catalogue("static_cache"))
    assert {tensor.key for tensor in cache.given} == {"keys", "values"}
    assert cache.bytes_given == cache.bytes_left == 2 * 2 * 8 * 8 * 4


@pytest.mark.parametrize("name", ["resnet18", "buffer_mutation", "lstm", "embeddings"])
def test_what_is_no_cache(name: str) -> None:
    """Running statistics and counters have too few dimensions."""
    cache = kv_cache(of_catalogue(name))
    assert (cache.given, cache.left) == ((), ())


@pytest.mark.slow
def test_the_cache_of_a_language_model() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from torch_ir import meta_init
    from torch_ir.llm import cache_map, extract_llm

    with meta_init():
        config = LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)  # fmt: skip
        ir = extract_llm(LlamaForCausalLM(config).eval())
    decode = kv_cache(ir.functions["decode"])
    assert [tensor.name for tensor in decode.given] == [entry.decode_input for entry in cache_map(ir)]
    assert [tensor.name for tensor in decode.left] == [entry.decode_output for entry in cache_map(ir)]
    assert decode.bytes_given == "128*batch*past"
    assert decode.bytes_left == "128*batch*past + 128*batch"
    prefill = kv_cache(ir)
    assert (prefill.bytes_given, prefill.bytes_left) == (0, "128*batch*seq")


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "peak", "bandwidth"),
    [
        ("peak=312TFLOPs,bw=2.0TB/s", 312e12, 2e12),
        ("bw=900 GB/s, peak=15.7 TFLOP/s", 15.7e12, 900e9),
        ("peak=2e12,bw=25600000000", 2e12, 25.6e9),
        ("peak=500gflops,bw=1.5e3MB/s", 500e9, 1.5e9),
    ],
)
def test_figures_of_a_device(text: str, peak: float, bandwidth: float) -> None:
    device = Roofline.parse(text)
    assert (device.peak, device.bandwidth) == pytest.approx((peak, bandwidth))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("peak=1T", "lacks 'bw'"),
        ("", "invalid device figure ''"),
        ("peek=1,bw=1", "invalid device figure 'peek=1'; write it as peak=312TFLOPs,bw=2.0TB/s; did you mean 'peak'?"),
        ("peak=fast,bw=1", "invalid device figure peak=fast"),
        ("peak=-1TFLOPs,bw=1", "invalid device figure peak=-1TFLOPs"),
        ("peak=1TB/s,bw=1", "invalid device figure peak=1TB/s"),
        ("peak=0,bw=1", "the peak of a device must be more than 0, and finite, not 0"),
        ("peak=1,bw=1e999", "the bandwidth of a device must be more than 0, and finite"),
        ("peak=1,peak=2,bw=1", "duplicate 'peak' of the device"),
    ],
)
def test_wrong_figures_of_a_device(text: str, said: str) -> None:
    with pytest.raises(DeviceError) as error:
        Roofline.parse(text)
    assert said in str(error.value)


def test_time_is_the_longer_of_computing_and_moving() -> None:
    device = Roofline(peak=100, bandwidth=10)
    assert device.ridge == 10
    computing, moving = Work(flops=1000, bytes_read=50, bytes_written=49), Work(flops=1000, bytes_read=101)
    assert (device.seconds(computing), device.is_compute_bound(computing)) == (10, True)
    assert (device.seconds(moving), device.is_compute_bound(moving)) == (10.1, False)


def test_times_of_nodes_are_added() -> None:
    """The time of a compute-bound and a memory-bound node is the sum, not the maximum of the sums."""
    device = Roofline(peak=1, bandwidth=1e6)
    report = cost_report(mlp(), "node", device=device)
    assert report.total.seconds == pytest.approx(96 + 64e-6)
    assert [(row.name, row.bound) for row in report.rows] == [
        ("linear", "compute"), ("linear_1", "compute"), ("relu", "memory"),
    ]  # fmt: skip


# -- text -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_999, "1.00 MB"),
        (3_628_146_688, "3.63 GB"),
        ("4096*batch + 7", "4.10k*batch + 7 B"),
        ("2*s1024", "2*s1024 B"),
    ],
)
def test_amounts_for_people(amount: Any, text: str) -> None:
    assert human(amount, "B") == text


def test_times_for_people() -> None:
    assert [duration(seconds) for seconds in (0, 2, 0.0123, 4.5e-6, 1e-13)] == [
        "0", "2.00 s", "12.3 ms", "4.50 µs", "0.10 ps",
    ]  # fmt: skip


def test_the_report_says_what_it_assumes() -> None:
    text = str(cost_report(open_sizes(), device=Roofline(1e12, 1e9)))
    assert "open sizes: batch, seq; shares, intensities, order and times assume 1024 for each" in text
    assert "FLOPs per run: 112*batch*seq" in text
    text = str(cost_report(open_sizes(), sizes={"batch": 2, "seq": 3}))
    assert "with batch = 2, seq = 3" in text
    assert "1024" not in text


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    open_sizes().save(tmp_path / "model.json")
    return str(tmp_path / "model.json")


def test_the_command_prints_the_report(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "cost",
                file,
                "--by",
                "op",
                "--top",
                "1",
                "--set",
                "batch=2",
                "--set",
                "seq=3",
                "--device",
                "peak=1T,bw=1G",
            ]
        )
        == 0
    )
    ir = IR.load(file)
    wanted = cost_report(ir, "op", top=1, sizes={"batch": 2, "seq": 3}, device=Roofline(1e12, 1e9))
    assert capsys.readouterr().out == f"{wanted}\n"


def test_the_command_prints_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", file, "--json", "--depth", "1", "--device", "peak=1T,bw=1G"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["open_sizes"] == ["batch", "seq"]
    assert {row["name"] for row in record["rows"]} == {"", "a", "b"}
    assert record["total"]["flops"] == "112*batch*seq"
    assert record["memory"]["peak"] == liveness(IR.load(file)).peak
    assert {row["bound"] for row in record["rows"]} <= {"compute", "memory"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "bath=3"], "unknown size 'bath'; did you mean 'batch'?"),
        (["--set", "batch=65"], "batch = 65 is out of range"),
        (["--set", "batch=-1"], "'batch=-1' is not a size"),
        (["--set", "batch=1..4"], "the size 'batch' must be one number, such as batch=8"),
        (["--device", "fast"], "unknown device 'fast'; write figures such as peak=312TFLOPs,bw=2.0TB/s"),
        (["--top", "0"], "--top must be at least 1, not 0"),
        (["--depth", "-1"], "--depth must be at least 0, not -1"),
        (["--function", "decode"], "the graph has no function 'decode'; functions: none"),
    ],
)
def test_the_command_refuses_in_one_line(
    options: list[str], said: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", file, *options]) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert (out, len(err.splitlines())) == ("", 1)


def test_the_command_does_not_import_torch(file: str) -> None:
    program = (
        f"import sys; from torch_ir.cli import main; main(['cost', {file!r}, '--device', 'peak=1T,bw=1G']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
