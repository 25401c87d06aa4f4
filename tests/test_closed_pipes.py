"""Every command with an unwritable stdout, a closed pipe, a closed stream or a full disk; and ended by a signal.

What a command writes to files is complete all the same, and nothing but one line about a full disk is on stderr.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import torch_ir
from tests.every_verb import (
    COMMANDS,
    SLOW,
    Ended,
    close_stdout,
    fill_disk,
    forked,
    limit_files,
    output_of,
    prepare,
    signal_after,
)
from torch_ir import load_plan
from torch_ir.analysis import load_device
from torch_ir.cli.dispatch import _GROUPS
from torch_ir.errors import ClosedPipeError

FAST = ["info", "lower"]  # in a separate process, where the interpreter itself exits
QUICK = [name for name in COMMANDS if name not in SLOW]
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
SIGNALS = {  # with the statuses that a command may have
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGHUP: (129, -signal.SIGHUP),
    signal.SIGINT: (130,),
}
READ: dict[str, Callable[[Path], object]] = {"calibrate": load_device, "plan": load_plan}  # JSON that is not a graph
FULL = "torch-ir: error: cannot write to stdout: No space left on device\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, its graph, and the input files of commands."""
    made = tmp_path_factory.mktemp("pipes")
    prepare(made)
    return made


@pytest.fixture
def run(programs: Path | None, folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command with a given stdout; stderr is captured."""

    def started(*words: str, stdout: int, fresh: bool = False) -> subprocess.CompletedProcess[str]:
        is_fresh = fresh or programs is None
        start = [sys.executable, "-m", "torch_ir"] if is_fresh else [str(programs / "torch-ir")]
        more = {"PYTHONPATH": str(Path(torch_ir.__file__).parents[1])} if is_fresh else {}  # with it, nothing is forked
        environment = {**os.environ, **more}
        return subprocess.run(
            [*start, *words], cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
        )

    return started


def without_reader() -> int:
    """The end of a pipe that nothing reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def check_output(name: str, folder: Path) -> None:
    """The output of a command is complete."""
    output = output_of(name, folder)
    if output is None:
        return
    assert output.exists()
    if name == "lower":
        layers = json.loads(output.read_text())["layers"]
        assert {layer["kind"] for layer in layers} == {"aten.linear.default", "aten.relu.default"}
        assert not [layer for layer in layers if "placeholder" in json.dumps(layer)]
    elif name in READ:
        READ[name](output)
    elif output.suffix == ".json":
        torch_ir.IR.load(output).check()


def test_every_verb_is_tried() -> None:
    assert {verb for verbs in _GROUPS.values() for verb in verbs} == {words[0] for words in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe_ends_a_command_quietly(name, run, folder) -> None:
    """The status is that of SIGPIPE; the output file exists and is complete."""
    stdout = without_reader()
    done = run(*COMMANDS[name], stdout=stdout)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")
    check_output(name, folder)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ALL)
def test_every_command_without_stdout(name: str, folder: Path) -> None:
    """`>&-`, and a full disk: outputs are complete, and stderr has one line at most."""
    assert forked(name, folder, close_stdout) == Ended(0, "", [])
    check_output(name, folder)
    assert forked(name, folder, fill_disk) == Ended(1, FULL, [])
    check_output(name, folder)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ALL)
def test_every_command_is_ended_by_a_signal_or_a_full_disk(name: str, folder: Path) -> None:
    """One signal of the three: the slow test below tries them all. Then every file may have 300 bytes only."""
    chance = random.Random(name)
    number = chance.choice(list(SIGNALS))
    _check_signal(name, number, folder, chance.uniform(0.01, 0.2))
    _remove(output_of(name, folder))
    ended = forked(name, folder, limit_files)
    assert ended.left == []
    if ended.status:
        assert ended.status == 1
        assert re.fullmatch(r"torch-ir: error: cannot write \S.*: .*File too large.*\n", ended.stderr), ended.stderr
    else:
        assert ended.stderr == ""
        check_output(name, folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_ended_by_a_signal(name: str, number: signal.Signals, folder: Path) -> None:
    """At any time: it prints nothing, leaves no temporary file, and its output is complete or was not changed."""
    _remove(output_of(name, folder))
    chance, started = random.Random(f"{name}/{number}"), time.monotonic()
    assert forked(name, folder, lambda: None) == Ended(0, "", [])
    lasted = time.monotonic() - started
    for _ in range(4):
        _check_signal(name, number, folder, chance.uniform(0.01, lasted))


def _check_signal(name: str, number: signal.Signals, folder: Path, seconds: float) -> None:
    """Send a signal to a command; it prints nothing and leaves no part of a file."""
    ended = forked(name, folder, partial(signal_after, seconds, number))
    assert ended.status in (0, *SIGNALS[number])
    assert ended[1:] == ("", [])
    if (output := output_of(name, folder)) is not None and output.exists():
        check_output(name, folder)


def _remove(output: Path | None) -> None:
    if output is not None and output.exists():
        shutil.rmtree(output) if output.is_dir() else output.unlink()


@pytest.mark.parametrize("verb", FAST)
def test_python_itself_ends_quietly(verb, run, folder) -> None:
    """Without the fork server: the interpreter's last flush prints nothing either."""
    stdout = without_reader()
    done = run(*COMMANDS[verb], stdout=stdout, fresh=True)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["help", "optimize"], ["optimize", "--help"], []])
def test_help_ends_quietly(words, run) -> None:
    stdout = without_reader()
    done = run(*words, stdout=stdout, fresh=True)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["--help"], ["info", "net.json"], COMMANDS["optimize"]])
def test_a_full_disk_is_one_line(words, run, folder) -> None:
    """Output files are written nevertheless."""
    (folder / "better.json").unlink(missing_ok=True)
    with open("/dev/full", "w") as full:
        done = run(*words, stdout=full.fileno(), fresh=words[0] != "optimize")
    assert (done.returncode, done.stderr) == (
        1,
        FULL,
    )
    assert (folder / "better.json").exists() == (words[0] == "optimize")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("info net.json", 0, ""),
        ("--help", 0, ""),
        ("diff net.json net.json", 0, ""),
        ("draw net.json -o picture.dot", 0, ""),
        ("info nothing.json", 1, "torch-ir: error: cannot read nothing.json: No such file or directory\n"),
        (
            "extract net.py:Net -i 1x8 -o -",
            1,
            "torch-ir: error: - is stdout, which is closed; name a file: -o NAME\n",
        ),
    ],
)
def test_a_closed_stdout_is_like_the_null_device(words, status, told, folder) -> None:
    """`>&-`: there is no stream, and none of our files may get its descriptor."""
    environment = {**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])}
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m torch_ir {words} >&-'],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, told)


def test_a_closed_stderr_does_not_send_errors_to_stdout(folder) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m torch_ir info nothing.json 2>&-'],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_graph_that_nobody_reads_is_a_typed_error(run, folder) -> None:
    """From Python, saving to stdout whose reader has left is a SerializationError that is a BrokenPipeError, too."""
    assert issubclass(ClosedPipeError, BrokenPipeError)
    stdout = without_reader()
    done = run("extract", "net.py:Net", "-i", "1x8", "-o", "/dev/stdout", stdout=stdout)
    os.close(stdout)
    assert done.returncode == 141
    code = "import torch_ir; torch_ir.IR.load('net.json').save('/dev/stdout')"
    stdout = without_reader()
    saved = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(torch_ir.__file__).parents[1])},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(stdout)
    assert "ClosedPipeError: cannot write /dev/stdout: its reader has closed it" in saved.stderr
