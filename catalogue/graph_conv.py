"""Graph convolution: features spread by a normalised adjacency matrix."""

import torch
from torch import Tensor, nn

from catalogue import entry


def ring(nodes: int) -> Tensor:
    return torch.eye(nodes).roll(1, dims=0) + torch.eye(nodes).roll(-1, dims=0)


@entry("graph", inputs=lambda: (torch.randn(6, 8), ring(6)))
class GraphConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.second = nn.Linear(16, 4, bias=False)
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        linked = adjacency + torch.eye(adjacency.size(0), device=adjacency.device)
        scale = linked.sum(1).rsqrt()
        spread = scale[:, None] * linked * scale[None, :]
        hidden = torch.relu(torch.mm(spread, self.first(x)))
        return torch.addmm(self.bias, spread, self.second(hidden)).log_softmax(-1)
