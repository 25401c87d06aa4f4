"""A forked program behaves like the program itself."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.forking import FRESH

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="nothing can be forked here"),
    pytest.mark.usefixtures("default_signals"),
]
_TELL = """
import json, os, pathlib, sys

def tell(*what):
    pathlib.Path("telling").write_text(json.dumps(what))
    os.replace("telling", "told")
"""
_PATIENCE = 300  # seconds
_HAS_TORCH = "'torch' in getattr(sys, 'mod' + 'ules')"  # does not look like code that shows modules


class Program:
    """A page of one Python block, which can report values while it runs in a separate process."""

    def __init__(self, programs: Path | None, folder: Path, code: str, **more: Any) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "page.md").write_text(f"```python\n{_TELL}{code}\n```\n", encoding="utf-8")
        words = [f"{programs}/page"] if programs else FRESH["page"]
        self._folder = folder
        self.process = subprocess.Popen([*words, "--here", "page.md"], cwd=folder, **more)

    def ended(self) -> int:
        """Return its status, once it has ended."""
        return self.process.wait(_PATIENCE)

    def told(self) -> list[Any]:
        """Return its report, once it exists."""
        until = time.monotonic() + _PATIENCE
        while not (self._folder / "told").exists():
            assert time.monotonic() < until
            assert self.process.poll() is None or (self._folder / "told").exists(), "it ended without a report"
            time.sleep(0.01)
        text = (self._folder / "told").read_text()
        found: list[Any] = json.loads(text)
        return found


def _with(**variables: str) -> Mapping[str, str]:
    return {**os.environ, **variables}


def test_it_has_the_folder_environment_and_streams(tmp_path: Path, programs: Path) -> None:
    code = "tell(os.getcwd(), os.environ['COLUMNS'], sys.stdin.read(), sys.stdout.isatty(), 'torch' in sys.modules)"
    code += "\nos.write(1, b'out'); os.write(2, b'error')"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    program = Program(programs, tmp_path, code, env=_with(COLUMNS="31"), **pipes)
    out, error = program.process.communicate(b"given", _PATIENCE)
    assert (out.strip(), error, program.process.returncode) == (b"out", b"error", 0)
    assert program.told() == [str(tmp_path), "31", "given", False, True]


def test_it_has_the_terminal(tmp_path: Path, programs: Path) -> None:
    master, slave = pty.openpty()
    code = (
        "tell([stream.isatty() for stream in (sys.stdin, sys.__stdout__, sys.stderr)], sys.__stdout__.line_buffering)"
    )
    program = Program(programs, tmp_path, code, stdin=slave, stdout=slave, stderr=slave)
    assert program.ended() == 0
    assert program.told() == [[True, True, True], True]
    for end in (master, slave):
        os.close(end)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("1 / 0", 1),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
)
def test_it_ends_as_it_ends(code: str, status: int, tmp_path: Path, programs: Path) -> None:
    assert Program(programs, tmp_path, code, stdout=subprocess.DEVNULL).ended() == status


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(number: signal.Signals, tmp_path: Path, programs: Path) -> None:
    """One that nothing can pass on ends it all the same."""
    program = Program(programs, tmp_path, "tell(os.getpid())\nimport time; time.sleep(1000)")
    (process,) = program.told()
    program.process.send_signal(number)
    assert program.ended() == -number
    until = time.monotonic() + _PATIENCE
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("is_forked", [True, False])
def test_it_ignores_the_signals_that_its_caller_ignores(is_forked: bool, tmp_path: Path, programs: Path) -> None:
    """As a program does that is started in the background, with nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = "import signal; tell([signal.getsignal(number) for number in (1, 2, 15)])\nimport time; time.sleep(1000)"
    program = Program(programs if is_forked else None, tmp_path, code)
    assert program.told() == [[signal.SIG_IGN, signal.SIG_IGN, signal.SIG_DFL]]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        program.process.send_signal(number)
    assert program.ended() == -signal.SIGTERM


def test_what_is_read_at_the_start_makes_it_start_by_itself(tmp_path: Path, programs: Path) -> None:
    program = Program(programs, tmp_path, "tell('torch' in sys.modules)", env=_with(PYTHONHASHSEED="7"))
    assert program.told() == [False]
    assert program.ended() == 0


