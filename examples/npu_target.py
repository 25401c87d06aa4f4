"""A private target, end to end: its layers, file format and runtime, for ResNet-18.

python examples/npu_target.py

The upper half lowers a graph to the layers of a small accelerator. The lower half is its runtime: numpy and two files,
without torch and without torch_ir. Convolution, batch norm and ReLU become one layer, whose weights are folded when the
weights are packed.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

from torch_ir import IR, Declined, Lowered, OpNode, Target, op

Array = np.ndarray[Any, Any]

# -- the layers of the accelerator, and their lowerings ----------------------------------------------------------------


@dataclass
class Conv:
    stride: list[int]
    padding: list[int]
    epsilon: float
    relu: bool


@dataclass
class MaxPool:
    kernel: list[int]
    stride: list[int]
    padding: list[int]


@dataclass
class Mean:
    """Mean of every channel."""


@dataclass
class Add:
    relu: bool


@dataclass
class Flatten:
    first: int


@dataclass
class Gemm:
    """x @ w.T + b"""


npu = Target("npu")

convolution = op("aten.conv2d.default", weight="w", bias=None, dilation=[1, 1], groups=1).named("conv")
normed = op(
    "aten.batch_norm.default",
    input=convolution,
    weight="gamma",
    bias="beta",
    running_mean="mean",
    running_var="var",
    training=False,
).named("norm")
added = op("aten.add.Tensor", alpha=1)


@npu.lowers(normed, op("aten.relu.default", self=normed))
def conv(node: OpNode, conv: OpNode, norm: OpNode) -> Conv:
    """Lower two or three nodes to one layer."""
    return Conv(conv["stride"], conv["padding"], norm["eps"], relu=node is not norm)


@npu.lowers(added, op("aten.relu.default", self=added))
def add(node: OpNode) -> Add:
    return Add(relu=node.op_type == "aten.relu.default")


@npu.lowers("torch.nn.MaxPool2d")
def max_pool(node: OpNode) -> MaxPool | Declined:
    """Lower a whole module, by its class."""
    if node["dilation"] != [1, 1] or node["ceil_mode"]:
        return Declined("only plain windows")
    return MaxPool(node["kernel_size"], node["stride"], node["padding"])


@npu.lowers("torch.nn.AdaptiveAvgPool2d")
def mean(node: OpNode) -> Mean | Declined:
    return Mean() if node["output_size"] == [1, 1] else Declined("only to one value per channel")


@npu.lowers("torch.flatten")
def flatten(node: OpNode) -> Flatten | Declined:
    """Lower a torch function, by its name."""
    return Flatten(node["start_dim"]) if node["end_dim"] == -1 else Declined("only to the last dimension")


@npu.lowers("aten.linear.default")
def gemm(node: OpNode) -> Gemm:
    return Gemm()


def pack(lowered: Lowered, weights: dict[str, Array], folder: Path) -> None:
    """Write the layers to `program.json` and their weights to `weights.npz`."""
    arrays: dict[str, Array] = {}
    for layer in lowered:
        own = {name: weights[key] for name, key in layer.weights.items()}
        if isinstance(layer.value, Conv):
            scale = own["gamma"] / np.sqrt(own["var"] + layer.value.epsilon)
            own = {"weight": own["w"] * scale[:, None, None, None], "bias": own["beta"] - own["mean"] * scale}
        arrays.update((f"{layer.name}/{name}", array) for name, array in own.items())
    lowered.save(folder / "program.json")
    np.savez(folder / "weights.npz", **arrays)


# -- the runtime -------------------------------------------------------------------------------------------------------


def windows(x: Array, kernel: list[int], stride: list[int], padding: list[int], fill: float) -> Array:
    """Return all windows of an image, as [batch, channel, row, column, kernel row, kernel column]."""
    sides = [(0, 0), (0, 0), *((pad, pad) for pad in padding)]
    padded = np.pad(x, sides, constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))  # type: ignore[call-overload]
    return every[:, :, :: stride[0], :: stride[1]]


def run_conv(x: Array, weight: Array, bias: Array, *, stride: Any, padding: Any, relu: bool, **_: Any) -> Array:
    """Compute a convolution as one matrix product over the windows of the image."""
    seen = windows(x, list(weight.shape[2:]), stride, padding, 0.0)
    batch, _channels, rows, columns = seen.shape[:4]
    matrix = seen.transpose(0, 2, 3, 1, 4, 5).reshape(batch * rows * columns, -1)
    out = matrix @ weight.reshape(len(weight), -1).T + bias
    out = out.reshape(batch, rows, columns, -1).transpose(0, 3, 1, 2)
    return np.maximum(out, 0) if relu else out


def run_max_pool(x: Array, *, kernel: Any, stride: Any, padding: Any) -> Array:
    return windows(x, kernel, stride, padding, -np.inf).max((4, 5))


def run_mean(x: Array) -> Array:
    return x.mean((2, 3), keepdims=True)


def run_add(one: Array, other: Array, *, relu: bool) -> Array:
    return np.maximum(one + other, 0) if relu else one + other


def run_flatten(x: Array, *, first: int) -> Array:
    return x.reshape(*x.shape[:first], -1)


def run_gemm(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight.T + bias


KERNELS = {
    "Conv": run_conv, "MaxPool": run_max_pool, "Mean": run_mean, "Add": run_add, "Flatten": run_flatten,
    "Gemm": run_gemm,
}  # fmt: skip


class Runtime:
    """Interpreter for a packed program."""

    def __init__(self, folder: Path) -> None:
        self.program = json.loads((folder / "program.json").read_text())
        self.weights: dict[str, dict[str, Array]] = {}
        for place, array in np.load(folder / "weights.npz").items():
            layer, _, name = place.rpartition("/")
            self.weights.setdefault(layer, {})[name] = array

    def __call__(self, *inputs: Array) -> list[Array]:
        values = {tensor["name"]: value for tensor, value in zip(self.program["inputs"], inputs, strict=True)}
        for layer in self.program["layers"]:
            settings = dict(layer["value"])
            kernel = KERNELS[settings.pop("type")]
            given = [values[name] for name in layer["inputs"]]
            values[layer["outputs"][0]] = kernel(*given, **self.weights.get(layer["name"], {}), **settings)
        return [values[name] for name in self.program["outputs"]]


# -- example: ResNet-18 ------------------------------------------------------------------------------------------------


def graph_of_resnet18(size: int) -> IR:
    """Capture the graph without weights."""
    import torch

    import catalogue
    from torch_ir import extract_ir

    with torch.device("meta"):
        model = catalogue.find("resnet18").build()
    return extract_ir(model, (torch.empty(1, 3, size, size, device="meta"),))


def main() -> int:
    import torch

    import catalogue

    lowered = npu.lower(graph_of_resnet18(64))
    print(lowered.report())
    for layer in lowered.layers[:4]:
        print(f"  {layer.kind:<20} {layer.value}")

    torch.manual_seed(0)
    model = catalogue.find("resnet18").build()
    image = torch.randn(1, 3, 64, 64)
    with tempfile.TemporaryDirectory() as folder:
        pack(lowered, {key: tensor.numpy() for key, tensor in model.state_dict().items()}, Path(folder))
        sizes = {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}
        (logits,) = Runtime(Path(folder))(image.numpy())
    print(", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items()))

    with torch.no_grad():
        wanted = model(image).numpy()
    difference = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
    print(f"numpy against torch: largest difference {difference:.0e} of the largest logit")
    return 0 if lowered.is_complete and difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
