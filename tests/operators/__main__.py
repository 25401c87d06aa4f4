"""Sweep the operator database and print the results, or write docs/operators.md.

python -m tests.operators [--samples 4] [--every 1] [--write]
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from tests.operators.cases import DTYPES, database
from tests.operators.sweep import CARRIED, EAGER, EXCEPTIONS, EXPORT, LOST, Tally, sweep_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
PARTS = 16


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.operators", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=4, help="sample inputs of each operator and dtype (default: 4)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th operator")
    parser.add_argument("--write", action="store_true", help="write docs/operators.md")
    options = parser.parse_args()
    tally = Tally()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(sweep_part, part, PARTS, options.every, options.samples) for part in range(PARTS)]
        for number, part in enumerate(parts, 1):
            tally.merge(part.result())
            print(f"{number} of {PARTS} parts done, {len(tally.lost)} cases lost", file=sys.stderr, flush=True)
    text = page(tally, len(database()[:: options.every]), options.samples)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    print(text)
    return 0 if not tally.unexplained() else 1


def page(tally: Tally, operators: int, samples: int) -> str:
    """Return the page: counts by dtype, unsupported operators, operators that torch.export refuses."""
    columns = (EAGER, EXPORT, CARRIED, LOST)
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    rows = [[name, *(tally.counts[name, outcome] for outcome in columns)] for name in names]
    rows.append(["all", *(sum(row[index] for row in rows) for index in range(1, 5))])  # type: ignore[misc]  # numbers
    explained = [f"| `{name}` | {reason} |" for name, reason in sorted(EXCEPTIONS.items())]
    refused = ", ".join(f"`{name}`" for name in sorted(tally.refused))
    return "\n".join(
        [
            "# Operators",
            "",
            f"Every operator of torch's own database ({operators} of {len(database())} entries, torch "
            f"{torch.__version__}),",
            f"up to {samples} sample inputs in each dtype, functional and in-place: extracted, saved, loaded,",
            "executed, and compared with eager, including changed inputs. `python -m tests.operators --write` writes",
            "this page; `make test` runs a part of the sweep, `make test-all` all of it.",
            "",
            "Operators that are not in the database run through their schema as well.",
            "",
            "| dtype | eager refuses | torch.export refuses | exact | unsupported |",
            "|---|---|---|---|---|",
            *(f"| {' | '.join(map(str, row))} |" for row in rows),
            "",
            "## Captured by torch.export, but unsupported",
            "",
            "| case | why |",
            "|---|---|",
            *explained,
            "",
            "## Refused by torch.export for some of their samples",
            "",
            refused + ".",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
