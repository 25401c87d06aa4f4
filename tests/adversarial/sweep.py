"""The whole matrix in a separate interpreter, and its expected result."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.adversarial.measuring import Ended, Growth, measured
from tests.adversarial.shapes import SHAPES
from tests.adversarial.verbs import ALL

_ROOT = Path(__file__).resolve().parents[2]
SIZE = 150
_MOST = 1.3  # exponent of time
_SHORT = 0.3  # seconds below which growth is not reported
_BYTES_PER_BYTE = 1000  # of memory for the file
Cells = Sequence[tuple[str, str]]


def is_bounded(growth: Growth) -> bool:
    """Whether a verb ended within its limits, in time and memory that grow with the file."""
    last = growth.runs[-1]
    is_fast = last.seconds < _SHORT or growth.exponent() <= _MOST
    return growth.is_ended and is_fast and last.bytes < (64 << 20) + _BYTES_PER_BYTE * growth.file_bytes[-1]


def grown(cells: Cells, size: int) -> Iterator[Growth]:
    """Measure pairs of a shape and a verb at a size, twice and four times that."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.adversarial.sweep", str(size)]
    done = subprocess.run(command, cwd=_ROOT, input=json.dumps(cells), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    for line in done.stdout.splitlines():
        shape, verb, sizes, lengths, runs = json.loads(line)
        yield Growth(shape, verb, tuple(sizes), tuple(lengths), tuple(Ended(**run) for run in runs))


def measure(shapes: Sequence[str] = tuple(SHAPES)) -> dict[str, int | float | str]:
    """The figures of the whole matrix."""
    found = list(grown([(shape, verb) for shape in shapes for verb in ALL], SIZE))
    worst = max((one for one in found if one.runs[-1].seconds >= _SHORT), key=Growth.exponent)
    slowest = max(found, key=lambda one: one.runs[-1].seconds)
    return {
        "shapes of graphs": len(shapes),
        "verbs": len(ALL),
        "nodes of the largest graphs": 4 * SIZE,
        "ended by a limit of 20 s or 2 GiB": sum(not one.is_ended for one in found),
        "refused in one sentence": sum(one.is_ended and one.is_refused for one in found),
        f"with an exponent of time above {_MOST}": sum(not is_bounded(one) for one in found if one.is_ended),
        "largest exponent of time": f"{worst.exponent():.2f} ({worst.verb}, {worst.shape})",
        "slowest": f"{slowest.runs[-1].seconds:.1f} s ({slowest.verb}, {slowest.shape})",
    }


def main() -> None:
    """Measure the cells of stdin, and print each as a line of JSON; those that seem to grow too fast are repeated."""
    sizes = [int(sys.argv[1]) * factor for factor in (1, 2, 4)]
    for shape, verb in json.loads(sys.stdin.read()):
        growth = next(measured([shape], [verb], sizes))
        if growth.is_ended and not is_bounded(growth):
            growth = min(growth, next(measured([shape], [verb], sizes)), key=Growth.exponent)
        runs = [asdict(run) for run in growth.runs]
        print(json.dumps([growth.shape, growth.verb, growth.sizes, growth.file_bytes, runs]), flush=True)


if __name__ == "__main__":
    main()
