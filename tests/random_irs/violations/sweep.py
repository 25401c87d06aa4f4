"""Run violations over random graphs and count those caught by the right rule and at the right path."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.random_irs.draft import random_ir
from tests.random_irs.draws import Draw
from tests.random_irs.violations import calls, constants, facts, records, texts
from tests.random_irs.violations.kinds import VIOLATIONS, Violation, document_of
from torch_ir import validate_ir
from torch_ir.errors import RuleError, printable
from torch_ir.ir import IR

FILES = (calls, constants, facts, records, texts)  # each adds its kinds
Load = Callable[[], object]


@dataclass
class Score:
    """Counts of violations made and caught; `misses` describes each that was not named correctly."""

    made: Counter[str] = field(default_factory=Counter)
    caught: int = 0
    right_rule: int = 0
    right_path: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, seed: int, ir: IR, kind: Violation) -> None:
        """Make one violation in a copy of a graph, and record which check finds it."""
        with tempfile.TemporaryDirectory() as folder:
            broken = _broken(Draw(f"{seed}/{kind.kind}"), ir, kind, Path(folder, "graph.json"))
            if broken is None:
                return
            path, load = printable(broken[0]), broken[1]
            self.made[kind.kind] += 1
            try:
                load()
            except RuleError as error:
                self.caught += 1
                self.right_rule += error.rule == kind.rule
                self.right_path += error.path == path
                found = f"{error.rule} at {error.path}: {error.args[0]:.100}"
                is_right = (error.rule, error.path) == (kind.rule, path)
            except Exception as error:  # any other exception names no rule
                found, is_right = f"{type(error).__name__}: {error}", False
            else:
                found, is_right = "accepted", False
            if not is_right:
                self.misses.append(f"{seed} {kind.kind}: {kind.rule} at {path:.200}, but {found}")


def _broken(draw: Draw, ir: IR, kind: Violation, file: Path) -> tuple[str, Load] | None:
    """Return the expected path and checker; None if the graph has no place for this violation."""
    make: Callable[[Draw, Any], Any] = kind.make
    if kind.where == "text":
        text, path = make(draw, ir.to_json())
        return path, lambda: IR.from_json(text)
    if kind.where == "graph":
        copy = ir.clone()
        path = make(draw, copy)
        return None if path is None else (path, lambda: validate_ir(copy))
    if kind.where == "files":
        ir.save(file)
        path = make(draw, file)
        return None if path is None else (path, lambda: IR.load(file).to_json())
    document = document_of(ir)
    path = make(draw, document)
    return None if path is None else (path, lambda: validate_ir(IR.from_json(json.dumps(document))))


def sweep(seeds: Iterable[int]) -> Score:
    """Make every kind of violation in a typed graph of each seed."""
    score = Score()
    for seed in seeds:
        ir = random_ir(seed, typed=True)
        for kind in VIOLATIONS.values():
            score.add(seed, ir, kind)
    return score
