"""A selective state-space layer: gates from the input, a causal convolution, a scan over the steps."""

import torch
from torch import Tensor, nn

from catalogue import entry

WIDTH, STATES = 16, 4


@entry("state", inputs=lambda: (torch.randn(2, 6, WIDTH),))
class SelectiveStateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH, padding=2)
        self.x_proj = nn.Linear(WIDTH, WIDTH + 2 * STATES, bias=False)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, STATES + 1, dtype=torch.float32)).repeat(WIDTH, 1))
        self.D = nn.Parameter(torch.ones(WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def scan(self, x: Tensor) -> Tensor:
        delta, b, c = self.x_proj(x).split([WIDTH, STATES, STATES], dim=-1)
        delta = nn.functional.softplus(delta)
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.A_log))
        drive = (delta * x).unsqueeze(-1) * b.unsqueeze(2)
        state, outputs = torch.zeros_like(drive[:, 0]), []
        for step in range(x.size(1)):
            state = decay[:, step] * state + drive[:, step]
            outputs.append((state * c[:, step, None]).sum(-1))
        return torch.stack(outputs, dim=1) + x * self.D

    def forward(self, x: Tensor) -> Tensor:
        mixed, gate = self.in_proj(x).chunk(2, dim=-1)
        mixed = self.conv(mixed.transpose(1, 2))[..., : x.size(1)].transpose(1, 2)
        return self.out_proj(self.scan(nn.functional.silu(mixed)) * nn.functional.silu(gate))
