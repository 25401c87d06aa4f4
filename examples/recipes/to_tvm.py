"""Convert a graph to TVM: optimise, import as Relax, build for the CPU, run, compare with the model.

python examples/recipes/to_tvm.py cnn        (pip install apache-tvm)
"""

import sys
from pathlib import Path

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

import torch_ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the catalogue


def main(name: str) -> int:
    import catalogue

    entry = catalogue.find(name)
    model, inputs = entry.build(), entry.inputs()
    ir = torch_ir.extract_ir(model, inputs, strict=False)
    better, _ = torch_ir.optimize(ir, level="full")
    module = torch_ir.to_torch(better, model.state_dict())
    with torch.no_grad():
        relaxed = from_exported_program(torch.export.export(module, inputs))
        built = tvm.compile(relaxed, target="llvm")
        machine = relax.VirtualMachine(built, tvm.cpu())
        (result,) = machine["main"](*(tvm.runtime.tensor(value.numpy()) for value in inputs))
        found = torch.from_numpy(result.numpy())
        torch.testing.assert_close(found, model(*inputs), rtol=1e-4, atol=1e-5)
    print(f"{name}: {list(found.shape)}, equal to the model's")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
