"""Convert a graph to ExecuTorch: optimise, lower to XNNPACK, write a .pte file, run, compare with the model.

python examples/recipes/to_executorch.py cnn model.pte        (pip install executorch)
"""

import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime

import torch_ir

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the catalogue


def main(name: str, file: str) -> int:
    import catalogue

    entry = catalogue.find(name)
    model, inputs = entry.build(), entry.inputs()
    ir = torch_ir.extract_ir(model, inputs, strict=False)
    better, _ = torch_ir.optimize(ir, level="full")
    module = torch_ir.to_torch(better, model.state_dict())
    with torch.no_grad():
        program = torch.export.export(module, inputs)
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        lowered.to_executorch().save(file)
        (result,) = Runtime.get().load_program(file).load_method("forward").execute(list(inputs))
        torch.testing.assert_close(result, model(*inputs), rtol=1e-4, atol=1e-5)
    print(f"{name}: {list(result.shape)}, equal to the model's")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
