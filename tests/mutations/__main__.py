"""Corrupt the graphs of every model and print the detection rates, or write them to docs/verify.md.

python -m tests.mutations [MODEL ...] [--each 2] [--write]
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.mutations.kinds import KINDS
from tests.mutations.subjects import names
from tests.mutations.sweep import CAUGHT, EQUIVALENT, MISSED, Tally, sweep

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify.md"
START, END = "<!-- mutations -->\n", "<!-- end mutations -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="which (default: all)")
    parser.add_argument("--each", type=int, default=2, metavar="N", help="mutants of each kind and model (default: 2)")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/verify.md")
    options = parser.parse_args()
    chosen = options.names or names()
    if unknown := set(chosen) - set(names()):
        parser.error(f"no model is called {min(unknown)!r}")
    tally = Tally()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = {name: pool.submit(sweep, [name], options.each) for name in chosen}
        for name, part in parts.items():
            tally.merge(part.result())
            print(f"{name}: {len(tally.missed)} missed so far", file=sys.stderr, flush=True)
    found = table(tally, len(chosen))
    print(found)
    if options.write:
        _replace(found)
    return 0 if tally.score >= 0.99 else 1


def table(tally: Tally, models: int) -> str:
    """The counts by kind, the score, and every mutant that was missed."""
    rows = [[kind, *(tally.counts[kind, outcome] for outcome in (EQUIVALENT, CAUGHT, MISSED))] for kind in KINDS]
    rows.append(["all", *(tally.total(outcome) for outcome in (EQUIVALENT, CAUGHT, MISSED))])
    generated = sum(tally.counts.values())
    others = generated - tally.total(EQUIVALENT)
    lines = [
        f"{generated:,} corrupted graphs of {models} models: {tally.total(EQUIVALENT):,} compute the same function,",
        f"and of the other {others:,}, {tally.score:.2%} are caught.",
        "",
        "| mistake | made | same function | caught | missed |",
        "|---|---|---|---|---|",
        *(f"| {kind} | {sum(counts)} | {' | '.join(map(str, counts))} |" for kind, *counts in rows),
        "",
        "Missed:",
        "",
        *(f"- {line}" for line in tally.missed),
    ]
    return "\n".join(lines)


def _replace(text: str) -> None:
    """Put the table between its marks on the page."""
    before, opened, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, closed, after = rest.partition(END)
    if not opened or not closed:
        raise SystemExit(f"{PAGE.name} has no marks for the table")
    PAGE.write_text(f"{before}{START}{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
