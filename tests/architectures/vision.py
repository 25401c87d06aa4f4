"""Models that read images or videos."""

from .sizes import Row

STAGES = {"hidden_sizes": [16, 32], "depths": [1, 2]}
FOUR_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
PYRAMID = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "hidden_sizes": [16, 32],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
}
ATTENTION_PYRAMID = {**PYRAMID, "sr_ratios": [2, 1], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2]}
PVT = {
    **PYRAMID,
    "patch_sizes": [4, 2],
    "sequence_reduction_ratios": [2, 1],
    "num_attention_heads": [2, 4],
    "mlp_ratios": [2, 2],
}
CVT = {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}
LEVIT = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 4],
    "depths": [1, 1, 1],
    "key_dim": [8, 8, 8],
}
FOCAL = {
    "patch_size": 4,
    "embed_dim": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 2],
    "focal_levels": [2, 2],
    "focal_windows": [3, 3],
}
HIERA = {
    "image_size": [32, 32],
    "patch_size": [7, 7],
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 4],
    "num_query_pool": 1,
    "masked_unit_size": [4, 4],
    "masked_unit_attention": [True, False],
}
WINDOWS = {"patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "mlp_ratio": 2.0}
MASKED_DECODER = {
    "decoder_num_attention_heads": 4,
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 2,
    "decoder_intermediate_size": 24,
}
MOBILEVIT = {
    "image_size": 64,
    "patch_size": 2,
    "hidden_sizes": [16, 24, 32],
    "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32],
}
MOBILEVITV2 = {
    "image_size": 64,
    "patch_size": 2,
    "width_multiplier": 0.25,
    "base_attn_unit_dims": [32, 64, 96],
    "n_attn_blocks": [1, 1, 1],
}
EFFICIENTNET = {
    "initializer_range": 0.5,
    "image_size": 64,
    "width_coefficient": 0.125,
    "depth_coefficient": 1.0,
    "hidden_dim": 160,
    "kernel_sizes": [3, 5, 3],
    "in_channels": [64, 128, 192],
    "out_channels": [128, 192, 256],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 2, 2],
}
TEXTNET = {
    "image_size": [64, 64],
    "stem_out_channels": 8,
    "hidden_sizes": [8, 8, 16, 16, 24],
    "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3]], [[3, 1]], [[1, 3]]],
    "conv_layer_strides": [[1], [2], [2], [2]],
}
HGNET = {
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 16],
    "stage_mid_channels": [8, 8],
    "stage_out_channels": [16, 32],
    "stage_num_blocks": [1, 2],
    "stage_downsample": [False, True],
    "stage_downsample_strides": [2, 2],
    "stage_light_block": [False, True],
    "stage_kernel_size": [3, 5],
    "stage_numb_of_layers": [2, 2],
    "hidden_sizes": [16, 32],
    "depths": [1, 2],
}
SWIFTFORMER = {"embed_dims": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
DPT = {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 24, 32]}
DINOV2_BACKBONE = {
    "model_type": "dinov2",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "out_indices": [1, 2, 3, 4],
    "reshape_hidden_states": False,
}
DEPTH_ANYTHING = {
    "backbone_config": DINOV2_BACKBONE,
    "reassemble_hidden_size": 32,
    "neck_hidden_sizes": [8, 16, 24, 32],
    "head_hidden_size": 8,
}
CONVNEXT_BACKBONE = {"model_type": "convnext", **FOUR_STAGES, "out_indices": [1, 2, 3, 4]}
UPERNET = {
    "backbone_config": CONVNEXT_BACKBONE,
    "hidden_size": 16,
    "pool_scales": [1, 2],
    "auxiliary_in_channels": 24,
    "auxiliary_channels": 16,
}
RESNET_BACKBONE = {"model_type": "resnet", **FOUR_STAGES, "embedding_size": 8}
DETR = {"backbone_config": {**RESNET_BACKBONE, "out_indices": [4]}}
SUPERPOINT = {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "descriptor_decoder_dim": 16}
VJEPA2 = {
    "crop_size": 32,
    "frames_per_clip": 4,
    "num_pooler_layers": 1,
    "pred_hidden_size": 24,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 2,
}

