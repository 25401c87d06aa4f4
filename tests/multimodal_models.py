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
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig

from tests.multimodal_inputs import KINDS, CannotBuildError, Case, inputs
from tests.multimodal_tables import CONFIGS, ENCODERS, FIXED_PROMPT, NOT_BUILT, REFUSED, SETTINGS, WHOLE
from torch_ir import IR, ExecutionError, TorchIRError, meta_init
from torch_ir.llm import extract_llm, verify_llm
from torch_ir.llm.generation import _greedy
from torch_ir.llm.tiny_config import shrunk

TOKENS = 6
TABLES = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
_TALKING = {
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
_TOKEN = {"image": 90, "video": 91, "audio": 92}


def kinds() -> dict[str, list[str]]:
    """The names of the models of every kind; none of them is imported."""
    from transformers.models.auto import modeling_auto

    found: dict[str, list[str]] = {}
    for table in TABLES:
        for kind, names in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").items():
            found.setdefault(kind, []).extend((names,) if isinstance(names, str) else names)
    return found


def cases(kind: str) -> list[Case]:
    """The models of a kind, each with every modality that it reads."""
    import transformers

    found = {}
    for name in kinds()[kind]:
        model = getattr(transformers, name, None)
        given = getattr(model, "input_modalities", ())
        for modality in KINDS:
            if model is not None and modality in ((given,) if isinstance(given, str) else given):
                found[f"{kind} {modality}"] = Case(f"{kind} {modality}", model, modality)
    return list(found.values())


def build(case: Case) -> Any:
    """Build a tiny model with random weights."""
    import transformers

    kind = case.name.split()[0]
    if kind in _TALKING:  # without the part that makes speech
        thinker = build(Case(f"{kind}_thinker", getattr(transformers, _TALKING[kind]), case.modality))
        config = case.model.config_class(thinker_config=thinker.config.to_dict(), enable_audio_output=False)
        model = case.model(config).float().eval()
        model.thinker.load_state_dict(thinker.state_dict())
        return model
    config = CONFIGS[kind]() if kind in CONFIGS else case.model.config_class()
    _complete(config)
    config = shrunk(config)
    _adapt(config, has_sections=_counts_images(case))
    for name, value in SETTINGS.get(kind, {}).items():
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
            if kind is AutoConfig:  # any encoder; the defaults name one
                kind = config.sub_configs_defaults[name]
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
            by_stage = isinstance(getattr(part, name, None), (list, tuple)) and isinstance(value, int)
            if part is not text and hasattr(part, name) and not by_stage:
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


def carry(case: Case) -> str:
    """Extract all graphs from a model without weights, load the file, and generate; empty if all is equal."""
    try:
        whole = build(case)
        model = getattr(whole, "thinker", whole)
        given = inputs(case, model)
        own = _greedy(model, TOKENS, given).sequences
        if whole is not model and not torch.equal(_spoken(whole, given), own):
            return "cannot be built: the whole model generates other tokens than its thinker"
    except (CannotBuildError, ExecutionError) as error:
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


def _spoken(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the text that a model which can also speak generates."""
    options = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None, "use_cache": True}
    if hasattr(model, "speaker_map"):  # what generate reads of the part that is left out
        model.speaker_map, model.talker = {"Chelsie": {}}, SimpleNamespace(codec_pad_token=0)
    takes_audio = "return_audio" in inspect.signature(type(model).generate).parameters
    silent = {"return_audio": False} if takes_audio else {"generation_mode": "text"}
    made = model.generate(**given, **silent, **{f"thinker_{name}": value for name, value in options.items()})
    return made if isinstance(made, torch.Tensor) else made[0].sequences if isinstance(made, tuple) else made.sequences


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
    every = [case for kind in kinds() for case in cases(kind)]
    chosen = [each for each in every if not names or each.name in names or each.name.split()[0] in names]
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
