"""Sweep training steps: gradients and updated weights of tiny architectures and of the catalogue, beside eager mode.

python -m tests.training_sweep --out FILE [--set architectures|catalogue] [NAME ...]      one JSON line each; resumes
python -m tests.training_sweep --out FILE --count                                         the counted table of a file
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import catalogue
from tests.architectures import Architecture, architectures
from tests.trained_models import Compared, Optimizers, adamw, compare
from torch_ir.errors import TorchIRError

ROUNDING = 1e-5  # of gradients and weights, relative to the largest value of each tensor
LEAST = 1e-3  # values below this share of the largest of the model are compared with that share
SECONDS = 240  # for one model
# Settings of models that draw numbers in Python or NumPy while they train; a graph has no such draws.
DRAWS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment", "mask_time_prob")
Outcome = dict[str, Any]


def outcome(build: Callable[[], nn.Module], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Return how a training step compares: exact, rounded, different, or refused with a reason."""
    try:
        return compared(build, inputs, kwargs)
    except TorchIRError as error:
        refused = {"outcome": "refused", "reason": str(error)}
    model = build()
    if not _without_draws(model):
        return refused
    try:
        found = compared(lambda: _without_draws(build()), inputs, kwargs)
    except TorchIRError as error:
        return {"outcome": "refused", "reason": str(error)}
    return {**found, "without": refused["reason"]}


def compared(build: Callable[[], nn.Module], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Compare with AdamW; if gradients are rounded, weights with SGD, as AdamW divides a gradient by itself."""
    found = _once(build, inputs, kwargs, adamw)
    if found.is_exact:
        return {"outcome": "exact", "nodes": len(found.ir.nodes)}
    found = _once(build, inputs, kwargs, lambda each: torch.optim.SGD(each, lr=1e-2, momentum=0.9))
    largest = {name: getattr(found, name) for name in ("losses", "gradients", "weights")}
    is_rounded = max(largest.values()) < ROUNDING
    return {"outcome": "rounded" if is_rounded else "different", "nodes": len(found.ir.nodes), **largest}


def _once(
    build: Callable[[], nn.Module], inputs: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Optimizers
) -> Compared:
    random.seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compare(build(), inputs, kwargs=kwargs, optimizer=optimizer, least=LEAST)


def _without_draws(model: nn.Module | None) -> Any:
    """Turn off layer drop and masks of spectrograms; return the model, or None if it has neither."""
    changed = False
    for owner in [] if model is None else [*model.modules(), *_configurations(model)]:
        for name in DRAWS:
            value = getattr(owner, name, None)
            if isinstance(value, (bool, float)) and value:
                setattr(owner, name, type(value)(0))
                changed = True
    return model if changed else None


def _configurations(model: nn.Module) -> Iterator[Any]:
    seen = set()
    for each in model.modules():
        config = getattr(each, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def _jobs(kind: str) -> dict[str, Callable[[], Outcome]]:
    if kind == "catalogue":
        return {each.name: _of_entry(each) for each in catalogue.entries()}
    return {each.name: _of_architecture(each) for each in architectures()}


def _of_entry(entry: Any) -> Callable[[], Outcome]:
    return lambda: outcome(entry.build, entry.inputs(), entry.kwargs())


def _of_architecture(architecture: Architecture) -> Callable[[], Outcome]:
    return lambda: outcome(architecture.build, (), architecture.inputs())


def _in_child(job: Callable[[], Outcome]) -> Outcome:
    """Run a job in a forked process, so that a crash or a hang ends only that one."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            found = job()
        except BaseException as error:  # a mistake of ours, to be listed with its model
            found = {"outcome": "error", "reason": f"{type(error).__name__}: {error}"[:400]}
        with os.fdopen(write, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(write)
    return _answer(child, read)


def _answer(child: int, read: int) -> Outcome:
    latest = time.monotonic() + SECONDS
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > latest:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(read)
            return {"outcome": "timeout"}
        time.sleep(0.02)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return json.loads(text) if text else {"outcome": "crashed"}


def rows_of(file: Path) -> list[Outcome]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", choices=("architectures", "catalogue"), default="architectures")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if not options.count:
        jobs = _jobs(options.set)
        next(iter(jobs.values()))()  # imports what every forked process needs
        done = {row["name"] for row in rows_of(options.out)}
        for name in [name for name in jobs if name not in done and (not options.names or name in options.names)]:
            start = time.process_time() + sum(os.times()[2:4])
            row = {"name": name, **_in_child(jobs[name])}
            row["seconds"] = round(time.process_time() + sum(os.times()[2:4]) - start, 1)
            with options.out.open("a") as file:
                print(json.dumps(row), file=file)
    for kind, count in Counter(row["outcome"] for row in rows_of(options.out)).most_common():
        print(f"{count:>5} {kind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
