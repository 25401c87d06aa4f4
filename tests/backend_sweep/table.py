"""Derive the rows of the table from the records of the sweep: the wrong operators of a back end, and the conditions.

python -m tests.backend_sweep.table RECORDS...

A result that is wrong on ordinary values is refused; one that is wrong on special values alone is a deviation. The
condition is the smallest of the vocabulary that covers all that is wrong, and refuses the least of what is right.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from torch_ir.backends.deviations import DEVIATION, REFUSED, TABLE

ORDINARY = frozenset(["sample", "ties", "small", "all true", "all false"])
SPECIAL = ("nan", "infinity", "large", "denormal", "extremes")
PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "iree": "iree-base-compiler"}
Record = Mapping[str, Any]


def records(paths: Iterable[Path]) -> list[Record]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def is_wrong(record: Record) -> bool:
    return record["verdict"] in ("wrong", "crashed")


def new_rows(found: Sequence[Record], covered: Any) -> Iterator[dict[str, Any]]:
    """A row for each operator that stands alone in a wrong case, where no row of the table covers that yet."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in found:
        groups[record["backend"], _blamed(record)].append(record)
    for (backend, operator), group in sorted(groups.items()):
        wrong = [record for record in group if is_wrong(record) and not covered(record)]
        if not wrong or operator == "":
            continue
        right = [record for record in group if record["verdict"] in ("same", "rounding")]
        plain = [record for record in wrong if record["values"] in ORDINARY]
        if plain:
            when = condition(plain, [record for record in right if record["values"] in ORDINARY])
            yield _row(backend, operator, when, REFUSED, plain)
        special = sorted({record["values"] for record in wrong} - ORDINARY, key=_place)
        if special:
            yield _row(backend, operator, {"values": special}, DEVIATION, wrong)


def _place(values: str) -> int:
    return SPECIAL.index(values) if values in SPECIAL else len(SPECIAL)


def _blamed(record: Record) -> str:
    """The one operator of a case that computes; empty where there are several."""
    idle = ("aten._assert_tensor_metadata.default", "aten.detach.default", "aten.lift_fresh_copy.default")
    found = {node["op"] for node in record["nodes"]} - set(idle)
    return found.pop() if len(found) == 1 else ""


def condition(wrong: Sequence[Record], right: Sequence[Record]) -> dict[str, Any]:
    """Return the condition that holds for all wrong cases and for the fewest right ones."""
    choices = [when for when in _conditions(wrong[0]) if all(_holds(when, record) for record in wrong)]
    dtypes = sorted({dtype for record in wrong for node in record["nodes"] for dtype in node["dtypes"]})
    choices += [{"dtype": dtypes}] if dtypes else []
    return min(choices, key=lambda when: (sum(_holds(when, record) for record in right), len(str(when))))


def _conditions(record: Record) -> list[dict[str, Any]]:
    node = record["nodes"][-1]
    attrs = [{"attr": {name: value}} for name, value in node["attrs"].items() if isinstance(value, (bool, str))]
    given = [{"given": [name]} for name in node["given"]]
    return [{}, *attrs, *given, {"rank": 0}, {"empty": True}]


def _holds(when: Mapping[str, Any], record: Record) -> bool:
    node = record["nodes"][-1]
    tests = {
        "attr": lambda wanted: all(node["attrs"].get(name) == value for name, value in wanted.items()),
        "given": lambda wanted: set(wanted) <= set(node["given"]),
        "dtype": lambda wanted: bool(set(wanted) & set(node["dtypes"])),
        "empty": lambda wanted: wanted == any(0 in shape for shape in node["shapes"]),
        "rank": lambda wanted: any(len(shape) == wanted for shape in node["shapes"]),
    }
    return all(tests[kind](wanted) for kind, wanted in when.items())


def _row(backend: str, operator: str, when: Mapping[str, Any], effect: str, wrong: Sequence[Record]) -> dict[str, Any]:
    package = PACKAGES.get(backend, "torch")
    said = Counter(_reason(record) for record in wrong).most_common(1)[0][0]
    version = f"{package} {metadata.version(package)}"
    return {
        "backend": backend,
        "operator": operator,
        "when": dict(when),
        "effect": effect,
        "reason": said,
        "version": version,
    }


def _reason(record: Record) -> str:
    detail = record["detail"]
    if record["verdict"] == "crashed":
        return "ends the process"
    if "NaN" in detail:
        return "returns NaN or infinity elsewhere"
    if "shape" in detail or "dtype" in detail:
        return "returns another shape or dtype"
    return "fails inside the runtime" if "Error" in detail else "returns other numbers"


def main() -> int:
    from tests.backend_sweep.coverage import covered

    found = records(map(Path, sys.argv[1:]))
    held = json.loads(TABLE.read_text())
    fresh = list(new_rows(found, covered))
    rows = sorted([*held, *fresh], key=lambda row: (row["effect"] != REFUSED, row["backend"], row["operator"]))
    TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    print(f"{len(fresh)} new rows, {len(rows)} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
