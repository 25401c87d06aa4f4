"""Shrink the sizes of a configuration to get a tiny model of the same architecture."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

# Sizes of tiny models; a configuration uses those it has a field for.
SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "vocab_size_per_layer_input": 99,
    "hidden_size": 32,
    "embedding_size": 32,
    "projection_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "max_position_embeddings": 64,
    "sliding_window": 4,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # large, so that attention is far from uniform, no block is idle and no output is close to zero
    "initializer_range": 0.2,
    "init_std": 0.2,
    "layer_scale_init_value": 1.0,
    # encoder-decoders
    "decoder_start_token_id": 1,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 8,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "num_decoder_attention_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_encoder_position_embeddings": 64,
    "max_decoder_position_embeddings": 64,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "shared_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 24,
    # low-rank attention
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    # state spaces
    "state_size": 8,
    "ssm_state_size": 8,
    "chunk_size": 4,
    "n_groups": 2,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "mamba_chunk_size": 4,
    # images and videos
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 4,
    "num_queries": 5,
    "fusion_hidden_size": 16,
    # sound
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "max_target_positions": 20,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "conv_depthwise_kernel_size": 5,
}


_SCALES = ("initializer_range", "init_std")
_LAYERS = 8
_NARROW = {"window_size": 4, "rotary_dim": 4}  # for language models only


def tiny(config: Any) -> dict[str, Any]:
    """Return the tiny sizes under a configuration's own names, including nested configurations."""
    known = {field.name for field in fields(config)}
    named = {name if name in known else config.attribute_map.get(name, name): size for name, size in SIZES.items()}
    inner = {name: part for name in config.sub_configs if (part := getattr(config, name, None)) is not None}
    return {
        **{name: size for name, size in named.items() if name in known},
        **{name: {"model_type": part.model_type, **tiny(part)} for name, part in inner.items()},
    }


def shrunk(config: Any) -> Any:
    """Return a copy of a configuration with tiny sizes, and per-layer lists cut to fit."""
    made = copy.deepcopy(config)
    _shrink(made)
    try:  # recompute the fields derived from sizes
        return type(config)(**{field.name: getattr(made, field.name) for field in fields(config)})
    except Exception:  # configurations validate in different ways
        return made


def scaled(config: Any) -> Any:
    """Return a copy of a configuration with a larger initialisation, so that differences show."""
    made = copy.deepcopy(config)
    for name in _SCALES:
        if isinstance(getattr(made, name, None), float):
            setattr(made, name, SIZES[name])
    return made


def _shrink(config: Any) -> None:
    config.allow_global_per_layer_attribute_access = True  # sizes that differ by layer
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            _shrink(part)
    layers, lists = getattr(config, "num_hidden_layers", None), []
    if isinstance(layers, int):
        lists = [name for name, value in vars(config).items() if isinstance(value, list) and len(value) == layers]
    kept = max([2, *(_enough(getattr(config, name)) for name in lists)])
    sizes = {**tiny(config), **_NARROW}
    heads, keys = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    if heads and heads == keys:  # some attention has no groups
        sizes.pop("num_key_value_heads", None)
        config.num_key_value_heads = min(heads, SIZES["num_attention_heads"])
    for name, size in sizes.items():
        if name in _SCALES or _is_larger(getattr(config, name, None), size):
            setattr(config, name, size)
    if isinstance(layers, int) and layers > kept:
        config.num_hidden_layers = kept
        for name in lists:
            setattr(config, name, getattr(config, name)[:kept])


def _enough(values: list[Any]) -> int:
    """Return how many leading items contain every kind, up to a limit."""
    return min(_LAYERS, max(map(list(map(repr, values)).index, set(map(repr, values)))) + 1)


def _is_larger(value: Any, size: Any) -> bool:
    return isinstance(value, (int, float)) and type(value) is type(size) and value > size
