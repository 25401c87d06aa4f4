"""Open a file and run everything on it except the graph itself."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import torch_ir
from tests.damage import planning_files
from tests.hostile_files.shown import LeakError, check_drawn, check_program, check_text
from torch_ir.cli.arguments.input_files import read_files
from torch_ir.cli.arguments.input_specs import parse_inputs
from torch_ir.cli.dispatch import main
from torch_ir.draw.dot import to_dot
from torch_ir.draw.scene import build_scene
from torch_ir.errors import TorchIRError
from torch_ir.formats.protobuf import lowered_from_protobuf
from torch_ir.golden import dumps
from torch_ir.golden.pack import read_pack
from torch_ir.ir import IR, OpNode, Origin, TensorMeta
from torch_ir.ir.graph.tensor import Param
from torch_ir.ir.json.json_text import parse_document, read_text
from torch_ir.ir.regroup.functions import inline_all, op_counts
from torch_ir.quantization.observers import read_ranges
from torch_ir.quantization.recipe import Recipe
from torch_ir.simulators import to_chakra, to_timeloop

_CONTRACT = torch_ir.Contract("npu", ["aten.relu"])
_VERBS = [
    ("check",), ("info",), ("info", "--json"), ("cost",), ("cost", "--by", "op"), ("cost", "--by", "node"),
    ("visualize",), ("visualize", "--fold"), ("draw", "--depth", "1"), ("draw", "--format", "model-explorer"),
]  # fmt: skip


def open_graph(file: Path) -> None:
    """Read and check a graph in Python, then with the command line."""
    try:
        torch_ir.load_ir(file)
    except TorchIRError:
        out, err, status = _said("check", file=file)
        if status == 0 or not (out + err) or (err and len(err.splitlines()) != 1):
            raise LeakError(f"check ends with {status}: {err[:200]}") from None
        check_text(out + err)
        out, err, status = _said("info", file=file)
        if status and (out or len(err.splitlines()) != 1):
            raise LeakError(f"info ends with {status}: {err[:200]}") from None
        check_text(out + err)
        raise
    if _said("check", file=file)[2]:
        raise LeakError("check refuses what is loaded")


def open_weights(file: Path) -> None:
    """Read the tensors, at once and when they are needed."""
    torch_ir.load_weights(file)
    if file.suffix in (".safetensors", ".gguf"):
        for tensor in torch_ir.open_weights(file).values():
            tensor.load()


def _layers() -> IR:
    """A graph with a layer, `fc`."""
    x, weight = TensorMeta("x", (2, 4), "float32"), TensorMeta("w", (4, 4), "float32", param=Param(("fc.weight",)))
    y = TensorMeta("y", (2, 4), "float32")
    args = ["input", "weight"]
    node = OpNode(
        "y", "aten.linear.default", [x, weight], [y], {"bias": None}, args=args, origin=Origin("fc", 0, "Linear")
    )
    return IR([node], [x], [y], params=[weight])


def open_pack(folder: Path) -> None:
    pack = read_pack(folder)
    for value in (*pack.inputs, *pack.values):
        pack.tensor(value)


def open_dumps(file: Path) -> None:
    with dumps.open_dumps(file) as found:
        for read in found.values():
            read()


def show(file: Path) -> None:
    """Print a graph with every printer."""
    ir = IR.load(file)
    for printer in (_texts, _reports):
        for text in printer(ir):
            check_text(text)
    for draw in (_mermaid, _dot):
        for text in draw(ir):
            check_drawn(text)
    try:
        check_program(torch_ir.to_python(ir))
    except TorchIRError as error:  # an unknown operator, or a weight that no attribute can be named after
        check_text(str(error))
    for verb in _VERBS:
        check_text("".join(_said(*verb, file=file)[:2]))


def question(file: Path) -> None:
    """Run every analysis on a graph; a typed error is a valid result."""
    ir = IR.load(file)
    for ask in _QUESTIONS:
        with contextlib.suppress(TorchIRError):
            ask(ir)
    for verb in _VERBS:
        _said(*verb, file=file)


OPENINGS: dict[str, Callable[[Path], None]] = {
    "graph": open_graph,
    "weights": open_weights,
    "pack": open_pack,
    "dumps": open_dumps,
    "lowered": lambda file: lowered_from_protobuf(file.read_bytes()),
    "contract": torch_ir.Contract.load,
    "recipe": lambda file: torch_ir.quantize(_layers(), Recipe.load(file)),
    "ranges": lambda file: torch_ir.quantize(_layers(), "w8a8", ranges=read_ranges(file)),
    "plan": lambda file: torch_ir.shard(_layers(), parse_document(read_text(file)), {"tp": 2}),
    "device": planning_files.read_device,
    "mesh plan": planning_files.read_plan,
    "entry map": planning_files.read_entries,
    "memory plan": planning_files.read_memory_plan,
    "training facts": planning_files.read_training,
    "adapter": planning_files.read_adapter,
    "traces": lambda folder: planning_files.read_traces(folder, [7]),
    "chakra": lambda file: to_chakra(torch_ir.load_ir(file), file.parent / "traces"),
    "layers of a graph": lambda file: to_timeloop(torch_ir.load_ir(file), file.parent / "problems"),
    "input": lambda file: read_files(parse_inputs([f"@{file}"])),
    "printers": show,
    "questions": question,
}


def _said(*verb: str, file: Path) -> tuple[str, str, int]:
    """Return the output of a command on a file, and its status."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([verb[0], str(file), *verb[1:]])
    return out.getvalue(), err.getvalue(), status


