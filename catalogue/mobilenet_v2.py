"""MobileNetV2 for ImageNet, with the state-dict names of torchvision."""

import torch
from torch import Tensor, nn

from catalogue import entry

# expansion, channels, blocks, stride of the first block
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def conv_norm_relu(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [conv_norm_relu(channels, hidden, 1)]
        layers.append(conv_norm_relu(hidden, hidden, 3, stride, groups=hidden))
        layers += [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.conv = nn.Sequential(*layers)
        self.adds_input = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds_input else self.conv(x)


@entry("cnn", inputs=lambda: (torch.randn(1, 3, 224, 224),))
class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm_relu(3, 32, 3, 2)]
        channels = 32
        for expansion, out, blocks, stride in STAGES:
            for i in range(blocks):
                layers.append(InvertedResidual(channels, out, stride if i == 0 else 1, expansion))
                channels = out
        layers.append(conv_norm_relu(channels, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
