"""An isolated run returns the same bits, and every failure in it is a one-line error.

Starting a child takes seconds, so that one run often shows several rules.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.graphs import mlp, tensor
from torch_ir import (
    IR,
    ExecutionError,
    GuardError,
    Limits,
    OpNode,
    TensorMeta,
    WeightLoadError,
    execute_ir,
    extract_ir,
    open_weights,
    random_weights,
)
from torch_ir.cli.dispatch import main
from torch_ir.run.numeric_settings import apply_settings, settings
from torch_ir.run.reply import Reply

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc, which only Linux has")
_PATIENCE = 300  # seconds
_MADE = {"dtype": None, "layout": None, "device": None, "pin_memory": None}


class Mixed(nn.Module):
    """Outputs of many dtypes, a number, a random one, and a transposed one."""

    def forward(self, x):
        noise = torch.rand_like(x)
        return x.t(), x > 0, x.to(torch.bfloat16), x.long(), torch.fft.fft(x), noise, x[:0], x.sum()


def crashing() -> IR:
    """Reads far outside its memory, in one thread: if two crash at once, neither may report where."""
    x, far, out = tensor("x", 4), tensor("far", 1 << 10), tensor("sum_1")
    nodes = [
        OpNode(
            "far", "aten._reshape_alias.default", [x], [far], {"size": [1 << 10], "stride": [1 << 24]}, args=["self"]
        ),
        OpNode("sum_1", "aten.sum.default", [far], [out], {"dtype": None}, args=["self"]),
    ]
    return IR(nodes, [x], [out])


def endless() -> IR:
    """Multiplies matrices for minutes."""
    x, out = tensor("x", 3000, 3000), tensor("power", 3000, 3000)
    return IR(
        [OpNode("power", "aten.linalg_matrix_power.default", [x], [out], {"n": 2**62 - 1}, args=["self"])], [x], [out]
    )


def filled(count: int, declared: int) -> IR:
    """Creates a number of elements, and declares that number."""
    out = tensor("full", declared)
    attrs = {"size": [count], "fill_value": 1.0, **_MADE}
    return IR([OpNode("full", "aten.full.default", [], [out], attrs)], [], [out])


def test_the_same_bits() -> None:
    """For any dtype, shape or layout; random numbers are the same, and the caller's generator is unchanged."""
    x = torch.randn(3, 5)
    ir = extract_ir(Mixed().eval(), (x,), strict=False)
    before = torch.get_rng_state()
    found = execute_ir(ir, (x,), {}, isolated=True)
    assert torch.equal(before, torch.get_rng_state())
    wanted = execute_ir(ir, (x,), {})
    assert [value.dtype for value in found] == [value.dtype for value in wanted]
    assert all(map(torch.equal, found, wanted))


def test_a_crash_is_a_sentence_that_names_the_node() -> None:
    with pytest.raises(ExecutionError, match=r"crashed with SIG(SEGV|BUS) in OpNode\('sum_1', 'aten.sum.default'\)"):
        execute_ir(crashing(), (torch.ones(4),), {}, isolated=True)


@pytest.mark.slow
def test_memory_is_limited_where_a_graph_lies() -> None:
    """The declared sizes fit; the actual ones do not."""
    with pytest.raises(ExecutionError, match=r"OpNode\('full', 'aten.full.default'\): .*allocate 8589934592 bytes"):
        execute_ir(filled(1 << 31, 2), (), {}, isolated=True, limits=Limits(memory_bytes=1 << 30))


@pytest.mark.slow
def test_a_result_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ExecutionError, match=r"output 'full' should be float32\[2\], but \['float32', \[3\]\] was"):
        execute_ir(filled(3, 2), (), {}, isolated=True)


