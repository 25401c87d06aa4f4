"""Compare captures with the stored rows, or store them.

python -m tests.captures check [PATTERN] [--against REV]     capture again; print what changed
python -m tests.captures accept PATTERN --reason TEXT        capture again; store what changed, with the reason

A pattern is a family, a case, or `FAMILY/CASE`, with `*` and `?`. No graphs are stored: with `--against`, the old graph
of a changed case is captured from a git revision, and the first difference is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tests.captures.stored import REASON, store, unpinned
from tests.captures.sweep import Compared, compared, described, first_difference, gone, is_revision, selected, texts_at


def main() -> int:
    options = _parse()
    if options.action == "texts":
        print(json.dumps(_texts(sys.stdin.read().splitlines())))
        return 0
    if found := unpinned():
        print(f"the stored rows are those of the versions in constraints.txt; installed: {found}", file=sys.stderr)
        return 2
    accept = options.action == "accept"
    changed = _changed(
        options.pattern, options.ignore, options.jobs, partial(_accept, options.reason) if accept else _print
    )
    if options.against and changed:
        _show_differences(changed, texts_at(options.against, [each.id for each in changed]))
    if accept:
        return 0
    return 1 if changed else 0


def _parse() -> argparse.Namespace:
    head, _, about = (__doc__ or "").partition("\n")
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.captures", description=head, epilog=about, formatter_class=raw
    )
    parser.add_argument("action", choices=("check", "accept", "texts"), help="`texts` prints the graphs named on stdin")
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="default: every case")
    parser.add_argument("--against", metavar="REV", help="show the first difference to the graphs of this git revision")
    parser.add_argument("--reason", metavar="TEXT", help="why rows change; not needed for rows of new cases")
    parser.add_argument(
        "--ignore", metavar="FIELD", action="append", default=[], help="a field to leave out, such as by"
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.against and not is_revision(options.against):
        parser.error(f"git has no revision {options.against!r}")
    return options


def _changed(pattern: str, ignored: Sequence[str], jobs: int, use: Callable[[Compared], None]) -> list[Compared]:
    """Capture the cases; use and return what changed, and print how many."""
    changed, count = list(gone(pattern)), 0
    for each in changed:
        use(each)
    for family, cases in selected(pattern):
        count += len(cases)
        for each in compared(family, cases, ignored, jobs):
            if each.changed:
                changed.append(each)
                use(each)
    fields = Counter(field for each in changed for field in each.changed)
    print(
        f"{len(changed)} of {count} captures changed",
        *(f"{field} {times}" for field, times in fields.items()),
        sep=", ",
    )
    return changed


def _print(each: Compared) -> None:
    print(each.id, *(f"  {field}: {text}" for field, text in each.changed.items()), sep="\n", flush=True)


def _accept(reason: str | None, each: Compared) -> None:
    """Store a row at once, so that an interrupted run has stored what it has captured."""
    if each.changed == {"case": "new"}:
        store(each.family, each.name, each.row)
    elif reason is None:
        raise SystemExit(f"{each.id} changes, which needs --reason")
    else:
        store(each.family, each.name, each.row and {**each.row, REASON: reason})


def _texts(ids: Sequence[str]) -> dict[str, dict[str, str]]:
    return {
        f"{family}/{case.name}": described(family, replace(case, result=None)).texts
        for family in dict.fromkeys(each.partition("/")[0] for each in ids)
        for case in dict(selected(family))[family]
        if f"{family}/{case.name}" in ids
    }


def _show_differences(changed: Sequence[Compared], old: dict[str, dict[str, str]]) -> None:
    for each in changed:
        for part, text in each.texts.items():
            before = old.get(each.id, {}).get(part)
            found = first_difference(json.loads(before), json.loads(text)) if before else "was not captured"
            print(f"{each.id}, {part}: {found or 'no difference'}")


if __name__ == "__main__":
    sys.exit(main())
