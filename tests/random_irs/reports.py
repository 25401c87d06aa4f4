"""Digests of the results for a few graphs; they must be equal under several hash seeds.

python -m tests.random_irs.reports [GRAPHS]
"""

import hashlib
import sys
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from tests.random_irs.draft import random_ir
from tests.random_irs.properties import ANALYSES, TorchIRError, to_protobuf
from torch_ir import extract_ir
from torch_ir.ir import IR


class Convolutions(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return {"features": x, "mean": x.mean((2, 3))}


def models() -> Iterator[tuple[str, IR]]:
    """Capture small models."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    yield "encoder", extract_ir(encoder, (torch.zeros(1, 3, 8),), strict=False)
    yield "convolutions", extract_ir(Convolutions().eval(), (torch.zeros(1, 4, 6, 6),), strict=False)
    yield "recurrent", extract_ir(nn.LSTM(4, 4).eval(), (torch.zeros(2, 1, 4),), strict=False)


def reports(count: int | None) -> Iterator[str]:
    """Yield a line for each result of each graph: of so many random ones, or of eight and of models."""
    drawn = [(f"random {seed}", random_ir(seed, typed=seed % 2 == 0)) for seed in range(count or 8)]
    for name, ir in drawn if count else (*drawn, *models()):
        yield f"{name} json {_digest(ir.to_json())}"
        yield f"{name} protobuf {hashlib.sha256(to_protobuf(ir)).hexdigest()}"
        for analysis, analyse in ANALYSES.items():
            try:
                made = analyse(ir)
            except TorchIRError as error:
                made = error
            yield f"{name} {analysis} {_digest(made.to_json() if isinstance(made, IR) else str(made))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write("\n".join(reports(int(sys.argv[1]) if len(sys.argv) > 1 else None)))
