"""Inputs of tiny models of images, videos and sound, as their processors return them.

They come from the signatures of the encoders: the first form of pixels or sound that an encoder takes.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.multimodal_own_inputs import OWN
from tests.multimodal_tables import IMAGE_SIZE

KINDS = {"image": 1, "video": 2, "audio": 3}  # modalities, with the number of their tokens in mm_token_type_ids
_WHOLE_VIDEOS = ("qwen2", "ernie", "exaone", "hyper", "video_llama", "minimax")  # others have text between frames
_LAST = 90  # below are words
ENCODED = ("pixel_values", "pixel_values_videos", "input_features", "image_pixel_values", "audio_input_features")


@dataclass(frozen=True)
class Case:
    """A model class and the one modality that it reads besides text."""

    name: str
    model: Any
    modality: str


class CannotBuildError(Exception):
    """No tiny model, or no inputs that the model itself takes."""


def inputs(case: Case, model: Any) -> dict[str, Tensor]:
    """Return a batch of two prompts with an image, a video or a sound each, as a processor would."""
    torch.manual_seed(1)
    if case.name in OWN:
        count, given = OWN[case.name](model)
        made = {**_prompt(case, model, count), **given}
        if model.config.is_encoder_decoder and model.main_input_name == "pixel_values":  # its encoder reads no text
            made.pop("input_ids", None)
        return made
    encode = _encoder(case, model)
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
    raise CannotBuildError(f"no inputs for {encode.__name__}({', '.join(names)}): {problem}")


def _encoder(case: Case, model: Any) -> Any:
    """Return the method that encodes a modality; frames of a video may be images."""
    for modality in (case.modality, "image") if case.modality == "video" else (case.modality,):
        for owner in (model.base_model, model):
            if hasattr(owner, f"get_{modality}_features"):
                return getattr(owner, f"get_{modality}_features")
    return None


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
                other = {
                    name: torch.randn_like(each) if each.is_floating_point() else each for name, each in made.items()
                }
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
    if getattr(found, "pooler_output", None) is None and hasattr(found, "deepstack_features"):
        found = found.deepstack_features[0][1]  # of the first layer
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
    if case.modality == "video" and getattr(model.config, "video_start_token_id", _LAST) < _LAST:
        ids[:, 2], ids[:, 3 + count] = model.config.video_start_token_id, model.config.video_end_token_id
    more = {"input_ids": ids, "token_type_ids": types, "mm_token_type_ids": types * KINDS[case.modality]}
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = torch.full((2, 1), 2)
    return {name: value for name, value in more.items() if name in known}


def _token(case: Case, model: Any) -> int:
    by_image = case.name.startswith(("glm4", "glm5", "glm_", "glmga")) and case.modality == "video"  # of frames
    parts = [model.config, *(getattr(model.config, f"{name}_config", None) for name in ("vision", "audio"))]
    for name in ("image",) if by_image else (case.modality, "image"):
        for field in ("id", "index"):
            for part in parts:
                token = getattr(part, f"{name}_token_{field}", None)
                if isinstance(token, int):
                    return token
    if case.name in OWN:  # other inputs say where the image is
        return _LAST
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
    size = size if isinstance(size, int) else IMAGE_SIZE
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
        for shape in (
            (2, bins, frames),
            (2, frames, bins),
            (2, frames),
            (2, frames, 128),
            (2, frames, 7 * bins),
            (2, frames, 640),
        ):
            more: dict[str, Tensor] = {}
            for name in names[1:]:
                if "mask" in name:
                    more[name] = torch.ones(2, frames, dtype=torch.bool)
                if name == "audio_feature_lengths":
                    more[name] = torch.tensor([frames, frames])
            yield {names[0]: torch.randn(shape), **more}
