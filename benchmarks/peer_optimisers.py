"""ONNX optimisers on the same models: nodes, FLOPs and bytes per run, counted by the same rules.

Each model is exported by torch.onnx as it is, with random weights, and handed to each optimiser. The sizes of all
tensors are those of a run. A node reads each of its inputs once and writes each of its outputs once; a look-up reads
as much of its table as it gives. What torch calls a view moves nothing, although ONNX Runtime copies for most of
them: the figures favour the peers.

python -m benchmarks.peer_optimisers [MODEL ...] [--json FILE]
"""

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.measure import digits, table
from benchmarks.models import EXECUTED, EXTRACTED, Case, llama, tokens

PACKAGES = ("onnx", "onnxscript", "onnxruntime", "onnxsim", "onnxoptimizer")
HEADER = ["model", "graph", "nodes", "compute", "no views", "no data movement", "GFLOPs", "MB", "differs by"]
NOTHING = frozenset(("Constant", "Identity"))
VIEWS = NOTHING | {
    "Dropout", "Expand", "Flatten", "Reshape", "SequenceAt", "Shape", "Size", "Slice", "Split", "SplitToSequence",
    "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
MOVEMENT = VIEWS | {"Cast", "CastLike", "Concat"}
LOOK_UPS = frozenset(("Gather", "GatherElements", "GatherND"))


@dataclass(frozen=True)
class Figures:
    """Figures of one graph; `difference` is the largest relative one from the raw graph's results."""

    nodes: int
    compute: int
    without_views: int
    without_movement: int
    flops: int
    bytes: int
    difference: float
    operators: dict[str, int]

    @property
    def cells(self) -> list[object]:
        counts = [self.nodes, self.compute, self.without_views, self.without_movement]
        return [*counts, digits(self.flops / 1e9), digits(self.bytes / 1e6), f"{self.difference:.0e}"]


@dataclass(frozen=True)
class Size:
    """Shape and bytes of a tensor."""

    shape: tuple[int, ...]
    bytes: int
    is_integer: bool


def mobilenet_v2() -> nn.Module:
    from catalogue.mobilenet_v2 import MobileNetV2

    return MobileNetV2()


CONVOLUTIONS = [
    EXECUTED[0],
    Case("MobileNetV2", mobilenet_v2, lambda: {"x": torch.randn(1, 3, 224, 224)}),
    EXTRACTED[0],
]
TRANSFORMERS = [*EXTRACTED[1:], Case("Llama, 8 layers, 512 wide", lambda: llama(layers=8, hidden=512), tokens)]
# 20 is the default of torch.onnx; since 23, attention is one operator, as it is in ours.
EXPORTS = {f"{case.name}, opset 20": (case, 20) for case in CONVOLUTIONS + TRANSFORMERS} | {
    f"{case.name}, opset 23": (case, 23) for case in TRANSFORMERS
}


def run() -> str:
    """Return a row per model and optimiser."""
    found = measure(list(EXPORTS))
    return f"{_table(found)}\n\nWith {', '.join(f'{name} {number}' for name, number in _versions().items())}."


def measure(names: list[str]) -> dict[str, dict[str, Figures]]:
    """Return the figures of every optimiser for these models."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise SystemExit(f"the optimisers of ONNX graphs are missing: pip install {' '.join(missing)}")
    return {name: _model(name, *EXPORTS[name]) for name in names}


def _table(found: dict[str, dict[str, Figures]]) -> str:
    rows = [[model, peer, *figures.cells] for model, peers in found.items() for peer, figures in peers.items()]
    return table(HEADER, rows)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", *PACKAGES)}


def _model(name: str, case: Case, opset: int) -> dict[str, Figures]:
    import onnx

    torch.manual_seed(0)
    inputs = case.inputs()
    exported = _exported(case.build().eval(), inputs, opset)
    feeds = {argument: tensor.numpy() for argument, tensor in inputs.items()}
    expected: list[Any] = []
    found = {}
    for peer, optimise in PEERS.items():
        graph = optimise(onnx.ModelProto.FromString(exported))
        sizes, results = _run(graph, feeds)
        expected = expected or results
        found[peer] = _figures(graph, sizes, _difference(results, expected))
        print(f"{name}, {peer}: {found[peer].nodes} nodes", file=sys.stderr, flush=True)
    return found


@torch.no_grad()
def _exported(model: nn.Module, inputs: dict[str, Any], opset: int) -> bytes:
    """Export the graph with torch.onnx, without optimisation."""
    _scatter(model)
    program: Any = torch.onnx.export(
        model, (), kwargs=inputs, opset_version=opset, dynamo=True, optimize=False, verbose=False
    )
    proto: bytes = program.model_proto.SerializeToString()
    return proto


def _scatter(model: nn.Module) -> None:
    """Perturb every weight, because optimisers fold initial zeros and ones away."""
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.01)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)


def _onnxruntime(graph: Any) -> Any:
    """Optimise with ONNX Runtime at its basic level, which does not depend on the machine."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "optimised.onnx")
        _session(graph, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC, path)
        return onnx.load(path)


def _onnxscript(graph: Any) -> Any:
    from onnxscript import optimizer

    return optimizer.optimize(graph)


def _onnxsim(graph: Any) -> Any:
    import onnxsim

    return onnxsim.simplify(graph)[0]


def _onnxoptimizer(graph: Any) -> Any:
    import onnxoptimizer

    return onnxoptimizer.optimize(graph)


PEERS: dict[str, Callable[[Any], Any]] = {
    "raw": lambda graph: graph,
    "ONNX Runtime basic": _onnxruntime,
    "onnxsim": _onnxsim,
    "onnxoptimizer": _onnxoptimizer,
    "onnxscript": _onnxscript,
    "onnxscript, ONNX Runtime basic": lambda graph: _onnxruntime(_onnxscript(graph)),
    "onnxscript, onnxsim": lambda graph: _onnxsim(_onnxscript(graph)),
}


def _session(graph: Any, level: Any, path: str = "") -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = path
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _run(graph: Any, feeds: dict[str, Any]) -> tuple[dict[str, Size], list[Any]]:
    """Run the graph without optimisation and return the sizes of all tensors, and its results."""
    import onnx
    import onnxruntime

    open_graph = onnx.ModelProto()
    open_graph.CopyFrom(graph)
    outputs = [output.name for output in graph.graph.output]
    inner = [name for node in graph.graph.node for name in node.output if name and name not in outputs]
    open_graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    session = _session(open_graph, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    values = dict(zip([*outputs, *inner], session.run(None, feeds), strict=True))
    sizes = {name: _size(value) for name, value in (feeds | values).items()}
    for weight in graph.graph.initializer:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
        shape = tuple(weight.dims)
        sizes[weight.name] = Size(shape, math.prod(shape) * dtype.itemsize, dtype.kind in "iu")
    return sizes, [values[name] for name in outputs]


def _size(value: Any) -> Size:
    if isinstance(value, list):  # the parts of a tensor, as a sequence
        return Size((len(value),), sum(part.nbytes for part in value), is_integer=False)
    return Size(value.shape, value.nbytes, value.dtype.kind in "iu")


def _figures(graph: Any, sizes: dict[str, Size], difference: float) -> Figures:
    nodes = list(graph.graph.node)
    operators = Counter(node.op_type for node in nodes)
    moving = sum(_moves_data(node, sizes) for node in nodes)
    return Figures(
        nodes=len(nodes),
        compute=sum(count for name, count in operators.items() if name not in NOTHING),
        without_views=sum(count for name, count in operators.items() if name not in VIEWS),
        without_movement=len(nodes) - moving,
        flops=sum(2 * _macs(node, sizes) for node in nodes),
        bytes=sum(_traffic(node, sizes) for node in nodes),
        difference=difference,
        operators=dict(operators.most_common(15)),
    )


def _moves_data(node: Any, sizes: dict[str, Size]) -> bool:
    """Return whether a node is free; a gather of integers is shape arithmetic."""
    return node.op_type in MOVEMENT or (node.op_type in LOOK_UPS and sizes[node.output[0]].is_integer)


def _macs(node: Any, sizes: dict[str, Size]) -> int:
    """Return the multiply-adds of a contraction."""
    if node.op_type not in ("Attention", "Conv", "Gemm", "MatMul"):
        return 0
    one, other = sizes[node.input[0]].shape, sizes[node.input[1]].shape
    made = math.prod(sizes[node.output[0]].shape)
    if node.op_type == "Attention":  # queries with keys, and weights with values
        return (math.prod(one) + made) * other[-2]
    if node.op_type == "Conv":
        return made * math.prod(other[1:])
    is_turned = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return made * one[-2 if is_turned else -1]


def _traffic(node: Any, sizes: dict[str, Size]) -> int:
    """Return the bytes that a node reads and writes."""
    if node.op_type in VIEWS:
        return 0
    written = sum(sizes[name].bytes for name in node.output if name)
    whole = dict.fromkeys(name for name in node.input[node.op_type in LOOK_UPS :] if name)
    return sum(sizes[name].bytes for name in whole) + written * (1 + (node.op_type in LOOK_UPS))


def _difference(results: list[Any], expected: list[Any]) -> float:
    pairs = zip(results, expected, strict=True)
    return max(float(abs(result - other).max() / abs(other).max()) for result, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_optimisers", description="Measure the peers.")
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"which: {'; '.join(EXPORTS)} (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    unknown = set(options.names) - set(EXPORTS)
    if unknown:
        parser.error(f"no model is called {min(unknown)!r}; there are {'; '.join(EXPORTS)}")
    found = measure(options.names or list(EXPORTS))
    print(_table(found))
    if options.json:
        models = {name: {peer: asdict(figures) for peer, figures in peers.items()} for name, peers in found.items()}
        text = json.dumps({"versions": _versions(), "models": models}, indent=1)
        options.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
