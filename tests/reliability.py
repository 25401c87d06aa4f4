"""Run sweeps in full and write their figures into docs/reliability.md: `python -m tests.reliability [SECTION ...]`.

Each section is a table of that page. All of them take about an hour on two cores.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

Figures = Mapping[str, int | float | str]
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
_FUZZED = ROOT / "reports" / "fuzz" / "summary.json"
_EXECUTIONS = re.compile(r"^\| (\w+: executions) \| (.+?) \|$", re.MULTILINE)
_VERIFIED = re.compile(r"([\d,]+) corrupted graphs of (\d+) models: ([\d,]+) .*\nand of the other ([\d,]+), ([\d.]+%)")


def _of(module: str) -> Callable[[], Figures]:
    """Return the figures of a sweep; its module is imported lazily."""
    return lambda: import_module(f"tests.{module}").measure()  # type: ignore[no-any-return]


def verifier() -> Figures:
    """Return the figures of `python -m tests.mutations --write`, which takes an hour."""
    found = _VERIFIED.search((ROOT / "docs" / "verify.md").read_text())
    assert found is not None
    labels = ("corrupted graphs", "models", "that compute the same function", "others", "of them caught")
    return dict(zip(labels, found.groups(), strict=True))


def fuzzing() -> Figures:
    """Return the figures of the last `make fuzz`; targets that it did not run keep those of the page."""
    targets = json.loads(_FUZZED.read_text())
    rows = dict(_EXECUTIONS.findall(PAGE.read_text()))
    for target in targets:
        text = f"{target['executions']:,} in {target['computed']:,.0f} s of computing"
        rows[f"{target['target']}: executions"] = text
    return {**rows, "inputs that failed": sum(len(target["crashes"]) for target in targets)}


SECTIONS: dict[str, Callable[[], Figures]] = {
    "hostile files": _of("hostile_files.sweep"),
    "hostile calls": _of("hostile_calls"),
    "hostile values": _of("hostile_values"),
    "bounded work": _of("adversarial.sweep"),
    "damage": _of("damage.sweep"),
    "fuzzing": fuzzing,
    "faults": _of("faults.sweep"),
    "random models": _of("random_models.sweep"),
    "random graphs": _of("random_irs.sweep"),
    "near misses": _of("test_near_misses"),
    "optimised graphs": _of("test_near_values"),
    "verifier": verifier,
    "verification against an oracle": _of("verification_oracle.sweep"),
    "state": _of("test_state"),
    "model state": _of("state_models.sweep"),
    "ambient state and layouts": _of("ambient_sweep"),
    "back ends": _of("backend_sweep.measuring"),
    "views": _of("backend_sweep.view_figures"),
    "cache forms": _of("cache_forms"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)} (default: all)")
    chosen = parser.parse_args().sections or list(SECTIONS)
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no section is called {min(unknown)!r}")
    for name in chosen:
        table = as_table(SECTIONS[name]())
        print(f"{name}\n{table}\n", file=sys.stderr, flush=True)
        PAGE.write_text(with_table(PAGE.read_text(), name, table))
    return 0


def as_table(figures: Figures) -> str:
    rows = [f"| {label} | {_shown(figure)} |" for label, figure in figures.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _shown(figure: int | float | str) -> str:
    return figure if isinstance(figure, str) else f"{figure:,}"


def with_table(page: str, name: str, table: str) -> str:
    """The page with another table between the marks of a section."""
    start, end = f"<!-- {name} -->\n", f"<!-- end {name} -->"
    before, _, rest = page.partition(start)
    _, mark, after = rest.partition(end)
    assert mark, f"the page has no section {name!r}"
    return f"{before}{start}{table}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
