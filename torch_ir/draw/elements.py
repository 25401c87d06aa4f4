"""Elements of a drawing, independent of the format: boxes, arrows and frames, and their heading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["input", "op", "weight", "output", "note", "placeholder", "partly", "decision", "connector", "stub"]


@dataclass(frozen=True)
class Box:
    """A box; `id` consists of letters, digits and underscores, `lines` are plain text from the graph.

    `names` are the nodes that it represents, `tip` is its tooltip. A `partly` box contains placeholders among other
    nodes, a `stub` represents what was cut off.
    """

    id: str
    lines: tuple[str, ...]
    kind: Kind
    family: str = ""
    names: tuple[str, ...] = ()
    tip: str = ""
    fill: str = ""  # heat colour, instead of the colour of its family
    mark: str = ""  # difference from another graph: `added`, `removed`, `changed`, `renamed`
    is_centre: bool = False  # the focus of a neighbourhood
    is_dead: bool = False  # nothing that the graph returns or changes depends on it


@dataclass(frozen=True)
class Edge:
    """An arrow between boxes; those from weights are dotted, those to cut-off parts dashed."""

    source: str
    target: str
    label: str = ""
    style: Literal["solid", "dotted", "dashed"] = "solid"


@dataclass(frozen=True)
class Frame:
    """A frame around boxes, by their ids, and nested frames; `is_side` is one side of a comparison."""

    id: str
    title: str
    boxes: tuple[str, ...]
    frames: tuple[Frame, ...]
    is_side: bool = False


@dataclass(frozen=True)
class Scale:
    """The scale of a heat drawing, from its lightest to its darkest colour, and the total."""

    whole: str
    low: str
    high: str


@dataclass(frozen=True)
class Side:
    """A column with a title, by the ids of its boxes."""

    title: str
    boxes: tuple[str, ...]


Item = Box | Edge


@dataclass(frozen=True)
class Scene:
    """Boxes and edges in program order; `open_ends` are the boxes whose values are read beyond the cut."""

    title: str
    items: tuple[Item, ...]
    open_ends: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    legend: str = ""  # in red
    note: str = ""  # what is omitted
    wraps: bool = False  # a strip that is too long is cut into columns
    heading: tuple[str, ...] = ()  # lines above the drawing; the first is its title
    scale: Scale | None = None
    sides: tuple[Side, ...] = ()  # columns that are given, instead of cutting a strip that is too long

    @property
    def boxes(self) -> list[Box]:
        return [item for item in self.items if isinstance(item, Box)]

    @property
    def edges(self) -> list[Edge]:
        return [item for item in self.items if isinstance(item, Edge)]
