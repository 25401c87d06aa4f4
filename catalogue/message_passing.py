"""Messages along a list of edges: gathered by index, summed with index_add, attention by scatter."""

import torch
from torch import Tensor, nn

from catalogue import entry

EDGES = ((0, 1, 2, 3, 4, 5, 0), (1, 2, 3, 4, 5, 0, 3))


@entry("graph", inputs=lambda: (torch.randn(6, 8), torch.tensor(EDGES)))
class MessagePassing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(16, 8)
        self.weight = nn.Linear(16, 1)
        self.update = nn.GRUCell(8, 8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        pairs = torch.cat([x.index_select(0, source), x[target]], dim=-1)
        strength = torch.exp(nn.functional.leaky_relu(self.weight(pairs)))
        total = torch.zeros(x.size(0), 1, device=x.device).index_add(0, target, strength)
        messages = self.message(pairs) * strength / total[target]
        nearest = torch.full_like(x, -1.0).scatter_reduce(0, target[:, None].expand_as(messages), messages, "amax")
        return self.update(torch.zeros_like(x).index_add_(0, target, messages) + nearest, x)