def test_variables_that_libraries_set_in_a_worker_do_not_matter(tmp_path: Path, programs: Path) -> None:
    """Inductor sets one with its first kernel, torch one on a GPU, JAX two: later programs of that worker fork."""
    code = "tell('torch' in sys.modules)"
    variables = {
        "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR": "7", "CUDA_MODULE_LOADING": "LAZY",
        "TF_CPP_MIN_LOG_LEVEL": "1", "TPU_SKIP_MDS_QUERY": "1",
    }  # fmt: skip
    program = Program(programs, tmp_path, code, env=_with(**variables))
    assert program.ended() == 0
    assert program.told() == [True]


def test_threads_are_as_many_as_its_environment_says(tmp_path: Path, programs: Path) -> None:
    code = "is_forked = 'torch' in sys.modules; import torch; tell(is_forked, torch.get_num_threads())"
    program = Program(programs, tmp_path, code, env=_with(OMP_NUM_THREADS="3"))
    assert program.ended() == 0
    assert program.told() == [True, 3]


def test_python_runs_scripts(tmp_path: Path, programs: Path) -> None:
    """With their arguments and folder, as Python does; what shows imported modules is not forked."""
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nfrom beside import NAME\nprint(sys.argv[1:], __name__, {_HAS_TORCH}, NAME)\n")
    told = "['a', '-u'] __main__ {} beside\n"
    for command, has_torch in (([f"{programs}/python", "-u"], True), ([sys.executable], False)):
        done = subprocess.run([*command, str(script), "a", "-u"], capture_output=True, text=True, check=True)
        assert done.stdout == told.format(has_torch)
    script.write_text("raise SystemExit('it failed')\n")
    done = subprocess.run([f"{programs}/python", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "it failed\n")
    script.write_text("import sys\nprint('torch' in sys.modules)\nraise SystemExit(4)\n")
    done = subprocess.run([f"{programs}/python", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "False\n")
    done = subprocess.run(
        [f"{programs}/python", "-c", "import sys; print('torch' in sys.modules)"], capture_output=True
    )
    assert done.stdout == b"False\n"


def test_open_files_are_inherited(programs: Path) -> None:
    """A server can only pass on the standard streams; a program with more is not forked."""
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, b'here')"
    subprocess.run([f"{programs}/python", "-c", code], pass_fds=[writer], check=True)
    os.close(writer)
    assert os.read(reader, 9) == b"here"
    os.close(reader)


def test_torch_is_as_in_a_fresh_process(tmp_path: Path, programs: Path) -> None:
    """Its threads work, and no import hooks remain."""
    code = "import torch; tell(torch.ones(1 << 22).sum().item(), torch.get_num_threads(), "
    code += "sys.path[1:], torch.is_grad_enabled(), torch.get_default_dtype().itemsize)"
    started = [Program(programs, tmp_path / "forked", code), Program(None, tmp_path / "fresh", code)]
    assert [program.ended() for program in started] == [0, 0]
    assert started[0].told() == started[1].told()


def test_random_numbers_are_new_each_time(tmp_path: Path, programs: Path) -> None:
    """Those of torch are not: pages start from one seed."""
    code = "import random, numpy; tell(random.random(), numpy.random.random())"
    started = [Program(programs, tmp_path / name, code) for name in ("first", "second")]
    assert [program.ended() for program in started] == [0, 0]
    assert not set(started[0].told()) & set(started[1].told())


@pytest.mark.parametrize(
    "words",
    [
        ["extract", "catalogue.mlp:SimpleMLP", "--input", "1x4", "-o", "net.json"],
        ["extract", "catalogue.mlp:SimpleMLPP", "--input", "1x4", "-o", "net.json"],
        pytest.param(["passes"], marks=pytest.mark.slow),
        ["extrct"],
        [],
    ],
    ids=" ".join,
)
def test_the_command_is_the_installed_one(words: list[str], tmp_path: Path, programs: Path) -> None:
    """The same output, files and status."""
    root, seen = str(Path(__file__).parents[1]), []
    for name, command in {"fresh": FRESH["torch-ir"], "forked": [f"{programs}/torch-ir"]}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "catalogue").symlink_to(f"{root}/catalogue")
        done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, check=False)
        texts = [re.sub(r"\d+\.\d\d s", "... s", text) for text in (done.stdout, done.stderr)]
        seen.append([done.returncode, *texts, *(path.read_bytes() for path in folder.glob("*.json"))])
    assert seen[0] == seen[1]
