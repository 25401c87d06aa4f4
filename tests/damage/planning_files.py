"""Files of devices, plans, adapters and traces; and parts of graph files on entry points, memory and training."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from tests.damage.subject import Json, Subject, files, undigested, written
from tests.graphs import mlp, tensor, weight
from torch_ir import IR, OpNode, load_plan, optimizer_state, split
from torch_ir.analysis import Bank, MemoryPlan, cost_report, load_device, memory_plan_of, plan_memory
from torch_ir.analysis.devices.calibration import MODES
from torch_ir.analysis.devices.device_file import to_text
from torch_ir.analysis.memory_plan.plan_text import plan_text
from torch_ir.draw import memory_picture
from torch_ir.entries import feeds_of, run_entries
from torch_ir.ir import Branch, Slot
from torch_ir.ir.json.json_text import parse_document, read_text
from torch_ir.llm import cache_map, entry_map, merge_lora
from torch_ir.simulators import write_ranks

DEVICE: Json = {
    "format": "torch_ir.device", "version": 1, "name": "a device", "kind": "cpu", "threads": 2, "torch": "2.13",
    "peak": 1e12, "bandwidth": 1e11, "cache": 1e6, "overheads": {"module": 1e-6, "executor_run": 2e-6},
    "dispatch": {"float32": {"pointwise": 1e-6, "matmul": 3e-6}},
    "grids": [
        {"family": "matmul", "dtype": "float32", "weights": "memory", "axes": [[1, 8], [1, 8], [4]],
         "seconds": [1e-6, 2e-6, 3e-6, 4e-6]},
        {"family": "pointwise", "dtype": "float32", "weights": "memory", "axes": [[16, 1024]], "seconds": [1e-6, 5e-6]},
    ],
}  # fmt: skip
PLAN: Json = {
    "format": "torch_ir.plan", "version": 1, "model": "SimpleMLP",
    "axes": [
        {"axis": "tp", "ranks": 2,
         "rows": {"fc1": "colwise", "fc2": {"matrix": "shard(1)", "inputs": "shard(-1)", "outputs": "replicate"}},
         "inputs": {"x": "replicate"}, "outputs": {"linear_1": "replicate"}},
    ],
    "stages": ["fc2"],
    "estimate": {"seconds": 1e-3, "interval": 1e-3, "memory": 1e6, "sent": 0},
}  # fmt: skip
ADAPTER: Json = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 16, "bias": "none", "use_rslora": True,
    "alpha_pattern": {"^fc1": 4, "fc2": 2.5}, "fan_in_fan_out": False,
}  # fmt: skip
TRACES: Json = {"format": "torch-ir-chakra", "version": 1, "ranks": 8, "stages": 1, "mesh": {"dp": 2, "tp": 2}}


def _with_extension(ir: IR, key: str, path: Path) -> IR:
    """Return the graph with a document of a file in place of what its own file would say."""
    ir.extensions[key] = parse_document(read_text(path))
    return ir


def _relu(source: str, made: str) -> IR:
    x, y = tensor(source, 2, 3), tensor(made, 2, 3)
    tree = Branch("dict", (Slot(0),), (made,))
    node = OpNode(made, "aten.relu.default", [x], [y], args=["self"])
    return IR([node], [x], [y], input_tree=_call(Branch("dict", (Slot(0),), (source,))), output_tree=tree)


def _call(keywords: Branch) -> Branch:
    return Branch("tuple", (Branch("tuple", ()), keywords))


def _cache(slot: int) -> Branch:
    return Branch("dict", (Slot(slot),), ("layers.0.key",))


def two_entries() -> IR:
    """A graph with a further entry point that takes its output."""
    ir, other = _relu("x", "hidden"), _relu("hidden", "y")
    ir.functions["second"] = other
    ir.extensions["entry_points"] = {
        "graphs": {"first": ["x"], "second": ["hidden"]},
        "edges": [{"from": "first", "to": "second", "argument": "hidden", "place": "hidden"}],
    }
    return ir.check()


def language_model() -> IR:
    """Prefill, which returns a cache, and decode, which takes and returns it."""
    ids, key = tensor("input_ids", 2, 3), tensor("key", 2, 3)
    token, old, new = tensor("input_ids", 2, 1), tensor("past", 2, 3), tensor("cat", 2, 4)
    nodes = [OpNode("cat", "aten.cat.default", [old, token], [new], {"dim": 1}, args=["tensors.0", "tensors.1"])]
    inputs = Branch("dict", (Slot(0), _cache(1)), ("input_ids", "cache"))
    decode = IR(
        nodes, [token, old], [new], input_tree=_call(inputs), output_tree=Branch("dict", (_cache(0),), ("cache",))
    )
    made = OpNode("key", "aten.relu.default", [ids], [key], args=["self"])
    returned = Branch("dict", (Slot(0), _cache(1)), ("logits", "cache"))
    tree = _call(Branch("dict", (Slot(0),), ("input_ids",)))
    return IR([made], [ids], [key, key], input_tree=tree, output_tree=returned, functions={"decode": decode}).check()


def training_step() -> IR:
    """A graph that says that it is a training step, with the state of an optimiser."""
    ir = mlp()
    state = weight("p_m", 8, 4, keys=("optimizer.m.fc1.weight",), kind="buffer")
    ir.params.append(state)
    ir.functions["forward"] = mlp()
    ir.extensions["training"] = {"optimizer": ["Adam"], "start": {"optimizer.lr.0": 0.1}, "micro_batches": 1}
    return ir


def read_device(path: Path) -> Any:
    device = load_device(path)
    reports = [str(cost_report(mlp(), "node", device=device, mode=mode)) for mode in MODES]
    return to_text(device), reports


def read_plan(path: Path) -> Any:
    plan = load_plan(path)
    sharded = plan.shard(mlp())
    return plan.to_dict(), sharded.to_json(), plan.split(mlp()).to_json()


def read_adapter(folder: Path) -> Any:
    return merge_lora(mlp(), folder).to_json()


def read_entries(path: Path) -> Any:
    ir = _with_extension(two_entries(), "entry_points", path)
    feeds = feeds_of(ir)
    found = run_entries(ir, {}, {"first": {"x": torch.ones(2, 3)}})
    return feeds, {name: value["hidden" if name == "first" else "y"].tolist() for name, value in found.items()}


def read_memory_plan(path: Path) -> Any:
    plan = memory_plan_of(_with_extension(mlp(), MemoryPlan.KEY, path))
    assert plan is not None
    return plan.to_dict(), plan_text(plan, "a graph"), memory_picture(plan)


def read_language_model(path: Path) -> Any:
    ir = IR.load(path)
    return cache_map(ir), entry_map(ir)


def read_training(path: Path) -> Any:
    ir = _with_extension(training_step(), "training", path)
    state = {key: value.tolist() for key, value in optimizer_state(ir).items()}
    return state, split(ir, 2).to_json()


def read_traces(folder: Path, ranks: Sequence[int] = (0, 7)) -> Any:
    groups = write_ranks(folder, ranks, folder / "ranks")
    return groups, [(folder / "ranks" / f"workload.{rank}.et").read_bytes() for rank in ranks]


def adapter_tensors(**more: torch.Tensor) -> bytes:
    """The tensors of an adapter of two layers, of rank 2."""
    sizes = {"fc1": (4, 8), "fc2": (8, 2)}
    factors = {
        f"base_model.model.{name}.lora_{part}.weight": torch.ones(shape)
        for name, (taken, made) in sizes.items()
        for part, shape in {"A": (2, taken), "B": (made, 2)}.items()
    }
    return save({**factors, **more})


def write_adapter(folder: Path, config: Json = ADAPTER, tensors: bytes | None = None) -> Path:
    written(folder / "adapter_config.json", json.dumps(config).encode())
    written(folder / "adapter_model.safetensors", adapter_tensors() if tensors is None else tensors)
    return folder


def write_traces(folder: Path) -> Path:
    """The index of four ranks, twice, and their trace, which has a collective and a message."""
    from torch_ir.simulators.chakra_file import trace_bytes
    from torch_ir.simulators.trace_nodes import TraceNode

    ends = {"comm_src": 0, "comm_dst": 1, "comm_tag": 3, "comm_size": 8}
    nodes = [
        TraceNode("relu", "COMP_NODE", (), {"num_ops": 12, "tensor_size": 96, "op_type": "aten.relu.default"}, 0),
        TraceNode("sum", "COMM_COLL_NODE", (0,), {"comm_type": 0, "comm_size": 96, "pg_name": "tp"}, 0),
        TraceNode("sent", "COMM_SEND_NODE", (1,), ends, 0),
    ]
    written(folder / "stage0.et", trace_bytes(nodes))
    written(folder / "index.json", json.dumps(TRACES).encode())
    return folder


def _document(name: str, document: Json, other: Json, read: Callable[[Path], Any]) -> Callable[[Path], Subject]:
    """Enter a file that is one JSON document."""

    def make(folder: Path) -> Subject:
        path = written(folder / "document.json", json.dumps(document, indent=1).encode())
        return Subject(path, json.dumps(other).encode(), lambda: read(path))

    return files(name)(make)


_document("a device file", DEVICE, {**DEVICE, "kind": "cuda", "grids": []}, read_device)
_document("a plan of a mesh", PLAN, {**PLAN, "axes": [], "stages": []}, read_plan)
_document("a map of entry points", two_entries().extensions["entry_points"], {"graphs": {}}, read_entries)
_document("facts of a training step", training_step().extensions["training"], {"start": {}}, read_training)


def _planned(*banks: Bank) -> Json:
    return plan_memory(mlp(), banks).to_dict()


_document("a memory plan", _planned(Bank("sram", 64, 16), Bank("dram")), _planned(Bank("arena")), read_memory_plan)


@files("a language model")
def llm_file(folder: Path) -> Subject:
    path = written(folder / "llm.json", undigested(language_model().to_json().encode()))
    return Subject(path, undigested(mlp().to_json().encode()), lambda: read_language_model(path))


@files("the configuration of an adapter")
def adapter_config(folder: Path) -> Subject:
    write_adapter(folder)
    return Subject(folder / "adapter_config.json", b'{"lora_alpha": 1}', lambda: read_adapter(folder))


@files("the tensors of an adapter")
def adapter_file(folder: Path) -> Subject:
    write_adapter(folder)
    key = "base_model.model.fc1.lora_magnitude_vector"
    other = adapter_tensors(**{key: torch.ones(8)})
    return Subject(folder / "adapter_model.safetensors", other, lambda: read_adapter(folder))


@files("the index of traces")
def trace_index(folder: Path) -> Subject:
    write_traces(folder)
    return Subject(folder / "index.json", b'{"format": "torch-ir-chakra"}', lambda: read_traces(folder))


@files("a trace")
def trace_file(folder: Path) -> Subject:
    write_traces(folder)
    return Subject(folder / "stage0.et", bytes(40), lambda: read_traces(folder))
