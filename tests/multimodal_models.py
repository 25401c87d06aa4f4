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

from tests.multimodal_tables import ENCODERS, FIXED_PROMPT, IMAGE_SIZE, NOT_BUILT, REFUSED, SETTINGS, WHOLE
from torch_ir import IR, TorchIRError, meta_init
from torch_ir.llm import extract_llm, verify_llm
from torch_ir.llm.tiny_config import shrunk

TOKENS = 6
TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
KINDS = {"image": 1, "video": 2, "audio": 3}  # modalities, with the number of their tokens in mm_token_type_ids
_TOKEN = {"image": 90, "video": 91, "audio": 92}
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
