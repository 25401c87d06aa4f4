"""ResNet-18 end to end: build on meta, extract, save, draw, load, execute, verify, optimise, compile, compare.

python examples/demo.py [--output DIR]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

import torch_ir
from catalogue.resnet18 import resnet18
from torch_ir.backends import installed_backends
from torch_ir.cli import main as torch_ir_command
from torch_ir.run import bench

BACKENDS = ("onednn", "onnxruntime", "openvino")  # those that compile ResNet-18 in seconds
SLOW_BACKENDS = ("inductor", "iree")  # those that take up to minutes


@contextmanager
def step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    print(f"\n== {what}")
    yield
    print(f"   ({time.perf_counter() - start:.2f} s)")


def compare(
    model: torch.nn.Module, ir: torch_ir.IR, better: torch_ir.IR, image: torch.Tensor, backends: list[str]
) -> bool:
    """Time the model, its graphs and `torch_ir.compile`; whether all results agree."""
    weights = model.state_dict()
    calls = {
        "eager": lambda: model,
        "the graph": lambda: torch_ir.IRExecutor(ir, weights),
        "the optimised graph": lambda: torch_ir.IRExecutor(better, weights),
        **{
            f"torch_ir.compile, {name}": partial(torch_ir.compile, ir, weights, backend=name)  # it optimises, too
            for name in backends
        },
    }
    found = bench({name: partial(on_image, make, image) for name, make in calls.items()}, repeat=10)
    print(f"   {'':30}{'ms per call':>12}{'speed':>8}")
    for name, result in found.items():
        if isinstance(result, str):  # why it did not run
            print(f"   {name:30}{result}")
        else:
            print(f"   {name:30}{1e3 * result.time.median:12.1f}{1 / result.ratio.median:7.2f}x")
    print("   The executor runs one operator at a time; a back end runs the fused operators of the optimised graph.")
    return not any(isinstance(result, str) for result in found.values())


def on_image(make: Callable[[], Callable[..., object]], image: torch.Tensor) -> Callable[[], object]:
    """Make a callable with the model's signature, and bind it to the image."""
    function = make()
    return lambda: function(image)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    parser.add_argument("--all", action="store_true", help=f"also compile with {' and '.join(SLOW_BACKENDS)}")
    arguments = parser.parse_args()
    output: Path = arguments.output
    file = output / "resnet18.json"

    with step("build ResNet-18 on meta: 11.7 million parameters, no memory"), torch.device("meta"):
        model = resnet18().eval()

    with step("extract its graph, weight-free"):
        ir = torch_ir.extract_ir(model, (torch.empty(1, 3, 224, 224, device="meta"),), model_name="ResNet18")
        print(f"   {ir!r}")
        for line in str(ir).splitlines()[-len(ir.nodes) - 2 :][:4]:
            print(f" {line[:114]}")
        last = ir.nodes[-1]
        print(f"   ... {len(ir.nodes) - 4} more; each knows where it comes from: {last.name} is {last.origin}")

    with step(f"save {file}"):
        ir.save(file)
        print(f"   {file.stat().st_size / 1e3:.0f} kB; the weights themselves are {11.7 * 4:.0f} MB and are not in it")

    with step(f"torch-ir info {file}"):
        torch_ir_command(["info", str(file)])

    for picture in ("resnet18.png", "resnet18.mmd"):
        with step(f"torch-ir visualize {file} -o {output / picture}"):
            torch_ir_command(["visualize", str(file), "-o", str(output / picture)])

    with step("load the file and execute it with random weights"):
        loaded = torch_ir.IR.load(file)
        torch.manual_seed(0)
        real = resnet18().eval()
        image = torch.randn(1, 3, 224, 224)
        (logits,) = torch_ir.IRExecutor(loaded, weights=real.state_dict()).execute((image,))
        print(f"   logits: {list(logits.shape)}, class {int(logits.argmax())}")

    with step("verify it against the original model"):
        is_valid, report = torch_ir.verify_ir_with_state_dict(loaded, real.state_dict(), real, (image,))
        print("\n".join(f"   {line}" for line in str(report).splitlines()))

    better = output / "better.json"
    with step(f"torch-ir optimize {file} -o {better} --level full --verify"):
        is_valid &= torch_ir_command(["optimize", str(file), "-o", str(better), "--level", "full", "--verify"]) == 0

    picture = output / "before_after.png"
    with step(f"torch-ir draw {file} --against {better} -o {picture}"):
        torch_ir_command(["draw", str(file), "--against", str(better), "-o", str(picture)])

    backends = [name for name in (*BACKENDS, *SLOW_BACKENDS * arguments.all) if name in installed_backends()]
    with step(f"time it: one image, {torch.get_num_threads()} threads, 10 rounds, each in turn"):
        is_valid &= compare(real, loaded, torch_ir.IR.load(better), image, backends)

    print(f"\nEverything is in {output.resolve()}")
    return 0 if is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
