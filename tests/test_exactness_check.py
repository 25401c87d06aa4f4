"""On a torch version that was never tested, fast capture compares itself with torch.export before it is used."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.command_line import ROOT
from torch_ir import IR, CaptureWarning, extract_ir
from torch_ir.capture.export import torch_export
from torch_ir.capture.fast import exactness_check
from torch_ir.capture.fast.assembly import Assembly
from torch_ir.capture.fast.check_models import check_models
from torch_ir.capture.fast.fast_recording import record_fast
from torch_ir.ir.files.cache_folder import CachedTable
from torch_ir.ops import tested_versions
from torch_ir.ops.tested_versions import (
    OLDEST_TORCH,
    OLDEST_TRANSFORMERS,
    OPEN_SIZES_TORCH,
    TESTED_TORCH,
    is_tested,
    is_tested_with_open_sizes,
    is_too_old,
)

FILE = "fast-capture.json"
X = torch.zeros(2, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("TORCH_IR_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def untested(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The installed torch counts as a version that was never tested."""
    monkeypatch.setattr(tested_versions, "TESTED_TORCH", ("2.0",))
    monkeypatch.setattr(exactness_check, "TESTED_TORCH", ("2.0",))
    new_process()
    yield folder
    new_process()


def new_process() -> None:
    """Forget what a process remembers."""
    exactness_check.is_exact.cache_clear()


def changed_habit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fast capture keep a literal that nothing reads, which torch.export drops."""
    monkeypatch.setattr(Assembly, "_live", lambda self, returned: [True] * len(self.tape.steps))


def captured(**options: Any) -> tuple[IR, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ir = extract_ir(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (X,), strict=False, **options)
    return ir, [str(warning.message) for warning in caught]


@pytest.fixture
def _one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check captures one model: for tests of what is remembered."""
    first = next(iter(check_models()))
    monkeypatch.setattr(exactness_check, "check_models", lambda: iter([first]))


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by one with each check."""
    counted: list[None] = []
    check = exactness_check.difference_from_export
    monkeypatch.setattr(exactness_check, "difference_from_export", lambda: (counted.append(None), check())[1])
    return counted


def test_a_tested_version_is_not_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the cache folder is read."""
    monkeypatch.setattr(exactness_check, "is_exact", None)
    monkeypatch.setattr(exactness_check, "CachedTable", None)
    assert is_tested(torch.__version__), f"add {torch.__version__} to TESTED_TORCH"
    assert captured()[1] == []
    assert list(folder.iterdir()) == []


