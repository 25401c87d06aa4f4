"""What a picture consists of, before any format: boxes, arrows and frames, and what stands above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["input", "op", "weight", "output", "note", "placeholder", "partly", "decision", "connector", "stub"]


@dataclass(frozen=True)
class Box:
    """A box; `id` is made of letters, digits and underscores, `lines` are plain text from the graph.

    `names` are the nodes that it stands for, `tip` is what a viewer says when it is pointed at. A `partly` box holds
    placeholders among other nodes, a `stub` stands for what was cut off.
    """

    id: str
    lines: tuple[str, ...]
    kind: Kind
    family: str = ""
    names: tuple[str, ...] = ()
    tip: str = ""
    fill: str = ""  # of a heat scale, instead of the colour of its family
    mark: str = ""  # how it differs from another graph: `added`, `removed`, `changed`, `renamed`
    is_centre: bool = False  # what a picture of a neighbourhood is about


@dataclass(frozen=True)
class Edge:
    """An arrow from box to box; weights come in dotted, what was cut off goes on dashed."""

    source: str
    target: str
    label: str = ""
    style: Literal["solid", "dotted", "dashed"] = "solid"


@dataclass(frozen=True)
class Frame:
    """A frame around boxes, by their ids, and around other frames; one side of a comparison is `is_side`."""

    id: str
    title: str
    boxes: tuple[str, ...]
    frames: tuple[Frame, ...]
    is_side: bool = False


@dataclass(frozen=True)
class Scale:
    """What the colours of a heat picture mean, from its lightest to its darkest, and how much there is in all."""

    whole: str
    low: str
    high: str


Item = Box | Edge


@dataclass(frozen=True)
class Scene:
    """Boxes and edges in the order of the program; `open_ends` are the boxes whose values go on beyond the cut."""

    title: str
    items: tuple[Item, ...]
    open_ends: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    legend: str = ""  # in red
    note: str = ""  # what is left out
    wraps: bool = False  # a strip that is too long is cut into columns
    heading: tuple[str, ...] = ()  # lines above the picture; the first is its title
    scale: Scale | None = None

    @property
    def boxes(self) -> list[Box]:
        return [item for item in self.items if isinstance(item, Box)]

    @property
    def edges(self) -> list[Edge]:
        return [item for item in self.items if isinstance(item, Edge)]
