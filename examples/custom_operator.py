"""Custom operator, end to end: define, capture, save, load, run with another implementation, verify.

python examples/custom_operator.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torch_ir


@torch.library.custom_op("example::fused_gate", mutates_args=())
def fused_gate(gate: Tensor, value: Tensor, slope: float = 1.0) -> Tensor:
    """Implementation of the operator, here in torch; it could be a CUDA kernel."""
    return torch.sigmoid(slope * gate) * value


@fused_gate.register_fake
def _(gate: Tensor, value: Tensor, slope: float = 1.0) -> Tensor:
    """Fake implementation, which capture needs: shape and dtype of the result, without values."""
    return torch.empty_like(value)


class GatedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.project(x).chunk(2, dim=-1)
        return fused_gate(gate, value, slope=1.702)


@torch_ir.register_executor("example.fused_gate")
def run_fused_gate(inputs: list[Tensor], attrs: dict[str, Any]) -> list[Tensor]:
    """Executor for machines where the operator is not installed."""
    gate, value = inputs
    return [value / (1 + torch.exp(-attrs["slope"] * gate))]


def main() -> int:
    with torch.device("meta"):
        model = GatedLayer().eval()
    ir = torch_ir.extract_ir(model, (torch.empty(2, 16, device="meta"),))
    print(ir)

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gated.json"
        ir.save(file)
        loaded = torch_ir.IR.load(file)

    real = GatedLayer().eval()
    is_valid, report = torch_ir.verify_ir_with_state_dict(loaded, real.state_dict(), real, (torch.randn(2, 16),))
    print(report)
    return 0 if is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
