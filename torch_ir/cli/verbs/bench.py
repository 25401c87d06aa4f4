"""`torch-ir bench`: time graph files, and the first of them in other back ends, side by side."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.graph_argument import MODELS
from torch_ir.cli.arguments.named_files import weights_or_random
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import (
    BACKENDS,
    add_inputs,
    add_json,
    add_optimize,
    add_seed,
    add_tolerances,
    argument,
    check_least,
    load_checked,
    show,
)
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor, nn

    from torch_ir.ir import IR
    from torch_ir.run.benchmark import Action, Spread, Timing

SUMMARY = "time IR files against each other and against other runtimes"
EXAMPLES = """
model.json
model.json better.json --weights model.safetensors
model.json --against eager,inductor --model net.py:Net --threads 4
model.json --against onednn,openvino,iree --level full
model.json --against onnxruntime --dim batch=4 --repeat 50 --json
"""
_EAGER = "eager"
Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments and keywords of the model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "files FILE", "IR files that compute the same; the first is the base", nargs="+")
    argument(
        parser,
        "-w --weights FILE",
        ".pt, .safetensors, or `random` (default: the model's, else random)",
        type=weights_or_random,
    )
    argument(
        parser,
        "--against NAMES",
        f"back ends to time with the first file: {', '.join((_EAGER, *BACKENDS))}; separated by commas",
        default="",
    )
    add_optimize(parser, "optimise the graph for these back ends: clean, basic or full (default: as it is)")
    argument(parser, "--model MODEL", f"the original model, for `eager` and for its weights: {MODELS}")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    argument(parser, "--repeat N", "rounds (default: 20)", type=int, default=20)
    argument(parser, "--threads N", "threads per run (default: torch's)", type=int)
    add_seed(parser)
    add_tolerances(parser, "by dtype")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.input_specs import read_inputs

    specs, dims = read_inputs(arguments)
    check_least(arguments, 1, "repeat", "threads")
    names = list(dict.fromkeys(filter(None, (name.strip() for name in arguments.against.split(",")))))
    import torch

    from torch_ir.cli.arguments.input_values import graph_call
    from torch_ir.run.benchmark import bench, threads

    _check_backends(names)
    graphs = {path: load_checked(path) for path in dict.fromkeys(arguments.files)}
    first = next(iter(graphs.values()))
    call = graph_call(first, specs, dims, arguments.seed)
    torch.manual_seed(arguments.seed)
    model = _model(arguments)
    weights, whose = _weights(arguments, graphs, model)
    candidates: dict[str, Any] = {path: partial(_graph, ir, weights, call) for path, ir in graphs.items()}
    for name in names:
        if name == _EAGER:
            candidates[name] = partial(_eager, first, weights, call, model)
        else:
            candidates[name] = partial(_backend, name, arguments.level, first, weights, call)
    with threads(arguments.threads) as count:
        found = bench(
            candidates,
            arguments.repeat,
            seed=arguments.seed,
            rtol=arguments.rtol,
            atol=arguments.atol,
            progress=show_progress,
        )
    about = {"model": first.model_name, "weights": whose, "rounds": arguments.repeat, "threads": count}
    eager = {_EAGER: _what_is_eager(arguments)} if _EAGER in names else {}
    show(
        arguments,
        lambda: {**about, **eager, "results": {name: _record(result) for name, result in found.items()}},
        lambda: "\n".join(_lines(about, eager, found)),
    )
    return 1 if any(isinstance(result, str) for result in found.values()) else 0


def _check_backends(names: list[str]) -> None:
    """Raise CommandError for back ends that are unknown or not installed."""
    from torch_ir.backends import find_backend

    for name in names:
        if name == _EAGER:
            continue
        if name not in BACKENDS:
            known = (_EAGER, *BACKENDS)
            hint = did_you_mean(name, known) or f"; expected one of {', '.join(known)}"
            raise CommandError(f"unknown back end {name!r}{hint}")
        find_backend(name)


def _model(arguments: argparse.Namespace) -> nn.Module | None:
    """Return the original model, with the weights of the file if given."""
    from torch_ir.cli.models.find import find_model
    from torch_ir.cli.models.model_weights import build_filled

    return build_filled(find_model(arguments.model), arguments.weights) if arguments.model else None


def _weights(
    arguments: argparse.Namespace, graphs: Mapping[str, IR], model: nn.Module | None
) -> tuple[Mapping[str, Tensor], str]:
    """Return weights for all graphs, and where they come from."""
    from torch_ir.run import load_weights, random_weights

    if model is not None:
        return model.state_dict(), f"of {arguments.weights or arguments.model}"
    if arguments.weights:
        return load_weights(arguments.weights), f"of {arguments.weights}"
    made: dict[str, Tensor] = {}
    for ir in reversed(list(graphs.values())):  # the first graph's weights take precedence
        made.update(random_weights(ir, arguments.seed))
    return made, "random"


def _graph(ir: IR, weights: Mapping[str, Tensor], call: Call) -> Action:
    """Return a run of the graph in the executor."""
    from torch_ir.run import IRExecutor
    from torch_ir.run.weight_files import weights_read

    return _bound(IRExecutor(ir, weights_read(ir, weights)), call)


def _eager(ir: IR, weights: Mapping[str, Tensor], call: Call, model: nn.Module | None) -> Action:
    """Return a run of the original model, or of the graph as a module."""
    from torch_ir.targets import to_torch

    return _bound(model if model is not None else to_torch(ir, weights), call)


def _backend(name: str, level: str | None, ir: IR, weights: Mapping[str, Tensor], call: Call) -> Action:
    from torch_ir.backends import compile
    from torch_ir.run.weight_files import weights_read

    compiled = compile(ir, weights_read(ir, weights), backend=name, level=level, verify=False)
    return _bound(compiled, call)  # the benchmark compares the results


def _bound(function: Callable[..., Any], call: Call) -> Action:
    """Return a call on its own copy of the inputs, which it may write to."""
    args, kwargs = copy.deepcopy(call)
    return lambda: function(*args, **kwargs)


def _what_is_eager(arguments: argparse.Namespace) -> str:
    if arguments.model:
        return f"the model, {arguments.model}"
    return f"the ATen calls of {arguments.files[0]} one by one; name the original with --model to run that"


def _record(result: Timing | str) -> dict[str, Any]:
    from dataclasses import asdict

    return {"wrong": result} if isinstance(result, str) else asdict(result)


def _lines(about: Mapping[str, Any], eager: Mapping[str, str], found: Mapping[str, Timing | str]) -> list[str]:
    """Return a line per candidate: median and quartiles of its time and of the ratio to the first."""
    first = next(iter(found))
    wide = max(map(len, found))
    header = ", ".join(f"{name}: {value}" for name, value in about.items() if value)
    lines = [header, *(f"{name}: {what}" for name, what in eager.items())]
    for name, result in found.items():
        if isinstance(result, str):
            lines.append(f"{name:{wide}}  not timed: {result}")
        else:
            ratio = "" if name == first else f"  {_spread(result.ratio, 1)} times as long as {first}"
            unit, scale = ("s", 1.0) if result.time.median >= 1 else ("ms", 1e-3)
            lines.append(f"{name:{wide}}  {_spread(result.time, scale)} {unit}{ratio}")
    return lines


def _spread(spread: Spread, scale: float) -> str:
    low, median, high = (_digits(value / scale) for value in (spread.low, spread.median, spread.high))
    return f"{median} ({low}-{high})"


def _digits(number: float) -> str:
    """Format a number with three digits: `0.123`, `1.04`, `23.5`, `652`."""
    return f"{number:.{3 if number < 1 else 2 if number < 10 else 1 if number < 100 else 0}f}"
