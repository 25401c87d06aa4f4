"""Write the operators and dtypes that the records of the sweep cover: `swept.json`, which `compile` reads.

python -m tests.backend_sweep.swept_pairs [RECORDS...]

Without records, the nodes of usual models are swept first, in every back end. An operator counts as compared in a
combination of dtypes if a case with it returned what eager returns, and none is silently wrong. What the file had
before is kept, unless another version of the back end is installed now.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.backend_sweep.coverage import SILENT, verdict
from tests.backend_sweep.judging import ROUNDING, SAME
from tests.backend_sweep.measuring import BACKENDS, sweep
from tests.backend_sweep.table import PACKAGES, Record, records
from torch_ir.backends.swept import TABLE, combination

Pairs = dict[str, dict[str, set[str]]]  # back end -> operator -> combinations of dtypes


def pairs_of(found: Iterable[Record]) -> Pairs:
    """The combinations that were compared and never silently wrong, by back end and operator."""
    right: Pairs = defaultdict(lambda: defaultdict(set))
    wrong: Pairs = defaultdict(lambda: defaultdict(set))
    for record in found:
        kind = verdict(record)
        if kind in (SAME, ROUNDING, SILENT):
            for node in record["nodes"]:
                kinds = (wrong if kind == SILENT else right)[record["backend"]]
                is_open = any(isinstance(size, str) for shape in node["shapes"] for size in shape)
                kinds[node["op"]].add(combination([*node["dtypes"], *node["made"]], is_open))
    return {
        backend: {name: left for name, kinds in operators.items() if (left := kinds - wrong[backend][name])}
        for backend, operators in right.items()
    }


def updated(held: dict[str, Any], fresh: Pairs) -> dict[str, Any]:
    """The content of the file with these pairs added."""
    made = dict(held)
    for backend, operators in fresh.items():
        package = PACKAGES.get(backend, "torch")
        version = metadata.version(package).partition("+")[0]
        before = held.get(backend, {})
        known = before["operators"] if before.get("version") == version else {}
        merged = {name: {*filter(None, known.get(name, "").split(", "))} for name in {*known, *operators}}
        for name, kinds in operators.items():
            merged[name] |= kinds
        texts = {name: ", ".join(sorted(merged[name])) for name in sorted(merged)}
        made[backend] = {"package": package, "version": version, "operators": texts}
    return dict(sorted(made.items()))


def main() -> int:
    files = list(map(Path, sys.argv[1:])) or [sweep(backend, "nodes", "0/1") for backend in BACKENDS]
    held = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    content = updated(held, pairs_of(records(files)))
    TABLE.write_text(json.dumps(content, indent=0) + "\n", encoding="utf-8")
    for backend, record in content.items():
        count = sum(text.count(",") + 1 for text in record["operators"].values())
        print(f"{backend}: {len(record['operators'])} operators, {count} combinations with dtypes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
