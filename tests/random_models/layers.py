"""Blocks that are layers of torch.nn: products, convolutions, norms, pooling, look-ups, recurrences."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.random_models.block import Body, Draw, Takes, add, block, floats, function

_CONVOLUTIONS: dict[int, Any] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
_INSTANCE: dict[int, Any] = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
_BATCH: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
IMAGES = floats(3, 5)


@block(floats(1))
def linear(draw: Draw, x: Tensor) -> Body:
    return nn.Linear(x.shape[-1], draw.size(), bias=draw.chance(0.7), dtype=x.dtype)


@block(floats(1), floats(1))
def bilinear(draw: Draw, x: Tensor, y: Tensor) -> Body:
    return nn.Bilinear(x.shape[-1], y.shape[-1], draw.size(), dtype=x.dtype)


def _convolution(draw: Draw, x: Tensor, groups: int, out: int, **options: Any) -> Body:
    return _CONVOLUTIONS[x.dim()](x.shape[1], out, draw.choice((1, 3)), groups=groups, dtype=x.dtype, **options)


@block(IMAGES)
def convolution(draw: Draw, x: Tensor) -> Body:
    mode = draw.choice(("zeros", "zeros", "reflect", "replicate", "circular"))
    return _convolution(draw, x, 1, draw.size(), padding=draw.choice((1, "same")), padding_mode=mode)


@block(IMAGES)
def strided_convolution(draw: Draw, x: Tensor) -> Body:
    return _convolution(draw, x, 1, draw.size(), padding=2, stride=2, dilation=draw.choice((1, 2)), bias=False)


@block(IMAGES)
def depthwise_convolution(draw: Draw, x: Tensor) -> Body:
    return _convolution(draw, x, x.shape[1], x.shape[1] * draw.choice((1, 2)), padding=1)


@block(floats(3, 5, even=1))
def grouped_convolution(draw: Draw, x: Tensor) -> Body:
    return _convolution(draw, x, 2, 2 * draw.size(), padding=1)


@block(IMAGES)
def transposed_convolution(draw: Draw, x: Tensor) -> Body:
    stride = draw.choice((1, 2))
    return _TRANSPOSED[x.dim()](x.shape[1], draw.size(), 2, stride, output_padding=stride - 1, dtype=x.dtype)


# -- norms ------------------------------------------------------------------------------------------------------------


@block(floats(1))
def layer_norm(draw: Draw, x: Tensor) -> Body:
    rank = draw.randint(1, min(2, x.dim() - 1) or 1)
    return nn.LayerNorm(x.shape[-rank:], elementwise_affine=draw.chance(0.7), dtype=x.dtype)


@block(floats(1))
def rms_norm(draw: Draw, x: Tensor) -> Body:
    return nn.RMSNorm(x.shape[-1], eps=draw.choice((None, 1e-6)), dtype=x.dtype)


@block(floats(2))
def batch_norm(draw: Draw, x: Tensor) -> Body:
    """In training mode it changes its statistics, of which there may be none."""
    momentum = draw.choice((0.1, None))
    return _BATCH[x.dim()](x.shape[1], momentum=momentum, track_running_stats=draw.chance(0.8), dtype=x.dtype)


@block(IMAGES)
def instance_norm(draw: Draw, x: Tensor) -> Body:
    return _INSTANCE[x.dim()](x.shape[1], affine=draw.chance(0.5), dtype=x.dtype)


@block(floats(3, 5, even=1))
def group_norm(draw: Draw, x: Tensor) -> Body:
    return nn.GroupNorm(2, x.shape[1], dtype=x.dtype)


@block(floats(3, 4))
def local_response_norm(draw: Draw, x: Tensor) -> Body:
    return nn.LocalResponseNorm(2)


@block(floats(1))
def normalize(draw: Draw, x: Tensor) -> Body:
    p, dim = draw.choice((1.0, 2.0)), draw.dim(x)
    return lambda x: F.normalize(x, p=p, dim=dim)


class _Weighted(nn.Module):
    def __init__(self, inner: nn.Linear, wrap: Any) -> None:
        super().__init__()
        self.inner = wrap(inner)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


@block(Takes("wide", 1))
def weight_norm(draw: Draw, x: Tensor) -> Body:
    return _Weighted(nn.Linear(x.shape[-1], draw.size(), dtype=x.dtype), nn.utils.parametrizations.weight_norm)


# -- pooling, padding, resizing ---------------------------------------------------------------------------------------


def _by_rank(name: str, function: str, *args: Any, **kwargs: Any) -> None:
    def make(draw: Draw, x: Tensor) -> Body:
        pool = getattr(F, f"{function}{x.dim() - 2}d")
        return lambda x: pool(x, *args, **kwargs)

    add(name, __name__, make, IMAGES)


_by_rank("max_pool", "max_pool", 2)
_by_rank("ceil_pool", "max_pool", 3, 2, 1, ceil_mode=True)
_by_rank("pool_with_indices", "max_pool", 2, return_indices=True)
_by_rank("average_pool", "avg_pool", 2)
_by_rank("padded_average_pool", "avg_pool", 3, 2, 1, count_include_pad=False)
_by_rank("adaptive_average_pool", "adaptive_avg_pool", 2)
_by_rank("adaptive_max_pool", "adaptive_max_pool", 2)


@block(floats(3, 4))
def power_pool(draw: Draw, x: Tensor) -> Body:
    return nn.LPPool1d(2, 2) if x.dim() == 3 else nn.LPPool2d(2, 2)


@block(floats(4, 4))
def unpooled(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Tensor:
        kept, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(kept, places, 2, output_size=x.shape[-2:])

    return forward


@block(Takes("number", 1))
def padded(draw: Draw, x: Tensor) -> Body:
    amounts = [draw.randint(-1, 2) for _ in range(2 * draw.randint(1, min(2, x.dim())))]
    value = draw.number(x)
    return lambda x: F.pad(x, amounts, value=value)


@block(floats(3, 4))
def mirrored(draw: Draw, x: Tensor) -> Body:
    mode = draw.choice(("reflect", "replicate", "circular"))
    amounts = [1] * 2 * (x.dim() - 2)
    return lambda x: F.pad(x, amounts, mode)


@block(IMAGES)
def resized(draw: Draw, x: Tensor) -> Body:
    smooth = {3: "linear", 4: draw.choice(("bilinear", "bicubic")), 5: "trilinear"}[x.dim()]
    mode = draw.choice(("nearest", "nearest-exact", smooth, "area"))
    sizes: dict[str, Any] = draw.choice(({"scale_factor": 2.0}, {"scale_factor": 0.6}, {"size": [5] * (x.dim() - 2)}))
    corners = {"align_corners": draw.chance(0.5)} if mode == smooth else {}
    return lambda x: F.interpolate(x, mode=mode, **sizes, **corners)


@block(floats(4, 4))
def pixel_shuffle(draw: Draw, x: Tensor) -> Body:
    return nn.PixelShuffle(2) if x.shape[1] % 4 == 0 else nn.PixelUnshuffle(2)


@block(floats(4, 4, even=1))
def channel_shuffle(draw: Draw, x: Tensor) -> Body:
    return nn.ChannelShuffle(2)


@block(floats(4, 4))
def unfolded(draw: Draw, x: Tensor) -> Body:
    return nn.Unfold(2, stride=draw.choice((1, 2)), padding=draw.choice((0, 1)))


@block(Takes("wide", 4, 4))
def warped(draw: Draw, x: Tensor) -> Body:
    def forward(x: Tensor) -> Tensor:
        turn = torch.tensor([[[0.9, -0.1, 0.0], [0.1, 0.9, 0.2]]], dtype=x.dtype).expand(x.shape[0], 2, 3)
        return F.grid_sample(x, F.affine_grid(turn, [x.shape[0], 1, 3, 3], align_corners=False), align_corners=False)

    return forward


# -- look-ups ---------------------------------------------------------------------------------------------------------


class _LookUp(nn.Module):
    """A table that any whole numbers lead into."""

    def __init__(self, table: nn.Embedding | nn.EmbeddingBag) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Any:
        return self.table(x % self.table.num_embeddings)


@block(Takes("long", 0, 3))
def embedding(draw: Draw, x: Tensor) -> Body:
    return _LookUp(nn.Embedding(7, draw.size(), padding_idx=draw.choice((None, 0))))


@block(Takes("long", 2, 2))
def embedding_bag(draw: Draw, x: Tensor) -> Body:
    return _LookUp(nn.EmbeddingBag(7, draw.size(), mode=draw.choice(("sum", "mean", "max"))))


def _one_hot(x: Tensor) -> Tensor:
    return F.one_hot(x.remainder(5), 5)


function("one_hot", __name__, _one_hot, Takes("long", 0, 3))

# -- recurrences ------------------------------------------------------------------------------------------------------


def _recurrence(name: str, kind: Any, **options: Any) -> None:
    def make(draw: Draw, x: Tensor) -> Body:
        more = {"num_layers": draw.choice((1, 2)), "bidirectional": draw.chance(0.3), "batch_first": draw.chance(0.5)}
        return kind(x.shape[-1], draw.choice((3, 4)), bias=draw.chance(0.8), dtype=x.dtype, **more, **options)

    add(name, __name__, make, Takes("wide", 3, 3))


_recurrence("rnn", nn.RNN, nonlinearity="relu")
_recurrence("gru", nn.GRU)
_recurrence("lstm", nn.LSTM)
_recurrence("projected_lstm", nn.LSTM, proj_size=2)


def _cell(name: str, kind: Any) -> None:
    def make(draw: Draw, x: Tensor) -> Body:
        return kind(x.shape[-1], draw.choice((3, 4)), dtype=x.dtype)

    add(name, __name__, make, Takes("wide", 1, 2))


_cell("rnn_cell", nn.RNNCell)
_cell("gru_cell", nn.GRUCell)
_cell("lstm_cell", nn.LSTMCell)
