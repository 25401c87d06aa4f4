"""Diffusion pipelines of diffusers through one file: UNet and DiT, text encoder, VAE; compared with the pipeline."""

import importlib.util
from typing import Any

import pytest
import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from torch_ir import IR, meta_init
from torch_ir.entries import Feed, extract_pipeline, feeds_of, pipeline_weights, run_pipeline

pytestmark = [
    pytest.mark.filterwarnings("default::FutureWarning"),  # of diffusers
    pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="needs diffusers"),
    pytest.mark.slow,  # importing diffusers takes seconds
]


def vae() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(16, 32), down_block_types=("DownEncoderBlock2D",) * 2, layers_per_block=1,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=8, sample_size=16,
    ).eval()  # fmt: skip


def stable_diffusion() -> Any:
    """A text encoder, a UNet with cross attention, and a VAE."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = CLIPTextConfig(**sizes, vocab_size=len(words), max_position_embeddings=12, eos_token_id=1, bos_token_id=0)
    unet = UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    return StableDiffusionPipeline(
        vae=vae(), text_encoder=CLIPTextModel(text).eval(), unet=unet.eval(),
        scheduler=DDIMScheduler(steps_offset=1, clip_sample=False),
        tokenizer=CLIPTokenizer(dict(zip(words, range(len(words)), strict=True)), [], model_max_length=12),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip


def dit() -> Any:
    """A transformer over patches, which reads a class label, and a VAE."""
    from diffusers import DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    transformer = DiTTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero", norm_elementwise_affine=False,
    )  # fmt: skip
    return DiTPipeline(transformer=transformer.eval(), vae=vae(), scheduler=DDIMScheduler(clip_sample=False))


CASES: dict[str, tuple[Any, dict[str, Any], set[str]]] = {
    "unet": (
        stable_diffusion,
        {"prompt": "a cat", "height": 16, "width": 16, "output_type": "np"},
        {"text_encoder", "unet", "vae_decode"},
    ),
    "dit": (dit, {"class_labels": [3], "output_type": "np"}, {"transformer", "vae_decode"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_pipeline_through_its_file(name: str) -> None:
    """Captured without weights; three steps through the loaded file give the image of the pipeline itself."""
    make, call, entries = CASES[name]
    call = {**call, "num_inference_steps": 3}
    with meta_init():
        bare = make()
    bare.set_progress_bar_config(disable=True)
    ir = IR.from_json(extract_pipeline(bare, **call).to_json())
    assert {*ir.functions, next(iter(ir.extensions["entry_points"]["graphs"]))} == entries
    torch.manual_seed(0)
    pipeline = make()
    pipeline.set_progress_bar_config(disable=True)
    found = run_pipeline(pipeline, ir, pipeline_weights(pipeline), generator=torch.Generator().manual_seed(1), **call)
    own = pipeline(generator=torch.Generator().manual_seed(1), **call)
    torch.testing.assert_close(torch.from_numpy(found.images), torch.from_numpy(own.images))


def test_the_map_of_a_pipeline() -> None:
    """Text reaches the denoiser through the pipeline's own code; the scheduler is before the denoiser and the VAE."""
    with meta_init():
        pipeline = stable_diffusion()
    pipeline.set_progress_bar_config(disable=True)
    ir = extract_pipeline(pipeline, **CASES["unet"][1], num_inference_steps=2)
    found = {(feed.source, feed.target, feed.argument, feed.is_direct) for feed in feeds_of(ir)}
    assert found == {
        ("text_encoder", "unet", "encoder_hidden_states", False),
        ("unet", "unet", "sample", False),
        ("unet", "vae_decode", "z", False),
    }
    assert Feed("unet", "0", "vae_decode", "z", is_direct=False) in feeds_of(ir)
