"""Open every hostile file and print the result, or write the table to docs/security.md.

python -m tests.hostile_files [FAMILY ...] [--every N] [--json] [--write]
"""

import argparse
import json
import sys

from tests.hostile_files import CASES, FAMILIES
from tests.hostile_files.runner import Ended, run_all
from tests.hostile_files.table import replace_table, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile_files", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="which (default: all)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the files, take only every Nth")
    parser.add_argument("--json", action="store_true", help="print every case as a line of JSON")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/security.md")
    options = parser.parse_args()
    if unknown := set(options.families) - {family.name for family in FAMILIES}:
        parser.error(f"no family is called {min(unknown)!r}")
    ended = []
    chosen = [case for case in CASES if not options.families or case.family in options.families]
    for one in run_all(chosen[:: options.every]):
        ended.append(one)
        _tell(one, options.json)
    if options.write:
        replace_table(table(CASES))
    return 0 if all(one.is_good for one in ended) else 1


def _tell(one: Ended, as_json: bool) -> None:
    if as_json:
        print(json.dumps([one.case.family, one.case.name, one.outcome, one.case.expected, one.detail]), flush=True)
    elif not one.is_good:
        print(f"{one.case.family}: {one.case.name}: {one.outcome}: {one.detail}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
