"""Quantised models: int8 ResNet-50 and BERT in each runtime against the executor and float32; a mixed recipe.

python -m benchmarks.quantized [--rounds N] [--search]

The weights are random. For `--search` they are made similar to trained ones: the rows of a matrix have log-normal
scales, elements are heavy-tailed (Student's t with 4 degrees of freedom), a few input features of each block are up to
28 times larger than the others, and blocks differ in how strong both effects are and in how much they add to the
residual stream (a factor of up to 30).
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torch_ir
from benchmarks.measure import machine, race, table
from torch_ir.backends import compile, installed_backends
from torch_ir.quantization import choose_recipe, movement, observe_ranges, quantize, sensitivity
from torch_ir.run.benchmark import threads

ROUNDS = 5
BACKENDS = ("onnxruntime", "openvino")
Build = Callable[[], tuple[nn.Module, list[dict[str, Tensor]]]]


def resnet50() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """ResNet-50 with random weights and batch norms that have seen some images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig()).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 96, 96))
    return model.eval(), [{"pixel_values": torch.randn(1, 3, 224, 224)} for _ in range(4)]


def bert() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """BERT base with random weights, on 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False)
    return model.eval(), [{"input_ids": torch.randint(0, 30000, (1, 128))} for _ in range(4)]


def latency(name: str, build: Build, rounds: int) -> list[list[str]]:
    """Return one row per runtime: float32 and int8 latency, and how far int8 is from the executor."""
    torch.manual_seed(0)
    model, inputs = build()
    weights = model.state_dict()
    ir = torch_ir.extract_ir(model, (), kwargs=inputs[0], strict=False)
    ir, _ = torch_ir.optimize(ir, "basic")
    ranges = observe_ranges(ir, weights, inputs)
    quantized, report = quantize(ir, {"*embeddings.*": None, "*": "w8a8"} if name == "BERT" else "w8a8", ranges=ranges)
    executor = torch_ir.IRExecutor(quantized, weights)
    expected = _first(executor(**inputs[0]))
    moved = movement(ir, quantized, weights, inputs)
    actions: dict[str, Callable[[], Any]] = {}
    found = {}
    for backend in (each for each in BACKENDS if each in installed_backends()):
        for form, graph in (("float32", ir), ("int8", quantized)):
            compiled = compile(graph, weights, backend=backend, level=None)
            actions[f"{backend} {form}"] = lambda compiled=compiled: compiled(**inputs[0])
            if form == "int8":
                difference = (_first(compiled(**inputs[0])) - expected).abs()
                found[backend] = (
                    difference.max() / expected.abs().max(),
                    difference.square().mean().sqrt() / expected.std(),
                )
    timed = race(actions, rounds)
    size = f"{report.bytes_before / 1e6:.1f} -> {report.bytes_after / 1e6:.1f} MB"
    rows = []
    for backend, (largest, typical) in found.items():
        before, after = (min(timed[f"{backend} {form}"].wall) * 1e3 for form in ("float32", "int8"))
        spent = [f"{before:.1f} ms", f"{after:.1f} ms", f"{before / after:.2f}"]
        rows.append([name, size, backend, *spent, f"{largest:.2e}", f"{typical:.2e}", f"{moved.sqnr:.1f} dB"])
    return rows


def _first(result: Any) -> Tensor:
    """Return the first tensor of a result."""
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result


class Block(nn.Module):
    """A residual block of a transformer without attention: two projections around a non-linearity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def trained_like(width: int, depth: int, is_alike: bool = False) -> nn.Module:
    """Return blocks with heavy-tailed weights, rows of different scales, and outlier features."""
    model = nn.Sequential(*(Block(width) for _ in range(depth))).eval()
    with torch.no_grad():
        for at, block in enumerate(model):
            strength = 0.8 if is_alike else 0.2 + 1.2 * torch.rand(()).item()
            for layer in (block.up, block.down):
                rows, columns = layer.weight.shape
                heavy = torch.distributions.StudentT(4.0).sample((rows, columns)) / 2**0.5
                scales = torch.exp(strength * torch.randn(rows, 1))
                layer.weight.copy_(heavy * scales * columns**-0.5 / scales.square().mean().sqrt())
            block.down.weight *= 1.0 if is_alike else 10 ** (-1.5 * torch.rand(()).item())
            chosen = torch.randperm(width)[: 2 + at % 4]
            block.norm.weight[chosen] *= 1 + 19 * strength
    return model


def search(is_alike: bool, width: int = 1024, depth: int = 12) -> str:
    """Compare uniform int4 with the mixed recipe of the same bytes, by running both."""
    torch.manual_seed(0)
    model = trained_like(width, depth, is_alike)
    inputs = [(torch.randn(1, 32, width),) for _ in range(2)]
    unseen = [(torch.randn(1, 32, width),) for _ in range(2)]
    ir = torch_ir.extract_ir(model, inputs[0], strict=False)
    weights = model.state_dict()
    found = sensitivity(ir, weights, inputs, ["int4", "int4-g128", "int4-g64", "int4-g32", "int8"])
    rows = []
    for scheme in ("int4-g128", "int4-g64", "int4-g32"):
        uniform, report = quantize(ir, scheme)
        chosen = choose_recipe(ir, weights, inputs, found, report.bytes_after)
        graphs = [uniform, quantize(ir, found.recipe(report.bytes_after))[0], quantize(ir, chosen.recipe)[0]]
        moved = [f"{movement(ir, graph, weights, unseen).sqnr:.2f} dB" for graph in graphs]
        sizes = [f"{each.bytes_after / 1e6:.2f} MB" for each in (report, chosen.report)]
        kind = "uniform" if chosen.is_uniform else "mix"
        rows.append([scheme, sizes[0], moved[0], moved[1], kind, sizes[1], moved[2]])
    count = sum(weight.numel() for weight in weights.values())
    titles = ["uniform", "bytes", "SQNR", "mix by sum: SQNR", "chosen", "bytes", "SQNR"]
    kind = "alike" if is_alike else "different"
    return f"{count / 1e6:.1f} M weights, {depth} {kind} blocks\n\n{table(titles, rows)}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds in which every runtime has its turn")
    parser.add_argument("--search", action="store_true", help="compare a mixed recipe with uniform int4 instead")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine())
    if options.search:
        print(*(search(is_alike) for is_alike in (False, True)), sep="\n")
        return 0
    titles = ["model", "weights", "runtime", "float32", "int8", "speed-up", "largest difference", "typical", "SQNR"]
    with threads(options.threads):
        rows = [
            row
            for name, build in {"ResNet-50": resnet50, "BERT": bert}.items()
            for row in latency(name, build, options.rounds)
        ]
    print(table(titles, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
