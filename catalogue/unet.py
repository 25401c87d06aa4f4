"""A U-Net: every level of the way down is concatenated to the same level of the way up."""

import torch
from torch import Tensor, nn

from catalogue import entry


def double_conv(channels: int, out: int) -> nn.Sequential:
    first = (nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))
    second = (nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True))
    return nn.Sequential(*first, *second)


@entry("skip", inputs=lambda: (torch.randn(1, 3, 32, 32),))
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (8, 16, 32)
        self.down = nn.ModuleList(double_conv(c, w) for c, w in zip((3, 8, 16), widths, strict=True))
        self.middle = double_conv(32, 64)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.merge = nn.ModuleList(double_conv(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)
