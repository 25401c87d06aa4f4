"""Terminated commands and full temporary folders leave no files and print a one-line error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from tests.command_line import ROOT
from torch_ir import IR, ExecutionError, Limits, OpNode, TensorMeta, execute_ir
from torch_ir.cli.machine.doctor import _findings
from torch_ir.draw.graphviz import picture
from torch_ir.ir.files import temporary_folders as temporary
from torch_ir.ir.files.temporary_folders import TemporaryFolder
from torch_ir.sharding.local_ranks import LocalRanks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM handlers")
_PATIENCE = 300  # seconds


def _graph() -> IR:
    x, y = TensorMeta("x", (512, 512), "float32"), TensorMeta("y", (512, 512), "float32")
    return IR([OpNode("y", "aten.relu.default", [x], [y])], [x], [y])


def _started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command with temporary files in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "RAY_TMPDIR": "/tmp"}  # short: sockets
    command = [sys.executable, "-m", "torch_ir", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _wait_for(process: subprocess.Popen[bytes], folder: Path, pattern: str) -> None:
    """Wait until there is such a file, or the process ends."""
    until = time.monotonic() + _PATIENCE
    while not any(folder.glob(pattern)) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("is_in_background", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sigterm_leaves_no_temporary_folder(is_in_background: bool, tmp_path: Path) -> None:
    """An isolated run that is terminated removes its request, and its status is that of SIGTERM."""
    if is_in_background:
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    _graph().save(tmp_path / "graph.json")
    process = _started(tmp_path, "run", "graph.json", "-w", "random", "--isolated")
    _wait_for(process, tmp_path, "torch_ir-*/request.pt")
    if is_in_background:  # neither of these ends it
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 143
    assert told == b""
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_an_interrupted_sweep_on_a_cluster_says_nothing(
    engine: str, package: str, number: signal.Signals, tmp_path: Path
) -> None:
    """The workers of the cluster are ended without a line about it."""
    pytest.importorskip(package, reason=f"{engine} is not installed")
    (tmp_path / "net.py").write_text("import time\ndef make():\n    time.sleep(100)\n")
    (tmp_path / "models.txt").write_text("net.py:make -i 1x2\nnet.py:make -i 2x2\n")
    options = ["--engine", engine, "--workers", "1", "--steps", "extract"]
    process = _started(tmp_path, "sweep", "models.txt", "-o", "results", *options)
    _wait_for(process, tmp_path, "torch_ir-*/request")
    process.send_signal(number)
    _, told = process.communicate(timeout=_PATIENCE)
    assert told == b""
    assert process.returncode == 128 + number


def test_doctor_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, no further check begins, and those that run are ended: each would take a minute."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr("torch_ir.processes.program.python_command", lambda *_: command)
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(_findings(["python"] * 12, 60))
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - start < 45


@pytest.mark.usefixtures("default_signals")
def test_a_signal_that_arrives_while_a_process_is_forked_is_not_lost() -> None:
    """Python calls functions of libraries around a fork, in which an exception is printed and forgotten."""
    code = """
import os, signal
from torch_ir.processes.forked_child import accept_signals, signals_deferred
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    with signals_deferred():
        if os.fork() == 0:
            accept_signals()
            os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
except KeyboardInterrupt:
    print(os.wait()[1])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_dead_process_left_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a lock is removed; one with a lock, a new one, a link and a file are kept."""
    dead, new, file, link = (place / f"torch_ir-run-{end}" for end in ("deadbeef", "newnewne", "filefile", "linklink"))
    dead.mkdir()
    (dead / "request.pt").write_bytes(bytes(10))
    os.utime(dead, (0, 0))
    new.mkdir()
    file.touch()
    link.symlink_to(place)
    with TemporaryFolder() as alive:
        os.utime(alive, (0, 0))
        with TemporaryFolder():
            assert not dead.exists()
            assert alive.exists()
    assert sorted(path.name for path in place.iterdir()) == sorted(path.name for path in (new, file, link))


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_temporary_folder_is_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolated runs, ranks and drawings report where there is no space, and what to set."""
    told = f"cannot write to the temporary folder {place}: .*; free some space, or set TMPDIR to another folder"
    limits = resource_limit(1 << 12)
    try:
        with pytest.raises(ExecutionError, match=told):
            execute_ir(_graph(), (torch.ones(512, 512),), {}, isolated=True, limits=Limits())
        with pytest.raises(ExecutionError, match=told), LocalRanks(1) as ranks:
            ranks.ask("module:function", {"value": torch.ones(512, 512)})
        with pytest.raises(ExecutionError, match=told):
            picture("digraph {}", "svg")
    finally:
        resource_limit(limits)
    monkeypatch.setattr(temporary.tempfile, "mkdtemp", _full)
    with pytest.raises(ExecutionError, match=told):
        TemporaryFolder()


def resource_limit(size: int) -> int:
    """Set the maximum file size, as if the disk were full; return the old limit."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    return soft
