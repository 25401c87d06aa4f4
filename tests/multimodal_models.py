"""Every model of transformers that reads images, videos or sound and generates text, compared with `model.generate`.

python -m tests.multimodal_models [NAME ...]      all of them, or those named; prints a line each

Tiny configurations come from the defaults of each class, and inputs from the signatures of its encoders: the first
form of pixels or sound that the encoder takes.
"""

import inspect
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from torch_ir import IR, TorchIRError, meta_init
from torch_ir.llm import extract_llm, verify_llm
from torch_ir.llm.tiny_config import shrunk

TOKENS = 6
TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
KINDS = {"image": 1, "video": 2, "audio": 3}  # modalities, with the number of their tokens in mm_token_type_ids
_SIZE = 32  # of images
_TOKEN = {"image": 90, "video": 91, "audio": 92}
_WHOLE_VIDEOS = ("qwen2", "ernie", "exaone", "hyper", "video_llama", "minimax")  # others have text between frames
_LAST = 90  # below are words
ENCODED = ("pixel_values", "pixel_values_videos", "input_features", "image_pixel_values", "audio_input_features")

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
    "image_grid_pinpoints": [[_SIZE, _SIZE]],
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
    "nemotron_h_omni": {"projector_hidden_size": 32, "vision_hidden_size": 32, "vision_config.max_img_size": 64, "vision_config.patch_dim": 192, "vision_config.video_patch_dim": 384},
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


