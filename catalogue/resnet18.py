"""ResNet-18 for ImageNet, with the state-dict names of torchvision."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from catalogue import entry

Block = Callable[[int, int, int], nn.Module]


def conv(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)


def shortcut(channels: int, out: int, stride: int) -> nn.Sequential | None:
    """The projection beside a block that changes the shape, nothing where it does not."""
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(conv(channels, out, 1, stride), nn.BatchNorm2d(out))


class BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def stage(block: Block, channels: int, width: int, out: int, depth: int, stride: int) -> nn.Sequential:
    return nn.Sequential(block(channels, width, stride), *(block(out, width, 1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    """`block` makes a block from input channels, width and stride; it gives out `expansion` times the width."""

    def __init__(self, block: Block, expansion: int, depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        a, b, c, d = (width * expansion for width in (64, 128, 256, 512))
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(block, 64, 64, a, depths[0], 1)
        self.layer2 = stage(block, a, 128, b, depths[1], 2)
        self.layer3 = stage(block, b, 256, c, depths[2], 2)
        self.layer4 = stage(block, c, 512, d, depths[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(d, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@entry("residual", inputs=lambda: (torch.randn(1, 3, 224, 224),))
def resnet18() -> ResNet:
    return ResNet(BasicBlock, 1, (2, 2, 2, 2))