@linux_only
def test_a_child_has_nothing_of_this_process_and_no_more_time_than_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, no files, no input, a folder that is empty, no core dumps, and an end when its time is over.

    Only variables that decide the bits of results are inherited.
    """
    monkeypatch.setenv("A_SECRET", "12345")
    decisive = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    for name, value in decisive.items():
        monkeypatch.setenv(name, value)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            execute_ir(endless(), (torch.eye(3000),), {}, isolated=True, limits=Limits(seconds=6, memory_bytes=1 << 30))
        except ExecutionError as error:
            errors.append(error)

    before = set(_children())
    kept = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(kept, True)
    runner = threading.Thread(target=run)
    runner.start()
    (child,) = _awaited(before)
    proc = Path("/proc", str(child))
    environment = (proc / "environ").read_bytes()
    assert b"A_SECRET" not in environment
    assert all(f"{name}={value}\0".encode() in environment for name, value in decisive.items())
    assert list((proc / "cwd").readlink().iterdir()) == []
    limits = _awaited_limits(proc)
    files = {os.readlink(link) for link in (proc / "fd").iterdir()}
    assert all(file.startswith(("pipe:", "/dev/null")) or file.endswith("/request.pt") for file in files)
    assert (limits["Max core file size"], limits["Max file size"]) == ("0", "0")
    assert 1 << 30 < int(limits["Max data size"]) < int(limits["Max address space"]) < 1 << 34
    runner.join()
    os.close(kept)
    assert "the isolated run took more than 6 s" in str(errors[0])
    assert not proc.exists()


@pytest.mark.slow
@linux_only
@pytest.mark.usefixtures("default_signals")
def test_an_interrupt_ends_the_child(tmp_path: Path) -> None:
    """Ctrl-C at the command line leaves no process behind."""
    parent = _started(tmp_path)
    (child,) = _awaited(set(), parent.pid)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=_PATIENCE)
    assert parent.returncode != 0
    assert not Path("/proc", str(child)).exists()


@pytest.mark.slow
def test_weights_from_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    """A path is read by the child, a stream as well; errors are those of a run here."""
    ir, x = mlp(), torch.randn(1, 4)
    weights = random_weights(ir)
    (wanted,) = execute_ir(ir, (x,), weights)
    torch.save(weights, tmp_path / "weights.pt")
    assert torch.equal(execute_ir(ir, (x,), weights_path=tmp_path / "weights.pt", isolated=True)[0], wanted)
    save_file(weights, tmp_path / "weights.safetensors")
    stored = open_weights(tmp_path / "weights.safetensors")
    assert torch.equal(execute_ir(ir, (x,), stored, isolated=True)[0], wanted)
    torch.save({}, tmp_path / "weights.pt")
    with pytest.raises(WeightLoadError, match=r"'fc1\.weight' is missing"):
        execute_ir(ir, (x,), weights_path=tmp_path / "weights.pt", isolated=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "conv", "lstm"])
def test_layers_give_the_same_bits(name: str) -> None:
    layers: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "attention": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (2, 5, 16)),
        "conv": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU()), (2, 3, 9, 9)),
        "lstm": (nn.LSTM(4, 6, 2, batch_first=True), (2, 5, 4)),
    }
    model, shape = layers[name]
    x = torch.randn(shape)
    ir = extract_ir(model.eval(), (x,), strict=False)
    found = execute_ir(ir, (x,), model.state_dict(), isolated=True)
    assert all(map(torch.equal, found, execute_ir(ir, (x,), model.state_dict())))


def test_what_is_wrong_with_a_call_is_said_before_a_child_is_started() -> None:
    """Weights, inputs, operators, and memory by the declared sizes."""
    ir = mlp()
    with pytest.raises(WeightLoadError, match=r"'fc1\.weight' is missing"):
        execute_ir(ir, (torch.ones(1, 4),), {}, isolated=True)
    with pytest.raises(ExecutionError, match=r"has shape \[1, 5\]"):
        execute_ir(ir, (torch.ones(1, 5),), random_weights(ir), isolated=True)
    with pytest.raises(ExecutionError, match="a run would need 4,398,046,511,104 bytes"):
        execute_ir(filled(1 << 40, 1 << 40), (), {}, isolated=True)
    with pytest.raises(ExecutionError, match="needs CPU tensors, but got one on meta"):
        execute_ir(mlp(), (torch.ones(1, 4, device="meta"),), random_weights(ir), isolated=True)


def _answer(record: object, raw: bytes = b"") -> bytearray:
    return bytearray(json.dumps(record).encode() + b"\n" + raw)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (_answer({"outputs": []}), "did not return the 1 outputs"),
        (_answer({"outputs": {"a": 1}}), "did not return the 1 outputs"),
        (_answer({"outputs": [["float32", [2, 2]]]}), "was returned"),
        (_answer({"outputs": [["float64", [2]]]}, bytes(16)), "was returned"),
        (_answer({"outputs": [["float32", [3]]]}, bytes(12)), "was returned"),
        (_answer({"outputs": [["float32", [-2]]]}), "was returned"),
        (_answer({"outputs": [["float32", [2.0]]]}, bytes(8)), "was returned"),
        (_answer({"outputs": [["float32", [2]]]}, bytes(7)), "was returned damaged"),
        (_answer({"outputs": [["float32", [2]]]}, bytes(9)), "more than the outputs"),
        (_answer({"outputs": [{"float": "1"}]}), "was returned"),
        (_answer({"error": "\x1b[31mno", "kind": "SystemExit"}), r"\?\[31mno"),
        (_answer({"error": ["x"], "kind": ["WeightLoadError"]}), "x"),
    ],
)
def test_an_answer_is_believed_only_where_it_is_what_the_graph_declares(said: bytearray, why: str) -> None:
    reply = Reply(said)
    assert reply.is_whole
    with pytest.raises(ExecutionError, match=why):
        reply.outputs([tensor("y", 2)], {})


def test_errors_keep_their_kind() -> None:
    """As far as it is a kind that a run can end with."""
    with pytest.raises(GuardError, match="decides on data"):
        Reply(_answer({"error": "model.py:3 decides on data", "kind": "GuardError"})).outputs([], {})


def test_any_bytes_are_an_answer_or_an_error() -> None:
    """20,000 corrupted replies: each is the declared result, or an ExecutionError."""
    draw = random.Random(0)
    places = _answer({"places": {"<torch_ir program 0>": {"1": "OpNode('a')"}}})
    whole = places + _answer({"outputs": [["float32", [2]], 7, {"float": "0x1p3"}]}, bytes(8))
    declared = [tensor("y", 2), TensorMeta("n", (), "int64"), tensor("f")]
    for _ in range(20_000):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        reply = Reply(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        reply.place('File "<torch_ir program 0>", line 1 in program')
        if reply.is_whole:
            try:
                found = reply.outputs(declared, {})
            except ExecutionError:
                continue
            assert [type(value) for value in found] in ([torch.Tensor, int, float], [torch.Tensor, bool, float])
            assert found[0].shape == (2,)


def test_settings_that_decide_on_bits_travel() -> None:
    """Every switch can be read, sent as data, and set."""
    before = settings()
    assert json.loads(json.dumps(before)) == before
    changed = {**before, "threads": 1, "default dtype": "float64", "deterministic": [True, True]}
    changed |= {"matmul precision": "high", "mkldnn": False, "attention fast path": False, "fill uninitialised": False}
    with torch.backends.__allow_nonbracketed_mutation():  # which torch's own tests, if imported, forbid
        try:
            apply_settings(changed)
            assert settings() == changed
        finally:
            apply_settings(before)
    assert settings() == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--time", "5"], "--time needs --isolated"),
        (["--isolated", "--time", "-1"], "--time needs --isolated"),
        (["--memory", "lots"], "'lots' is not a memory size; write 512MB, 4GB or a number of bytes"),
        (["--isolated", "--backend", "inductor"], "need the back end torch"),
        (["--memory", "1KB"], "a run would need"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(1000, 1000).save(tmp_path / "filled.json")
    assert main(["run", str(tmp_path / "filled.json"), "--weights", "random", *options]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.slow
@linux_only
def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Even one that is killed."""
    parent = _started(tmp_path)
    (child,) = _awaited(set(), parent.pid)
    _awaited_limits(Path("/proc", str(child)))
    parent.kill()
    parent.communicate(timeout=_PATIENCE)
    deadline = time.monotonic() + _PATIENCE
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _is_alive(child)


def _started(folder: Path) -> subprocess.Popen[bytes]:
    """The command line at work on a run that does not end."""
    endless().save(folder / "endless.json")
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch_ir",
            "run",
            "endless.json",
            "--weights",
            "random",
            "--isolated",
            "--time",
            "1000",
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _is_alive(pid: int) -> bool:
    """A zombie process does not count as alive."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _children(parent: int | None = None) -> list[int]:
    """The processes that a process started."""
    found = []
    for task in Path("/proc", str(parent or os.getpid()), "task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _awaited(before: set[int], parent: int | None = None) -> set[int]:
    """The processes that are new, once there are any that run Python."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        new = {pid for pid in _children(parent) if pid not in before}
        if any(b"isolated_child" in Path("/proc", str(pid), "cmdline").read_bytes() for pid in new):
            return new
        time.sleep(0.05)
    raise AssertionError("no child was started")


def _awaited_limits(proc: Path) -> dict[str, str]:
    """The limits of a process, once it has set them."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        rows = (line[:26].strip() for line in (proc / "limits").read_text().splitlines())
        limits = dict(
            zip(rows, (line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()), strict=True)
        )
        if limits["Max file size"] == "0":
            return limits
        time.sleep(0.05)
    raise AssertionError("the child set no limits")
