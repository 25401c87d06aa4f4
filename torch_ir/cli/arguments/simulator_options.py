"""Options of `convert --to`: files for simulators of accelerators and clusters."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.arguments.size_specs import parse_sizes
from torch_ir.cli.verb import add_device, argument
from torch_ir.errors import CommandError, did_you_mean

if TYPE_CHECKING:
    from torch_ir.ir import IR

CHAKRA, ZIGZAG, TIMELOOP = "chakra", "zigzag", "timeloop"
SCALE_SIM, SCALE_SIM_GEMM = "scale-sim", "scale-sim-gemm"
SIMULATORS = (CHAKRA, SCALE_SIM, SCALE_SIM_GEMM, ZIGZAG, TIMELOOP)
FOLDERS = (CHAKRA, TIMELOOP)  # are written as folders
# option -> the simulators that it is for
_FOR = {
    "dim": SIMULATORS,
    "device": (CHAKRA,),
    "replicas": (CHAKRA,),
    "ranks": (CHAKRA,),
    "bits": (ZIGZAG,),
}
_MOST_RANKS = 100_000  # files


def add_simulators(parser: argparse.ArgumentParser) -> None:
    """Add `--to` and its options."""
    group = parser.add_argument_group("for simulators")
    argument(
        group,
        "--to NAME",
        f"the simulator: {', '.join(SIMULATORS)}; chakra and timeloop write folders",
        choices=SIMULATORS,
        type=_simulator,
    )
    argument(group, "-d --dim NAME=SIZE...", "a value for a symbolic size; repeatable")
    add_device(group, "chakra: times for a device: {}, or `this`")
    argument(group, "--replicas N", "chakra: how many times all ranks run (default: 1)", type=int)
    argument(group, "--ranks LIST", "chakra: also write the files of single ranks: 0-7,12 or all")
    argument(group, "--bits N", "zigzag: bits of all operands (default: those of dtypes)", type=int)


def _simulator(name: str) -> str:
    if name not in SIMULATORS:
        others = "the suffix of -o chooses other formats, as in -o model.onnx"
        expected = f"; expected one of {', '.join(SIMULATORS)}; {others}"
        raise argparse.ArgumentTypeError(f"unknown simulator {name!r}{did_you_mean(name, SIMULATORS) or expected}")
    return name


def check_simulator(arguments: argparse.Namespace) -> None:
    """Raise CommandError for options that would have no effect, or an output of the wrong kind."""
    for option, names in _FOR.items():
        if getattr(arguments, option) not in (None, []) and arguments.to not in names:
            raise CommandError(f"--{option} is for --to {' and '.join(names) if len(names) < 3 else 'NAME'}")
    if arguments.to in FOLDERS and Path(arguments.output).is_file():
        raise CommandError(f"{arguments.output} is a file; --to {arguments.to} writes a folder")
    if arguments.to and arguments.to not in FOLDERS and Path(arguments.output).is_dir():
        raise CommandError(f"{arguments.output} is a folder; --to {arguments.to} writes a file")


def write_simulator(ir: IR, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the files of a simulator; return what was written."""
    from torch_ir.analysis import find_device
    from torch_ir.simulators import to_chakra, to_scale_sim, to_timeloop, to_zigzag, write_ranks

    sizes, output = parse_sizes(arguments.dim), arguments.output
    if arguments.to == ZIGZAG:
        return to_zigzag(ir, output, sizes, bits=arguments.bits)
    if arguments.to == TIMELOOP:
        return to_timeloop(ir, output, sizes)
    if arguments.to != CHAKRA:
        return to_scale_sim(ir, output, sizes, gemm=arguments.to == SCALE_SIM_GEMM)
    device = None if arguments.device is None else find_device(arguments.device)
    replicas = 1 if arguments.replicas is None else arguments.replicas
    index = to_chakra(ir, output, sizes=sizes, device=device, replicas=replicas)
    if arguments.ranks:
        write_ranks(output, _ranks(arguments.ranks, index["ranks"]), Path(output) / "ranks")
    return index


def _ranks(text: str, count: int) -> list[int]:
    """Parse `0-7,12`, or `all`."""
    found: list[int] = []
    for part in [f"0-{count - 1}"] if text == "all" else text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CommandError(f"{text!r:.60} is not a list of ranks; write 0-7,12 or all")
        found += range(int(first), min(int(last or first), count) + 1)
        if len(found) > _MOST_RANKS:
            raise CommandError(
                f"{text!r:.60} are more than {_MOST_RANKS:,} ranks; a simulator can share files, see index.json"
            )
    return found


def simulator_text(name: str, written: dict[str, Any]) -> str:
    """Describe what was written."""
    from torch_ir.ir.text.amounts import human, plural

    if name == CHAKRA:
        nodes = sum(sum(trace["nodes"].values()) for trace in written["traces"])
        files = plural(len(written["traces"]), "file")
        return f"{plural(written['ranks'], 'rank')} in {files}, {plural(nodes, 'node')}"
    left = "".join(f"\nnot a layer: {name} ({plural(count, 'node')})" for name, count in written["left_out"].items())
    return f"{plural(written['layers'], 'layer')}, {human(written['macs'])} multiply-adds{left}"