NOT_BUILT: dict[str, str] = {
    "blip image": "none of get_image_features, get_video_features, get_audio_features",
    "git image": "none of get_image_features, get_video_features, get_audio_features",
    "idefics image": "none of get_image_features, get_video_features, get_audio_features",
    "internvl video": "none of get_image_features, get_video_features, get_audio_features",
    "kosmos-2 image": "none of get_image_features, get_video_features, get_audio_features",
    "kosmos-2.5 image": "none of get_image_features, get_video_features, get_audio_features",
    "mllama image": "none of get_image_features, get_video_features, get_audio_features",
    "pi0 image": "none of get_image_features, get_video_features, get_audio_features",
    "pix2struct image": "none of get_image_features, get_video_features, get_audio_features",
    "pp_formulanet image": "none of get_image_features, get_video_features, get_audio_features",
    "udop image": "none of get_image_features, get_video_features, get_audio_features",
    "vision-encoder-decoder image": "none of get_image_features, get_video_features, get_audio_features",
    "phi4_multimodal image": "none of get_image_features, get_video_features, get_audio_features",
    "phi4_multimodal audio": "none of get_image_features, get_video_features, get_audio_features",
    "qwen2_audio audio": "none of get_image_features, get_video_features, get_audio_features",
    "blip-2 image": "no tiny configuration or inputs of it are in the tests",
    "chameleon image": "no tiny configuration or inputs of it are in the tests",
    "cohere_compass image": "no tiny configuration or inputs of it are in the tests",
    "cohere_compass video": "no tiny configuration or inputs of it are in the tests",
    "deepseek_ocr2 image": "no tiny configuration or inputs of it are in the tests",
    "deepseek_vl_hybrid image": "no tiny configuration or inputs of it are in the tests",
    "diffusion_gemma image": "no tiny configuration or inputs of it are in the tests",
    "emu3 image": "no tiny configuration or inputs of it are in the tests",
    "ernie4_5_vl_moe image": "no tiny configuration or inputs of it are in the tests",
    "ernie4_5_vl_moe video": "no tiny configuration or inputs of it are in the tests",
    "fuyu image": "no tiny configuration or inputs of it are in the tests",
    "gemma4 image": "no tiny configuration or inputs of it are in the tests",
    "gemma4 video": "no tiny configuration or inputs of it are in the tests",
    "gemma4 audio": "no tiny configuration or inputs of it are in the tests",
    "gemma4_unified image": "no tiny configuration or inputs of it are in the tests",
    "gemma4_unified video": "no tiny configuration or inputs of it are in the tests",
    "gemma4_unified audio": "no tiny configuration or inputs of it are in the tests",
    "glm5_next image": "no tiny configuration or inputs of it are in the tests",
    "glm5_next video": "no tiny configuration or inputs of it are in the tests",
    "granite4_vision image": "no tiny configuration or inputs of it are in the tests",
    "hunyuan_vl image": "no tiny configuration or inputs of it are in the tests",
    "inkling_mm_model image": "no tiny configuration or inputs of it are in the tests",
    "inkling_mm_model audio": "no tiny configuration or inputs of it are in the tests",
    "instructblip image": "no tiny configuration or inputs of it are in the tests",
    "instructblipvideo video": "no tiny configuration or inputs of it are in the tests",
    "janus image": "no tiny configuration or inputs of it are in the tests",
    "kimi_k25 image": "no tiny configuration or inputs of it are in the tests",
    "kimi_k25 video": "no tiny configuration or inputs of it are in the tests",
    "llama4 image": "no tiny configuration or inputs of it are in the tests",
    "molmo2 image": "no tiny configuration or inputs of it are in the tests",
    "molmo2 video": "no tiny configuration or inputs of it are in the tests",
    "muse_glimmer image": "no tiny configuration or inputs of it are in the tests",
    "muse_glimmer video": "no tiny configuration or inputs of it are in the tests",
    "muse_spark image": "no tiny configuration or inputs of it are in the tests",
    "muse_spark video": "no tiny configuration or inputs of it are in the tests",
    "nemotron_h_omni image": "no tiny configuration or inputs of it are in the tests",
    "nemotron_h_omni video": "no tiny configuration or inputs of it are in the tests",
    "nemotron_h_omni audio": "no tiny configuration or inputs of it are in the tests",
    "qwen3_omni_moe_thinker audio": "no tiny configuration or inputs of it are in the tests",
    "qwen4_exp image": "no tiny configuration or inputs of it are in the tests",
    "qwen4_exp video": "no tiny configuration or inputs of it are in the tests",
    "unlimited_ocr image": "no tiny configuration or inputs of it are in the tests",
    "fun_asr_nano audio": "no tiny configuration or inputs of it are in the tests",
    "kyutai_speech_to_text audio": "no tiny configuration or inputs of it are in the tests",
    "nemo_speechlm audio": "no tiny configuration or inputs of it are in the tests",
    "qwen2_5_omni image": "no tiny configuration or inputs of it are in the tests",
    "qwen2_5_omni video": "no tiny configuration or inputs of it are in the tests",
    "qwen2_5_omni audio": "no tiny configuration or inputs of it are in the tests",
    "qwen3_asr audio": "no tiny configuration or inputs of it are in the tests",
    "qwen3_omni_moe image": "no tiny configuration or inputs of it are in the tests",
    "qwen3_omni_moe video": "no tiny configuration or inputs of it are in the tests",
    "qwen3_omni_moe audio": "no tiny configuration or inputs of it are in the tests",
    "vibevoice_asr audio": "no tiny configuration or inputs of it are in the tests",
    "voxtral_realtime audio": "no tiny configuration or inputs of it are in the tests",
    "fast_vlm image": "needs timm, which is not installed",
    "gemma3n image": "needs timm, which is not installed",
    "gemma3n audio": "needs timm, which is not installed",
    "perception_lm image": "needs timm, which is not installed",
    "perception_lm video": "needs timm, which is not installed",
    "florence2 image": "an encoder-decoder",
    "t5gemma2 image": "an encoder-decoder",
}
REFUSED: dict[str, str] = {
    "mistral_large4 image": "its cache has a layer of a kind of its own (DynamicIndexedLayer)",
    "step3p7 image": "its encoder branches on values of the data",
}

# Linear attention, which takes minutes to capture with a prompt of varying length: captured for one length.
FIXED_PROMPT = ("minicpm", "qwen3_5", "qwen4_exp", "glm5_next", "nemotron_h_omni", "inkling")

NOT_RUN: dict[str, str] = {
    "minicpm_ocr image": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "minicpm_ocr video": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "minicpmv4_6 image": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "minicpmv4_6 video": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "minicpmv4_7 image": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "minicpmv4_7 video": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "qwen3_5 video": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "qwen3_5_moe image": "not run: linear attention with a prompt of varying length takes minutes to capture",
    "qwen3_5_moe video": "not run: linear attention with a prompt of varying length takes minutes to capture",
}


@dataclass(frozen=True)
class Case:
    """A model class and the one modality that it reads besides text."""

    name: str
    model: Any
    modality: str


class CannotBuildError(Exception):
    """No tiny model, or no inputs that the model itself takes."""


