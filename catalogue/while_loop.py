"""while_loop: a vector is halved until it is short, and the rounds are counted."""

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop  # torch.while_loop is newer than the oldest torch that we support

from catalogue import entry


@entry("control", inputs=lambda: (torch.randn(4, 8),))
class WhileLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        def is_long(rounds: Tensor, x: Tensor) -> Tensor:
            return x.norm() > 0.1

        def halve(rounds: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return rounds + 1, x * 0.5

        start = torch.zeros((), dtype=torch.long, device=x.device)
        rounds, x = while_loop(is_long, halve, (start, self.layer(x)))
        return rounds, x
