"""Models that read more than one kind of input, and those that fit in no other table."""

from .sizes import Row
from .vision import EFFICIENTNET

TOWER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "projection_dim": 16,
    "initializer_range": 0.2,
}
READER = {
    **TOWER,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
VIEWER = {**TOWER, "image_size": 32, "patch_size": 8}
TWO_TOWERS = {"text_config": READER, "vision_config": VIEWER}
LISTENER = {
    "hidden_size": 32,
    "num_mel_bins": 8,
    "spec_size": 32,
    "window_size": 4,
    "patch_size": 4,
    "patch_embeds_hidden_size": 16,
    "depths": [1, 1],
    "num_attention_heads": [2, 4],
    "num_hidden_layers": 2,
}
CODEBOOK = {"hidden_size": 8, "vocab_size": 16}
FLAVA = {
    "image_config": VIEWER,
    "text_config": READER,
    "multimodal_config": TOWER,
    "image_codebook_config": CODEBOOK,
}
GROUPS = {**VIEWER, "depths": [1, 1], "num_group_tokens": [4, 0], "num_output_groups": [4, 4]}
VIDEO_VIEWER = {
    **VIEWER,
    "mit_hidden_size": 16,
    "mit_intermediate_size": 24,
    "mit_num_attention_heads": 2,
    "num_frames": 4,
}
LLAMA = {**READER, "model_type": "llama", "num_key_value_heads": 2}
GEMMA = {**READER, "model_type": "gemma", "num_key_value_heads": 2, "head_dim": 8}
CLIP_VIEWER = {**VIEWER, "model_type": "clip_vision_model"}
SIGLIP_VIEWER = {**VIEWER, "model_type": "siglip_vision_model"}
OPT = {**READER, "model_type": "opt", "ffn_dim": 48, "word_embed_proj_dim": 32}
QFORMER = {**READER, "encoder_hidden_size": 32}
ALIGN = {"text_config": READER, "vision_config": EFFICIENTNET, "projection_dim": 32}
GROUPVIT = {"text_config": READER, "vision_config": GROUPS, "projection_intermediate_dim": 24}
WIDE = {"hidden_size": 64}  # BridgeTower has one head per 64
BRIDGETOWER = {"text_config": {**READER, **WIDE}, "vision_config": {**VIEWER, **WIDE}, **WIDE}
SEGMENTER = {"extract_layers": [0, 1], "reduce_dim": 16, "decoder_intermediate_size": 48}
LLAVA = {"text_config": LLAMA, "vision_config": CLIP_VIEWER, "image_token_index": 98}
PALIGEMMA = {"text_config": GEMMA, "vision_config": SIGLIP_VIEWER, "image_token_index": 98, "projection_dim": 32}
BLIP2 = {
    "text_config": OPT,
    "vision_config": VIEWER,
    "qformer_config": QFORMER,
    "num_query_tokens": 16,
    "image_token_index": 98,
}
VIT = {**VIEWER, "model_type": "vit"}
TROCR = {
    **READER,
    "model_type": "trocr",
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
}
PIX2STRUCT = {
    "text_config": {**READER, "num_layers": 2, "num_heads": 4, "d_ff": 48, "d_kv": 8},
    "vision_config": {**TOWER, "d_ff": 48, "d_kv": 8, "patch_embed_hidden_size": 24, "seq_len": 32},
}
LAYOUT = {"coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64, "input_size": 32}
FORECAST = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 2}
TRAJECTORY = {"state_dim": 5, "act_dim": 3, "max_ep_len": 64}

MULTIMODAL: list[Row] = [
    ("clip", "CLIPModel", TWO_TOWERS, "text and image"),
    ("clip_text", "CLIPTextModelWithProjection", {}, "text"),
    ("clip_vision", "CLIPVisionModelWithProjection", {}, "image"),
    ("metaclip_2", "MetaClip2Model", TWO_TOWERS, "text and image"),
    ("siglip", "SiglipModel", TWO_TOWERS, "text and image"),
    ("siglip2", "Siglip2VisionModel", {"num_patches": 16}, "patches"),
    ("blip", "BlipForConditionalGeneration", TWO_TOWERS, "text and image"),
    ("blip_text", "BlipTextModel", {"encoder_hidden_size": 32, "is_decoder": False}, "text"),
    ("blip_vision", "BlipVisionModel", {}, "image"),
    ("blip_2", "Blip2ForConditionalGeneration", BLIP2, "image tokens"),
    ("chinese_clip", "ChineseCLIPModel", TWO_TOWERS, "text and image"),
    ("altclip", "AltCLIPModel", TWO_TOWERS, "text and image"),
    ("align", "AlignModel", ALIGN, "text and image"),
    ("clap", "ClapModel", {"text_config": READER, "audio_config": LISTENER}, "text and mel"),
    ("flava", "FlavaModel", FLAVA, "text and image"),
    ("groupvit", "GroupViTModel", GROUPVIT, "text and image"),
    ("xclip", "XCLIPModel", {"text_config": READER, "vision_config": VIDEO_VIEWER}, "text and video"),
    ("git", "GitForCausalLM", {"vision_config": VIEWER}, "text and image"),
    ("bridgetower", "BridgeTowerModel", BRIDGETOWER, "text and image"),
    ("owlvit", "OwlViTForObjectDetection", {**TWO_TOWERS, "projection_dim": 32}, "text and image"),
    ("clipseg", "CLIPSegForImageSegmentation", {**TWO_TOWERS, **SEGMENTER}, "text and image"),
    ("lxmert", "LxmertModel", {"l_layers": 2, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 12}, "text and regions"),
    ("visual_bert", "VisualBertForPreTraining", {"visual_embedding_dim": 12}, "text and visual embeds"),
    ("layoutlmv3", "LayoutLMv3Model", LAYOUT, "text in boxes and image"),
    ("llava", "LlavaForConditionalGeneration", LLAVA, "image tokens"),
    ("paligemma", "PaliGemmaForConditionalGeneration", PALIGEMMA, "image tokens"),
    ("trocr", "VisionEncoderDecoderModel", {"encoder": VIT, "decoder": TROCR}, "image to text"),
    ("pix2struct", "Pix2StructForConditionalGeneration", PIX2STRUCT, "flattened patches to text"),
]

OTHER: list[Row] = [
    ("patchtst", "PatchTSTForPrediction", {"num_input_channels": 3, "patch_length": 4, "patch_stride": 4}, "series"),
    ("patchtsmixer", "PatchTSMixerForPrediction", {"num_input_channels": 3}, "series"),
    ("time_series_transformer", "TimeSeriesTransformerModel", FORECAST, "forecast"),
    ("informer", "InformerModel", {**FORECAST, "distil": False}, "forecast"),
    ("autoformer", "AutoformerModel", {**FORECAST, "moving_average": 5, "label_length": 4}, "forecast"),
    ("decision_transformer", "DecisionTransformerModel", TRAJECTORY, "trajectory"),
    ("timesfm", "TimesFmModel", {"patch_length": 4, "context_length": 32, "horizon_length": 8}, "padded series"),
    ("perceiver", "PerceiverForMaskedLM", {"num_latents": 5, "d_latents": 16, "num_self_attends_per_block": 2}, "text"),
]
