"""Read a LoRA adapter as PEFT stores it: `adapter_config.json` and the headers of `adapter_model.safetensors`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_ir.errors import SerializationError, WeightLoadError, did_you_mean
from torch_ir.ir.checks.limits import Limits
from torch_ir.ir.json.json_text import parse_json, read_text
from torch_ir.run.stored import Weight
from torch_ir.run.weight_files import headers_of

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_MOST_BYTES = 4 << 20  # of a configuration
_MOST_COMPARED = 10_000_000  # patterns times modules
_LONGEST = 1000  # characters of a pattern
_DOWN, _UP, _NORM, _WHOLE = "down", "up", "norm", "whole"
_PARTS = {  # the first that fits
    ".lora_A.weight": _DOWN,
    ".lora_B.weight": _UP,
    ".lora_embedding_A": _DOWN,
    ".lora_embedding_B": _UP,
    ".lora_magnitude_vector": _NORM,
    ".base_layer.weight": _WHOLE,
    ".weight": _WHOLE,
}
# Options that change what an adapter computes, with the values that are supported.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    # others, such as "pissa" and "olora", also change the weights of the model when PEFT loads the adapter
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    "megatron_config": (None,),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
    "lora_bias": (None, False),
    "corda_config": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
}


@dataclass(frozen=True)
class AdaptedModule:
    """The tensors that an adapter has for one module, by key of its file: factors of an update, or a whole weight."""

    module: str
    down: str = ""  # [rank, in]; "" if there is only a whole weight
    up: str = ""  # [out, rank]
    rank: int = 0
    scale: float = 1.0
    norm: str | None = None  # magnitudes of DoRA
    whole: str | None = None  # replaces the weight of the model
    is_embedding: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether this is an update of a linear layer and nothing else."""
        return bool(self.down) and self.norm is None and self.whole is None and not self.is_embedding


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: its modules, and the tensors of its file, of which only headers are read."""

    path: Path
    modules: tuple[AdaptedModule, ...]
    tensors: Mapping[str, Weight]
    is_transposed: bool  # weights are stored as [in, out], as those of Conv1D

    @property
    def file(self) -> Path:
        return self.path / _TENSORS


def read_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Read the configuration and the headers of an adapter; raise WeightLoadError for kinds that are not supported."""
    folder = Path(path)
    try:
        config = parse_json(read_text(folder / _CONFIG, Limits(file_bytes=_MOST_BYTES)))
    except (SerializationError, ValueError, RecursionError) as error:
        raise WeightLoadError(f"{folder} is not a PEFT adapter: {error}") from error
    if not isinstance(config, dict):
        raise WeightLoadError(f"{folder / _CONFIG} does not contain an object")
    for option, known in _PLAIN.items():
        if config.get(option, known[0]) not in known:
            raise WeightLoadError(f"{folder / _CONFIG}: {option}={config[option]!r:.60} is not supported")
    tensors = headers_of(folder / _TENSORS)
    parts: dict[str, dict[str, str]] = {}
    for key in tensors:
        suffix = next((suffix for suffix in _PARTS if key.endswith(suffix)), None)
        if suffix is None or not key.startswith(_PREFIX):
            raise WeightLoadError(f"{folder / _TENSORS}: {key!r:.120} is not a tensor of a LoRA adapter")
        part, found = _PARTS[suffix], parts.setdefault(key[len(_PREFIX) : -len(suffix)], {})
        if part in found:
            raise WeightLoadError(f"{folder / _TENSORS}: {key!r:.120} and {found[part]!r:.120} are the same part")
        found[part] = key
    patterns = _alpha_patterns(config, len(parts))
    modules = tuple(_module(folder, name, found, tensors, config, patterns) for name, found in parts.items())
    if not modules:
        raise WeightLoadError(f"{folder / _TENSORS} contains no tensors")
    return Adapter(folder, modules, tensors, bool(config.get("fan_in_fan_out", False)))


def _module(
    folder: Path,
    name: str,
    parts: Mapping[str, str],
    tensors: Mapping[str, Weight],
    config: Mapping[str, Any],
    patterns: Mapping[str, float],
) -> AdaptedModule:
    if parts.keys() == {_WHOLE}:
        return AdaptedModule(name, whole=parts[_WHOLE])
    if _DOWN not in parts or _UP not in parts:
        raise WeightLoadError(f"{folder / _TENSORS}: {name!r:.120} has only one of the two factors of LoRA")
    down, up = (tuple(tensors[parts[part]].shape) for part in (_DOWN, _UP))
    if len(down) != 2 or len(up) != 2:
        raise WeightLoadError(f"{name!r:.120} is a convolution; adapters of linear layers and embeddings are supported")
    if down[0] != up[1]:
        raise WeightLoadError(f"{folder / _TENSORS}: the factors of {name!r:.120} have the ranks {down[0]} and {up[1]}")
    if not down[0]:
        raise WeightLoadError(f"{folder / _TENSORS}: the factors of {name!r:.120} have rank 0")
    alpha = _by_pattern(patterns, name)
    alpha = _number(config.get("lora_alpha", 8), "lora_alpha") if alpha is None else alpha
    divisor = math.sqrt(down[0]) if config.get("use_rslora") else down[0]
    is_embedding = parts[_DOWN].endswith("lora_embedding_A")
    if _NORM in parts and is_embedding:
        raise WeightLoadError(f"DoRA of the embedding {name!r:.120} is not supported")
    if _NORM in parts and config.get("fan_in_fan_out"):
        raise WeightLoadError(f"DoRA of {name!r:.120}, whose weight is stored transposed, is not supported")
    return AdaptedModule(
        name, parts[_DOWN], parts[_UP], down[0], alpha / divisor, parts.get(_NORM), parts.get(_WHOLE), is_embedding
    )


def _alpha_patterns(config: Mapping[str, Any], modules: int) -> dict[str, float]:
    """Return the numbers of `alpha_pattern`; raise WeightLoadError for patterns that are not the ends of names."""
    patterns: Any = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise WeightLoadError("alpha_pattern is not an object")
    if len(patterns) * modules > _MOST_COMPARED:
        raise WeightLoadError(f"alpha_pattern has {len(patterns)} patterns, too many for {modules} modules")
    for pattern in patterns:
        plain = pattern.removeprefix("^").replace(".", "").replace("_", "")
        if len(pattern) > _LONGEST or not plain.isalnum():
            raise WeightLoadError(f"alpha_pattern {pattern!r:.60} is a regular expression, which is not supported")
    return {pattern: _number(value, f"alpha_pattern {pattern!r:.60}") for pattern, value in patterns.items()}


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WeightLoadError(f"{what} is a number, not {value!r:.60}")
    return float(value)


def _by_pattern(patterns: Mapping[str, float], name: str) -> float | None:
    """Return the number of the first pattern that is the end of a module's name, or with `^` the name itself."""
    dotted, whole = f".{name}", f"^{name}"
    return next((value for end, value in patterns.items() if end == whole or dotted.endswith(f".{end}")), None)


def require_modules(adapter: Adapter, found: set[str], known: set[str]) -> None:
    """Raise WeightLoadError if a module of an adapter is not in the graph."""
    lost = next((module.module for module in adapter.modules if module.module not in found), None)
    if lost is not None:
        nearest = did_you_mean(lost, known)
        raise WeightLoadError(
            f"{adapter.path} adapts {lost!r:.120}, which is not a linear layer or embedding of this graph{nearest}"
        )
