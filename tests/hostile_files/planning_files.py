"""Device files, plans, adapters, maps, memory plans and traces that are too large, never end, or are none."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.damage.planning_files import (
    ADAPTER,
    DEVICE,
    PLAN,
    TRACES,
    Json,
    adapter_tensors,
    two_entries,
    write_adapter,
    write_traces,
)
from tests.graphs import mlp
from tests.hostile_files.case import Family, Make
from torch_ir.analysis import plan_memory
from torch_ir.ir import IR, OpNode, TensorMeta

FAMILY = Family("devices, plans, adapters, maps")
_DEEP = b'{"a": ' * 10**5
_AXIS = PLAN["axes"][0]
_EDGE = two_entries().extensions["entry_points"]["edges"][0]
_GRID = DEVICE["grids"][0]
_MEMORY = plan_memory(mlp()).to_dict()
_PREFIX = "base_model.model."


def _file(content: Any) -> Make:
    """Write bytes, a JSON value, or what a function returns, so that large values exist only while they are used."""

    def make(folder: Path) -> Path:
        made = content() if callable(content) else content
        (folder / "document.json").write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
        return folder / "document.json"

    return make


def _adapter(config: Json | None = None, **tensors: torch.Tensor) -> Make:
    given = adapter_tensors(**{f"{_PREFIX}{name}": value for name, value in tensors.items()})
    return lambda folder: write_adapter(folder / "adapter", {**ADAPTER, **(config or {})}, given)


def _traces(edit: Callable[[Path], Any]) -> Make:
    def make(folder: Path) -> Path:
        traces = write_traces(folder / "traces")
        edit(traces)
        return traces

    return make


def _linked(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).rename(folder / "other")
        (folder / name).symlink_to("other")

    return edit


def _index(**fields: Any) -> Make:
    return _traces(lambda folder: (folder / "index.json").write_text(json.dumps({**TRACES, **fields})))


def _trace(content: bytes) -> Make:
    return _traces(lambda folder: (folder / "stage0.et").write_bytes(content))


def _wide(count: int) -> dict[str, str]:
    return {f"layer{number}*": "colwise" for number in range(count)}


def _place(number: int) -> Json:
    return {**_MEMORY["places"][0], "tensor": f"t{number}", "offset": 64 * number}


for opens, name, content in [
    ("device", "a list", b"[]"),
    ("device", "10^5 levels", _DEEP),
    ("device", "9 MB", {**DEVICE, "name": "a" * (9 << 20)}),
    ("device", "NaN", json.dumps({**DEVICE, "peak": float("nan")}).encode()),
    ("device", "number of 5,000 digits", json.dumps(DEVICE).replace("1000000000000.0", "9" * 5000).encode()),
    ("device", "numbers near 0", {**DEVICE, "grids": [{**_GRID, "axes": [[5e-324, 1], [1, 8], [4]]}]}),
    ("device", "sizes that descend", {**DEVICE, "grids": [{**_GRID, "axes": [[8, 1], [1, 8], [4]]}]}),
    ("device", "10^5 grids", {**DEVICE, "grids": [_GRID] * 10**5}),
    ("device", "10^9 points", {**DEVICE, "grids": [{**_GRID, "axes": [list(range(1, 1001))] * 3}]}),
    ("device", "a grid twice", {**DEVICE, "grids": [_GRID, _GRID]}),
    ("device", "2^62 threads", {**DEVICE, "threads": 1 << 62}),
    ("device", "name with colours", {**DEVICE, "name": "\x1b[31mx"}),
    ("device", "key of a prototype", {**DEVICE, "__proto__": {"peak": 1}}),
    ("device", "key twice", json.dumps(DEVICE)[:-1].encode() + b', "peak": 1}'),
    ("mesh plan", "10^5 levels", _DEEP),
    ("mesh plan", "2^62 ranks", {**PLAN, "axes": [{**_AXIS, "ranks": 1 << 62}]}),
    ("mesh plan", "100 axes", {**PLAN, "axes": [_AXIS] * 100}),
    ("mesh plan", "an axis twice", {**PLAN, "axes": [_AXIS, _AXIS]}),
    ("mesh plan", "axis named like an expression", {**PLAN, "axes": [{**_AXIS, "axis": "tp*2"}]}),
    ("mesh plan", "30,000 patterns", lambda: {**PLAN, "axes": [{**_AXIS, "rows": _wide(30_000)}]}),
    ("mesh plan", "pattern of 2,000 stars", {**PLAN, "axes": [{**_AXIS, "rows": {"**f" * 2000: "colwise"}}]}),
    ("mesh plan", "30,000 patterns of inputs", lambda: {**PLAN, "axes": [{**_AXIS, "inputs": _wide(30_000)}]}),
    ("mesh plan", "input pattern of 10^6 stars", {**PLAN, "axes": [{**_AXIS, "inputs": {"*a" * 10**6: "shard(0)"}}]}),
    ("mesh plan", "placement of 5,000 digits", {**PLAN, "axes": [{**_AXIS, "inputs": {"x": f"shard({'9' * 5000})"}}]}),
    ("mesh plan", "10^5 stages", {**PLAN, "stages": ["fc2"] * 10**5}),
    ("mesh plan", "9,000 unknown stages", {**PLAN, "stages": [f"fc{number}" for number in range(3, 9003)]}),
    ("mesh plan", "estimate of text", {**PLAN, "estimate": {**PLAN["estimate"], "memory": "all"}}),
    ("mesh plan", "a row of a number", {**PLAN, "axes": [{**_AXIS, "rows": {"fc1": 1}}]}),
    ("entry map", "10^5 levels", _DEEP),
    ("entry map", "graphs as a list", {"graphs": ["first", "second"], "edges": []}),
    ("entry map", "edges as text", {"graphs": {"first": [], "second": []}, "edges": "all"}),
    ("entry map", "edge of an unknown entry", {"graphs": {"first": [], "second": []}, "edges": [{**_EDGE, "to": "x"}]}),
    ("entry map", "edge of 10^6 characters", {"graphs": {"first": [], "second": []},
                                              "edges": [{**_EDGE, "place": "x" * 10**6}]}),
    ("entry map", "10^5 edges to one input", {"graphs": {"first": [], "second": []}, "edges": [_EDGE] * 10**5}),
    ("entry map", "entry of itself", {"graphs": {"first": [], "second": []},
                                      "edges": [{**_EDGE, "from": "second", "place": "y"}]}),
    ("memory plan", "no banks", {**_MEMORY, "banks": []}),
    ("memory plan", "10^5 banks",
     lambda: {**_MEMORY, "banks": [{"name": str(at), "alignment": 1} for at in range(10**5)]}),
    ("memory plan", "bank with colours", {**_MEMORY, "banks": [{"name": "\x1b[31m", "alignment": 1}]}),
    ("memory plan", "bank of 2^63 - 1 bytes", {**_MEMORY, "banks": [{**_MEMORY["banks"][0], "bytes": 2**63 - 1}]}),
    ("memory plan", "alignment of 0", {**_MEMORY, "banks": [{**_MEMORY["banks"][0], "alignment": 0}]}),
    ("memory plan", "2^40 steps", {**_MEMORY, "steps": 1 << 40}),
    ("memory plan", "10^5 places", lambda: {**_MEMORY, "places": [_place(at) for at in range(10**5)]}),
    ("memory plan", "sizes that are lists", {**_MEMORY, "sizes": {"batch": [1]}}),
    ("memory plan", "offsets beyond int64", json.dumps(_MEMORY).replace('"offset": 0', f'"offset": {10**30}').encode()),
    ("training facts", "a list in place of an object", {"start": []}),
    ("training facts", "rates that are objects", {"start": {"optimizer.m.fc1.weight": {}}}),
    ("training facts", "micro-batches of text", {"start": {}, "micro_batches": "x" * 10**6}),
]:  # fmt: skip
    FAMILY.refused(f"{opens}: {name}", _file(content), r"(R\d+)?", ".*", opens=opens)

for name, make in {
    "10^5 levels": lambda folder: _raw_config(folder, _DEEP),
    "a list": lambda folder: _raw_config(folder, b"[]"),
    "NaN": lambda folder: _raw_config(folder, b'{"peft_type": "LORA", "lora_alpha": NaN}'),
    "5 MB": lambda folder: _raw_config(folder, b" " * (5 << 20) + b"{}"),
    "configuration as a pipe": lambda folder: _pipe(folder),
    "alpha of 5,000 digits": lambda folder: _raw_config(folder, b'{"lora_alpha": ' + b"9" * 5000 + b"}"),
    "another kind": _adapter({"peft_type": "IA3"}),
    "code": _adapter({"auto_mapping": None, "arrow_config": {"class": "os.system"}}),
    "pattern that is a regular expression": _adapter({"alpha_pattern": {"(a+)+$": 1}}),
    "pattern of 10^5 characters": _adapter({"alpha_pattern": {"a" * 10**5: 1}}),
    "pattern of text": _adapter({"alpha_pattern": {"fc1": "1"}}),
    "factors of rank 0": _adapter(
        None, **{"fc1.lora_A.weight": torch.ones(0, 4), "fc1.lora_B.weight": torch.ones(8, 0)}
    ),
    "factors of different ranks": _adapter(None, **{"fc1.lora_A.weight": torch.ones(3, 4)}),
    "one part twice": _adapter(None, **{"fc1.weight": torch.ones(8, 4), "fc1.base_layer.weight": torch.ones(8, 4)}),
    "unknown module": _adapter(None, **{"fc9.weight": torch.ones(8, 4)}),
    "a tensor that no adapter has": _adapter(None, **{"fc1.code": torch.ones(1)}),
    "tensors of a pickle": lambda folder: write_adapter(folder / "adapter", ADAPTER, b"\x80\x02c__builtin__\neval\n."),
}.items():  # fmt: skip
    FAMILY.refused(f"adapter: {name}", make, r"(R\d+)?", ".*", opens="adapter")

for name, make in {
    "index as a link": _traces(_linked("index.json")),
    "trace as a link": _traces(_linked("stage0.et")),
    "a list of axes": _index(mesh=[2, 2]),
    "2^62 ranks": _index(ranks=1 << 62),
    "10^5 axes": _index(mesh={f"a{at}": 1 << 20 for at in range(10**5)}),
    "axes that do not fit": _index(mesh={"dp": 3, "tp": 2}),
    "undefined process group": _index(mesh={"dp": 4}),
    "more stages than traces": _index(stages=2),
    "empty trace of a later stage": _index(stages=8, mesh={}),
    "cut short": _trace(b"\xff\xff\xff\xff\x07"),
    "length of 2^70": _trace(b"\xff" * 10),
    "no message": _trace(b"\x00\x04\xff\xff\xff\xff"),
}.items():
    FAMILY.refused(f"traces: {name}", make, r"(R\d+)?", ".*", opens="traces")


def _graph(node: OpNode, mesh: dict[str, int] | None = None) -> Make:
    def make(folder: Path) -> Path:
        IR([node], node.inputs, node.outputs, mesh=mesh).clone().save(folder / "graph.json")
        return folder / "graph.json"

    return make


def _convolution(**attrs: Any) -> OpNode:
    """A convolution of quantised tensors, whose arguments no shape rule checks."""
    x, w, y = (TensorMeta(name, (1, 4, 6, 6), "qint8") for name in "xwy")
    given = {"bias": None, "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False}
    given |= {"output_padding": [0, 0], "groups": 1, **attrs}
    return OpNode("y", "aten.convolution.default", [x, w], [y], given, args=["input", "weight"])


def _product() -> OpNode:
    a, b, y = (TensorMeta(name, (1 << 28, 1 << 28), "float32") for name in "aby")
    return OpNode("y", "aten.mm.default", [a, b], [y], args=["self", "mat2"])


def _shared() -> OpNode:
    placement = ("replicate",) * 4
    x, y = (TensorMeta(name, (2, 3), "float32", placement=placement) for name in "xy")
    return OpNode("y", "aten.relu.default", [x], [y], args=["self"])


for name, opens, make in [
    ("work beyond 64 bits", "chakra", _graph(_product())),
    ("2^40 ranks", "chakra", _graph(_shared(), {f"a{at}": 1 << 10 for at in range(4)})),
    ("no groups", "layers of a graph", _graph(_convolution(groups=0))),
    ("three strides", "layers of a graph", _graph(_convolution(stride=[1, 1, 1]))),
]:
    FAMILY.refused(f"{opens}: {name}", make, r"(R\d+)?", ".*", opens=opens)


def _raw_config(folder: Path, content: bytes) -> Path:
    adapter = write_adapter(folder / "adapter")
    (adapter / "adapter_config.json").write_bytes(content)
    return adapter


def _pipe(folder: Path) -> Path:
    adapter = write_adapter(folder / "adapter")
    (adapter / "adapter_config.json").unlink()
    os.mkfifo(adapter / "adapter_config.json")
    return adapter
