"""Dynamic batch size: capture with a named size, then run the file with several batch sizes.

python examples/dynamic_batch.py
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

import torch_ir


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.features(image).flatten(1))


def main() -> int:
    with torch.device("meta"):
        model = Classifier().eval()
    ir = torch_ir.extract_ir(
        model,
        (torch.empty(4, 3, 32, 32, device="meta"),),
        dynamic_shapes={"image": {0: Dim("batch", min=1, max=64)}},
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "classifier.json"
        ir.save(file)
        loaded = torch_ir.IR.load(file)
    print(*(symbol.range for symbol in loaded.symbols.values()))

    real = Classifier().eval()
    executor = torch_ir.IRExecutor(loaded, weights=real.state_dict())
    for batch in (1, 3, 64):
        image = torch.randn(batch, 3, 32, 32)
        (logits,) = executor.execute((image,))
        torch.testing.assert_close(logits, real(image).detach())
        print(f"batch {batch}: logits {list(logits.shape)}, equal to the model's")
    try:
        executor.execute((torch.randn(65, 3, 32, 32),))
    except torch_ir.ExecutionError as error:
        print(f"batch 65: {error}")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
