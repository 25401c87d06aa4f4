"""Tiny configurations of the models in `multimodal_models`, and the models that are not compared, with the reasons."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from transformers import TrOCRConfig, VisionEncoderDecoderConfig, ViTConfig

IMAGE_SIZE = 32

# Sizes of encoders, where their configurations have such a field.
ENCODERS: dict[str, Any] = {
    "depth": 2,
    "embed_dim": 32,
    "num_heads": 4,
    "out_hidden_size": 32,
    "text_hidden_size": 32,
    "output_dim": 32,
    "window_size": 32,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
    "n_window": 10,
    "n_window_infer": 20,
    "downsample_hidden_size": 16,
    "num_global_layers": 1,
}
# Fields of whole configurations.
WHOLE: dict[str, Any] = {
    "image_grid_pinpoints": [[IMAGE_SIZE, IMAGE_SIZE]],
    "mm_tokens_per_image": 4,
    "vision_feature_layers": [-1, -2],
    "audio_intermediate_size": 128,
    "num_query_tokens": 4,
    "use_cache": True,
    "qformer_num_query_tokens": 4,
}
_OMNI = {"vision_start_token_id": 93, "vision_end_token_id": 94, "audio_start_token_id": 95, "audio_end_token_id": 96}
_CHUNKS = {"audio_config.n_window": 50, "audio_config.n_window_infer": 100}  # the lengths that the model computes with
_OPT = {"text_config.word_embed_proj_dim": 32}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_PIXTRAL = {"vision_config.head_dim": 8}
_SPEECH = {"downsample_rate": 2, "window_size": 4, "projector_config.encoder_hidden_size": 32}
_DIGITS = "ABCDEFGHIJ"
_CODES = {"vq_config.base_channels": 32, "vq_config.num_res_blocks": 1, "vq_config.channel_multiplier": [1, 1, 1, 1]}
_SAM = {
    "vision_config.sam_config.downsample_channels": [32, 32],
    "vision_config.sam_config.output_channels": 16,
    "vision_config.sam_config.mlp_dim": 48,
    "vision_config.sam_config.window_size": 2,
    "vision_config.sam_config.global_attn_indexes": [1],
}
_HEARD = {
    "num_filters": 4,
    "downsampling_ratios": [2, 2],
    "depths": [1, 1, 1],
    "vae_std": 0.0,  # without noise
}
# Configurations that have no defaults.
CONFIGS: dict[str, Callable[[], Any]] = {
    "vision-encoder-decoder": lambda: VisionEncoderDecoderConfig(
        encoder=ViTConfig(), decoder=TrOCRConfig(cross_attention_hidden_size=32)
    ),
}
# What the tiny configuration of a model needs besides the shared sizes: fields, nested ones with dots.
SETTINGS: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "step3p7": {"text_config.sliding_window": 4},
    "glm4v_moe": {"text_config.head_dim": 16},
    "qwen2_5_omni_thinker": _OMNI,
    "qwen3_omni_moe_thinker": {**_OMNI, **_CHUNKS},
    "mistral3": _PIXTRAL,
    "mistral_large4": _PIXTRAL,
    "lighton_ocr": _PIXTRAL,
    "granite_speech": _SPEECH,
    "granite_speech_plus": _SPEECH,
    "voxtral": {"audio_config.intermediate_size": 128},
    "llama4": {
        "vision_config.intermediate_size": 128,
        "vision_config.projector_input_dim": 32,
        "vision_config.projector_output_dim": 32,
        "vision_config.vision_output_dim": 32,
    },
    "muse_glimmer": {"out_hidden_size": 128, "projector_hidden_size": 32},
    "muse_spark": {"out_hidden_size": 128, "projector_hidden_size": 32, "text_config.moe_hidden_size": 32},
    "nemotron_h_omni": {
        "projector_hidden_size": 32,
        "vision_hidden_size": 32,
        "vision_config.max_img_size": 64,
        "vision_config.patch_dim": 192,
        "vision_config.video_patch_dim": 384,
        "audio_config.projection_hidden_size": 32,
        "audio_config.projection_bias": False,
    },
    "glm5_next": {
        "text_config.linear_head_dim": 16,
        "text_config.index_topk": 4,
        "video_start_token_id": 88,
        "video_end_token_id": 89,
    },
    "janus": {
        "vq_config.base_channels": 32,
        "vq_config.num_embeddings": 32,
        "vision_config.num_image_tokens": 16,
    },
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_ocr2": {
        **_SAM,
        "text_config.mlp_layer_types": ["dense", "sparse"],
        "text_config.num_experts_per_tok": 2,
    },
    "granite4_vision": {
        "deepstack_layer_map": [(-1, 0)],
        "downsample_rate": "2/4",
        "qformer_config.num_attention_heads": 4,
        "spatial_target_layers": [1, 2, 3, 4],
        "text_config.num_hidden_layers": 5,
    },
    "chameleon": {
        **_CODES,
        "vq_config.num_embeddings": 32,
        "vq_config.embed_dim": 8,
        "vq_config.latent_channels": 8,
        "vq_config.resolution": 32,
        "vocabulary_map": {
            "<image>": 90,
            **{f"IMGIMG{''.join(_DIGITS[int(each)] for each in str(code))}Z": 40 + code for code in range(32)},
        },
    },
    "emu3": {
        **_CODES,
        "vq_config.codebook_size": 32,
        "vocabulary_map": {
            "<image>": 90,
            "<|extra_200|>": 89,
            **{f"<|visual token {code:06}|>": 40 + code for code in range(32)},
        },
        "image_token_id": 90,
    },
    "unlimited_ocr": _SAM,
    "nemo_speechlm": {"audio_config.diarization_config.head_config.audio_hidden_size": 32},
    "t5gemma2": {"encoder.mm_tokens_per_image": 4, "encoder.image_token_index": 90, "image_token_index": 90},
    "udop": {"decoder_start_token_id": 2},
    "pp_formulanet": {
        "vision_config.decoder_hidden_size": 32,
        "vision_config.mlp_dim": 48,
        "vision_config.window_size": 2,
        "vision_config.global_attn_indexes": [1],
        "vision_config.post_conv_out_channels": 32,
        "vision_config.post_conv_mid_channels": 16,
    },
    "phi4_multimodal": {
        "vision_config.crop_size": 32,
        "audio_config.num_blocks": 2,
        "audio_config.input_size": 16,
        "audio_config.nemo_final_size": 2,
        "audio_config.nemo_conv_channels": 32,
        "audio_config.ext_pw_out_channel": 32,
        "audio_config.depthwise_separable_out_channel": 32,
    },
    "florence2": {
        "vision_config.embed_dim": [8, 16],
        "vision_config.depths": [1, 1],
        "vision_config.patch_size": [7, 3],
        "vision_config.patch_stride": [4, 2],
        "vision_config.patch_padding": [3, 1],
        "vision_config.patch_prenorm": [False, True],
        "vision_config.num_heads": [2, 2],
        "vision_config.num_groups": [2, 2],
        "vision_config.window_size": 4,
        "vision_config.projection_dim": 32,
    },
    "mllama": {
        "vision_config.attention_heads": 4,
        "vision_config.num_global_layers": 1,
        "vision_config.intermediate_layers_indices": [0, 1],
        "vision_config.vision_output_dim": 96,
        "text_config.cross_attention_layers": [1],
        "text_config.num_hidden_layers": 3,
    },
    "deepseek_vl_hybrid": {"high_res_vision_config.global_attn_indexes": [0], "high_res_vision_config.window_size": 2},
    "molmo2": {
        "image_patch_id": 90,
        "vision_config.image_size": [32, 32],
        "vision_config.num_position_embeddings": 16,
        "adapter_config.vision_feature_layer": [-1, -2],
        "adapter_config.text_hidden_size": 32,
        "text_config.additional_vocab_size": 1,
        "text_config.rope_scaling_layers": [0, 1],
    },
    "kosmos-2": {"latent_query_num": 4, "text_config.layers": 2, "text_config.attention_heads": 4},
    "kosmos-2.5": {"latent_query_num": 4, "text_config.layers": 2, "text_config.attention_heads": 4},
    "vibevoice_asr": {
        **{f"acoustic_tokenizer_encoder_config.{name}": value for name, value in _HEARD.items()},
        **{f"semantic_tokenizer_encoder_config.{name}": value for name, value in _HEARD.items()},
        "acoustic_tokenizer_chunk_size": 12,
    },
    "hunyuan_vl": {"text_config.head_dim": 8},
    "ernie4_5_vl_moe": {"text_config.rope_parameters.mrope_section": [1, 1, 2]},
    "qwen3_asr": _CHUNKS,
    "kimi_k25": {"projection_hidden_size": 32, "text_config.head_dim": 8},
    "qwen4_exp": {
        "text_config.indexer_budget": 4,
        "text_config.indexer_compress_ratio": 2,
        "text_config.indexer_n_heads": 2,
        "text_config.indexer_kv_heads": 1,
        "text_config.indexer_head_dim": 8,
    },
    "blip-2": _OPT,
    "instructblip": _OPT,
    "instructblipvideo": _OPT,
}


def _by_name(reasons: dict[str, str]) -> dict[str, str]:
    """Return the reason of each name, from lists of names by reason."""
    return {name.strip(): reason for reason, names in reasons.items() for name in names.split(",")}


NOT_BUILT = _by_name(
    {
        "it needs timm, which is not installed": (
            "fast_vlm image, gemma3n image, gemma3n audio, perception_lm image, perception_lm video"
        ),
        "each of its tokens reads the next frames of the sound": (
            "kyutai_speech_to_text audio, voxtral_realtime audio"
        ),
        "its generate denoises blocks of text": "diffusion_gemma image",
        "it predicts actions of a robot, not text": "pi0 image",
        "the model itself cannot generate from videos": "nemotron_h_omni video",
        "it makes more features of an image than the prompt has tokens": "glm5_next image",
        **({} if find_spec("scipy") else {"it needs scipy": "inkling_mm_model image, inkling_mm_model audio"}),
    }
)
REFUSED = _by_name(
    {
        "its encoder branches on values of the data": "step3p7 image, udop image",
        "its forward reads values of the prompt": (
            "ernie4_5_vl_moe image, ernie4_5_vl_moe video, hunyuan_vl image, phi4_multimodal image, "
            "phi4_multimodal audio"
        ),
        "it attends to the image again for each token": "blip image, idefics image",
        "its attention is not marked as causal": "git image",
        "the length of its cache cannot vary": "glm5_next video",
        "its cache keeps the positions of an indexer": "qwen4_exp image, qwen4_exp video",
        "its cache keeps the prompt and a window": "unlimited_ocr image",
    }
)
# Linear attention, which takes minutes to capture with a prompt of varying length: captured for one length.
FIXED_PROMPT = ("minicpm", "qwen3_5", "qwen4_exp", "glm5_next", "nemotron_h_omni", "inkling", "mistral_large4")
