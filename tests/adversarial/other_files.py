"""Other files about a graph, each as large as the graph: encodings, weights, an adapter, a plan, a recipe, a pack."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.damage.planning_files import PLAN
from torch_ir.analysis import MemoryPlan, plan_memory
from torch_ir.errors import TorchIRError
from torch_ir.formats import save_protobuf
from torch_ir.ir import IR

# word of a command -> suffix of the file or folder next to the graph
SUFFIXES = {
    "TEXT": ".ir",
    "GZIP": ".json.gz",
    "PROTOBUF": ".pb",
    "WEIGHTS": ".safetensors",  # its keys are nearly those of the graph
    "ADAPTER": ".adapter",  # of every layer with a weight
    "STAGES": ".stages.json",  # a plan with a stage for every fourth node
    "RECIPE": ".recipe.json",  # a rule for each module
    "PLANNED": ".planned.json",  # the graph with its memory plan
    "PACK": ".pack",  # a golden pack of empty values
}


def write_other_files(ir: IR, file: Path) -> None:
    """Write all of them next to the file of a graph."""
    place = {word: file.with_suffix(suffix) for word, suffix in SUFFIXES.items()}
    for word in ("TEXT", "GZIP"):
        ir.save(place[word])
    save_protobuf(ir, place["PROTOBUF"])
    place["WEIGHTS"].write_bytes(_tensors({f"{param.key}x": [0] for param in ir.params}))
    _write_adapter(ir, place["ADAPTER"])
    stages = [node.name for node in ir.nodes[4::4]]
    place["STAGES"].write_text(json.dumps({**PLAN, "axes": [], "stages": stages}))
    modules = dict.fromkeys(node.origin.module for node in ir.nodes if node.origin.module)
    rules = [{"match": module, "scheme": "int8"} for module in modules]
    place["RECIPE"].write_text(json.dumps({"layers": [*rules, {"match": "*", "scheme": "int4"}]}))
    _write_pack(ir, place["PACK"])
    with suppress(TorchIRError):  # sizes vary
        ir.extensions[MemoryPlan.KEY] = plan_memory(ir).to_dict()
    ir.save(place["PLANNED"])


def _tensors(shapes: dict[str, list[int]]) -> bytes:
    """Return a safetensors file of zeros."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for dim in shape:
            size *= dim
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def _write_adapter(ir: IR, folder: Path) -> None:
    """Write factors of rank 1 for every linear layer."""
    folder.mkdir(exist_ok=True)
    shapes: dict[str, list[int]] = {}
    for node in ir.nodes:
        if node.op_type == "aten.linear.default" and node.origin.module:
            rows, columns = node["weight"].shape
            name = f"base_model.model.{node.origin.module}"
            shapes |= {f"{name}.lora_A.weight": [1, int(columns)], f"{name}.lora_B.weight": [int(rows), 1]}
    patterns = {name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): 2 for name in shapes}
    config = {"peft_type": "LORA", "alpha_pattern": {name: 2 for name in patterns if not name.endswith("weight")}}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(_tensors(shapes))


def _write_pack(ir: IR, folder: Path) -> None:
    """Write a golden pack with an empty value for each node, and further values that a graph does not have."""
    folder.mkdir(exist_ok=True)
    shard = "values-00000.safetensors"
    (folder / shard).write_bytes(_tensors({node.name: [0] for node in ir.nodes}))
    data = (folder / shard).read_bytes()
    with safe_open(str(folder / shard), framework="pt") as opened:
        assert len(opened.keys()) == len(ir.nodes)
    values: list[dict[str, Any]] = [
        {"name": node.name, "shape": [0], "dtype": "float32", "stored": "plain", "file": shard, "node": node.name,
         "module": node.origin.module, "reads": [source.name for source in node.inputs][:100]}
        for node in ir.nodes
    ]  # fmt: skip
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    index = {
        "format": "torch-ir golden", "version": 1, "model_name": "", "ir": "", "reference": "", "seed": 0, "notes": [],
        "files": [{"name": shard, "size": len(data), "digest": digest}], "inputs": [], "values": values,
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))
