"""`torch-ir run`: run a graph file with real or random weights."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.byte_sizes import parse_bytes
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_backend, add_inputs, add_json, add_seed, argument, load_checked, read_weights, show
from torch_ir.errors import CommandError
from torch_ir.escaping import in_shell

if TYPE_CHECKING:
    from torch_ir.ir import IR, Limits

SUMMARY = "run an IR file"
EXAMPLES = """
model.json --weights model.safetensors
model.json --weights random --dim batch=4
model.json --weights model.pt --input x=@image.npy -o out.safetensors
model.json --weights random --input "ids=i64[1,8]<1000" --json
model.json --weights checkpoint/ --stream
model.json --weights model.safetensors --backend onnxruntime
model.json --weights random --backend auto --level full
model.json --weights random --backend openvino --verify
model.json --weights random --isolated --memory 4GB --time 60
pipeline.json --weights model.safetensors --processes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file")
    argument(parser, "-w --weights FILE", ".pt, .safetensors, or the word `random`", required=True)
    argument(parser, "--stream", "read each weight when it is needed and release it afterwards")
    argument(parser, "--processes", "run each stage of a pipeline in its own process")
    add_backend(parser)
    argument(parser, "--verify", "first compare the back end with the executor on random inputs")
    add_inputs(parser, "a number for a symbolic size, such as batch=4; repeatable")
    add_seed(parser)
    argument(parser, "--isolated", "run in a separate process, under limits")
    argument(parser, "--memory BYTES", "memory limit, such as 4GB (default: none)")
    argument(parser, "--time SECONDS", "time limit of --isolated (default: 600)", type=float)
    argument(parser, "-o --output FILE", "write the outputs to .safetensors or .pt")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from torch_ir.cli.arguments.input_specs import read_inputs

    specs, dims = read_inputs(arguments)
    kind = Path(arguments.output or "-.pt").suffix
    if kind not in (".pt", ".safetensors"):
        raise CommandError(f"{arguments.output}: outputs are written as .safetensors or .pt")
    if arguments.stream and arguments.weights == "random":
        raise CommandError("--stream reads weights from files, but --weights is random")
    if arguments.stream and arguments.backend != "torch":
        raise CommandError("--stream needs the back end torch: the others load all weights at once")
    if arguments.stream and arguments.processes:
        raise CommandError(
            "--stream cannot be combined with --processes, where each process loads only its own weights"
        )
    if arguments.verify and _is_plain(arguments):
        raise CommandError("--verify compares a back end or a level with the executor; add --backend or --level")
    if (arguments.isolated or arguments.memory) and not _is_plain(arguments):
        raise CommandError("--isolated and --memory need the back end torch without --level")
    if arguments.time is not None and not (arguments.isolated and arguments.time > 0):
        raise CommandError("--time needs --isolated and must be a positive number of seconds")
    if arguments.isolated and arguments.imports:
        raise CommandError("--import cannot be combined with --isolated, whose process runs no code of yours")
    limits = _limits(arguments)
    import torch

    from torch_ir.cli.arguments.input_values import graph_inputs

    ir = load_checked(arguments.file)
    torch.manual_seed(arguments.seed)
    show_progress(f"running {arguments.file}")
    if ir.mesh or arguments.processes:
        results, why = _on_ranks(arguments, ir, specs, dims), ""
    elif _is_plain(arguments):
        results, why = _interpreted(arguments, ir, graph_inputs(ir, specs, dims, arguments.seed), limits), ""
    else:
        results, why = _compiled(arguments, ir, graph_inputs(ir, specs, dims, arguments.seed))
    outputs = dict(zip((tensor.name for tensor in ir.graph_outputs), results, strict=True))
    if arguments.output:
        _save(outputs, Path(arguments.output))
    described = [{"name": name, **describe(value)} for name, value in outputs.items()]
    show(
        arguments,
        lambda: {"outputs": described, **({"backend": why} if why else {})},
        lambda: "\n".join([*map(_line, described), *filter(None, [why])]),
    )
    return 0


def _is_plain(arguments: argparse.Namespace) -> bool:
    return arguments.backend == "torch" and arguments.level is None


