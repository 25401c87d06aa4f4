"""The tour of README.md with the package alone: as a copy of its files, and as a wheel in an empty environment."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.command_line import ROOT
from tests.documents import Block, matches, read_blocks

HEADING = "## A two-minute tour"
# `import torch` warns if there is no NumPy, as docs/install.md says; what follows must not
SILENT_TORCH = (
    "import warnings",
    "with warnings.catch_warnings():",
    "    warnings.filterwarnings('ignore', 'Failed to initialize NumPy')",
    "    import torch",
)


def tour() -> list[Block]:
    """The blocks of the tour, up to the next heading."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = lines.index(HEADING)
    stop = next(at for at in range(start + 1, len(lines)) if lines[at].startswith("## "))
    return [block for block in read_blocks("README.md", lines) if start < block.start < stop]


def take(python: str, folder: Path, path: str = "") -> None:
    """Run the Python blocks in one process: nothing on stderr, and the output that the README shows."""
    blocks = tour()
    code = ["\n".join(block.lines) for block in blocks if block.language == "python"]
    source = "\n".join([*SILENT_TORCH, "torch.manual_seed(0)", *code])  # as pages are run
    shown = "\n".join("\n".join(block.lines) for block in blocks if block.language == "text" and block.follows)
    (folder / "tour.py").write_text(source, encoding="utf-8")
    without = ("PYTHONPATH", "TORCH_IR_CACHE")
    environment = {**{name: value for name, value in os.environ.items() if name not in without}, "PYTHONPATH": path}
    done = subprocess.run(
        [python, "-W", "always::UserWarning", "tour.py"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    real = [line for line in done.stdout.splitlines() if line]
    assert matches([line for line in shown.splitlines() if line], real), done.stdout


def test_the_tour_needs_the_package_alone(tmp_path: Path) -> None:
    """No test, catalogue or example is imported, and no file outside the package is read."""
    shutil.copytree(ROOT / "torch_ir", tmp_path / "package" / "torch_ir", ignore=shutil.ignore_patterns("__pycache__"))
    take(sys.executable, tmp_path, str(tmp_path / "package"))


def test_no_warning_about_missing_numpy() -> None:
    """Where torch_ir is what imports torch; filters of the user stay as they were."""
    program = (
        "import sys, warnings; sys.modules['numpy'] = None; before = warnings.filters[:]\n"
        "import torch_ir; torch_ir.extract_ir; import torch; assert warnings.filters[:] == before\n"
        "print(torch_ir.extract_ir(torch.nn.ReLU().eval(), (torch.empty(2, device='meta'),)).nodes)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::UserWarning", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[OpNode('relu', 'aten.relu.default')]\n")


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    """Built from the repository, installed with what it requires and nothing else."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("torch_ir-*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    programs = tmp_path / "empty" / ("Scripts" if sys.platform == "win32" else "bin")
    constraints = str(ROOT / "constraints.txt")
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", "-c", constraints, str(wheel)], check=True)
    take(str(programs / "python"), tmp_path)
    for words in (["info", "model_ir.json"], ["doctor", "python", "torch", "torch_ir", "installation", "backends"]):
        done = subprocess.run(
            [programs / "torch-ir", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
