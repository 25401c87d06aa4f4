"""ResNet-50 for ImageNet, with the state-dict names of torchvision."""

import torch
from torch import Tensor, nn

from catalogue import entry
from catalogue.resnet18 import ResNet, conv, shortcut


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = conv(channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, out, 1)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


@entry("residual", inputs=lambda: (torch.randn(1, 3, 224, 224),))
def resnet50() -> ResNet:
    return ResNet(Bottleneck, 4, (3, 4, 6, 3))