def _texts(ir: IR) -> Iterator[str]:
    yield str(ir)
    yield repr(ir)
    yield from (f"{node!r} {torch_ir.describe(node)}" for node in ir.all_nodes())
    yield from map(repr, ir.tensors())


def _reports(ir: IR) -> Iterator[str]:
    """Return the reports of analyses and passes."""
    lines: list[str] = []
    for ask in (
        lambda: torch_ir.cost_report(ir, "module"),
        lambda: torch_ir.cost_report(ir, "op"),
        lambda: torch_ir.cost_report(ir, "node"),
        lambda: torch_ir.diff(ir, ir.at_level("aten")),
        lambda: torch_ir.optimize(ir, "full")[1],
        lambda: torch_ir.Target("npu").lower(ir, log=lines.append).report(),
        lambda: torch_ir.coverage(ir, _CONTRACT, decompose=False),
        lambda: torch_ir.to_mlir(ir),
    ):
        try:
            yield str(ask())
        except TorchIRError as error:
            yield str(error)
    yield from lines


def _mermaid(ir: IR) -> Iterator[str]:
    yield torch_ir.ir_to_mermaid(ir, max_nodes=0)
    yield torch_ir.generate_op_distribution_pie(ir)


def _dot(ir: IR) -> Iterator[str]:
    yield to_dot(build_scene(ir, 0))
    yield to_dot(build_scene(ir, fold=True, open_calls=True))
    yield to_dot(build_scene(ir, depth=2, fold=True))


def _inlined(ir: IR) -> None:
    inline_all(ir.clone())


_QUESTIONS: list[Callable[[IR], object]] = [
    torch_ir.validate_ir,
    str,
    op_counts,
    torch_ir.cost,
    torch_ir.liveness,
    lambda ir: str(torch_ir.cost_report(ir, "module")),
    lambda ir: str(torch_ir.cost_report(ir, "node")),
    lambda ir: torch_ir.diff(ir, ir),
    IR.fold_blocks,
    _inlined,
    lambda ir: ir.at_level("aten"),
    lambda ir: ir.at_level("function"),
    lambda ir: ir.at_level("module"),
    lambda ir: list(_mermaid(ir)),
    lambda ir: list(_dot(ir)),
    lambda ir: torch_ir.optimize(ir, "full"),
    lambda ir: torch_ir.optimize(ir, "full", by_block=True),
    lambda ir: torch_ir.Target("npu").lower(ir).report(),
    lambda ir: torch_ir.coverage(ir, _CONTRACT, decompose=False),
    IR.to_json,
    torch_ir.to_protobuf,
    torch_ir.to_python,
    torch_ir.to_mlir,
]