def cases() -> list[Case]:
    import transformers
    from transformers.models.auto import modeling_auto

    found = {}
    for table in TABLES:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").items():
            for name in (names,) if isinstance(names, str) else names:
                model = getattr(transformers, name, None)
                given = getattr(model, "input_modalities", ())
                for modality in KINDS:
                    if model is not None and modality in ((given,) if isinstance(given, str) else given):
                        found[f"{kind} {modality}"] = Case(f"{kind} {modality}", model, modality)
    return list(found.values())


def build(case: Case) -> Any:
    """Build a tiny model with random weights."""
    config = case.model.config_class()
    _complete(config)
    config = shrunk(config)
    _adapt(config, has_sections=_counts_images(case))
    for name, value in SETTINGS.get(case.name.split()[0], {}).items():
        *path, last = name.split(".")
        part = config
        for each in path:
            part = getattr(part, each)
        if isinstance(part, dict):
            part[last] = value
        else:
            setattr(part, last, value)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in case.model(config).parameters())
    if size > 20_000_000:
        raise CannotBuildError(f"a tiny model has {size} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return case.model(config).float().eval()


def _complete(config: Any) -> None:
    """Give a configuration the encoders that it can have, and does not have by default."""
    for name in ("vision_config", "audio_config"):
        if name in config.sub_configs and getattr(config, name) is None:
            kind = config.sub_configs[name]
            if kind is AutoConfig:  # any encoder
                continue
            made = kind() if isinstance(kind, type) else AutoConfig.for_model(kind.model_type)
            setattr(config, name, made)


def _counts_images(case: Case) -> bool:
    """Whether positions depend on images: `get_rope_index` is a method of a class of the module."""
    return any(hasattr(each, "get_rope_index") for each in vars(sys.modules[case.model.__module__]).values())


def _adapt(config: Any, has_sections: bool) -> None:
    """Put the tokens of images and sound into the tiny vocabulary, and fit the sections of rotary positions."""
    text = config.get_text_config(decoder=True)
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if part is None:
            continue
        for name, value in (WHOLE if part is config else ENCODERS).items():
            if part is not text and hasattr(part, name):
                setattr(part, name, value)
        for modality, token in _TOKEN.items():
            for field in ("id", "index"):
                if hasattr(part, f"{modality}_token_{field}"):
                    setattr(part, f"{modality}_token_{field}", token)
        if part is text:
            part.max_position_embeddings = 512
        rope = getattr(part, "rope_parameters", None)
        if isinstance(rope, dict) and part is text and has_sections:
            rope["mrope_section"] = [2, 1, 1]


def inputs(case: Case, model: Any) -> dict[str, Tensor]:
    """Return a batch of two prompts with an image, a video or a sound each, as a processor would."""
    torch.manual_seed(1)
    getter = f"get_{case.modality}_features"
    owner = model.base_model if hasattr(model.base_model, getter) else model
    encode = getattr(owner, getter, None)
    if encode is None:
        return _inputs_of_forward(case, model)
    names = [name for name in inspect.signature(encode).parameters if name not in ("kwargs", "return_dict")]
    problem = ""
    for given in _forms(case.modality, names, model):
        try:
            with torch.no_grad():
                found = encode(**given, return_dict=True)
        except Exception as error:  # not a form that this model takes
            problem = problem or f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        count = _count(found, model)
        if count % 2 == 0:
            return {**_prompt(case, model, count // 2), **given}
        problem = f"{count} features for two prompts"
    raise CannotBuildError(f"no inputs for {getter}({', '.join(names)}): {problem}")


def _inputs_of_forward(case: Case, model: Any) -> dict[str, Tensor]:
    """Return inputs of a model that encodes in its forward, with each number of tokens for them that it may take."""
    known = inspect.signature(type(model).forward).parameters
    names = [name for name in known if name in ENCODED or name.startswith("feature")]
    if not names:
        raise CannotBuildError(f"its forward takes none of {', '.join(ENCODED)}")
    problem = ""
    for given in _forms(case.modality, names, model):
        for count in (0, 4, 5, 8, 10, 16, 17, 20):
            try:
                made = {**_prompt(case, model, count), **given}
                other = {name: torch.randn_like(each) if each.is_floating_point() else each for name, each in made.items()}
                with torch.no_grad():
                    is_read = not torch.equal(model(**made).logits, model(**other).logits)
            except Exception as error:  # not a form that this model takes
                problem = problem or f"{type(error).__name__}: {error}".partition("\n")[0]
                continue
            if is_read:
                return made
    raise CannotBuildError(f"no inputs for forward({', '.join(names)}): {problem}")


def _count(found: Any, model: Any) -> int:
    """Return the number of features: of tokens that they replace."""
    pooled = found if isinstance(found, (Tensor, list, tuple)) else found.pooler_output
    pooled = found.last_hidden_state if pooled is None else pooled
    pooled = [pooled] if isinstance(pooled, Tensor) else pooled
    width = model.config.get_text_config(decoder=True).hidden_size
    return sum(part.numel() for part in pooled) // width


def _prompt(case: Case, model: Any, count: int) -> dict[str, Tensor]:
    token = _token(case, model) if count else 0
    words = partial(torch.randint, 3, _LAST)
    ids = torch.cat([words((2, 3)), torch.full((2, count), token), words((2, 4))], dim=1)
    known = inspect.signature(type(model).forward).parameters
    types = (ids == token).long()
    more = {"token_type_ids": types, "mm_token_type_ids": types * KINDS[case.modality]}
    return {"input_ids": ids, **{name: value for name, value in more.items() if name in known}}


def _token(case: Case, model: Any) -> int:
    by_image = case.name.startswith(("glm4", "glm_", "glmga")) and case.modality == "video"  # frames are images
    for name in ("image",) if by_image else (case.modality, "image"):
        for field in ("id", "index"):
            token = getattr(model.config, f"{name}_token_{field}", None)
            if isinstance(token, int):
                return token
    raise CannotBuildError(f"the configuration has no {case.modality}_token_id")


def _forms(modality: str, names: list[str], model: Any) -> Iterator[dict[str, Tensor]]:
    """Yield the forms of two images, videos or sounds that encoders take."""
    config = model.config
    if modality == "audio":
        yield from _sounds(names, getattr(config, "audio_config", None) or getattr(config, "encoder_config", config))
        return
    vision = getattr(config, "vision_config", config)
    first = names[0]
    size = getattr(vision, "image_size", None)
    size = size if isinstance(size, int) else _SIZE
    grid = next((name for name in names if name.endswith("grid_thw")), None)
    if grid is not None:
        patch, frames = vision.patch_size, getattr(vision, "temporal_patch_size", 1)
        channels = getattr(vision, "in_channels", None) or getattr(vision, "num_channels", 3)
        is_whole = modality == "video" and config.model_type.startswith(_WHOLE_VIDEOS)
        thw = torch.tensor([[2 if is_whole else 1, 4, 4]] * 2)
        merge = {name: torch.tensor([2, 2]) for name in names if name.endswith("merge_sizes")}
        yield {first: torch.randn(int(thw.prod(-1).sum()), channels * frames * patch**2), grid: thw, **merge}
        yield {first: torch.randn(int(thw.prod(-1).sum()), channels, patch, patch), grid: thw, **merge}
        yield {first: torch.randn(int(thw.prod(-1).sum()), channels * 2 * patch**2), grid: thw, **merge}
        return
    image = (3, size, size)
    for shape in ((2, *image), (2, 1, *image), (2, 2, *image), (2, 3, *image), (2, 4, *image)):
        more: dict[str, Tensor] = {}
        places = next((name for name in names if name.endswith("_position_ids")), None)
        if places is not None:
            grid_of = torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(2, -1, -1)
            frames = {"num_frames_per_video": torch.tensor([1, 1])} if "num_frames_per_video" in names else {}
            yield {first: torch.randn(2, 36, 3 * vision.patch_size**2), places: grid_of.contiguous(), **frames}
            merged = torch.cartesian_prod(torch.arange(2), torch.arange(2)).expand(2, -1, -1).contiguous()
            yield {first: torch.randn(2, 4, 27 * vision.patch_size**2), places: merged, **frames}
        if "image_grid_hw" in names:
            yield {first: torch.randn(32, 3 * vision.patch_size**2), "image_grid_hw": torch.tensor([[4, 4]] * 2)}
        if "high_res_pixel_values" in names:
            large = config.high_res_vision_config.image_size
            more["high_res_pixel_values"] = torch.randn(*shape[:-2], large, large)
        if "qformer_input_ids" in names:
            more |= {"qformer_input_ids": torch.randint(3, _LAST, (2, 4)), "qformer_attention_mask": torch.ones(2, 4)}
        if "image_sizes" in names:
            more["image_sizes"] = torch.tensor([[size, size]] * 2)
        if "spatial_shapes" in names:  # patches in rows
            side = size // vision.patch_size
            given = {first: torch.randn(2, side**2, 3 * vision.patch_size**2)}
            mask = torch.ones(2, side**2, dtype=torch.long)
            yield {**given, "spatial_shapes": torch.tensor([[side, side]] * 2), "pixel_attention_mask": mask}
        if "target_sizes" in names or "target_sizes_videos" in names:
            patch = vision.patch_size
            key = "target_sizes" if "target_sizes" in names else "target_sizes_videos"
            yield {first: torch.randn(1, 3, patch, 32 * patch), key: torch.tensor([[4, 4]] * 2)}
        if "pixel_attention_mask" in names:
            more["pixel_attention_mask"] = torch.ones(shape[:-3] + shape[-2:], dtype=torch.bool)
        yield {first: torch.randn(shape), **more}
        if more:
            yield {first: torch.randn(shape)}
    patch = getattr(vision, "patch_size", 8)
    if isinstance(patch, int):
        yield {first: torch.randn(2, (size // patch) ** 2, 3 * patch**2)}  # patches in rows
    yield {first: torch.randn(2, 2, size, size, 3)}


def _sounds(names: list[str], config: Any) -> Iterator[dict[str, Tensor]]:
    bins = next(
        (getattr(config, name) for name in ("num_mel_bins", "input_dim", "n_mels") if hasattr(config, name)), 16
    )
    longest = 2 * getattr(config, "max_source_positions", 20)
    for frames in (longest, 32, 200, 3000):
        for shape in ((2, bins, frames), (2, frames, bins), (2, frames), (2, frames, 128), (2, frames, 7 * bins), (2, frames, 640)):
            more: dict[str, Tensor] = {}
            for name in names[1:]:
                if "mask" in name:
                    more[name] = torch.ones(2, frames, dtype=torch.long)
                if name == "audio_feature_lengths":
                    more[name] = torch.tensor([frames, frames])
            yield {names[0]: torch.randn(shape), **more}


def carry(case: Case) -> str:
    """Extract all graphs from a model without weights, load the file, and generate; empty if all is equal."""
    try:
        model = build(case)
        given = inputs(case, model)
        with torch.no_grad():
            model.generate(**given, max_new_tokens=2, do_sample=False, pad_token_id=0, use_cache=True)
    except CannotBuildError as error:
        return f"cannot be built: {error}"
    except Exception as error:  # of transformers
        return f"cannot be built: {type(error).__name__}: {error}".partition("\n")[0][:200]
    try:
        with meta_init():
            bare = type(model)(model.config)
        length = given["input_ids"].shape[1] if case.name.startswith(FIXED_PROMPT) else None
        ir = IR.from_json(extract_llm(bare, inputs=given, prompt=length).to_json())
        is_valid, told = verify_llm(ir, model, TOKENS, **given)
    except TorchIRError as error:
        return f"refused: {error}".partition("\n")[0]
    return "" if is_valid else f"WRONG: {told}"


def outcome(case: Case) -> str:
    """Return "equal", or what kept it from being compared: "cannot be built" or "refused"."""
    return (carry(case) or "equal").partition(":")[0]


def expectation(case: Case) -> str:
    """Return the outcome that is listed for a model."""
    if any(name in NOT_BUILT for name in (case.name, case.name.split()[0])):
        return "cannot be built"
    return "refused" if case.name in REFUSED else "equal"


def main(names: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    chosen = [each for each in cases() if not names or each.name in names or each.name.split()[0] in names]
    equal = 0
    for each in chosen:
        start = time.process_time()
        try:
            reason = carry(each)
        except Exception as error:
            reason = f"CRASH {type(error).__name__}: {error}".partition("\n")[0]
        equal += not reason
        print(f"{each.name}: {reason or 'equal'} ({time.process_time() - start:.0f} s)", flush=True)
    print(f"{len(chosen)} models with one modality each, {equal} generate what the model generates")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
