"""The report of a quantisation: each layer with its scheme and bytes, or why it stays in float."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_ir.ir.text.amounts import human
from torch_ir.ir.text.text_table import aligned


@dataclass(frozen=True)
class QuantizedLayer:
    """One layer: its name, its scheme (None: float), the bytes of its weight before and after, and why it is float.

    The weight of a `tied` layer is that of an earlier layer, and counts there.
    """

    name: str
    path: str
    op_type: str
    scheme: str | None
    bytes_before: int
    bytes_after: int
    tied: bool = False
    declined: str = ""


@dataclass(frozen=True)
class QuantizationReport:
    """Report of `quantize`, layer by layer."""

    layers: Sequence[QuantizedLayer]

    @property
    def bytes_before(self) -> int:
        """The bytes of the weights of all layers in float."""
        return _total(self.layers)[0]

    @property
    def bytes_after(self) -> int:
        """The bytes of the weights of all layers as they are kept in memory, with scales and zero points."""
        return _total(self.layers)[1]

    @property
    def declined(self) -> list[QuantizedLayer]:
        """The layers that the recipe names, but that stay in float."""
        return [layer for layer in self.layers if layer.declined]

    def to_dict(self) -> dict[str, Any]:
        """Return the layers and the bytes for JSON."""
        return {
            "layers": [asdict(layer) for layer in self.layers],
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def __str__(self) -> str:
        """A table of the schemes, the totals, and every declined layer."""
        counts: dict[str, list[QuantizedLayer]] = {}
        for layer in self.layers:
            counts.setdefault(layer.scheme or "float", []).append(layer)
        rows = [["scheme", "layers", "before", "after"]]
        for scheme, found in [*counts.items(), ("total", list(self.layers))]:
            rows.append([scheme, str(len(found)), *(human(size, "B") for size in _total(found))])
        lines = aligned(rows)
        return "\n".join([*lines, *(f"{layer.name} stays in float: {layer.declined}" for layer in self.declined)])


def _total(layers: Sequence[QuantizedLayer]) -> tuple[int, int]:
    """Return the bytes of the weights before and after; tied weights count once."""
    own = [layer for layer in layers if not layer.tied]
    return sum(layer.bytes_before for layer in own), sum(layer.bytes_after for layer in own)
