"""Capture of models that were drawn from packages of PyPI, against torch.export.

python -m benchmarks.other_packages [--models 60] [--seed 0] [--results FILE.jsonl]

Every package has a list of its models, from which an equal number is drawn. A model that its package cannot build, or
that does not run, is replaced by the next of the draw. Results are stored as they are known: the same command continues
after an interruption. A package that is not installed is left out.
"""

import argparse
import itertools
import json
import logging
import math
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

import torch_ir
from benchmarks.measure import CaptureNotes, Samples, digits, machine, median_time, race, table
from benchmarks.package_models import PACKAGES, Built

FORK = get_context("fork")
TIME_LIMIT = 300.0
TRIES = 8  # models drawn per model wanted
SLOWER = 1.2
SIDES = ("ours", "theirs")
HEADER = ["package", "models", "captured", "equal", "times faster, warm", "first call", "10th percentile, warm"]
HEADER += [f"slower by > {SLOWER}", "recorded fast", "run again"]
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_packages", description=__doc__)
    parser.add_argument("--models", type=int, default=60, help="how many, over all packages (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--results", type=Path, help="a file of JSON lines; models in it are not repeated")
    options = parser.parse_args()
    _warm_up()
    wanted = math.ceil(options.models / len(PACKAGES))
    results = [each for name in PACKAGES for each in _of_package(name, wanted, options.seed, options.results)]
    print(summary([each for each in results if "parameters" in each]))
    print(f"\nMeasured on {machine()}.\n", *map(line, results), sep="\n")
    return 0


def _warm_up() -> None:
    """Import what each side imports on demand: the first call of a model is not the first call of a process."""
    for side in SIDES:
        _captured(side, nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval(), (torch.randn(1, 2),), {})


def _of_package(package: str, wanted: int, seed: int, file: Path | None) -> Iterator[Result]:
    """Yield results of drawn models, until enough of them have run."""
    names = in_child(lambda: [{"names": sorted(PACKAGES[package].names())}]).get("names", [])
    random.Random(f"{seed} {package}").shuffle(names)
    known = {(each["package"], each["model"]): each for each in _stored(file)}
    for name in names[: wanted * TRIES]:
        result = known.get((package, name))
        if result is None:
            result = {"package": package, "model": name, **in_child(partial(_measure, package, name))}
            if file:
                with file.open("a") as stream:
                    stream.write(f"{json.dumps(result)}\n")
            print(line(result), file=sys.stderr, flush=True)
        yield result
        wanted -= "parameters" in result
        if not wanted:
            return


def _stored(file: Path | None) -> list[Result]:
    return [json.loads(text) for text in file.read_text().splitlines()] if file and file.exists() else []


def in_child(parts: Callable[[], Iterable[Result]]) -> Result:
    """Return all parts of a result that a forked child sends until its end or the time limit."""
    receiver, sender = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_send, args=(parts, sender))
    child.start()
    sender.close()
    result, end = Result(), time.monotonic() + TIME_LIMIT
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            result |= receiver.recv()
        result["error"] = "time limit"
    except EOFError:
        child.join(10)
        if child.exitcode:
            result["error"] = f"ended with status {child.exitcode}"
    child.kill()
    child.join()
    return result


def _send(parts: Callable[[], Iterable[Result]], sender: Connection) -> None:
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - until the process ends
    try:
        for part in parts():
            sender.send(part)
    except Exception as error:
        sender.send({"error": _brief(error)})


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _measure(package: str, name: str) -> Iterator[Result]:
    """Yield what is found about one model."""
    torch.manual_seed(0)
    built = PACKAGES[package].build(name)
    model, args, kwargs = built = (built[0].eval(), *built[1:])
    with torch.no_grad():
        model(*args, **kwargs)
    yield {"parameters": sum(each.numel() for each in model.parameters())}
    actions: dict[str, Callable[[], Any]] = {}
    for side in SIDES:
        action = partial(_captured, side, *built)
        found = _first(side, action)
        yield found
        if f"{side}_first" in found:
            actions[side] = action
    samples = race(actions, 3, is_warm=True)
    yield {f"{side}_warm": statistics.median(each.cpu) for side, each in samples.items()}
    if "ours" in actions:
        ir = actions["ours"]()
        yield {"nodes": len(ir.nodes), "captured_by": ir.extensions.get("captured_by", "")}
        yield {"given": _compared(ir, built)}
        yield {"other": _compared(ir, (model, *_other_values(args, kwargs)))}


