"""The whole matrix in a separate interpreter, and its expected result."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.adversarial.measuring import MOST, SECONDS, SHORT, Ended, Growth, measured
from tests.adversarial.shapes import SHAPES
from tests.adversarial.verbs import ALL

_ROOT = Path(__file__).resolve().parents[2]
# Shapes whose time depends on the number of inlined nodes, which has a limit.
INLINED = ("wide tower", "operators in calls", "modules in calls", "long path tower", "module tower")
SIZE = 600  # nodes of the larger graph
Cells = Sequence[tuple[str, str]]


def grown(cells: Cells, size: int) -> Iterator[Growth]:
    """Measure pairs of a shape and a verb at a size and at half of it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.adversarial.sweep", str(size)]
    done = subprocess.run(command, cwd=_ROOT, input=json.dumps(cells), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    for line in done.stdout.splitlines():
        shape, verb, sizes, lengths, runs = json.loads(line)
        yield Growth(shape, verb, tuple(sizes), tuple(lengths), tuple(Ended(**run) for run in runs))


def measure() -> dict[str, int | float | str]:
    """The figures of the whole matrix."""
    return figures(grown([(shape, verb) for shape in SHAPES for verb in ALL], SIZE))


def figures(cells: Iterable[Growth]) -> dict[str, int | float | str]:
    """The figures of measured cells."""
    found = list(cells)
    fast_growing = [one for one in found if one.is_ended and not one.is_bounded]
    long = [one for one in found if len(one.runs) > 1 and one.shape not in INLINED]
    worst = max(long, key=Growth.exponent)
    slowest = max(found, key=lambda one: one.runs[-1].seconds)
    largest = max(found, key=lambda one: one.runs[-1].bytes)
    return {
        "shapes of graphs": len({one.shape for one in found}),
        "verbs": len({one.verb for one in found}),
        "pairs measured": f"{len(found):,} of {len(SHAPES) * len(ALL):,}",
        "nodes of the largest graphs": SIZE,
        f"below {SHORT} s, so without an exponent": sum(one.is_short for one in found),
        f"ended by a limit of {SECONDS} s or 2 GiB": sum(not one.is_ended for one in found),
        "refused in one sentence": sum(one.is_ended and one.is_refused for one in found),
        f"with an exponent of time above {MOST}": sum(one.shape not in INLINED for one in fast_growing),
        "of graphs that inline to 100,000 nodes": sum(one.shape in INLINED for one in fast_growing),
        "largest exponent of time of others": f"{worst.exponent():.2f} ({worst.verb}, {worst.shape})",
        "slowest": f"{slowest.runs[-1].seconds:.1f} s ({slowest.verb}, {slowest.shape})",
        "most memory": f"{largest.runs[-1].bytes >> 20:,} MB ({largest.verb}, {largest.shape})",
    }


def main() -> None:
    """Measure the cells of stdin, and print each as a line of JSON."""
    size = int(sys.argv[1])
    verbs: dict[str, list[str]] = {}
    for shape, verb in json.loads(sys.stdin.read()):
        verbs.setdefault(shape, []).append(verb)
    for growth in measured(verbs, [size // 2, size]):
        runs = [asdict(run) for run in growth.runs]
        print(json.dumps([growth.shape, growth.verb, growth.sizes, growth.file_bytes, runs]), flush=True)


if __name__ == "__main__":
    main()
