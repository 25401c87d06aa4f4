"""`torch-ir convert`: write a graph file in another encoding or for another tool."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torch_ir.cli.arguments.simulator_options import add_simulators, check_simulator, simulator_text, write_simulator
from torch_ir.cli.models.model_kinds import GRAPHS
from torch_ir.cli.progress import show_progress
from torch_ir.cli.verb import add_json, argument, load_graph, print_json, read_weights, save_graph
from torch_ir.errors import CommandError, printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from torch_ir.ir import IR

SUMMARY = "write an IR file as JSON, protobuf or text, as ONNX, MLIR, StableHLO, Python or .pt2, or for a simulator"
EXAMPLES = """
model.json -o model.pb
model.pb -o model.json
model.json -o model.json.gz
model.json -o model.ir
model.json -o model.onnx --weights model.safetensors
model.json -o model.onnx --functions none
model.json -o model.mlir
model.json -o model.stablehlo.mlir
model.json -o model.py
pipeline.json --to chakra -o traces --replicas 64 --device peak=990TFLOPs,bw=3.35TB/s
model.json --to scale-sim -o model.csv
model.json --to zigzag --bits 8 -o workload.yaml
"""
_STABLEHLO = ".stablehlo.mlir"
_THEIRS = (".onnx", ".mlir", _STABLEHLO, ".py", ".pt2")
_WITH_FUNCTIONS = (".onnx", ".mlir", _STABLEHLO)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    argument(parser, "file FILE", "an IR file: protobuf (.pb, .binpb), JSON, gzipped JSON or text")
    argument(parser, "-o --output FILE", f"the file to write: {', '.join((*GRAPHS, *_THEIRS))}", required=True)
    argument(parser, "-w --weights FILE", "weights to put into .onnx (default: none) or .pt2; or `random`")
    argument(
        parser,
        "--functions WHICH",
        "functions to keep in .onnx and .mlir files: none, blocks (the default), or all, with fused operators",
        choices=("none", "blocks", "all"),
    )
    argument(parser, "--no-check", "do not compare an .onnx file with the graph in ONNX Runtime")
    add_simulators(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    check_simulator(arguments)
    if arguments.to:
        return _simulate(arguments)
    kind = _kind(arguments.output)
    _check(arguments, kind)
    ir = load_graph(arguments.file)
    if kind in GRAPHS:
        save_graph(ir, arguments.output)
    else:
        show_progress(f"writing {arguments.output}")
        _write_theirs(ir, kind, arguments)
    beside = [str(side) for side in _side_files(Path(arguments.output), kind)]
    if arguments.json:
        size = os.path.getsize(arguments.output)
        print_json({"file": arguments.output, "kind": kind.removeprefix("."), "bytes": size, "side_files": beside})
    elif beside and not arguments.quiet:
        print(printable(f"{arguments.output}, with data in {', '.join(beside)}; keep them together"))
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    """Write the files of a simulator."""
    if arguments.weights or arguments.functions or arguments.no_check:
        raise CommandError("--weights, --functions and --no-check are for formats that run a graph, not for --to")
    ir = load_graph(arguments.file)
    show_progress(f"writing {arguments.output}")
    written = write_simulator(ir, arguments)
    if arguments.json:
        print_json({"file": arguments.output, "kind": arguments.to, **written})
    elif not arguments.quiet:
        print(printable(f"{arguments.output}: {simulator_text(arguments.to, written)}"))
    return 0


def _side_files(path: Path, kind: str) -> list[Path]:
    """Return the files that a written file refers to: large constants, or the weights of ONNX."""
    from torch_ir.ir.files.side_file import side_files

    if kind != ".onnx":
        return side_files(path) if kind in GRAPHS else []
    from torch_ir.targets.onnx.onnx_weights import weight_files

    return weight_files(path)


def _kind(output: str) -> str:
    """Return the suffix of the output in lower case; both suffixes for `.json.gz` and `.stablehlo.mlir`."""
    suffixes = Path(output.lower()).suffixes
    both = "".join(suffixes[-2:])
    return both if suffixes[-1:] == [".gz"] or both == _STABLEHLO else "".join(suffixes[-1:])


def _check(arguments: argparse.Namespace, kind: str) -> None:
    if kind not in (*GRAPHS, *_THEIRS):
        raise CommandError(f"{arguments.output} must end in {', '.join((*GRAPHS, *_THEIRS[:-1]))} or {_THEIRS[-1]}")
    if arguments.weights and kind not in (".onnx", ".pt2"):
        raise CommandError(f"--weights is for .onnx and .pt2; {kind} files hold no weights")
    if arguments.functions and kind not in _WITH_FUNCTIONS:
        raise CommandError(f"--functions is for .onnx and .mlir, not for {kind}")
    if arguments.no_check and kind != ".onnx":
        raise CommandError(f"--no-check is for .onnx, not for {kind}")
    if kind == ".pt2" and not arguments.weights:
        raise CommandError("a .pt2 file holds weights: give --weights FILE, or --weights random")


def _write_theirs(ir: IR, kind: str, arguments: argparse.Namespace) -> None:
    from torch_ir.targets import to_mlir, to_onnx, to_python, to_stablehlo

    functions = arguments.functions or "blocks"
    if kind == ".onnx":
        weights = _weights(ir, arguments.weights)
        to_onnx(ir, arguments.output, weights, functions=functions, check=not arguments.no_check)
    elif kind == ".mlir":
        to_mlir(ir, arguments.output, functions=functions)
    elif kind == _STABLEHLO:
        to_stablehlo(ir, arguments.output, functions=functions)
    elif kind == ".py":
        to_python(ir, arguments.output)
    else:
        _write_pt2(ir, arguments.output, _weights(ir, arguments.weights))


def _write_pt2(ir: IR, path: str, weights: Mapping[str, Tensor] | None) -> None:
    """Write the graph as an exported program, with its dynamic sizes."""
    import io

    import torch

    from torch_ir.analysis.shapes.open_sizes import points_of
    from torch_ir.ir.files.atomic_write import write_bytes
    from torch_ir.ops.pytree import call_of
    from torch_ir.passes.random_check import drawn_inputs
    from torch_ir.targets import dynamic_shapes_of, to_torch

    module = to_torch(ir, weights)
    args, kwargs = call_of(ir.input_tree, drawn_inputs(ir, next(iter(points_of(ir)), {}), 0))
    with torch.no_grad():
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes_of(ir))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    write_bytes(path, buffer.getvalue())


def _weights(ir: IR, file: str | None) -> Mapping[str, Tensor] | None:
    return None if file is None else read_weights(ir, file)
