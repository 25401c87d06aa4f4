"""Figures of devices as their vendors publish them: dense bfloat16 FLOPs and bytes per second.

A device without bfloat16 has its float16 figure. Where a vendor gives only the figure with sparsity, half of it is the
dense one. No program reaches these figures: a time by them is a lower bound.
"""

from __future__ import annotations

from typing import NamedTuple

from torch_ir.analysis.cost_model.roofline import Roofline

_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/"
_TPU = "https://docs.cloud.google.com/tpu/docs/"
_NEURON = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_APPLE = "https://www.apple.com/newsroom/"
T = 1e12


class Published(NamedTuple):
    """A device of a datasheet: its figures, its memory in bytes, and the page that says so."""

    name: str
    peak: float
    bandwidth: float
    memory: float
    source: str

    @property
    def roofline(self) -> Roofline:
        return Roofline(self.peak, self.bandwidth)


_ALL = (
    Published("B200", 2250 * T, 8.0 * T, 180e9, f"{_NVIDIA}dgx-b200/"),
    Published("H200", 989 * T, 4.8 * T, 141e9, f"{_NVIDIA}h200/"),
    Published("H100", 989 * T, 3.35 * T, 80e9, f"{_NVIDIA}h100/"),
    Published("A100", 312 * T, 2.039 * T, 80e9, f"{_NVIDIA}a100/"),
    Published("A100-40GB", 312 * T, 1.555 * T, 40e9, f"{_NVIDIA}a100/"),
    Published("L40S", 362.05 * T, 0.864 * T, 48e9, f"{_NVIDIA}l40s/"),
    Published("L4", 121 * T, 0.3 * T, 24e9, f"{_NVIDIA}l4/"),
    Published("T4", 65 * T, 0.32 * T, 16e9, f"{_NVIDIA}tesla-t4/"),
    Published("RTX-5090", 209.5 * T, 1.792 * T, 32e9, _BLACKWELL),
    Published("RTX-4090", 165.2 * T, 1.008 * T, 24e9, _ADA),
    Published("MI325X", 1307.4 * T, 6.0 * T, 256e9, f"{_AMD}mi300/mi325x.html"),
    Published("MI300X", 1307.4 * T, 5.3 * T, 192e9, f"{_AMD}mi300/mi300x.html"),
    Published("TPU-v6e", 918 * T, 1.6 * T, 32e9, f"{_TPU}v6e"),
    Published("TPU-v5p", 459 * T, 2.765 * T, 95e9, f"{_TPU}v5p"),
    Published("TPU-v5e", 197 * T, 0.8 * T, 16e9, f"{_TPU}v6e"),
    Published("Trainium3", 671 * T, 4.9 * T, 144 * 2**30, f"{_NEURON}trainium3.html"),
    Published("Trainium2", 667 * T, 2.9 * T, 96 * 2**30, f"{_NEURON}trainium2.html"),
    Published("Trainium", 190 * T, 0.82 * T, 32 * 2**30, f"{_NEURON}trainium.html"),
    Published("M1-Ultra", 21 * T, 0.8 * T, 128e9, f"{_APPLE}2022/03/apple-unveils-m1-ultra/"),
    Published("M1-Max", 10.4 * T, 0.4 * T, 64e9, f"{_APPLE}2021/10/introducing-m1-pro-and-m1-max/"),
)
PUBLISHED = {each.name: each for each in _ALL}


def published(text: str) -> Published | None:
    """Return the published device of a name, in any case and with or without dashes; None if it is not listed."""
    wanted = _plain(text)
    return next((each for each in _ALL if _plain(each.name) == wanted), None)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