VISION: list[Row] = [
    ("vit", "ViTForImageClassification", {}, "image"),
    ("deit", "DeiTForImageClassificationWithTeacher", {}, "image"),
    ("beit", "BeitForImageClassification", {"use_relative_position_bias": True}, "image"),
    ("data2vec_vision", "Data2VecVisionForImageClassification", {"use_relative_position_bias": True}, "image"),
    ("vit_mae", "ViTMAEForPreTraining", MASKED_DECODER, "image and noise"),
    ("vit_msn", "ViTMSNForImageClassification", {}, "image"),
    ("ijepa", "IJepaForImageClassification", {}, "image"),
    ("dinov2", "Dinov2ForImageClassification", {}, "image"),
    ("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", {}, "image"),
    ("dinov3_vit", "DINOv3ViTModel", {"num_register_tokens": 2}, "image"),
    ("dinov3_convnext", "DINOv3ConvNextModel", FOUR_STAGES, "image 64"),
    ("yolos", "YolosForObjectDetection", {"image_size": [32, 32], "num_detection_tokens": 5}, "image"),
    ("swin", "SwinForImageClassification", WINDOWS, "image"),
    ("swinv2", "Swinv2ForImageClassification", {**WINDOWS, "pretrained_window_sizes": [0, 0]}, "image"),
    ("swin2sr", "Swin2SRForImageSuperResolution", {**WINDOWS, "patch_size": 1, "window_size": 8}, "image"),
    ("donut_swin", "DonutSwinModel", WINDOWS, "image"),
    ("convnext", "ConvNextForImageClassification", {**STAGES, "num_stages": 2, "patch_size": 4}, "image"),
    ("convnextv2", "ConvNextV2ForImageClassification", {**STAGES, "num_stages": 2, "patch_size": 4}, "image"),
    ("resnet", "ResNetForImageClassification", STAGES, "image"),
    ("regnet", "RegNetForImageClassification", {**STAGES, "groups_width": 8}, "image"),
    ("bit", "BitForImageClassification", {**STAGES, "num_groups": 4}, "image"),
    ("mobilenet_v1", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.1, "initializer_range": 0.5}, "image"),
    ("mobilenet_v2", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.1, "initializer_range": 0.5}, "image"),
    ("mobilevit", "MobileViTForImageClassification", MOBILEVIT, "image 64"),
    ("mobilevitv2", "MobileViTV2ForImageClassification", MOBILEVITV2, "image 64"),
    ("efficientnet", "EfficientNetForImageClassification", EFFICIENTNET, "image 64"),
    ("segformer", "SegformerForSemanticSegmentation", {**ATTENTION_PYRAMID, "decoder_hidden_size": 16}, "image"),
    ("glpn", "GLPNForDepthEstimation", {**ATTENTION_PYRAMID, "decoder_hidden_size": 16}, "image"),
    ("pvt", "PvtForImageClassification", PVT, "image"),
    ("pvt_v2", "PvtV2ForImageClassification", ATTENTION_PYRAMID, "image"),
    ("cvt", "CvtForImageClassification", CVT, "image 64"),
    ("poolformer", "PoolFormerForImageClassification", {**PYRAMID, "padding": [2, 1]}, "image"),
    ("levit", "LevitForImageClassificationWithTeacher", LEVIT, "image 64"),
    ("focalnet", "FocalNetForImageClassification", FOCAL, "image"),
    ("hiera", "HieraForImageClassification", HIERA, "image"),
    ("swiftformer", "SwiftFormerForImageClassification", SWIFTFORMER, "image 64"),
    ("textnet", "TextNetForImageClassification", TEXTNET, "image 64"),
    ("hgnet_v2", "HGNetV2ForImageClassification", HGNET, "image 64"),
    ("dpt", "DPTForDepthEstimation", DPT, "image"),
    ("depth_anything", "DepthAnythingForDepthEstimation", DEPTH_ANYTHING, "image"),
    ("upernet", "UperNetForSemanticSegmentation", UPERNET, "image 64"),
    ("detr", "DetrForObjectDetection", DETR, "image 64"),
    ("conditional_detr", "ConditionalDetrForObjectDetection", DETR, "image 64"),
    ("deformable_detr", "DeformableDetrForObjectDetection", DETR, "image 64"),
    ("vitdet", "VitDetModel", {"window_size": 2, "window_block_indices": [0]}, "image"),
    ("vitpose_backbone", "VitPoseBackbone", {"num_experts": 1}, "image"),
    ("sam_vision", "SamVisionModel", {"output_channels": 16, "window_size": 3, "global_attn_indexes": [1]}, "image"),
    ("aimv2_vision", "Aimv2VisionModel", {}, "image"),
    ("mlcd_vision", "MLCDVisionModel", {}, "image"),
    ("superpoint", "SuperPointForKeypointDetection", SUPERPOINT, "image 64"),
    ("videomae", "VideoMAEForVideoClassification", MASKED_DECODER, "video"),
    ("vivit", "VivitForVideoClassification", {"tubelet_size": [2, 8, 8]}, "video"),
    ("timesformer", "TimesformerForVideoClassification", {}, "video"),
    ("vjepa2", "VJEPA2ForVideoClassification", VJEPA2, "video of tubelets"),
]
