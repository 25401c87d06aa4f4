"""Capture of modules of GitHub projects, against torch.export: a seeded sample of jansel/pytorch-jit-paritybench.

python -m benchmarks.github_modules CHECKOUT [--modules 600] [--seed 0] [--results FILE.jsonl] [--limit-seconds 90]

The modules are untrusted code. Each runs in a forked child in a temporary directory, with limits of time and address
space; `unshare -rn` before the command also takes the network away.
"""

import argparse
import json
import logging.handlers
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torch_ir
from benchmarks import github_projects as projects
from benchmarks.github_projects import Arguments, Build, difference_of, run_on, seeded
from benchmarks.measure import Samples, digits, race, table
from torch_ir.verify.reference_run import values_outside_state_dict

Result = dict[str, Any]
PER_PROJECT, TRIES = 2, 4
_COUNTS = {
    "captured": "ours", "captured by torch.export": "theirs", "equal to eager on the captured values": "equal_captured",
    "equal on other values": "equal_other", "guarded on other values": "guard_other", "wrong": "wrong",
    "graphs that cannot run": "refused_captured", "rejected by verify_ir": "unverified", "stopped": "stopped",
    "run again, for Python state": "runs_again",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.github_modules")
    parser.add_argument("checkout", type=Path)
    for name, default in (("--modules", 600), ("--seed", 0), ("--limit-seconds", 90)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--results", type=Path, default=Path("github_modules.jsonl"), help="resumed if it exists")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _warm_up()
    found: list[Result] = []
    for result in _sample(options.checkout, options.seed, options.results, options.limit_seconds):
        found += [] if "unusable" in result else [result]
        state = next((result[key] for key in ("unusable", "error", "wrong", "fallback") if result.get(key)), "")
        print(f"{len(found)}/{options.modules} {result['module']} {state:.100}", file=sys.stderr, flush=True)
        if len(found) >= options.modules:
            break
    print(report(found))


def _warm_up() -> None:
    """Import what both sides import on demand, before the first fork."""
    model, inputs = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval(), (torch.ones(3, 2),)
    for capture in ("auto", "export", "record"):
        ir = torch_ir.extract_ir(model, inputs, strict=False, capture=capture)
        torch_ir.verify_ir_with_state_dict(ir, model.state_dict(), model, inputs)


def _sample(checkout: Path, seed: int, results: Path, limit: int) -> Iterator[Result]:
    """Yield the results of up to two usable modules of each project, projects and modules in the seed's order."""
    known = {line["module"]: line for line in map(json.loads, results.open())} if results.exists() else {}
    chosen = random.Random(seed)
    files = sorted((checkout / "generated").glob("test_*.py"))
    for path in chosen.sample(files, len(files)):
        usable, count = 0, projects.rows(path)
        for row in chosen.sample(range(count), min(count, TRIES)):
            if usable == PER_PROJECT:
                break
            name = f"{path.stem.removeprefix('test_')}:{row}"
            if name not in known:
                known[name] = {"module": name, **_in_child(path, row, limit)}
                with results.open("a") as file:
                    file.write(json.dumps(known[name]) + "\n")
            usable += "unusable" not in known[name]
            yield known[name]


def _in_child(path: Path, row: int, limit: int) -> Result:
    """Measure one module in a forked child; return what it had sent when it ended or was stopped."""
    result: Result = {"unusable": "ended before the module had run", "stage": "eager"}
    replies, sender = multiprocessing.Pipe(duplex=False)
    end = time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder:
        child = multiprocessing.get_context("fork").Process(target=_measure, args=(path, row, folder, sender))
        child.start()
        sender.close()
        with suppress(EOFError):
            while replies.poll(max(0.0, end - time.monotonic())):
                result |= replies.recv()
            result["stopped"] = f"{limit} s"
        if child.pid and os.getpgid(child.pid) == child.pid:  # with its children
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.join()
    return {key: value for key, value in result.items() if value is not None}


def _measure(path: Path, row: int, folder: str, sender: Connection) -> None:
    """Run in the child: send the result in parts."""
    projects.confine(folder)
    warnings.simplefilter("ignore")
    try:
        name, build, arguments = projects.load(path, row)
        expected = projects.eager_results(build, arguments)
    except BaseException as error:  # whatever untrusted code raises
        sender.send({"unusable": repr(error)[:1000]})
        return
    sender.send({"class": name, "unusable": None})
    with torch.no_grad():
        _send_times(build, arguments, sender)
        if (ir := _send_reasons(build(), arguments, sender)) is not None:
            _send_differences(ir, build, arguments, expected, sender)
    sender.send({"stage": "done"})


def _send_times(build: Build, arguments: Arguments, sender: Connection) -> None:
    """Send the CPU seconds of the first capture of each side, and the median of three more in turns."""
    args, kwargs = seeded(arguments)
    sides: dict[str, Callable[[], Any]] = {
        "ours": partial(torch_ir.extract_ir, build(), tuple(args), kwargs=kwargs, strict=False),
        "theirs": partial(torch.export.export, build(), tuple(args), kwargs, strict=False),
    }
    for side in random.Random(str(args)).sample(list(sides), 2):
        sender.send({"stage": f"first call of {side}"})
        samples = Samples()
        try:
            samples.add(sides[side])
            sender.send({side: samples.cpu[0]})
        except Exception as error:  # any error of a model
            sender.send({"error" if side == "ours" else "their_error": repr(error)[:1000]})
            del sides[side]
    sender.send({"stage": "warm calls"})
    warm = race(sides, 3, is_warm=True)
    sender.send({f"{side}_warm": statistics.median(samples.cpu) for side, samples in warm.items()})


def _send_reasons(model: nn.Module, arguments: Arguments, sender: Connection) -> torch_ir.IR | None:
    """Capture once more, and send why it was slow; return the graph if there is one."""
    (args, kwargs), log, ir = seeded(arguments), logging.getLogger("torch_ir.capture"), None
    log.setLevel(logging.INFO)
    log.addHandler(notes := logging.handlers.BufferingHandler(1000))
    sender.send({"stage": "comparison"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", torch_ir.CaptureWarning)
        with suppress(Exception):  # its text was sent with the times
            ir = torch_ir.extract_ir(model, tuple(args), kwargs=kwargs, strict=False)
            sender.send({"captured_by": ir.extensions.get("captured_by", ""), "nodes": len(ir.nodes)})
    for record in notes.buffer:
        sender.send({name: getattr(record, name) for name in ("fallback", "runs_again") if hasattr(record, name)})
    sender.send({"warnings": [str(each.message) for each in caught if each.category is torch_ir.CaptureWarning]})
    return ir


def _send_differences(ir: Any, build: Build, arguments: Arguments, expected: list[Any], sender: Connection) -> None:
    """Send how the graph's results differ from those of the module, on the captured and on other values."""
    for seed, values in enumerate(("captured", "other")):
        model = build()
        try:
            found = run_on(torch_ir.IRExecutor(ir, model, values_outside_state_dict(ir, model)), arguments, seed)
            difference = difference_of(expected[seed], found)
            sender.send({"wrong": f"on {values} values: {difference}"} if difference else {f"equal_{values}": True})
        except torch_ir.TorchIRError as error:
            kind = "guard" if isinstance(error, torch_ir.GuardError) else "refused"
            sender.send({f"{kind}_{values}": repr(error)[:1000]})
        except Exception as error:  # any error of the graph
            sender.send({"wrong": f"on {values} values: {repr(error)[:1000]}"})
    (args, kwargs), model = seeded(arguments), build()
    is_valid, verified = torch_ir.verify_ir_with_state_dict(ir, model.state_dict(), model, args, test_kwargs=kwargs)
    sender.send({"verified": verified.verdict} | ({} if is_valid else {"unverified": verified.error_message}))


def report(found: list[Result]) -> str:
    """Return tables of the results, and of the reasons why modules were not recorded fast."""
    slow = [each for each in found if each.get("fallback") or each.get("captured_by")]
    lines: list[tuple[str, object]] = [
        ("modules", len(found)),
        *((name, sum(bool(each.get(key)) for each in found)) for name, key in _COUNTS.items()),
        ("not recorded fast", len(slow)),
    ]
    for name, which in (("first call", ""), ("warm", "_warm")):
        ratios = _ratios(found, which)
        lines.append((f"times faster, {name}: median of {len(ratios)}", digits(statistics.median(ratios))))
        lines.append((f"times faster, {name}: 10th percentile", digits(ratios[len(ratios) // 10])))
        lines.append((f"more than 1.2 times slower, {name}", sum(ratio < 1 / 1.2 for ratio in ratios)))
    reasons = Counter(_reason(each.get("fallback") or each["captured_by"]) for each in slow)
    return f"{table(['', 'count'], lines)}\n\n{table(['reason', 'modules'], reasons.most_common(20))}"


def _ratios(found: list[Result], which: str) -> list[float]:
    """Return how many times faster than torch.export the modules were captured that both capture, in order."""
    times = ((each.get(f"theirs{which}"), each.get(f"ours{which}")) for each in found)
    return sorted(theirs / ours for theirs, ours in times if theirs and ours)


def _reason(text: str) -> str:
    """Return a reason without names, places and numbers."""
    text = re.sub(r"\S+\.py:\d+(, in \S+)?", "FILE", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "NAME", text)
    return re.sub(r"\d+", "N", text)[:120]


if __name__ == "__main__":
    main()
