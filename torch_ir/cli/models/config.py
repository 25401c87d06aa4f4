"""A model of transformers from `hf:TYPE?key=value&...`, a folder or a config.json; nothing is downloaded."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_ir.cli.models.model_kinds import TRANSFORMERS
from torch_ir.cli.models.model_settings import split_settings
from torch_ir.cli.models.source import Source
from torch_ir.errors import CommandError, MissingExtraError, did_you_mean, first_line

if TYPE_CHECKING:
    from torch import nn

_CLASS = "class"  # the setting that chooses among the models of a configuration


def find_config(text: str) -> Source:
    """Return the model of a configuration, without a KV cache (`torch-ir llm` captures one with a cache)."""
    config, name = load_config(text)
    if "use_cache" not in split_settings(text)[1]:
        for each in (config, *vars(config).values()):  # configurations may be nested
            if getattr(each, "use_cache", False):
                each.use_cache = False
    return Source(text, partial(_build, text, model_class(config, name), config))


def model_types() -> list[str]:
    """Return all model types of transformers; none if it is not installed."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return []
    return list(CONFIG_MAPPING)


def load_config(text: str) -> tuple[Any, str | None]:
    """Return the configuration with the settings after `?` applied, and the class they choose."""
    try:
        from transformers import AutoConfig
    except ImportError:
        raise MissingExtraError("a model of transformers", "transformers", "transformers") from None
    from torch_ir.ops.torch_internals import PYTREE_LOGGER

    for logger in map(logging.getLogger, ("torchao", PYTREE_LOGGER)):  # silence their developer messages
        logger.setLevel(logging.ERROR)
    name, settings = split_settings(text)
    name = name.removeprefix(TRANSFORMERS)
    chosen = settings.pop(_CLASS, None)
    try:
        if Path(name).is_file() or (Path(name) / "config.json").is_file():
            config = AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False, **settings)
            plain = config
        elif name in (known := model_types()):
            config = AutoConfig.for_model(name, **settings)
            plain = type(config)()
        else:
            raise CommandError(
                f"{name!r} is neither a folder with a config.json nor a model type of transformers"
                f"{did_you_mean(name, known)}"
            )
    except CommandError:
        raise
    except Exception as error:  # configurations raise errors of any type
        raise CommandError(f"{text}: {first_line(error)}") from None
    # `attn_implementation` and similar settings are stored under names that begin with `_`
    unknown = next((key for key in settings if not hasattr(plain, key) and not hasattr(plain, f"_{key}")), None)
    if unknown is not None:
        words = [key for key in vars(plain) if not key.startswith("_")]
        raise CommandError(f"{name} has no setting {unknown!r}{did_you_mean(unknown, words)}")
    return config, chosen


def model_class(config: Any, name: str | None) -> Any:
    """Return the class of this name, the configuration's own class, or the usual one for its type."""
    import transformers

    if name is not None:
        return _named_class(config, name)
    for word in config.architectures if isinstance(config.architectures, list) else ():
        found = getattr(transformers, word, None) if isinstance(word, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    is_causal = not _fits(transformers.AutoModelForMaskedLM, config)  # BERT-like models also have a causal head
    if config.is_encoder_decoder and _fits(transformers.AutoModelForSeq2SeqLM, config):
        return transformers.AutoModelForSeq2SeqLM
    if is_causal and _fits(transformers.AutoModelForCausalLM, config) and not config.is_encoder_decoder:
        return transformers.AutoModelForCausalLM
    if _fits(transformers.AutoModel, config):
        return transformers.AutoModel
    raise CommandError(
        f"transformers has no default model of type {config.model_type!r}; choose one with ?{_CLASS}=NAME"
    )


def _named_class(config: Any, name: str) -> Any:
    import transformers

    found: Any = getattr(transformers, name, None)
    if not hasattr(found, "config_class"):
        words = [word for word in dir(transformers) if word.endswith("Model") or "For" in word]
        raise CommandError(f"transformers has no model {name!r}{did_you_mean(name, words)}")
    wanted = found.config_class
    if wanted is not None and not isinstance(config, wanted):
        raise CommandError(f"{name} is built from a {wanted.__name__}, not from a {type(config).__name__}")
    return found


def _fits(factory: Any, config: Any) -> bool:
    return type(config) in factory._model_mapping


def _build(text: str, factory: Any, config: Any) -> nn.Module:
    make = factory.from_config if hasattr(factory, "from_config") else factory._from_config
    try:
        model: nn.Module = make(config)
    except Exception as error:  # models raise errors of any type for inconsistent settings
        raise CommandError(f"building {text} failed: {type(error).__name__}: {first_line(error)}") from None
    return model.eval()
