"""Buffers that a model changes: pictures show them by key, and nothing that depends on them counts as computed once."""

import torch
from torch import nn

import torch_ir
from torch_ir.draw.mermaid import to_mermaid
from torch_ir.draw.scene import build_scene


class Counting(nn.Module):
    """Scales by a buffer that each run increases, and by a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(4))
        self.scale = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.steps.exp() * self.scale.sigmoid()
        self.steps.add_(1)
        return x * factor


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Counting() for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def graph(model: type[nn.Module] = Counting) -> torch_ir.IR:
    with torch.device("meta"):
        return torch_ir.extract_ir(model().eval(), (torch.empty(2, 4),))


def drawn(ir: torch_ir.IR, **options: object) -> str:
    return to_mermaid(build_scene(ir, **options))


def test_a_picture_shows_what_is_updated() -> None:
    text = drawn(graph())
    assert 'update_0[\\"Updates<br/>steps"/]' in text
    assert "op_add --> update_0" in text


def test_what_depends_on_a_changing_buffer_is_drawn_in_folded_pictures() -> None:
    """`exp` of the buffer differs from run to run; `sigmoid` of the weight does not."""
    text = drawn(graph(), fold=True)
    assert "op_exp[" in text
    assert "op_sigmoid[" not in text
    assert "Counting<br/>4<br/>4 ops, 4 parameters" in drawn(graph(), depth=1)


def test_repeated_layers_name_what_they_update() -> None:
    """Three equal layers are drawn once; the box lists the buffers of all of them."""
    text = drawn(graph(Layers), fold=True)
    assert text.count("Updates") == 1
    assert "Updates<br/>layers.0.steps<br/>layers.1.steps<br/>layers.2.steps" in text
