"""Two layers of nn.TransformerEncoder over a padded batch."""

import torch
from torch import Tensor, nn

from catalogue import entry


def padded_batch() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([8, 5])
    return torch.randn(2, 8, 32), torch.arange(8) >= lengths[:, None]


@entry("encoder", inputs=padded_batch)
class TransformerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, norm=nn.LayerNorm(32), enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=padding)
