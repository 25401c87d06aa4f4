"""`torch-ir sweep`: extract, cost, optimise and verify a list of models, each in a separate process."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, add_seed, argument, show
from torch_ir.errors import CommandError

if TYPE_CHECKING:
    from torch_ir.sweep import Allowance, Entry, Row

SUMMARY = "extract, cost, optimise and verify a list of models"
EXAMPLES = """
models.txt -o results
models.txt --workers 8 --timeout 120 --memory 8GB
models.txt --steps extract,cost --json
models.txt --engine dask --address tcp://scheduler:8786
models.txt -o results --retry --timeout 1800
--list transformers > models.txt
"""
_ENGINES = ("local", "dask", "ray")
_SHOWN = 10  # models that were not ok


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(
        parser, "models MODELS", "a list with a model and its --input per line; treat such a list as code", nargs="?"
    )
    argument(parser, "-o --output FOLDER", "output folder (default: results)", default="results")
    parser.add_argument("--engine", choices=_ENGINES, default="local", help="the engine: local (default), dask or ray")
    argument(parser, "--address ADDRESS", "address of a running cluster (default: start one on this machine)")
    argument(parser, "--workers N", "models at a time (default: one per core)", type=int)
    argument(parser, "--timeout SECONDS", "time limit per model (default: 600)", type=float, default=600.0)
    argument(parser, "--memory BYTES", "memory limit per model, on top of torch itself (default: 4GB)", default="4GB")
    argument(parser, "--steps NAMES", "which steps (default: all four)", default="extract,cost,optimize,verify")
    parser.add_argument(
        "--level", choices=("clean", "basic", "full"), default="basic", help="optimisation level (default: basic)"
    )
    add_seed(parser)
    argument(parser, "--allow-code", "allow the list to name code of Python or of installed packages")
    argument(parser, "--retry", "run the models that failed again")
    parser.add_argument("--list", choices=("transformers", "timm"), help="print the models of a library and exit")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.list is not None:
        from torch_ir.cli.models.model_lists import LISTS

        print(*LISTS[arguments.list](), sep="\n")
        return 0
    if arguments.models is None:
        raise CommandError("no models given; give a file with one per line, such as --list transformers prints")
    return _sweep(arguments, _entries(arguments.models))


def _entries(path: str) -> list[Entry]:
    from torch_ir.sweep import read_entries

    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not a list of models: it is not a text file") from None
    entries = read_entries(lines)
    if not entries:
        raise CommandError(f"{path} names no model; write one per line, such as hf:llama?num_hidden_layers=2")
    return entries


def _sweep(arguments: argparse.Namespace, entries: Sequence[Entry]) -> int:
    from torch_ir.cli.models.opening import open_entry
    from torch_ir.sweep import Plan, find_engine, sweep

    tally: Counter[str] = Counter()

    def watch(row: Row, done: int, total: int) -> None:
        tally[row.status] += 1
        show_progress(f"{done} of {total} models; {_counts(tally)}; last {row.model}", done, total)

    start = time.monotonic()
    steps = tuple(filter(None, arguments.steps.split(",")))
    opener = partial(open_entry, allow_code=arguments.allow_code)
    plan = Plan(opener, steps, arguments.level, arguments.seed, _limits(arguments), _preload(entries))
    show_progress(f"starting the {arguments.engine} engine for {len(entries)} models")
    rows = sweep(
        entries,
        arguments.output,
        plan,
        lambda: find_engine(arguments.engine, arguments.workers, arguments.address),
        retry=arguments.retry,
        watch=watch,
    )
    record = _record(arguments.output, rows, sum(tally.values()), time.monotonic() - start)
    show(arguments, lambda: record, lambda: _text(record, rows))
    return 0 if all(row.status == "ok" for row in rows) else 1


def _limits(arguments: argparse.Namespace) -> Allowance:
    from torch_ir.sweep import Allowance

    if not arguments.timeout > 0:
        raise CommandError(f"--timeout must be more than 0, not {arguments.timeout:g}")
    cores = os.cpu_count() or 1
    threads = max(1, cores // (arguments.workers or cores))
    if arguments.address is not None:  # the cluster decides how many jobs share a machine, not its number of cores
        threads = 1
    return Allowance(arguments.timeout, parse_bytes(arguments.memory), threads)


def _preload(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the modules that most models import, which one process preloads for all."""
    uses_transformers = any(entry.model.startswith("hf:") or ":" not in entry.model for entry in entries)
    ours = ("torch_ir.cli.arguments.captured_model", "torch_ir.cli.models.find", "torch_ir.cli.arguments.input_values")
    return (*ours, "transformers.modeling_utils") if uses_transformers else ours


def _record(folder: str, rows: Sequence[Row], done: int, seconds: float) -> dict[str, Any]:
    from torch_ir.sweep import Status

    counts = Counter(row.status for row in rows)
    files = [path for name in ("rows.jsonl", "summary.html") if (path := Path(folder, name)).exists()]
    return {
        "models": len(rows),
        **{status.value: counts[status.value] for status in Status},
        "done_now": done,
        "seconds": round(seconds, 1),
        "graphs": len({row.digest for row in rows if row.digest}),
        "files": [str(path) for path in files],
    }


def _text(record: dict[str, Any], rows: Sequence[Row]) -> str:
    wrong = [row for row in rows if row.status != "ok"]
    counts = _counts(Counter(row.status for row in rows))
    models = f"{record['models']} model{'s' * (record['models'] != 1)}"
    lines = [f"{models}: {counts}; {record['done_now']} done now in {record['seconds']:.1f} s"]
    lines += [f"  {row.status}: {row.model:.60}: {row.diagnosis:.200}" for row in wrong[:_SHOWN]]
    if len(wrong) > _SHOWN:
        lines.append(f"  and {len(wrong) - _SHOWN} more that were not ok")
    return "\n".join([*lines, f"graphs: {record['graphs']}; see {', '.join(record['files'])}"])


def _counts(tally: Counter[str]) -> str:
    from torch_ir.sweep import Status

    found = [f"{tally[status.value]} {status.value}" for status in Status if tally[status.value]]
    return ", ".join(found)
