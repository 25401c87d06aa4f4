"""Print how time and memory grow: `python -m tests.adversarial [--shape NAME ...] [--verb NAME ...] [--size N]`."""

import argparse

from tests.adversarial.measuring import measured
from tests.adversarial.shapes import SHAPES
from tests.adversarial.verbs import ALL


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="default: all")
    parser.add_argument("--verb", action="append", choices=list(ALL), help="default: all")
    parser.add_argument("--size", type=int, default=1000, metavar="N", help="measure at N, 2N and 4N (default: 1000)")
    arguments = parser.parse_args()
    sizes = [arguments.size * factor for factor in (1, 2, 4)]
    print(f"{'shape':<18} {'verb':<17}  time memory: exponents; then seconds and MB at 8, {sizes}")
    for growth in measured(dict.fromkeys(arguments.shape or SHAPES, arguments.verb or list(ALL)), sizes):
        print(growth, flush=True)


if __name__ == "__main__":
    main()
