"""Sequence to sequence with nn.Transformer: the decoder looks back at itself and across at the encoder."""

import torch
from torch import Tensor, nn

from catalogue import entry


@entry("decoder", inputs=lambda: (torch.randint(0, 50, (2, 9)), torch.randint(0, 60, (2, 7))))
class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(50, 32)
        self.target = nn.Embedding(60, 32)
        self.transformer = nn.Transformer(32, 4, 1, 1, dim_feedforward=64, batch_first=True)
        self.generator = nn.Linear(32, 60)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), device=target.device)
        x = self.transformer(self.source(source), self.target(target), tgt_mask=mask, tgt_is_causal=True)
        return torch.log_softmax(self.generator(x), dim=-1)