def _limits(arguments: argparse.Namespace) -> Limits:
    """Return the limits of a run."""
    from dataclasses import replace

    from torch_ir.ir import Limits

    limits = Limits()
    if arguments.memory is not None:
        limits = replace(limits, memory_bytes=parse_bytes(arguments.memory))
    return limits if arguments.time is None else replace(limits, seconds=arguments.time)


def _interpreted(arguments: argparse.Namespace, ir: IR, values: list[Any], limits: Limits) -> tuple[Any, ...]:
    """Return the outputs of the executor, which can stream weights."""
    from torch_ir.run import execute_ir, random_weights
    from torch_ir.run.weight_files import stream_weights

    isolated = arguments.isolated
    if arguments.weights == "random":
        return execute_ir(ir, values, random_weights(ir, arguments.seed), isolated=isolated, limits=limits)
    if arguments.stream:
        return execute_ir(ir, values, stream_weights(arguments.weights), isolated=isolated, limits=limits)
    return execute_ir(ir, values, weights_path=arguments.weights, isolated=isolated, limits=limits)


def _on_ranks(arguments: argparse.Namespace, ir: IR, specs: Any, dims: Any) -> tuple[Any, ...]:
    """Return the whole outputs of a sharded graph or pipeline, run with one local process per rank."""
    from torch_ir.cli.arguments.input_values import graph_inputs
    from torch_ir.pipeline import is_pipeline, run_pipeline
    from torch_ir.run.ranks import whole_signature
    from torch_ir.sharding import run_sharded

    if not _is_plain(arguments) or arguments.isolated or arguments.memory:
        kind = "a pipeline" if arguments.processes else "a sharded graph"
        raise CommandError(f"{kind} runs with the back end torch only, without --level, --isolated and --memory")
    if arguments.processes and not is_pipeline(ir):
        raise CommandError(f"--processes needs a pipeline; make one with: torch-ir split {in_shell(arguments.file)}")
    whole = whole_signature(ir)
    values = graph_inputs(whole, specs, dims, arguments.seed)
    is_random = arguments.weights == "random"
    weights = read_weights(whole, "random", arguments.seed) if is_random else arguments.weights
    return run_pipeline(ir, [values], weights)[0] if is_pipeline(ir) else run_sharded(ir, values, weights)


def _compiled(arguments: argparse.Namespace, ir: IR, values: list[Any]) -> tuple[tuple[Any, ...], str]:
    """Return the outputs of a back end; for `auto`, also why it was chosen."""
    from torch_ir.backends import compile, find_backend

    find_backend(arguments.backend)
    weights = read_weights(ir, arguments.weights, arguments.seed)
    compiled = compile(ir, weights, backend=arguments.backend, level=arguments.level, verify=arguments.verify or None)
    outputs = compiled.run(values)
    return outputs, compiled.why if arguments.backend == "auto" else ""


def describe(value: Any) -> dict[str, Any]:
    """Return shape, dtype, minimum, mean and maximum of an output; complex numbers by magnitude."""
    import torch

    if not isinstance(value, torch.Tensor):
        return {"shape": [], "dtype": type(value).__name__, "min": value, "mean": value, "max": value}
    numbers = (value.abs() if value.is_complex() else value).double()
    spread = (
        {"min": numbers.min().item(), "mean": numbers.mean().item(), "max": numbers.max().item()}
        if numbers.numel()
        else {"min": None, "mean": None, "max": None}
    )
    return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch."), **spread}


def _line(facts: Mapping[str, Any]) -> str:
    head = f"{facts['name']}: {facts['dtype']}{facts['shape']}"
    if facts["min"] is None:
        return f"{head} empty"
    return f"{head} min {facts['min']:.6g} mean {facts['mean']:.6g} max {facts['max']:.6g}"


def _save(outputs: Mapping[str, Any], path: Path) -> None:
    import io

    import torch

    from torch_ir.ir.files.atomic_write import write_bytes

    tensors = {name: torch.as_tensor(value).contiguous().clone() for name, value in outputs.items()}
    if path.suffix == ".pt":
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        write_bytes(path, buffer.getvalue())
        return
    try:
        from safetensors.torch import save
    except ImportError:
        from torch_ir.errors import MissingExtraError

        raise MissingExtraError("writing .safetensors files", "safetensors", "safetensors") from None
    write_bytes(path, save(tensors))
