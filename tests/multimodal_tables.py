"""Tiny configurations of the models in `multimodal_models`, and the models that are not compared, with the reasons."""

from typing import Any

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
    },
    "glm5_next": {"text_config.linear_head_dim": 16, "text_config.index_topk": 4},
    "janus": {
        "vq_config.base_channels": 32,
        "vq_config.num_embeddings": 32,
        "vision_config.num_image_tokens": 16,
    },
    "cohere_compass": {"text_config.rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "granite4_vision": {"deepstack_layer_map": [(-1, 0)], "downsample_rate": "2/4"},
    "hunyuan_vl": {"text_config.head_dim": 8},
    "ernie4_5_vl_moe": {"text_config.rope_parameters.mrope_section": [1, 1, 2]},
    "qwen3_asr": _CHUNKS,
    "kimi_k25": {"projection_hidden_size": 32, "text_config.head_dim": 8},
    "qwen4_exp": {"text_config.indexer_budget": 4, "text_config.indexer_compress_ratio": 2},
    "blip-2": _OPT,
    "instructblip": _OPT,
    "instructblipvideo": _OPT,
}


def _by_name(reasons: dict[str, str]) -> dict[str, str]:
    """Return the reason of each name, from lists of names by reason."""
    return {name.strip(): reason for reason, names in reasons.items() for name in names.split(",")}


NOT_BUILT = _by_name(
    {
        "it encodes in its forward, and no inputs of it are in the tests": (
            "blip image, idefics image, kosmos-2 image, kosmos-2.5 image, mllama image, pi0 image, "
            "phi4_multimodal image, phi4_multimodal audio"
        ),
        "it reads videos as images": "internvl video",
        "an encoder-decoder": (
            "florence2 image, pix2struct image, pp_formulanet image, t5gemma2 image, udop image, "
            "vision-encoder-decoder image"
        ),
        "its generate also makes speech; its thinker is compared": (
            "qwen2_5_omni image, qwen2_5_omni video, qwen2_5_omni audio, "
            "qwen3_omni_moe image, qwen3_omni_moe video, qwen3_omni_moe audio"
        ),
        "it needs timm, which is not installed": (
            "fast_vlm image, gemma3n image, gemma3n audio, perception_lm image, perception_lm video"
        ),
        "no tiny configuration or inputs of it are in the tests": (
            "chameleon image, deepseek_ocr2 image, deepseek_vl_hybrid image, diffusion_gemma image, emu3 image, "
            "gemma4 audio, gemma4_unified audio, glm5_next video, granite4_vision image, inkling_mm_model audio, "
            "kyutai_speech_to_text audio, molmo2 image, molmo2 video, nemo_speechlm audio, nemotron_h_omni video, "
            "nemotron_h_omni audio, qwen4_exp image, qwen4_exp video, unlimited_ocr image, vibevoice_asr audio, "
            "voxtral_realtime audio"
        ),
    }
)
REFUSED = _by_name(
    {
        "its encoder branches on values of the data": "step3p7 image",
        "its forward reads values of the prompt": ("ernie4_5_vl_moe image, ernie4_5_vl_moe video, hunyuan_vl image"),
        "its generate runs its language model alone, on embeddings": (
            "blip-2 image, instructblip image, instructblipvideo video"
        ),
        "its attention is not marked as causal": "git image",
        "the length of its cache cannot vary": "glm5_next image",
    }
)
# Linear attention, which takes minutes to capture with a prompt of varying length: captured for one length.
FIXED_PROMPT = ("minicpm", "qwen3_5", "qwen4_exp", "glm5_next", "nemotron_h_omni", "inkling", "mistral_large4")
