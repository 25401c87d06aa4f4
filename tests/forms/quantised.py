"""Quantised models: PT2E's quantize/dequantize pairs, torchao's weights, fake quantisation, packed eager modules."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.forms.form import Family, refused, unbuilt
from tests.proof import quiet

family = Family("quantised")

X = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


def convolution() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 8)).eval()


class Encoder(nn.Module):
    """One layer of a transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(self.norm(x))


def encoder() -> nn.Module:
    return Encoder().eval()


# -- PT2E -------------------------------------------------------------------------------------------------------------


def x86(dynamic: bool, qat: bool = False) -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86_quantizer

    config = x86_quantizer.get_default_x86_inductor_quantization_config(is_dynamic=dynamic, is_qat=qat)
    return x86_quantizer.X86InductorQuantizer().set_global(config)


def xnnpack(dynamic: bool, qat: bool = False) -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic, is_qat=qat)
    )


def pt2e(build: Callable[[], nn.Module], sample: Tensor, quantizer: Callable[..., Any], dynamic: bool) -> nn.Module:
    """Export, prepare, calibrate on one batch, convert."""
    with quiet():
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        prepared = prepare_pt2e(torch.export.export(build(), (sample,)).module(), quantizer(dynamic))
        with torch.no_grad():
            prepared(sample)
        made: nn.Module = convert_pt2e(prepared)
        return made


for model, sample in ((linear, X), (convolution, IMAGES), (encoder, TOKENS)):
    for quantizer in (x86, xnnpack):
        for dynamic in (False, True):
            family.add(
                f"pt2e_{quantizer.__name__}_{'dynamic' if dynamic else 'static'}_{model.__name__}",
                lambda m=model, s=sample, q=quantizer, d=dynamic: pt2e(m, s, q, d),
                ((sample,), (sample * 2,)),
            )


@family.model((IMAGES,), (IMAGES * 2,))
def pt2e_qat_converted() -> nn.Module:
    with quiet():
        from torchao.quantization.pt2e import move_exported_model_to_eval
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

        prepared = prepare_qat_pt2e(
            torch.export.export(convolution().train(), (IMAGES,)).module(), xnnpack(dynamic=False, qat=True)
        )
        prepared(IMAGES)
        made: nn.Module = convert_pt2e(prepared)
        move_exported_model_to_eval(made)
        return made


@family.model((IMAGES,), (IMAGES * 2,), (IMAGES * 3,))
def pt2e_in_qat_training() -> nn.Module:
    with quiet():
        from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

        made: nn.Module = prepare_qat_pt2e(
            torch.export.export(convolution().train(), (IMAGES,)).module(), xnnpack(dynamic=False, qat=True)
        )
        made(IMAGES)  # observers take the shape of their first input
        return made


@family.model((X,), expected=refused("observers branch on data; convert the model first"))
def pt2e_being_calibrated() -> nn.Module:
    with quiet():
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

        made: nn.Module = prepare_pt2e(torch.export.export(linear(), (X,)).module(), xnnpack(dynamic=False))
        return made


# -- torchao ----------------------------------------------------------------------------------------------------------


def torchao(config: str, build: Callable[[], nn.Module] = linear, **options: Any) -> Callable[[], nn.Module]:
    """A function that builds a model and has torchao quantise it."""

    def make() -> nn.Module:
        with quiet():
            from torchao import quantization

            made = build()
            quantization.quantize_(made, getattr(quantization, config)(**options))
            return made

    return make


CALLS = ((X,), (X * 2,))
family.add("torchao_int8_weights", torchao("Int8WeightOnlyConfig"), CALLS)
family.add("torchao_int8_weights_of_an_encoder", torchao("Int8WeightOnlyConfig", encoder), ((TOKENS,), (TOKENS * 2,)))
family.add("torchao_int8_weights_and_activations", torchao("Int8DynamicActivationInt8WeightConfig"), CALLS)
for bits in range(1, 9):
    family.add(
        f"torchao_intx_weights_of_{bits}_bits",
        torchao("IntxWeightOnlyConfig", weight_dtype=getattr(torch, f"int{bits}")),
        CALLS,
    )
family.add(
    "torchao_int8_activations_and_int4_weights",
    torchao("Int8DynamicActivationIntxWeightConfig", weight_dtype=torch.int4),
    CALLS,
)
family.add("torchao_float8_weights", torchao("Float8WeightOnlyConfig"), CALLS)


@family.model(*CALLS)
def torchao_static_int8_activations() -> nn.Module:
    with quiet():
        from torchao.quantization import Int8StaticActivationInt8WeightConfig, PerTensor, quantize_

        made = linear()
        quantize_(
            made, Int8StaticActivationInt8WeightConfig(act_quant_scale=torch.tensor([[0.05]]), granularity=PerTensor())
        )
        return made


@family.model((torch.tensor([[1, 2]]),), (torch.tensor([[9, 0]]),))
def torchao_int4_embedding() -> nn.Module:
    with quiet():
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

        made = nn.Sequential(nn.Embedding(10, 32)).eval()
        config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
        quantize_(made, config, filter_fn=lambda module, name: isinstance(module, nn.Embedding))
        return made


@family.model(*CALLS)
def torchao_weights_returned() -> nn.Module:
    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torchao("Int8WeightOnlyConfig")()[0]

        def forward(self, x: Tensor) -> Any:
            return self.layer(x), self.layer.weight.qdata, self.layer.weight.dequantize()

    return Shown().eval()


@family.model(*CALLS)
def torchao_in_qat_training() -> nn.Module:
    with quiet():
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.qat import QATConfig

        made = linear().train()
        quantize_(made, QATConfig(Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4), step="prepare"))
        return made


_INT4 = "`Int4WeightOnlyConfig` packs only for GPU kernels; `IntxWeightOnlyConfig(weight_dtype=torch.int4)` works"
family.add(
    "torchao_int4_packed_weights", torchao("Int4WeightOnlyConfig", group_size=32), CALLS, expected=unbuilt(_INT4)
)
_FLOAT8 = "torchao quantises activations to float8 only on GPUs"
family.add(
    "torchao_float8_activations", torchao("Float8DynamicActivationFloat8WeightConfig"), CALLS, expected=unbuilt(_FLOAT8)
)


# -- torch.ao ---------------------------------------------------------------------------------------------------------


@family.forward((X,), (X * 2,), parts=lambda: {"layer": nn.Linear(32, 4)})
def fake_quantised(self: Any, x: Tensor) -> Tensor:
    x = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    scale, zero = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(self.layer(x), scale, zero, 1, -8, 7)


@family.model((X,), (X * 2,), (X * 3,))
def eager_qat_in_training() -> nn.Module:
    with quiet():
        made = linear().train()
        made.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
        prepared: nn.Module = torch.ao.quantization.prepare_qat(made)
        prepared(X)  # observers take the shape of their first input
        return prepared


_PACKED = "the weights are packed into an object for one kind of kernel, which cannot be traced"


@family.model((X,), on_meta=False, expected=refused(_PACKED))
def eager_dynamic_quantisation() -> nn.Module:
    with quiet():
        made: nn.Module = torch.ao.quantization.quantize_dynamic(linear(), {nn.Linear}, torch.qint8)
        return made
