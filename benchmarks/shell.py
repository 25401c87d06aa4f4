"""Commands from the shell, each in a fresh process, next to `import torch`: CPU time."""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import median_time, ratios, table, with_bytecode

IMPORT = "python -c 'import torch'"
GRAPH = "resnet50.json"
COMMANDS = {
    "torch-ir extract": ("extract", "catalogue.resnet50:resnet50", "--input", "1x3x224x224", "-o"),
    "torch-ir info": ("info",),
    "torch-ir cost": ("cost",),
    "torch-ir draw -o resnet50.mmd": ("draw", "-o", "resnet50.mmd"),
}


def run(repeats: int = 5) -> str:
    """Return median CPU times of the commands on ResNet-50, and their ratios to the import of torch."""
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-W", "ignore"]
        graph = str(Path(folder, GRAPH))
        ways = {IMPORT: [*start, "-c", "import torch"]}
        for name, (verb, *options) in COMMANDS.items():
            ways[name] = [*start, "-m", "torch_ir", verb, *_inside(folder, options), graph]
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(repeats + 1):  # the first one writes bytecode, and the graph
            for name, command in ways.items():
                begin = _seconds_of_children()
                subprocess.run(command, check=True, capture_output=True, cwd=root, env=with_bytecode())
                if turn:
                    times[name].append(_seconds_of_children() - begin)
    torch = times[IMPORT]
    return table(
        ["command", "CPU time", "/ import torch (range)"],
        [[f"`{name}`", median_time(found), ratios(found, torch)] for name, found in times.items()],
    )


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _inside(folder: str, options: list[str]) -> list[str]:
    return [str(Path(folder, option)) if option.endswith(".mmd") else option for option in options]
