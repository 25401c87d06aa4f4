"""Memory of a bound graph whose weights are quantised: what stays after binding, and the most during it and a run.

python -m benchmarks.quantized_memory

Each form runs in its own process, on a stack of linear layers with random weights in a .safetensors file.
"""

import argparse
import ctypes
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import torch_ir
from benchmarks.measure import machine, table
from torch_ir.quantization import quantize

WIDTH, DEPTH = 2048, 24
FORMS = {"float32": None, "int8": "int8", "int4 in groups of 64": "int4-g64"}
_MEGA = 1e6


def write(folder: Path) -> None:
    """Write the checkpoint and one graph for each form."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))).eval()
    save_file(model.state_dict(), folder / "model.safetensors")
    ir = torch_ir.extract_ir(model, (torch.randn(1, WIDTH),), strict=False)
    for number, scheme in enumerate(FORMS.values()):
        graph = ir if scheme is None else quantize(ir, scheme)[0]
        graph.save(folder / f"{number}.json")


def resident() -> float:
    """Return the resident memory of this process in MB, without what the allocator keeps for later."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / _MEGA


def hold(folder: Path, number: int) -> None:
    """Bind one graph and run it; print the memory before, after binding, after runs, and at most."""
    ir = torch_ir.IR.load(folder / f"{number}.json")
    x = torch.randn(1, WIDTH)
    before = resident()
    executor = torch_ir.IRExecutor(ir, folder / "model.safetensors")
    bound = resident()
    executor(x)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MEGA
    print(bound - before, resident() - before, most - before)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized_memory", description=__doc__)
    parser.add_argument("--hold", nargs=2, metavar=("FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(Path(options.hold[0]), int(options.hold[1]))
        return 0
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for number, form in enumerate(FORMS):
            command = [sys.executable, "-m", "benchmarks.quantized_memory", "--hold", folder, str(number)]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            rows.append([form, *(f"{float(each):.0f} MB" for each in found)])
    size = WIDTH * WIDTH * DEPTH * 4 / _MEGA
    print(f"{DEPTH} layers of {WIDTH} x {WIDTH}, {size:.0f} MB in float32\n")
    print(table(["weights", "after binding", "after a run", "at most"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
