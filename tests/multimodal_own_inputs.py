"""Inputs of models whose encoders take something that no signature tells: tables of patches, boxes, codes.

A function returns the number of tokens that a prompt has for its image or sound, and the inputs of two prompts.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Made = tuple[int, dict[str, Tensor]]


def _pooled_patches(model: Any, name: str, rows: int, grids: list[int]) -> Made:
    """Molmo: each token pools four patches; a grid says how many tokens an image or the frames of a video have."""
    vision = model.config.vision_config
    crops, patches = 2 * rows, vision.num_position_embeddings
    side = int(patches**0.5)
    places = torch.arange(crops * patches).reshape(crops, side // 2, 2, side // 2, 2).transpose(2, 3).reshape(-1, 4)
    return places.shape[0] // 2, {
        "pixel_values" + name: torch.randn(crops, patches, 3 * vision.patch_size**2),
        f"{'video' if name else 'image'}_token_pooling": places,
        f"{'video' if name else 'image'}_grids": torch.tensor([grids] * 2),
    }


def _codes(model: Any) -> Made:
    """Inkling reads sound as codes of mel bins."""
    audio = model.config.audio_config
    ids = torch.randint(0, audio.mel_vocab_size, (2, 6, audio.n_mel_bins))
    return 6, {"audio_input_ids": ids, "audio_input_ids_mask": torch.ones(2, 6, dtype=torch.bool)}


def _waves(model: Any) -> Made:
    """VibeVoice reads samples."""
    return 5, {"input_values": torch.randn(2, 1, 5 * model.config.acoustic_tokenizer_encoder_config.hop_length)}


def _spectrum(model: Any) -> Made:
    """Nemotron: a token for each eight frames."""
    bins = model.config.audio_config.asr_config.num_mel_bins
    return 4, {"input_features": torch.randn(2, 32, bins), "input_features_mask": torch.ones(2, 32, dtype=torch.bool)}


def _flat_patches(model: Any, count: int = 6) -> Tensor:
    """Patches in rows, each after its row and column in the image."""
    width = model.config.vision_config.patch_embed_hidden_size
    places = torch.stack([torch.arange(count) // 3 + 1, torch.arange(count) % 3 + 1], dim=-1)
    return torch.cat([places.expand(2, -1, -1).float(), torch.randn(2, count, width)], dim=-1)


def _image_places(model: Any) -> dict[str, Tensor]:
    """Kosmos: where the tokens of the image are in the prompt, which has three words before and four after."""
    places = torch.zeros(2, 3 + model.config.latent_query_num + 4, dtype=torch.long)
    places[:, 3:-4] = 1
    return {"image_embeds_position_mask": places}


def _kosmos2(model: Any) -> Made:
    return model.config.latent_query_num, {"pixel_values": torch.randn(2, 3, 32, 32), **_image_places(model)}


def _kosmos2_5(model: Any) -> Made:
    return model.config.latent_query_num, {"flattened_patches": _flat_patches(model), **_image_places(model)}


def _tiles(model: Any) -> Made:
    """Mllama: an image of two tiles, which all words see."""
    words = 7
    return 0, {
        "pixel_values": torch.randn(2, 1, 4, 3, 32, 32),
        "aspect_ratio_ids": torch.tensor([[2], [2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 1, 0, 0]]] * 2),
        "cross_attention_mask": torch.tensor([1, 1, 0, 0]).expand(2, words, 1, 4).contiguous(),
    }


def _idefics(model: Any) -> Made:
    return 0, {
        "pixel_values": torch.randn(2, 1, 3, 32, 32),
        "image_attention_mask": torch.ones(2, 7, 1, dtype=torch.long),
    }


def _crops(model: Any) -> Made:
    """Phi-4: a whole image and one crop of it, with masks of their patches."""
    return 13, {
        "image_pixel_values": torch.randn(2, 2, 3, 32, 32),
        "image_sizes": torch.tensor([[32, 32]] * 2),
        "image_attention_mask": torch.ones(2, 2, 4, 4),
    }


def _phi_sound(model: Any) -> Made:
    return 2, {
        "audio_input_features": torch.randn(2, 16, model.config.audio_config.input_size),
        "audio_embed_sizes": torch.tensor([2, 2]),
    }


def _pixels(model: Any) -> Made:
    return 0, {"pixel_values": torch.randn(2, 3, 32, 32)}


def _boxes(model: Any) -> Made:
    """UDOP: each word has a box in the image."""
    corner = torch.rand(2, 7, 2) / 2
    return 0, {
        "bbox": torch.cat([corner, corner + 0.25], dim=-1),
        "pixel_values": torch.randn(2, 3, 32, 32),
        "attention_mask": torch.ones(2, 7, dtype=torch.long),
    }


def _pix2struct(model: Any) -> Made:
    return 0, {"flattened_patches": _flat_patches(model), "attention_mask": torch.ones(2, 6, dtype=torch.long)}


OWN: dict[str, Callable[[Any], Made]] = {
    "inkling_mm_model audio": _codes,
    "idefics image": _idefics,
    "kosmos-2 image": _kosmos2,
    "kosmos-2.5 image": _kosmos2_5,
    "mllama image": _tiles,
    "molmo2 image": lambda model: _pooled_patches(model, "", 1, [2, 2, 0, 0]),
    "molmo2 video": lambda model: _pooled_patches(model, "_videos", 2, [2, 2, 2]),
    "nemo_speechlm audio": _spectrum,
    "phi4_multimodal audio": _phi_sound,
    "phi4_multimodal image": _crops,
    "pix2struct image": _pix2struct,
    "pp_formulanet image": _pixels,
    "udop image": _boxes,
    "vibevoice_asr audio": _waves,
    "vision-encoder-decoder image": _pixels,
}
