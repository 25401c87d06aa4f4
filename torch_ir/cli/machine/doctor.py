"""`torch-ir doctor`: check the installation and print the commands that fix what fails."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, show, terminal_width
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch_ir.processes.program import Program

SUMMARY = "check your installation and suggest fixes"
EXAMPLES = """

draw onnx
--json
"""
_MAIN = "torch_ir.cli.machine.doctor_checks:main"
_PAUSE = 0.02  # seconds
_TOGETHER = 4  # checks that run at once
Finding = dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "names NAME", "run only these checks, such as torch, draw or onnx", nargs="*")
    argument(parser, "--time SECONDS", "time limit of each check (default: 60)", type=float, default=60)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.machine.doctor_checks import CHECKUPS

    for name in arguments.names:
        if name not in CHECKUPS:
            hint = did_you_mean(name, CHECKUPS) or f"; expected one of {', '.join(CHECKUPS)}"
            raise CommandError(f"unknown check {name!r}{hint}")
    found = list(_findings(arguments.names or CHECKUPS, arguments.time))
    works = all(finding["state"] == "ok" for finding in found if CHECKUPS[finding["name"]].is_core)
    show(arguments, lambda: {"ok": works, "checks": found}, lambda: "\n".join(_lines(found)))
    return 0 if works else 1


def _findings(names: Iterable[str], seconds: float) -> Iterator[Finding]:
    """Yield the result of each check in order; several run at once."""
    import os
    import time
    from concurrent.futures import ThreadPoolExecutor

    children: set[Program] = set()
    with ThreadPoolExecutor(min(_TOGETHER, os.cpu_count() or 1)) as pool:
        running = [(name, pool.submit(_run_check, name, seconds, children)) for name in names]
        try:
            for name, result in running:
                show_progress(f"checking {name}")
                yield result.result()
        except BaseException:  # Ctrl-C: cancel the waiting checks and kill the running ones
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(result.done() for _, result in running):
                for child in [*children]:
                    child.kill()
                time.sleep(_PAUSE)
            raise


def _run_check(name: str, seconds: float, children: set[Program]) -> Finding:
    """Run one check in a separate process and return its result, even if it crashes; `children` has it as it runs."""
    import json

    from torch_ir.cli.machine.doctor_checks import CHECKUPS
    from torch_ir.processes.process_end import ending
    from torch_ir.processes.program import Program, python_command

    child = Program(python_command(_MAIN, name))
    children.add(child)
    try:
        is_in_time = child.wait(seconds)
    finally:
        status = child.end()
        children.discard(child)
    try:
        state, detail = json.loads(child.stdout.decode(errors="replace").strip().rpartition("\n")[2])
    except (TypeError, ValueError):  # the process died before it replied, or printed something else
        state, detail = "broken", f"its process {ending(status, stderr=child.stderr)}"
    if not is_in_time:
        state, detail = "broken", f"no answer in {seconds:g} s"
    return {"name": name, "state": state, "detail": detail, "fix": "" if state == "ok" else CHECKUPS[name].fix}


def _lines(found: list[Finding]) -> Iterator[str]:
    from torch_ir.errors import printable
    from torch_ir.ir.text.text_table import aligned

    rows = [["check", "state", "found"]]
    rows += [[finding["name"], finding["state"], printable(finding["detail"])] for finding in found]
    yield from aligned(rows, left=(0, 1, 2), width=terminal_width(), long=2)
    for title, is_optional in (("to fix:", False), ("optional; to install:", True)):
        lacking = [finding for finding in found if finding["fix"] and _is_optional(finding) is is_optional]
        if lacking:
            yield from ("", title, *(f"  {finding['name']}: {finding['fix']}" for finding in lacking))


def _is_optional(finding: Finding) -> bool:
    """Whether a check failed only because an extra is not installed."""
    from torch_ir.cli.machine.doctor_checks import CHECKUPS

    return finding["state"] == "missing" and not CHECKUPS[finding["name"]].is_core
