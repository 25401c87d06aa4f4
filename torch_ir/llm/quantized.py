"""Quantised weights of checkpoints: for each method, the tensors of a weight and how they are dequantised.

The `quantization_config` of a configuration names the method. Everything in it must be known: an option that this
table does not list, or a value that it does not allow, is an error, because it may change the layout.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from torch_ir.errors import ExportError, did_you_mean
from torch_ir.llm import dequantize
from torch_ir.llm.quantization_options import BLOCK, DICT, EXPRESSIONS, GROUP, GROUPED_NAMES, NAMES, TARGETS, Values


@dataclass(frozen=True)
class StoredWeight:
    """One quantised weight of a checkpoint: its tensors by key, on meta, and the function that dequantises them."""

    format: str
    tensors: Mapping[str, Tensor]
    dequantize: Callable[..., Tensor]
    takes_stacks: bool = False  # `dequantize` also takes the tensors of several weights, each stacked


Store = Callable[[str, Tensor], StoredWeight]  # key and float tensor of a weight -> how it is stored


@dataclass(frozen=True)
class Quantization:
    """The quantised weights of a checkpoint: which ones, and how each is stored."""

    is_stored: Callable[[str, str, nn.Module], bool]  # key of the checkpoint, of the model, and its module
    store: Store


@dataclass(frozen=True)
class _Method:
    """A row of the table: reads the options of one method; `free` options do not change what is stored."""

    read: Callable[[dict[str, Any], Any], Quantization]
    allowed: Mapping[str, Collection[Any] | Values]  # option -> values; empty: any, `read` looks at it
    free: Collection[str] = field(default=())


def settings_of(config: Any) -> dict[str, Any] | None:
    """Return the `quantization_config` of a configuration or of one of its parts as a dict, or None."""
    for each in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        found = getattr(each, "quantization_config", None)
        if found is not None and not isinstance(found, dict) and not hasattr(found, "to_dict"):
            raise ExportError(f"the quantization_config is {found!r:.80}, not a dict of options")
        if found is not None:
            return dict(found if isinstance(found, dict) else found.to_dict())
    return None


def quantization_of(model: Any) -> Quantization | None:
    """Return how the checkpoint of a model is quantised, None if it is not; raise ExportError if that is unknown."""
    settings = settings_of(model.config)
    if settings is None or getattr(model, "hf_quantizer", None) is not None:  # a loaded model is quantised itself
        return None
    name = _plain(settings.pop("quant_method", None))
    if name is None and ("load_in_8bit" in settings or "load_in_4bit" in settings):
        name = "bitsandbytes"
    what = f"the quantization_config of {model.config.model_type!r}"
    method = _METHODS.get(str(name))
    if method is None:
        raise ExportError(
            f"{what} has quant_method {str(name)!r}, which is not supported; expected one of {', '.join(_METHODS)}, "
            "or set quantization_config to None for a graph of float weights"
        )
    for option, value in settings.items():
        values = method.allowed.get(option)
        if values is None and option not in method.free:
            near = did_you_mean(option, (*method.allowed, *method.free))
            raise ExportError(f"{what} has an unknown option {option!r} of {name}{near}")
        if values and _plain(value) not in values:
            listed = values.text if isinstance(values, Values) else ", ".join(map(repr, values))
            raise ExportError(f"{what} has {option}={_plain(value)!r:.80}; of {name}, only {listed} is supported")
    return method.read(settings, model)


def _plain(value: Any) -> Any:
    """Return the value of an enum member, and a list as a tuple."""
    value = getattr(value, "value", value)
    return tuple(value) if isinstance(value, list) else value


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _module(key: str) -> str:
    return key.rpartition(".")[0]


def _is_projection(key: str, module: nn.Module) -> bool:
    """Whether a weight of the model is the matrix of a linear layer, or the matrices of all experts."""
    if type(module).__name__ == "Conv1D":
        raise ExportError(f"{key!r} belongs to a Conv1D, whose quantised weights are not supported")
    is_convolution = hasattr(module, "kernel_size")
    weight = getattr(module, key.rpartition(".")[2])
    return isinstance(module, nn.Linear) or (weight.dim() == 3 and not is_convolution)


def _unless_skipped(
    skipped: Collection[str] | None, model: Any, kind: type[nn.Module] = nn.Module
) -> Callable[[str, str, nn.Module], bool]:
    """Select the projections except those listed, by name in the checkpoint or in the model, as transformers does."""
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    patterns = list(get_keys_to_not_convert(model) if skipped is None else skipped)

    @cache
    def is_covered(name: str) -> bool:
        return bool(should_convert_module(name, patterns))

    def is_stored(key: str, own: str, module: nn.Module) -> bool:
        if not isinstance(module, kind) or not _is_projection(own, module):
            return False
        return is_covered(_module(own)) and is_covered(_module(key))

    return is_stored


# -- fp8 with a scale for each block, mxfp4 ----------------------------------------------------------------------------


def _read_fp8(settings: dict[str, Any], model: Any) -> Quantization:
    block = _plain(settings.get("weight_block_size", (128, 128)))

    def store(key: str, weight: Tensor) -> StoredWeight:
        grid = _grid(weight, block) if block else ()
        tensors = {
            key: weight.to(torch.float8_e4m3fn),
            f"{key}_scale_inv": empty(*grid, dtype=torch.float32),
        }
        function = partial(dequantize.fp8, dtype=weight.dtype, block=block or None)
        return StoredWeight("fp8", tensors, function, takes_stacks=True)

    return Quantization(_unless_skipped(settings.get("modules_to_not_convert"), model), store)


def _grid(weight: Tensor, block: tuple[int, int]) -> tuple[int, ...]:
    rows, columns = weight.shape[-2:]
    return (*weight.shape[:-2], math.ceil(rows / block[0]), math.ceil(columns / block[1]))


def _read_mxfp4(settings: dict[str, Any], model: Any) -> Quantization:
    covers = _unless_skipped(settings.get("modules_to_not_convert"), model)

    def is_stored(key: str, own: str, module: nn.Module) -> bool:
        return own.endswith(("experts.gate_up_proj", "experts.down_proj")) and covers(key, own, module)

    def store(key: str, weight: Tensor) -> StoredWeight:
        experts, inputs, outputs = weight.shape
        _must_divide(key, inputs, 32)
        tensors = {
            f"{key}_blocks": empty(experts, outputs, inputs // 32, 16, dtype=torch.uint8),
            f"{key}_scales": empty(experts, outputs, inputs // 32, dtype=torch.uint8),
        }
        return StoredWeight("mxfp4", tensors, partial(dequantize.mxfp4, dtype=weight.dtype))

    return Quantization(is_stored, store)


def _must_divide(key: str, size: int, group: int) -> None:
    if size % group:
        raise ExportError(f"{key!r} has {size} inputs, which is not a multiple of the group size {group}")


# -- integers packed in words: GPTQ, AWQ -------------------------------------------------------------------------------


def _read_gptq(settings: dict[str, Any], model: Any) -> Quantization:
    bits, group = settings.get("bits"), settings.get("group_size", 128)
    if bits is None:
        raise ExportError("the quantization_config of gptq has no bits")
    offset = 0 if settings.get("checkpoint_format", "gptq") == "gptq_v2" else 1
    covers = _unless_skipped(None, model)
    inside = [name for names in settings.get("modules_in_block_to_quantize") or () for name in _listed(names)]

    def is_stored(key: str, own: str, module: nn.Module) -> bool:
        in_block = re.search(r"\.\d+\.", key) is not None and (not inside or _module(key).endswith(tuple(inside)))
        return in_block and covers(key, own, module)

    def store(key: str, weight: Tensor) -> StoredWeight:
        outputs, inputs = weight.shape
        groups, words = math.ceil(inputs / group) if group > 0 else 1, 32 // bits
        _must_divide(key, inputs, words)
        _must_divide(key, outputs, words)
        name = _module(key)
        tensors = {
            f"{name}.qweight": empty(inputs // words, outputs, dtype=torch.int32),
            f"{name}.qzeros": empty(groups, outputs // words, dtype=torch.int32),
            f"{name}.scales": empty(groups, outputs, dtype=torch.float16),
            f"{name}.g_idx": empty(inputs, dtype=torch.int32),
        }
        return StoredWeight("gptq", tensors, partial(dequantize.gptq, dtype=weight.dtype, bits=bits, offset=offset))

    return Quantization(is_stored, store)


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _read_awq(settings: dict[str, Any], model: Any) -> Quantization:
    group = settings.get("group_size", 128)

    def store(key: str, weight: Tensor) -> StoredWeight:
        outputs, inputs = weight.shape
        size = group if group > 0 else inputs
        _must_divide(key, inputs, size)
        _must_divide(key, outputs, 8)
        name = _module(key)
        tensors = {
            f"{name}.qweight": empty(inputs, outputs // 8, dtype=torch.int32),
            f"{name}.qzeros": empty(inputs // size, outputs // 8, dtype=torch.int32),
            f"{name}.scales": empty(inputs // size, outputs, dtype=torch.float16),
        }
        return StoredWeight("awq", tensors, partial(dequantize.awq, dtype=weight.dtype))

    return Quantization(_unless_skipped(settings.get("modules_to_not_convert"), model), store)


# -- bitsandbytes ------------------------------------------------------------------------------------------------------

_BLOCK, _NESTED_BLOCK = 64, 256  # fixed in checkpoints of transformers


def _read_bitsandbytes(settings: dict[str, Any], model: Any) -> Quantization:
    is_stored = _unless_skipped(settings.get("llm_int8_skip_modules"), model, nn.Linear)
    if not settings.get("load_in_4bit", settings.get("_load_in_4bit", False)):
        return Quantization(is_stored, _store_int8)
    nested = bool(settings.get("bnb_4bit_use_double_quant", False))
    return Quantization(is_stored, partial(_store_4bit, nested=nested, kind=settings.get("bnb_4bit_quant_type", "fp4")))


def _store_int8(key: str, weight: Tensor) -> StoredWeight:
    tensors = {
        key: weight.to(torch.int8),
        f"{_module(key)}.SCB": empty(weight.shape[0], dtype=torch.float32),
    }
    return StoredWeight("int8", tensors, partial(dequantize.int8_rows, dtype=weight.dtype))


def _store_4bit(key: str, weight: Tensor, *, nested: bool, kind: str) -> StoredWeight:
    _must_divide(key, weight.numel(), _BLOCK)
    blocks = weight.numel() // _BLOCK
    tensors = {
        key: empty(weight.numel() // 2, 1, dtype=torch.uint8),
        f"{key}.absmax": empty(blocks, dtype=torch.uint8 if nested else torch.float32),
        f"{key}.quant_map": empty(16, dtype=torch.float32),
    }
    options: dict[str, Any] = {"dtype": weight.dtype, "shape": tuple(weight.shape), "block": _BLOCK}
    if not nested:
        return StoredWeight(kind, tensors, partial(dequantize.blocks_4bit, **options))
    tensors |= {
        f"{key}.nested_absmax": empty(math.ceil(blocks / _NESTED_BLOCK), dtype=torch.float32),
        f"{key}.nested_quant_map": empty(256, dtype=torch.float32),
        f"{key}.nested_offset": empty(dtype=torch.float32),  # stored in JSON; `load_weights` returns it as a tensor
    }
    return StoredWeight(kind, tensors, partial(dequantize.blocks_4bit_nested, **options, nested_block=_NESTED_BLOCK))


# -- compressed-tensors and ModelOpt -----------------------------------------------------------------------------------


def _read_compressed(settings: dict[str, Any], model: Any) -> Quantization:
    from torch_ir.llm.compressed_tensors import stores

    groups = stores(settings)
    ignored = settings.get("ignore") or ()

    def chosen(key: str, module: nn.Module) -> Store | None:
        name, kinds = _module(key), ("Linear", type(module).__name__)
        if any(_is_target(pattern, name, kinds) for pattern in ignored):
            return None
        found = (store for targets, store in groups if any(_is_target(each, name, kinds) for each in targets))
        return next(found, None)

    def is_stored(key: str, own: str, module: nn.Module) -> bool:
        return _is_projection(own, module) and chosen(key, module) is not None

    def store(key: str, weight: Tensor) -> StoredWeight:
        found = chosen(key, nn.Linear(1, 1, device="meta"))
        assert found is not None  # asked only for weights that are stored
        return found(key, weight)

    return Quantization(is_stored, store)


def _is_target(pattern: str, name: str, kinds: Collection[str]) -> bool:
    """Whether a pattern names a module: `re:` and a regular expression, its name, or its class."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return pattern == name or pattern in kinds


