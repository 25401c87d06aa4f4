"""Corrupted files: a typed error or, if a digest protects them, exactly the same meaning."""

import sys
import time
from pathlib import Path

import pytest

import fuzz.job
from fuzz.targets import COUNT, CURRENT, REGRESSIONS, TARGETS
from tests.damage.kinds import KINDS
from tests.damage.subject import FILES
from tests.damage.sweep import CUT_AND_FLIPPED, SAMPLE, SLOW_FILES, count_of, judge, judge_each_cut_and_flip
from tests.graphs import chain
from torch_ir import to_mlir
from torch_ir.backends.choices import Choices
from torch_ir.backends.iree_compiler import compile_module

CHUNKS = 4
FAILED_ONCE = sorted(REGRESSIONS.glob("*/*"))


@pytest.mark.filterwarnings("ignore")  # numpy, torch and onnx_ir warn about corrupted files
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_holds(name: str) -> None:
    """Every kind of corruption of every kind of file; most are detected, and caches are ignored."""
    outcomes = judge(FILES[name], range(len(KINDS) if name in SLOW_FILES else SAMPLE))
    assert bool(outcomes.refused) is (name != "remembered choices of back ends")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_files(name: str, chunk: int) -> None:
    """The same by the thousand."""
    judge(FILES[name], range(SAMPLE + chunk, count_of(name), CHUNKS))


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT_AND_FLIPPED)
def test_every_cut_and_every_bit(name: str) -> None:
    """Wherever a file with a digest is cut, and whichever bit of it is flipped."""
    judge_each_cut_and_flip(FILES[name])


# -- what is remembered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"key": {"backend": "torch", "seconds": {"torch": "soon"}, "failed": {}}}',
        '{"key": {"backend": "torch", "seconds": {"torch": 1' + "0" * 400 + '}, "failed": {}}}',
        '{"key": {"backend": "torch", "seconds": [1], "failed": {}}}',
    ],
    ids=["deep", "text for a number", "too large", "a list"],
)
def test_a_choice_that_cannot_be_read_is_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache can be measured again, so errors in it are ignored."""
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    (tmp_path / "fastest.json").write_text(text)
    assert Choices().get("key") is None


def test_a_damaged_module_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code of which a bit is wrong is not run."""
    pytest.importorskip("iree.compiler", reason="torch-ir[mlir] is not installed")
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    text = to_mlir(chain("aten.neg.default"))
    compile_module(text)
    (kept,) = tmp_path.rglob("*.vmfb")
    broken = bytearray(kept.read_bytes())
    broken[len(broken) // 2] ^= 1
    kept.write_bytes(broken)
    module = compile_module(text)
    assert kept.read_bytes() != broken
    assert kept.read_bytes().endswith(module)
    assert compile_module(text) == module


# -- fuzzing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_of_the_fuzzer_takes_its_seeds(name: str) -> None:
    """Without atheris: no target fails on its seed inputs."""
    seeds = TARGETS[name].seeds()
    for seed in [*seeds, b"", b"\x00", b"\xff\xfe"]:
        TARGETS[name].check(seed)
    assert len(set(seeds)) == len(seeds) > 1


_JOB = """
import os, signal, sys
count, current = sys.argv[1:]
open(count, "wb").write((7).to_bytes(8, "little"))
open(current, "w").write("input")
if not os.path.exists(current + "-seen"):
    open(current + "-seen", "w")
    os.kill(os.getpid(), signal.SIGSEGV)
signal.pause()
"""


def test_a_fuzzing_process_ends_in_time_and_keeps_its_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that crashes starts again, one that does not return is ended; executions and inputs are kept."""
    monkeypatch.setattr(fuzz.job, "FOLDER", tmp_path)
    monkeypatch.setattr(fuzz.job, "_LEAST", 0)
    job = fuzz.job.Job("expressions", 0)
    files = [str(job.folder / name) for name in (COUNT, CURRENT)]
    monkeypatch.setattr(fuzz.job, "_command", lambda *_: [sys.executable, "-I", "-S", "-c", _JOB, *files])
    fuzz.job.prepare(job.target)
    end = time.monotonic() + 5
    done = fuzz.job.run(job, end)
    assert done.executions == 14
    assert [path.read_text() for path in job.crashes.iterdir()] == ["input"]
    assert end <= time.monotonic()


@pytest.mark.parametrize("path", FAILED_ONCE, ids=[f"{path.parent.name}/{path.name}" for path in FAILED_ONCE])
def test_what_failed_once_does_not_fail_again(path: Path) -> None:
    """The inputs that fuzzing found, reduced."""
    TARGETS[path.parent.name].check(path.read_bytes())