def test_an_untested_version_is_checked_once(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal bytes: fast capture is used, nothing is said, and the next process reads the result."""
    counted = count_checks(monkeypatch)
    for _ in range(3):
        assert captured()[1] == []
    new_process()
    monkeypatch.setattr("torch_ir.capture.export.torch_export.export_to_ir", None)  # fast capture alone is used
    assert captured()[1] == []
    assert len(counted) == 1
    (key,) = json.loads((untested / FILE).read_text())
    assert key.startswith(f"torch {torch.__version__} ")


def test_a_changed_habit_is_said_once_and_torch_export_is_used(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names the version, the first difference and what to do, at the user's line; then it is remembered."""
    counted = count_checks(monkeypatch)
    changed_habit(monkeypatch)
    with pytest.warns(CaptureWarning) as caught:
        extract_ir(nn.ReLU().eval(), (X,), strict=False)
    (warning,) = caught
    assert warning.filename == __file__
    said = str(warning.message)
    assert re.match(rf"torch {re.escape(torch.__version__)} was never tested with torch_ir [\d.]+, and", said)
    literal = '{{"name": "lifted_tensor_0", "shape": [{}], "dtype": "float32"}},'
    assert f"({literal.format('')} / {literal.format(1)})" in said
    assert said.endswith("Install a newer torch_ir, or a tested torch: 2.0")
    ir, said_again = captured()
    assert said_again == []
    assert [node.name for node in ir.nodes] == ["linear", "relu"]
    assert ir.to_json() == captured(capture="export")[0].to_json()
    new_process()
    (said_next,) = captured()[1]
    assert said_next == said
    assert len(counted) == 1


def test_recording_without_values_steps_aside_too(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """capture="record" on meta is fast capture where that may be used, else an ordinary recording."""
    changed_habit(monkeypatch)
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.empty(2, 4)
    with pytest.warns(CaptureWarning, match="never tested"):
        ir = extract_ir(model, (x,), capture="record")
    monkeypatch.setattr("torch_ir.capture.crosscheck.record_fast", None)  # it is not used again
    assert extract_ir(model, (x,), capture="record").to_json() == ir.to_json()


def test_a_check_that_fails_is_not_remembered(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export is used, and the next process checks again."""
    monkeypatch.setattr(exactness_check, "check_models", lambda: iter([(nn.ReLU(), (), {})]))
    with pytest.warns(CaptureWarning, match=r"the check failed with \w+: "):
        assert len(extract_ir(nn.ReLU().eval(), (X,), strict=False).nodes) == 1
    assert not (untested / FILE).exists()
    monkeypatch.setattr(exactness_check, "check_models", check_models)
    new_process()
    assert captured()[1] == []
    assert (untested / FILE).exists()


def test_export_is_not_checked(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With capture="export" or dynamic shapes, fast capture is not used."""
    counted = count_checks(monkeypatch)
    captured(capture="export")
    captured(dynamic_shapes={"input": {0: torch.export.Dim("batch", min=2)}})
    assert counted == []


@pytest.mark.usefixtures("_one_model")
@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', "[" * 100_000])
def test_an_unreadable_cache_counts_as_empty(text: str, untested: Path) -> None:
    (untested / FILE).write_text(text)
    assert captured()[1] == []
    assert "" in json.loads((untested / FILE).read_text()).values()


@pytest.mark.usefixtures("_one_model")
def test_a_cache_that_cannot_be_written(untested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is remembered in the process: it is checked once."""
    (untested / "file").touch()
    monkeypatch.setenv("TORCH_IR_CACHE", str(untested / "file" / "cache"))
    counted = count_checks(monkeypatch)
    assert captured()[1] == captured()[1] == []
    assert len(counted) == 1


def test_the_settings_of_the_process_do_not_matter(untested: Path) -> None:
    """Another default dtype, autocast, inference mode, or the default device meta."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            assert exactness_check.is_exact(torch.__version__)
            assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(before)
    assert list(json.loads((untested / FILE).read_text()).values()) == [""]


@pytest.mark.slow
def test_several_processes_at_once(folder: Path) -> None:
    """Each of them captures; the file is whole, and no drafts are left."""
    program = (
        "from torch_ir.ops import tested_versions as v; v.TESTED_TORCH = ()\n"
        "import torch, torch_ir\n"
        "print(len(torch_ir.extract_ir(torch.nn.ReLU().eval(), (torch.zeros(2),), strict=False).nodes))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)
    ]
    assert [process.communicate(timeout=300)[0] for process in started] == ["1\n"] * 3
    assert os.listdir(folder) == [FILE]
    assert list(json.loads((folder / FILE).read_text()).values()) == [""]


def test_the_models_have_the_habits() -> None:
    """Each is recorded fast, and together they show what fast capture copies."""
    graphs = [record_fast(*case) for case in check_models()]
    text = "\n".join(map(str, graphs))
    for habit in (
        "p_a_weight_1:", "xs_0_1:", "table_k_y:", "max_1_0:", "b_lost:", '"a.weight" = "B.weight"', "lifted_tensor_0",
        "_assert_tensor_metadata", "select_scatter", "b_count :=", "x := mul", "detach_1", "dropout",
    ):  # fmt: skip
        assert habit in text, habit
    assert {node.origin.source.partition(":")[0] for ir in graphs for node in ir.nodes} == {"fast_capture_check.py"}
    assert "lift_fresh_copy:" not in str(graphs[1])  # a literal that nothing reads


def test_a_table_keeps_the_newest_entries(folder: Path) -> None:
    table = CachedTable("table.json", 1 << 16, 3)
    for number in (0, 1, 2, 3, 1):
        table.keep(str(number), number)
    assert json.loads((folder / "table.json").read_text()) == {"2": 2, "3": 3, "1": 1}


def test_the_list_of_versions_is_in_one_place() -> None:
    """pyproject.toml requires the oldest; docs/compatibility.md has a row for each."""
    required = (ROOT / "pyproject.toml").read_text()
    assert f'"torch>={OLDEST_TORCH}"' in required
    assert f'"transformers>={OLDEST_TRANSFORMERS}"' in required
    assert TESTED_TORCH[0] == OLDEST_TORCH
    rows = re.findall(r"^\| (\d+\.\d+)\.\d+", (ROOT / "docs" / "compatibility.md").read_text(), re.MULTILINE)
    assert set(TESTED_TORCH) <= set(rows)
    assert set(OPEN_SIZES_TORCH) <= set(TESTED_TORCH)


@pytest.mark.parametrize(
    ("version", "tested", "old"),
    [
        ("2.13.0", True, False),
        ("2.13.1+cpu", True, False),
        ("2.9.1", False, True),
        ("2.10.0", False, True),
        ("1.13.0", False, True),
        ("2.13.0a0+git123", False, False),
        ("2.13.0.dev20260101", False, False),
        ("2.99.0", False, False),
        ("3.0.0", False, False),
        ("unknown", False, False),
    ],
)
def test_versions(version: str, tested: bool, old: bool) -> None:
    """A nightly build of a tested version was not tested."""
    assert (is_tested(version), is_too_old(version)) == (tested, old)


@pytest.mark.parametrize("version", [f"{minor}.0" for minor in OPEN_SIZES_TORCH])
def test_versions_with_open_sizes(version: str) -> None:
    assert is_tested_with_open_sizes(version)
    assert is_tested_with_open_sizes(f"{version}+cu132")
    assert not is_tested_with_open_sizes(f"{version}a0+git123")


@pytest.mark.parametrize("listed", [True, False])
def test_dynamic_sizes_are_recorded_with_the_listed_versions(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another version, torch.export captures them, and no check is made."""
    minor = ".".join(torch.__version__.split(".")[:2])
    monkeypatch.setattr(tested_versions, "OPEN_SIZES_TORCH", (minor,) if listed else ())
    monkeypatch.setattr(exactness_check, "is_exact", None)
    exported: list[None] = []
    export = torch_export.export_to_ir
    monkeypatch.setattr(torch_export, "export_to_ir", lambda *call: (exported.append(None), export(*call))[1])
    ir, warned = captured(dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert ir.graph_inputs[0].shape == ("rows", 4)
    assert warned == []
    assert bool(exported) != listed


def test_an_old_torch_is_refused() -> None:
    program = "import torch; torch.__version__ = '2.9.1'\nimport torch_ir.ops"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"torch_ir.errors.TorchIRError: torch_ir needs torch {OLDEST_TORCH} or newer, and torch 2.9.1 is installed"
    )
