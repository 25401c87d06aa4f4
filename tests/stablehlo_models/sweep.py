"""Write every model of the catalogue and every tiny architecture as StableHLO, run it, and compare with eager.

python -m tests.stablehlo_models.sweep [--with xla|iree] [--only catalogue|architectures] [--sample N] [--out FILE]
    [NAME ...]

Prints a line for each model, then the counts and the operators that stop models, ranked by how many they stop.
"""

import argparse
import copy
import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import catalogue
from tests.architectures import architectures
from tests.stablehlo_models import iree, xla
from tests.stablehlo_models.xla import leaves
from torch_ir import IR, TorchIRError, extract_ir
from torch_ir.errors import UnsupportedOperatorsError
from torch_ir.targets.write_stablehlo import to_stablehlo

EQUAL, DIFFERENT, REFUSED, NOT_COMPILED, NOT_CAPTURED = "equal", "different", "refused", "not compiled", "not captured"
ATOL, RTOL = 1e-4, 1e-3
CATALOGUE, ARCHITECTURES = "catalogue", "architectures"
ENGINES = {"xla": xla.run_graph, "iree": iree.run_graph}


@dataclass
class Outcome:
    """What became of one model: the operators that stop it, the size of the text, and the seconds of each step."""

    kind: str
    name: str
    status: str
    why: str = ""
    missing: list[str] = field(default_factory=list)
    nodes: int = 0
    bytes: int = 0
    write_s: float = 0.0
    run_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """A model and its inputs."""

    kind: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def cases(only: str | None = None) -> Iterator[Case]:
    if only != ARCHITECTURES:
        for entry in catalogue.entries():
            yield Case(CATALOGUE, entry.name, entry.build, lambda entry=entry: (entry.inputs(), entry.kwargs()))
    if only != CATALOGUE:
        for each in architectures():
            yield Case(ARCHITECTURES, each.name, each.build, lambda each=each: ((), each.inputs()))


def measure(case: Case, engine: str = "xla") -> Outcome:
    """Capture, write, run and compare one model."""
    outcome = Outcome(case.kind, case.name, EQUAL)
    torch.manual_seed(0)
    model = case.build()
    args, kwargs = case.inputs()
    try:
        ir = extract_ir(model, args, kwargs=kwargs, strict=False)
    except TorchIRError as error:
        outcome.status, outcome.why = NOT_CAPTURED, str(error).splitlines()[0]
        return outcome
    wanted = expected(model, args, kwargs)
    start = time.perf_counter()
    try:
        module = to_stablehlo(ir)
    except UnsupportedOperatorsError as error:
        outcome.status, outcome.why = REFUSED, "; ".join(map(str, error.missing))
        outcome.missing = [row.op_type for row in error.missing]
        return outcome
    outcome.write_s = time.perf_counter() - start
    outcome.nodes, outcome.bytes = len(ir.nodes), len(module.text)
    start = time.perf_counter()
    try:
        made = ENGINES[engine](ir, state_of(ir, model), leaves((args, kwargs)), module)
    except (RuntimeError, ValueError) as error:  # the engine's own
        outcome.status, outcome.why = NOT_COMPILED, str(error)[:300]
        return outcome
    outcome.run_s = time.perf_counter() - start
    outcome.why = difference(made[: len(wanted)], wanted)
    outcome.status = DIFFERENT if outcome.why else EQUAL
    return outcome


def expected(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    """Return eager's results, without changing the model or the inputs."""
    with torch.no_grad():
        return leaves(copy.deepcopy(model)(*copy.deepcopy(args), **copy.deepcopy(kwargs)))


def state_of(ir: IR, model: nn.Module) -> Mapping[str, Tensor]:
    """Return parameters and all buffers, also those that are not in the state dict."""
    named = {
        **dict(model.named_buffers(remove_duplicate=False)),
        **dict(model.named_parameters(remove_duplicate=False)),
    }
    return {**named, **model.state_dict()}


def difference(made: list[Tensor], wanted: list[Tensor]) -> str:
    """Return in what results differ; empty if they are equal within the tolerances."""
    if len(made) != len(wanted):
        return f"{len(made)} results, expected {len(wanted)}"
    for at, (one, other) in enumerate(zip(made, wanted, strict=True)):
        try:
            torch.testing.assert_close(one, other, atol=ATOL, rtol=RTOL, equal_nan=True)
        except AssertionError as error:
            return f"result {at}: {' '.join(str(error).split())[:200]}"
    return ""


def summary(outcomes: list[Outcome]) -> list[str]:
    """Return the counts by kind, and the operators that stop models."""
    lines = []
    for kind in dict.fromkeys(each.kind for each in outcomes):
        chosen = [each for each in outcomes if each.kind == kind]
        counts = {status: sum(each.status == status for each in chosen) for status in dict.fromkeys(
            each.status for each in chosen)}  # fmt: skip
        lines.append(f"{kind}: {len(chosen)} models, {', '.join(f'{n} {status}' for status, n in counts.items())}")
    stopped: dict[str, list[str]] = {}
    for each in outcomes:
        for op_type in dict.fromkeys(each.missing):
            stopped.setdefault(op_type, []).append(each.name)
    for op_type, names in sorted(stopped.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {op_type}  {len(names)} models: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--with", dest="engine", choices=ENGINES, default="xla")
    parser.add_argument("--only", choices=[CATALOGUE, ARCHITECTURES])
    parser.add_argument("--sample", type=int, help="this many models, drawn at random with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    outcomes = []
    chosen = [case for case in cases(arguments.only) if not arguments.names or case.name in arguments.names]
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    for case in chosen:
        outcomes.append(outcome := measure(case, arguments.engine))
        times = f"{outcome.write_s:.2f} s", f"{outcome.run_s:.2f} s"
        print(outcome.name, outcome.status, *times, outcome.why[:300], flush=True)
        if arguments.out:
            arguments.out.write_text("\n".join(json.dumps(asdict(each)) for each in outcomes) + "\n")
    print(*summary(outcomes), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
