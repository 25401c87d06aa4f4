"""Structure around the nodes of a graph: nesting of inputs and outputs, origins, modules, extensions."""

from collections.abc import Sequence
from typing import Any

from tests.random_irs.draws import Draw
from torch_ir.ir.graph.io_tree import Branch, Slot, Tree
from torch_ir.ir.graph.node import Origin

_MODULES = ("", "encoder", "encoder.layers.0", "encoder.layers.1", "encoder.layers.1.größe", "head", "a.0.b")
_CLASSES = ("Linear", "Block", "Encoder", "größe.Modul", "")


def origin(draw: Draw) -> Origin:
    """Draw the origin of a node; one in three has none."""
    if draw.chance(0.3):
        return Origin()
    outer = tuple(f"{draw.choice(_MODULES)}@{draw.randint(1, 3)}" for _ in range(draw.choice((0, 0, 0, 1, 2))))
    source = draw.choice(("", "model.py:3", draw.line()))
    function = draw.choice(("", "", "", "torch.cat@1", draw.line()))
    return Origin(draw.choice(_MODULES), draw.choice((0, 0, 1, 7)), draw.choice(_CLASSES), source, outer, function)


def modules(draw: Draw) -> dict[str, str]:
    return {path: f"model.{draw.choice(_CLASSES)}" for path in draw.sample(_MODULES, draw.randint(0, len(_MODULES)))}


def extensions(draw: Draw, depth: int = 0) -> Any:
    """Return arbitrary JSON, as a third party would store it."""
    if depth < 3 and draw.chance(0.5 if depth else 1):
        return {draw.text(): extensions(draw, depth + 1) for _ in range(draw.randint(0, 3))}
    if depth < 3 and draw.chance(0.3):
        return [extensions(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    return draw.choice((None, True, draw.whole(), draw.text(), draw.gauss(0, 1)))


def input_tree(draw: Draw, count: int, symbols: list[str]) -> Branch:
    """A tuple of arguments and a dict of keywords over all inputs."""
    slots = draw.sample(range(count), count)
    cut = draw.randint(0, count)
    arguments = _branch(draw, "tuple", slots[:cut], symbols)
    keywords = [tree_over(draw, [slot], symbols) for slot in slots[cut:]]
    names = [f"keyword_{index}" for index in range(len(keywords))]
    return Branch("tuple", (Branch("tuple", arguments.items), Branch("dict", tuple(keywords), tuple(names))))


def tree_over(draw: Draw, slots: Sequence[int], symbols: list[str], depth: int = 0) -> Tree:
    """Draw containers of any kind with these tensors, each once, and some values."""
    if len(slots) == 1 and draw.chance(0.7):
        return Slot(slots[0])
    if not slots and (depth > 2 or draw.chance(0.5)):
        return draw.leaf(symbols)
    if depth > 5:
        return Branch("list", tuple(map(Slot, slots)))
    return _branch(draw, draw.choice(("tuple", "list", "dict", "object")), slots, symbols, depth + 1)


def _branch(draw: Draw, kind: str, slots: Sequence[int], symbols: list[str], depth: int = 1) -> Branch:
    cuts = sorted(draw.choices(range(len(slots) + 1), k=draw.randint(0, 3)))
    parts = [slots[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(slots)], strict=True)]
    items = tuple(tree_over(draw, part, symbols, depth) for part in parts)
    if kind == "dict":
        return Branch(kind, items, _keys(draw, len(items)))
    fields = tuple(f"field_{index}" for index in range(len(items)))
    if kind != "list" and draw.chance(0.5):
        return Branch(kind, items, fields, draw.choice(("model.Output", "größe.Paar", "class")))
    return Branch(kind, items, (), draw.choice(("", "model.Output")) if kind == "object" else "")


def _keys(draw: Draw, count: int) -> tuple[Any, ...]:
    """Different keys of a dict: texts, numbers, and tuples of these."""
    kinds = (lambda index: f"key_{index}", lambda index: index + 2, lambda index: (index, "pair", None))
    kinds = (*kinds, lambda index: index + 0.5, lambda index: f"{draw.text()}{index}")
    return tuple(draw.choice(kinds)(index) for index in range(count))