def _first(side: str, action: Callable[[], Any]) -> Result:
    """Return the time of the first call or its error, with what the capture logs."""
    notes, log, samples = CaptureNotes(), logging.getLogger("torch_ir.capture"), Samples()
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    found: Result = {}
    try:
        samples.add(action)
        found[f"{side}_first"] = samples.cpu[0]
    except Exception as error:
        found[f"{side}_error"] = _brief(error)
    log.removeHandler(notes)
    log.setLevel(logging.WARNING)
    return found | ({"fallbacks": notes.fallbacks, "runs_again": notes.runs_again} if side == "ours" else {})


def _captured(side: str, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if side == "ours":
        return torch_ir.extract_ir(model, args, kwargs=kwargs, strict=False)
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, strict=False)


def _compared(ir: torch_ir.IR, built: Built) -> str:
    """Compare a graph with its model: "equal", or "excluded by a guard", "not run" or "differs" with the reason."""
    model, args, kwargs = built
    try:
        with torch.no_grad():
            weights, options = model.state_dict(), {"test_kwargs": kwargs, "probe": False}
            found = torch_ir.verify_ir_with_state_dict(ir, weights, model, args, **options)[1]
    except Exception as error:
        return f"not compared: {_brief(error)}"
    if found.is_valid:
        return "equal"
    about = " ".join((found.error_message or str(found)).split())[:300]
    kind = "differs" if found.trials else "excluded by a guard" if "guard" in about else "not run"
    return f"{kind}: {about}"


def _other_values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Draw floats between the extremes of each tensor, and shuffle the elements of all others."""
    return pytree.tree_map_only(torch.Tensor, _redrawn, (args, kwargs))


def _redrawn(x: torch.Tensor) -> torch.Tensor:
    if x.is_floating_point() and x.numel():
        return torch.rand_like(x) * (x.max() - x.min()) + x.min()
    return x.flatten()[torch.randperm(x.numel())].reshape(x.shape)


def ratio(result: Result, when: str) -> float | None:
    """Return how many times faster than torch.export the capture is."""
    times = [result.get(f"{side}_{when}") for side in SIDES]
    return times[1] / times[0] if all(times) else None


def summary(results: list[Result]) -> str:
    """Return a table with a row per package and one for all."""
    groups = itertools.groupby(results, lambda each: each["package"])
    return table(HEADER, [*(_row(name, list(group)) for name, group in groups), _row("all", results)])


def _row(name: str, results: list[Result]) -> list[object]:
    captured = [each for each in results if "ours_first" in each]
    warm = sorted(found for each in captured if (found := ratio(each, "warm")))
    first = [found for each in captured if (found := ratio(each, "first"))]
    equal = [each for each in captured if each.get("given") == "equal" and "differs" not in each.get("other", "")]
    slower = [found for found in warm if found * SLOWER < 1]
    fast = [each for each in captured if not each["fallbacks"]]
    speeds = [digits(statistics.median(found)) if found else "" for found in (warm, first)]
    speeds.append(digits(warm[len(warm) // 10]) if warm else "")
    again = sum(each["runs_again"] for each in captured)
    return [name, len(results), len(captured), len(equal), *speeds, len(slower), len(fast), again]


def line(result: Result) -> str:
    """Describe one model: times, ratios, and everything that is not as it should be."""
    times = [f"{side} {median_time([result[f'{side}_warm']])}" for side in SIDES if f"{side}_warm" in result]
    found = {when: ratio(result, when) for when in ("warm", "first")}
    ratios = [f"{when} {digits(number)}x" for when, number in found.items() if number]
    odd = [f"{key}: {result[key]}" for key in ("error", "ours_error", "theirs_error") if key in result]
    odd += [f"{key} {result[key]}" for key in ("given", "other") if result.get(key, "equal") != "equal"]
    odd += [f"falls back: {reason}" for reason in result.get("fallbacks", ())]
    odd += [f"by {result['captured_by']}"] if result.get("captured_by") else []
    odd += ["run again"] if result.get("runs_again") else []
    name = f"{result['package']} {result['model']}"
    return "; ".join([name, f"{result.get('nodes', 0)} nodes", *times, *ratios, *odd])


if __name__ == "__main__":
    sys.exit(main())
