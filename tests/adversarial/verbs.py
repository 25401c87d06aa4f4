"""The commands that read an untrusted file, with the options that make them do the most work, and Python functions."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.adversarial.other_files import SUFFIXES
from tests.damage.planning_files import DEVICE, PLAN
from torch_ir.analysis import MemoryPlan, liveness, memory_plan_of, plan_memory, schedule
from torch_ir.analysis.dependencies.partition import islands
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.cli.dispatch import main
from torch_ir.entries import feeds_of
from torch_ir.errors import TorchIRError
from torch_ir.ir import IR, OpNode, TensorMeta
from torch_ir.ir.regroup.functions import inline_all
from torch_ir.passes import to_opset
from torch_ir.rewrite import Builder, op, rule
from torch_ir.rewrite.driver import rewrite

# FILE is the graph, SECOND a slightly smaller one of the same shape, OUT a folder for results; the others are files
# that `tests/adversarial/other_files.py` writes for the graph.
VERBS: dict[str, tuple[str, ...]] = {
    "load": ("ops", "FILE"),
    "check": ("check", "FILE"),
    "info": ("info", "FILE"),
    "cost": ("cost", "FILE"),
    "cost on a device": ("cost", "FILE", "--device", "OUT/device.json", "--mode", "compiled"),
    "cost of an entry point": ("cost", "FILE", "--function", "decode"),
    "memory": ("memory", "FILE", "-o", "OUT/planned.json", "--picture", "OUT/plan.svg"),
    "memory of a file": ("memory", "PLANNED", "--check"),
    "draw": ("draw", "FILE", "-o", "OUT/graph.dot", "--max-nodes", "0"),
    "draw folded": ("draw", "FILE", "-o", "OUT/folded.mmd", "--fold", "--depth", "2"),
    "optimize clean": ("optimize", "FILE", "-o", "OUT/clean.json", "--level", "clean"),
    "optimize full": ("optimize", "FILE", "-o", "OUT/full.json", "--level", "full"),
    "diff": ("diff", "FILE", "SECOND", "--exit-zero"),
    "lower": ("lower", "FILE", "--target", "OUT/target.py:none", "-o", "OUT/lowered.json"),
    "coverage": ("coverage", "FILE", "--target", "OUT/contract.json"),
    "split": ("split", "FILE", "--stages", "4", "--anywhere", "-o", "OUT/split.json"),
    "split by a plan": ("split", "FILE", "--plan", "STAGES", "-o", "OUT/stages.json"),
    "explore": ("explore", "FILE", "-o", "OUT/page.html"),
    "load text": ("ops", "TEXT"),
    "load gzip": ("ops", "GZIP"),
    "load protobuf": ("ops", "PROTOBUF"),
    "info of modules": ("info", "FILE", "--level", "module", "--json"),
    "cost by node": ("cost", "FILE", "--by", "node", "--json"),
    "draw differences": ("draw", "FILE", "--against", "SECOND", "-o", "OUT/both.dot", "--max-nodes", "0"),
    "explore differences": ("explore", "FILE", "--against", "SECOND", "--python", "-o", "OUT/both.html"),
    "diff markdown": ("diff", "FILE", "SECOND", "--exit-zero", "--markdown", "--origins", "--names"),
    "optimize explained": ("optimize", "FILE", "-o", "OUT/why.json", "--level", "full", "--explain"),
    "shard": ("shard", "FILE", "--plan", "OUT/plan.json", "--mesh", "tp=2", "-o", "OUT/shard.json"),
    "shard by a plan": ("shard", "FILE", "--plan", "OUT/mesh.json", "-o", "OUT/mesh_shard.json"),
    "llm": ("llm", "FILE"),
    "llm in a form": ("llm", "FILE", "--form", "slots", "--max-length", "64", "-o", "OUT/slots.json"),
    "llm with an adapter": ("llm", "FILE", "--lora", "ADAPTER", "-o", "OUT/merged.json"),
    "plan": ("plan", "FILE", "--devices", "4", "--memory", "1GB", "-o", "OUT/planned.json"),
    "quantize": ("quantize", "FILE", "--recipe", "int4-g64", "-o", "OUT/quantized.json"),
    "quantize by a recipe": ("quantize", "FILE", "--recipe", "RECIPE", "-o", "OUT/by_recipe.json"),
    "compare": ("compare", "PACK", "PACK/values-00000.safetensors"),
    "weights": ("weights", "check", "FILE", "WEIGHTS"),
    "convert text": ("convert", "FILE", "-o", "OUT/graph.ir"),
    "convert gzip": ("convert", "FILE", "-o", "OUT/graph.json.gz"),
    "convert protobuf": ("convert", "FILE", "-o", "OUT/graph.pb"),
    "convert python": ("convert", "FILE", "-o", "OUT/graph.py"),
    "convert mlir": ("convert", "FILE", "-o", "OUT/graph.mlir"),
    "convert chakra": ("convert", "FILE", "--to", "chakra", "-o", "OUT/traces", "--device", "OUT/device.json"),
    "convert scale-sim": ("convert", "FILE", "--to", "scale-sim", "-o", "OUT/topology.csv"),
    "convert timeloop": ("convert", "FILE", "--to", "timeloop", "-o", "OUT/problems"),
    "convert zigzag": ("convert", "FILE", "--to", "zigzag", "-o", "OUT/workload.yaml"),
}
_TARGET = "from torch_ir import Target\n\nnone = Target('none')\n"
_PLAN = '{"**": "rowwise"}'
_MESH = {**PLAN, "axes": [{"axis": "tp", "ranks": 2, "rows": {"**": "rowwise"}}]}
_CONTRACT = '{"name": "few", "ops": ["aten.relu.default", "aten.add.Tensor"]}'


def _islands(ir: IR) -> None:
    islands(ir, {node for node in ir.nodes if not node.name.startswith("b")})
    islands(ir, set(ir.nodes[::2]))


def _replace_uses(ir: IR) -> None:
    """Replace every tensor by a copy, one after the other."""
    for tensor in [tensor for node in ir.nodes for tensor in node.outputs]:
        tensor.replace_all_uses_with(tensor.copy(f"{tensor.name}_copy"))


def _list_arguments(ir: IR) -> None:
    """Look up every argument by name, lists of tensors as a whole."""
    for node in ir.nodes:
        for name in {full.partition(".")[0] for full in node.args}:
            node[name]


@rule(op("aten.abs.default", self=op("aten.relu.default", self="x")))
def _backward(g: Builder, node: OpNode, x: TensorMeta) -> TensorMeta:
    """abs(relu(x))  ->  relu(abs(x)), which is wrong, and moves abs to the start."""
    return g.op("aten.relu.default", self=g.op("aten.abs.default", self=x))


@rule(op("aten.relu.default", self=op("aten.abs.default", self="x")))
def _forward(g: Builder, node: OpNode, x: TensorMeta) -> TensorMeta:
    """relu(abs(x))  ->  abs(relu(x)), which is wrong, and moves abs to the end."""
    return g.op("aten.abs.default", self=g.op("aten.relu.default", self=x))


def _move_nodes(ir: IR) -> None:
    """Apply rules that move operators as far as they go."""
    for change in (_backward, _forward):
        moved = ir.clone()
        rewrite(moved, [change], Knowledge.of(moved))


def _read_plan(ir: IR) -> None:
    """Read the memory plan that a file contains."""
    ir.extensions[MemoryPlan.KEY] = plan_memory(ir).to_dict()
    memory_plan_of(ir)


def _specialize(ir: IR) -> None:
    """Set all open sizes, one half after the other."""
    names = list(ir.symbols)
    half = ir.specialize(**dict.fromkeys(names[: len(names) // 2], 7))
    half.specialize(**dict.fromkeys(half.symbols, 7))


# Python functions of which no command is known to need all the work.
FUNCTIONS: dict[str, Callable[[IR], object]] = {
    "schedule": schedule,
    "liveness": liveness,
    "islands": _islands,
    "inline": inline_all,
    "replace uses": _replace_uses,
    "list arguments": _list_arguments,
    "moving rules": _move_nodes,
    "fold blocks": IR.fold_blocks,
    "specialize": _specialize,
    "read memory plan": _read_plan,
    "read entry map": feeds_of,
    "to opset": lambda ir: to_opset(ir, "core-aten"),
}
ALL = (*VERBS, *FUNCTIONS)


def write_target(out: Path) -> None:
    """Write the target, the contract, the plans and the device for `lower`, `coverage`, `shard` and `cost`."""
    (out / "target.py").write_text(_TARGET)
    (out / "contract.json").write_text(_CONTRACT)
    (out / "plan.json").write_text(_PLAN)
    (out / "mesh.json").write_text(json.dumps(_MESH))
    (out / "device.json").write_text(json.dumps(DEVICE))


def run_verb(verb: str, file: Path, second: Path, out: Path) -> int:
    """Run a verb, or a Python function, on a file and return its exit status."""
    if verb in FUNCTIONS:
        try:
            FUNCTIONS[verb](IR.load(file))
        except TorchIRError:
            return 1
        return 0
    places = {"FILE": file, "SECOND": second, "OUT": out}
    places |= {word: file.with_suffix(suffix) for word, suffix in SUFFIXES.items()}
    argv = [_placed(word, places) for word in VERBS[verb]]
    return main([argv[0], "-q", *argv[1:]])


def _placed(word: str, places: Mapping[str, Path]) -> str:
    """Return a word of a command with the path of a file or folder for its first step."""
    first, *rest = word.split("/", 1)
    return str(places[first].joinpath(*rest)) if first in places else word
