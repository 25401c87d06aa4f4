"""Tiny quantised checkpoints, one function each: a linear weight becomes stored tensors, and a reference result.

The reference is the format's own library where it runs here, else its published layout, written out independently:

- fp8, mxfp4: transformers; incomplete blocks: the loop of DeepSeek-V3's `weight_dequant`
- GPTQ, AWQ, NVFP4 of ModelOpt: by their published layouts, one element at a time
- bitsandbytes, compressed-tensors, torchao: these packages
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]  # tensors by suffix of the module's name, and the reference weight


@dataclass(frozen=True)
class Format:
    """A quantization_config and how to write one weight [outputs, inputs] of bfloat16."""

    name: str
    config: dict[str, Any]
    write: Callable[[Tensor], Stored]
    unread: tuple[str, ...] = ()  # suffixes of tensors that describe others


def fp8(weight: Tensor, block: tuple[int, int] | None) -> Stored:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    if block is None:
        scale = weight.float().abs().max() / 448
        stored = (weight.float() / scale).to(torch.float8_e4m3fn)
        return {"weight": stored, "weight_scale_inv": scale}, (stored.float() * scale).to(weight.dtype)
    rows, columns = (-(-size // step) for size, step in zip(weight.shape, block, strict=True))
    scale = torch.rand(rows, columns) * 0.01 + 0.001
    stored = (weight.float() / 0.005).to(torch.float8_e4m3fn)
    if all(size % step == 0 for size, step in zip(weight.shape, block, strict=True)):
        reference = Fp8Dequantize(None)._dequantize_one(stored, scale, output_dtype=weight.dtype)
    else:
        reference = torch.empty_like(weight)
        for row in range(rows):
            for column in range(columns):
                place = (
                    slice(row * block[0], (row + 1) * block[0]),
                    slice(column * block[1], (column + 1) * block[1]),
                )
                reference[place] = (stored[place].float() * scale[row, column]).to(weight.dtype)
    return {"weight": stored, "weight_scale_inv": scale}, reference


def _gptq(weight: Tensor, bits: int, group: int, offset: int) -> Stored:
    outputs, inputs = weight.shape
    generator = np.random.default_rng(inputs * 7 + outputs)
    size = inputs if group < 0 else group
    codes = generator.integers(0, 2**bits, (inputs, outputs))
    zeros = generator.integers(0, 2**bits, (inputs // size, outputs))  # as stored: one less than the zero point in v1
    scales = (generator.random((inputs // size, outputs)) * 0.01).astype(np.float16)
    groups = generator.permutation(np.arange(inputs) // size)  # as with desc_act
    reference = np.empty((outputs, inputs), np.float16)
    for at in range(inputs):
        zero = (zeros[groups[at]] + offset) % 2**bits
        reference[:, at] = scales[groups[at]] * (codes[at] - zero).astype(np.float16)
    tensors = {
        "qweight": _words(codes, bits, axis=0, order=range(32 // bits)),
        "qzeros": _words(zeros, bits, axis=1, order=range(32 // bits)),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return tensors, torch.from_numpy(reference).to(weight.dtype)


def _awq(weight: Tensor, group: int) -> Stored:
    outputs, inputs = weight.shape
    generator = np.random.default_rng(inputs * 7 + outputs)
    codes = generator.integers(0, 16, (inputs, outputs))
    zeros = generator.integers(0, 16, (inputs // group, outputs))
    scales = (generator.random((inputs // group, outputs)) * 0.01).astype(np.float16)
    reference = np.empty((outputs, inputs), np.float16)
    for at in range(inputs):
        reference[:, at] = (codes[at] - zeros[at // group]).astype(np.float16) * scales[at // group]
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {
        "qweight": _words(codes, 4, axis=1, order=order),
        "qzeros": _words(zeros, 4, axis=1, order=order),
        "scales": torch.from_numpy(scales),
    }
    return tensors, torch.from_numpy(reference).to(weight.dtype)


def _words(codes: np.ndarray, bits: int, axis: int, order: Any) -> Tensor:
    """Pack codes in 32-bit words along an axis: the place of a code in its word is by `order`."""
    codes = np.moveaxis(codes, axis, -1)
    many = 32 // bits
    words = np.zeros((*codes.shape[:-1], codes.shape[-1] // many), np.uint32)
    for place, which in enumerate(order):
        words |= codes[..., which::many].astype(np.uint32) << np.uint32(place * bits)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32))


_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _modelopt_nvfp4(weight: Tensor) -> Stored:
    rows, columns = weight.shape
    packed = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
    scale = (torch.rand(rows, columns // 16) * 4 + 0.1).to(torch.float8_e4m3fn)
    second = torch.tensor(0.0037)
    reference = torch.empty(rows, columns)
    for column in range(columns):
        code = (packed[:, column // 2] >> (4 * (column % 2))) & 15
        values = torch.tensor([-_E2M1[int(c) - 8] if c >= 8 else _E2M1[int(c)] for c in code])
        reference[:, column] = values * (scale[:, column // 16].float() * second)
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": second}
    return tensors, reference.to(weight.dtype)


def _modelopt_fp8(weight: Tensor) -> Stored:
    tensors, reference = fp8(weight, None)
    return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale_inv"]}, reference


def _bnb_int8(weight: Tensor) -> Stored:
    from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant

    codes, scale, _ = int8_vectorwise_quant(weight.to(torch.float16))
    tensors = {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, int8_vectorwise_dequant(codes, scale).to(weight.dtype)


def _bnb_4bit(weight: Tensor, kind: str, nested: bool) -> Stored:
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=64, quant_type=kind, compress_statistics=nested)
    tensors = {"weight": packed, **{f"weight.{name}": each for name, each in state.as_dict(packed=True).items()}}
    return tensors, dequantize_4bit(packed, state)


def _compressed(weight: Tensor, form: str, args: dict[str, Any]) -> Stored:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    own = scheme.weights
    rows, columns = weight.shape
    form_of = {"tensor": (1, rows, 1, columns), "channel": (rows, 1, 1, columns)}
    step = own.group_size or columns
    shape = form_of.get(own.strategy, (rows, 1, columns // step, step))
    if own.strategy == "block":
        high, wide = own.block_structure
        shape = (rows // high, high, columns // wide, wide)
    parts = weight.reshape(shape)
    low, top = parts.amin((1, 3)), parts.amax((1, 3))
    low, top = (low.reshape(1), top.reshape(1)) if own.strategy == "tensor" else (low, top)
    state = {"weight": weight}
    if form == "nvfp4-pack-quantized":
        largest = torch.maximum(low.abs(), top.abs()).float()
        state["weight_global_scale"] = (448 * 6 / largest.max()).reshape(1)
        state["weight_scale"] = (largest / 6 * state["weight_global_scale"]).to(torch.float8_e4m3fn).to(weight.dtype)
    else:
        state["weight_scale"], state["weight_zero_point"] = calculate_qparams(low, top, own)
        state["weight_scale"] = state["weight_scale"].to(weight.dtype)
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    reference = compressor.decompress(stored, scheme)["weight"]
    if own.symmetric:
        stored.pop("weight_zero_point", None)
    return stored, reference.to(weight.dtype)


def _compressed_format(name: str, form: str, **args: Any) -> Format:
    group = {"targets": ["Linear"], "weights": args}
    config = {
        "quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "quantization_status": "compressed",
    }  # fmt: skip
    return Format(f"compressed {name}", config, lambda weight: _compressed(weight, form, args), ("weight_shape",))


def _torchao_format(config: Any) -> Format:
    from torchao.core.config import config_to_dict

    def write(weight: Tensor) -> Stored:
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        from torchao.quantization import quantize_

        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        layer.weight.data.copy_(weight)
        quantize_(layer, config)
        tensors, _ = flatten_tensor_state_dict({"layer.weight": layer.weight.data})
        return {key.removeprefix("layer."): each for key, each in tensors.items()}, layer.weight.dequantize()

    settings = {"quant_method": "torchao", "quant_type": {"default": config_to_dict(config)}}
    return Format(f"torchao {type(config).__name__}", settings, write)


def formats() -> list[Format]:
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    eight = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    gptq = {"quant_method": "gptq", "sym": False, "desc_act": True}
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}
    integer = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}
    return [
        Format("fp8 blocks", {**eight, "weight_block_size": [32, 32]}, lambda w: fp8(w, (32, 32))),
        Format("fp8 incomplete blocks", {**eight, "weight_block_size": [20, 48]}, lambda w: fp8(w, (20, 48))),
        Format("fp8 per tensor", {**eight, "weight_block_size": None}, lambda w: fp8(w, None)),
        Format("gptq int4", {**gptq, "bits": 4, "group_size": 32}, lambda w: _gptq(w, 4, 32, 1)),
        Format("gptq int8", {**gptq, "bits": 8, "group_size": -1}, lambda w: _gptq(w, 8, -1, 1)),
        Format(
            "gptq v2 int2",
            {**gptq, "bits": 2, "group_size": 32, "checkpoint_format": "gptq_v2"},
            lambda w: _gptq(w, 2, 32, 0),
        ),
        Format(
            "awq",
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
            lambda w: _awq(w, 32),
        ),
        Format(
            "modelopt nvfp4",
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            _modelopt_nvfp4,
        ),
        Format("modelopt fp8", {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_*"]}, _modelopt_fp8),
        Format(
            "bitsandbytes int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, _bnb_int8, ("weight_format",)
        ),
        Format("bitsandbytes nf4", {**four, "bnb_4bit_quant_type": "nf4"}, lambda w: _bnb_4bit(w, "nf4", False)),
        Format("bitsandbytes fp4", {**four, "bnb_4bit_quant_type": "fp4"}, lambda w: _bnb_4bit(w, "fp4", False)),
        Format(
            "bitsandbytes nf4 nested",
            {**four, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
            lambda w: _bnb_4bit(w, "nf4", True),
        ),
        _compressed_format("int4", "pack-quantized", **integer, symmetric=True),
        _compressed_format("int4 with zero points", "pack-quantized", **integer, symmetric=False),
        _compressed_format("int8 packed by channel", "pack-quantized", type="int", num_bits=8, strategy="channel"),
        _compressed_format("int8", "int-quantized", type="int", num_bits=8, strategy="channel", symmetric=True),
        _compressed_format(
            "int8 per tensor", "int-quantized", type="int", num_bits=8, strategy="tensor", symmetric=False
        ),
        _compressed_format("fp8", "float-quantized", type="float", num_bits=8, strategy="channel"),
        _compressed_format(
            "fp8 blocks", "float-quantized", type="float", num_bits=8, strategy="block", block_structure=[32, 32]
        ),
        _compressed_format(
            "nvfp4", "nvfp4-pack-quantized", type="float", num_bits=4, strategy="tensor_group", group_size=16
        ),
        _torchao_format(Int8WeightOnlyConfig()),
        _torchao_format(Float8WeightOnlyConfig()),
        _torchao_format(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))),
    ]
