"""ResNet-18 end to end: build on meta, extract, save, draw, load, execute, verify, optimise, compare.

python examples/demo.py [--output DIR]
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the catalogue

import torch_ir
from catalogue.resnet18 import resnet18
from torch_ir.cli import main as torch_ir_command


@contextmanager
def step(what: str) -> Iterator[None]:
    start = time.perf_counter()
    print(f"\n== {what}")
    yield
    print(f"   ({time.perf_counter() - start:.2f} s)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    output: Path = parser.parse_args().output
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

    better, weights = output / "better.json", output / "weights.pt"
    with step(f"torch-ir optimize {file} -o {better} --level full --verify"):
        is_valid &= torch_ir_command(["optimize", str(file), "-o", str(better), "--level", "full", "--verify"]) == 0

    torch.save(real.state_dict(), weights)
    against = ["--against", "eager", "--model", "catalogue.resnet18:resnet18", "--repeat", "10"]
    with step(f"torch-ir bench {file} {better} --weights {weights} {' '.join(against)}"):
        is_valid &= torch_ir_command(["bench", str(file), str(better), "--weights", str(weights), *against]) == 0

    print(f"\nEverything is in {output.resolve()}")
    return 0 if is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