def _read_modelopt(settings: dict[str, Any], model: Any) -> Quantization:
    ignored = [*(settings.get("ignore") or ()), *(settings.get("exclude_modules") or ())]
    is_fp8 = settings.get("quant_algo") == "FP8"

    def is_stored(key: str, own: str, module: nn.Module) -> bool:
        names = (_module(key), _module(own))
        return _is_projection(own, module) and not any(
            fnmatch.fnmatchcase(name, pattern) for name in names for pattern in ignored
        )

    def store(key: str, weight: Tensor) -> StoredWeight:
        if is_fp8:
            tensors = {key: weight.to(torch.float8_e4m3fn), f"{key}_scale": empty(dtype=torch.float32)}
            return StoredWeight("fp8", tensors, partial(dequantize.fp8, dtype=weight.dtype), takes_stacks=True)
        outputs, inputs = weight.shape
        _must_divide(key, inputs, 16)
        tensors = {
            key: empty(outputs, inputs // 2, dtype=torch.uint8),
            f"{key}_scale": empty(outputs, inputs // 16, dtype=torch.float8_e4m3fn),
            f"{key}_scale_2": empty(dtype=torch.float32),
        }
        return StoredWeight("nvfp4", tensors, partial(dequantize.nvfp4, dtype=weight.dtype, divide=False))

    return Quantization(is_stored, store)


# -- torchao -----------------------------------------------------------------------------------------------------------


def _read_torchao(settings: dict[str, Any], model: Any) -> Quantization:
    from torch_ir.llm.torchao_weights import store_with

    covers = _unless_skipped(settings.get("modules_to_not_convert"), model, nn.Linear)
    return Quantization(covers, store_with(settings))


_METHODS: dict[str, _Method] = {
    "fp8": _Method(
        _read_fp8,
        {
            "fmt": ("e4m3", None), "scale_fmt": ("float", None), "expert_dtype": ("fp8", None),
            "activation_scheme": ("dynamic", "static"), "modules_to_convert": (None, ()), "weight_block_size": BLOCK,
            "modules_to_not_convert": EXPRESSIONS,
        },
        ("dequantize",),
    ),
    "mxfp4": _Method(_read_mxfp4, {"modules_to_not_convert": EXPRESSIONS}, ("dequantize",)),
    "gptq": _Method(
        _read_gptq,
        {
            "bits": (2, 4, 8), "checkpoint_format": ("gptq", "gptq_v2"), "format": ("gptq", "gptq_v2", None),
            "pack_dtype": ("int32",), "dynamic": (None,), "lm_head": (False,), "is_marlin_format": (False,),
            "group_size": GROUP, "modules_in_block_to_quantize": GROUPED_NAMES,
        },
        (
            "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent",
            "damp_auto_increment", "dataset", "desc_act", "exllama_config", "max_input_length", "mse", "meta",
            "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
            "pad_token_id", "static_groups", "sym", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
        ),
    ),
    "awq": _Method(
        _read_awq,
        {
            "bits": (4,), "w_bit": (4,), "version": ("gemm", "GEMM"), "format": ("gemm", "GEMM", None),
            "zero_point": (True,), "group_size": GROUP, "modules_to_not_convert": EXPRESSIONS,
        },
        ("backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse", "sym", "desc_act"),
    ),
    "bitsandbytes": _Method(
        _read_bitsandbytes,
        {
            "bnb_4bit_quant_type": ("nf4", "fp4"), "bnb_4bit_quant_storage": ("uint8",), "load_in_4bit": (),
            "load_in_8bit": (), "_load_in_4bit": (), "_load_in_8bit": (), "bnb_4bit_use_double_quant": (),
            "llm_int8_skip_modules": EXPRESSIONS, "bnb_4bit_blocksize": (_BLOCK, None),
        },
        (
            "bnb_4bit_compute_dtype", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight",
            "llm_int8_threshold",
        ),
    ),
    "compressed-tensors": _Method(
        _read_compressed,
        {
            "config_groups": DICT, "format": (), "ignore": TARGETS, "quantization_status": ("compressed",),
            "sparsity_config": (None, {}), "transform_config": (None, {}),
        },
        ("dequantize", "global_compression_ratio", "kv_cache_scheme", "run_compressed", "use_optimized_inference",
         "version"),
    ),
    "modelopt": _Method(
        _read_modelopt,
        {"quant_algo": ("NVFP4", "FP8"), "group_size": (16, None), "ignore": NAMES, "exclude_modules": NAMES},
        ("config_groups", "kv_cache_quant_algo", "kv_cache_scheme", "producer"),
    ),
    "torchao": _Method(
        _read_torchao,
        {"quant_type": (), "modules_to_not_convert": EXPRESSIONS, "include_input_output_embeddings": (False,),
         "untie_embedding_weights": (False,), "quant_type_kwargs": (None, {})},
    ),
}  # fmt: skip
