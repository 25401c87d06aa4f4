"""The models of the benchmarks, built on the device of the caller: meta for extraction, cpu for execution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model with keyword inputs."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    calls: int = 1  # per sample, so that a sample is long enough to time

    def on_meta(self) -> tuple[nn.Module, dict[str, Any]]:
        with torch.device("meta"):
            model = self.build().eval()
        return model, {name: tensor.to("meta") for name, tensor in self.inputs().items()}


def torch_export(model: nn.Module, inputs: dict[str, Any]) -> torch.export.ExportedProgram:
    """Call torch.export, non-strict and without gradients."""
    with torch.no_grad():
        return torch.export.export(model, (), inputs, strict=False)


def tokens(batch: int = 1, length: int = 128, vocabulary: int = 1000) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, vocabulary, (batch, length))}


def resnet18() -> nn.Module:
    from catalogue.resnet18 import resnet18

    return resnet18()


def resnet50() -> nn.Module:
    from catalogue.resnet50 import resnet50

    return resnet50()


def mobilenet_v2() -> nn.Module:
    from catalogue import find

    return find("mobilenet_v2").build()


def bert_base() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def vit_base() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig())


def efficientnet_b0() -> nn.Module:
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    sizes = {"image_size": 224, "width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280}
    return EfficientNetForImageClassification(EfficientNetConfig(**sizes))


def whisper_base_encoder() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    sizes = {"encoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    return WhisperModel(WhisperConfig(d_model=512, **sizes)).encoder


def llama(layers: int = 8, hidden: int = 4096) -> nn.Module:
    """Llama with the proportions of the 8B model; `hidden` scales all widths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(4, hidden // 128)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        vocab_size=128256 if hidden > 1000 else 1000,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def llama_405b(layers: int = 126) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=16384,
        intermediate_size=53248,
        num_attention_heads=128,
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


EXTRACTED = [
    Case("ResNet-50", resnet50, lambda: {"x": torch.randn(1, 3, 224, 224)}),
    Case("BERT-base", bert_base, tokens),
    Case("GPT-2", gpt2, tokens),
    Case("ViT-base", vit_base, lambda: {"pixel_values": torch.randn(1, 3, 224, 224)}),
]
EXECUTED = [
    Case("ResNet-18", resnet18, lambda: {"x": torch.randn(1, 3, 224, 224)}, calls=3),
    Case("tiny Llama", lambda: llama(layers=4, hidden=64), lambda: tokens(length=16), calls=20),
]
SERVED = [
    EXECUTED[0],
    EXTRACTED[0],
    Case("MobileNetV2", mobilenet_v2, lambda: {"x": torch.randn(1, 3, 224, 224)}),
    EXTRACTED[1],
    EXTRACTED[3],
    EXTRACTED[2],
    Case("EfficientNet-B0", efficientnet_b0, lambda: {"pixel_values": torch.randn(1, 3, 224, 224)}),
    Case("Whisper-base encoder", whisper_base_encoder, lambda: {"input_features": torch.randn(1, 80, 3000)}),
]
