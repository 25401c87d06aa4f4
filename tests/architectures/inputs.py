"""The kinds of inputs of the architectures: batch 2, short, seeded."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Maker = Callable[[Generator], Tensor]


def ids(*shape: int, low: int = 3, high: int = 99) -> Maker:
    """Whole numbers; the first three are left out, as the configs keep them for padding, begin and end."""
    return lambda generator: torch.randint(low, high, shape, generator=generator, device="cpu")


def normal(*shape: int) -> Maker:
    """Floats around zero."""
    return lambda generator: torch.randn(shape, generator=generator, device="cpu")


def uniform(*shape: int) -> Maker:
    """Floats between 0 and 1."""
    return lambda generator: torch.rand(shape, generator=generator, device="cpu")


def ones(*shape: int) -> Maker:
    """A mask that hides nothing."""
    return lambda generator: torch.ones(shape, dtype=torch.int64, device="cpu")


def zeros(*shape: int) -> Maker:
    """The first of the ids."""
    return lambda generator: torch.zeros(shape, dtype=torch.int64, device="cpu")


def padded(batch: int, length: int) -> Maker:
    """A mask that hides the last two places of the last row."""
    return lambda generator: (
        (torch.arange(batch * length, device="cpu") < batch * length - 2).long().view(batch, length)
    )


def positions(batch: int, length: int) -> Maker:
    """0, 1, 2, ... in every row."""
    return lambda generator: torch.arange(length, device="cpu").repeat(batch, 1)


def boxes(batch: int, length: int) -> Maker:
    """Corners (x0, y0, x1, y1) of boxes on a page, with x0 < x1 and y0 < y1."""
    corner, size = ids(batch, length, 2, low=0, high=20), ids(batch, length, 2, low=1, high=20)

    def make(generator: Generator) -> Tensor:
        low = corner(generator)
        return torch.cat([low, low + size(generator)], dim=-1)

    return make


def placed(batch: int, length: int, width: int) -> Maker:
    """Patches, each with its row and column in front."""
    row, patch = ids(batch, length, 2, low=1, high=9), normal(batch, length, width)
    return lambda generator: torch.cat([row(generator).float(), patch(generator)], dim=-1)


def image_tokens(batch: int, images: int, words: int) -> Maker:
    """Rows that begin with image tokens (98), then words."""
    text = ids(batch, words, high=98)
    return lambda generator: torch.cat([torch.full((batch, images), 98, device="cpu"), text(generator)], dim=1)


TEXT = {"input_ids": ids(2, 7), "attention_mask": padded(2, 7)}
LONG_TEXT = {"input_ids": ids(2, 32), "attention_mask": padded(2, 32)}
REPLY = {"decoder_input_ids": ids(2, 5)}
IMAGE = {"pixel_values": normal(2, 3, 32, 32)}
VIDEO = {"pixel_values": normal(2, 4, 3, 32, 32)}
FRAMES = {"input_features": normal(2, 24, 16), "attention_mask": ones(2, 24)}
REGIONS = {"visual_feats": normal(2, 5, 12), "visual_pos": uniform(2, 5, 4)}
VISUAL_EMBEDS = {"visual_embeds": normal(2, 5, 12), "visual_attention_mask": ones(2, 5)}

INPUTS: dict[str, dict[str, Maker]] = {
    # text
    "ids": {"input_ids": ids(2, 7)},
    "long ids": {"input_ids": ids(2, 32)},
    "text": TEXT,
    "long text": LONG_TEXT,
    "text in boxes": {**TEXT, "bbox": boxes(2, 7)},
    "ids to text": {"input_ids": ids(2, 7), **REPLY},
    "text to text": {**TEXT, **REPLY},
    "long text to text": {**LONG_TEXT, **REPLY},
    # images and videos
    "image": IMAGE,
    "image 64": {"pixel_values": normal(2, 3, 64, 64)},
    "image and noise": {**IMAGE, "noise": uniform(2, 16)},
    "image to text": {**IMAGE, **REPLY},
    "patches": {
        "pixel_values": normal(2, 16, 3 * 8 * 8),
        "pixel_attention_mask": ones(2, 16),
        "spatial_shapes": lambda generator: torch.tensor([[4, 4], [4, 4]], device="cpu"),
    },
    "flattened patches to text": {"flattened_patches": placed(2, 9, 24), "attention_mask": ones(2, 9), **REPLY},
    "video": VIDEO,
    "video of tubelets": {"pixel_values_videos": normal(2, 4, 3, 32, 32)},
    # sound
    "wave": {"input_values": normal(2, 400)},
    "mono wave": {"input_values": normal(2, 1, 64)},
    "long wave to text": {"input_values": normal(2, 3200), **REPLY},
    "spectrogram": {"input_values": normal(2, 24, 16)},
    "mel to text": {"input_features": normal(2, 16, 40), **REPLY},
    "frames": FRAMES,
    "frames to text": {**FRAMES, **REPLY},
    "frames and noise": {"input_features": normal(2, 6, 16), "noise_sequence": normal(2, 6, 8)},
    "text to frames": {**TEXT, "decoder_input_values": normal(2, 6, 16), "speaker_embeddings": normal(2, 8)},
    # two kinds at once
    "text and image": {**TEXT, **IMAGE},
    "text and video": {**TEXT, **VIDEO},
    "text and mel": {**TEXT, "input_features": normal(2, 1, 32, 8)},
    "text and regions": {**TEXT, **REGIONS},
    "text and visual embeds": {**TEXT, **VISUAL_EMBEDS},
    "text in boxes and image": {**TEXT, "bbox": boxes(2, 7), **IMAGE},
    "image tokens": {"input_ids": image_tokens(2, 16, 5), "attention_mask": padded(2, 21), **IMAGE},
    # series
    "series": {"past_values": normal(2, 32, 3)},
    "padded series": {"past_values": normal(2, 32), "past_values_padding": zeros(2, 32), "freq": zeros(2, 1)},
    "forecast": {
        "past_values": normal(2, 14),
        "past_time_features": normal(2, 14, 2),
        "past_observed_mask": ones(2, 14),
        "future_values": normal(2, 4),
        "future_time_features": normal(2, 4, 2),
    },
    "trajectory": {
        "states": normal(2, 6, 5),
        "actions": normal(2, 6, 3),
        "rewards": normal(2, 6, 1),
        "returns_to_go": normal(2, 6, 1),
        "timesteps": positions(2, 6),
        "attention_mask": ones(2, 6),
    },
}


def make_inputs(kind: str) -> dict[str, Tensor]:
    """Real CPU tensors, the same at every call."""
    generator = Generator(device="cpu").manual_seed(0)
    return {name: make(generator) for name, make in INPUTS[kind].items()}
