"""The DOT label above a drawing: its title, the meaning of colours, and notes on what is missing or omitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch_ir.draw.colours import COLOURS, FONT, MARKS
from torch_ir.draw.elements import Scale, Scene
from torch_ir.draw.heat import colour
from torch_ir.draw.marks import SIGNS
from torch_ir.escaping import in_dot_label

_STEPS = 12  # of the bar of a heat scale
_FEWEST_BOXES, _FEWEST_FAMILIES = 12, 3  # a smaller drawing explains itself
_NAMES = {"matmul": "matrix product", "elementwise": "element-wise", "movement": "data movement"}


def label_of(scene: Scene, columns: int, legend: bool | None) -> str:
    """Return the table above a drawing with this number of columns; empty if there is nothing to show.

    If `legend` is None, families are explained if there are enough of them.
    """
    rows = list(_heading(scene.heading))
    if scene.legend:
        rows.append(_red(scene.legend))
    if scene.scale:
        rows.append(_scale(scene.scale))
    if marks := [mark for mark in MARKS if any(box.mark == mark for box in scene.boxes)]:
        rows.append(_marks(marks))
    elif families := _families(scene, legend):
        rows.append(_swatches(families, 2 if columns < 2 else 8))
    if scene.note:
        rows.append(_words(scene.note, 10))
    if not rows:
        return ""
    cells = "".join(f'<tr><td align="left">{row}</td></tr>' for row in rows)
    return f'<<table border="0" cellborder="0" cellspacing="4" cellpadding="0">{cells}</table>>'


def _families(scene: Scene, legend: bool | None) -> list[str]:
    boxes = [box for box in scene.boxes if box.kind == "op"]
    found = {box.family for box in boxes if not box.fill}
    is_worth_it = len(boxes) >= _FEWEST_BOXES and len(found) >= _FEWEST_FAMILIES
    return [name for name in COLOURS if name in found] if found and (is_worth_it if legend is None else legend) else []


def _heading(lines: tuple[str, ...]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield _words(line, 10, "#5c5c5c") if number else f"<b>{_words(line, 14, '#222222')}</b>"


def _red(text: str) -> str:
    fill, border = COLOURS["placeholder"]
    look = f'border="1" cellborder="0" cellpadding="5" color="{border}" bgcolor="{fill}"'
    return f"<table {look}><tr><td>{_words(text, 12, border)}</td></tr></table>"


def _scale(scale: Scale) -> str:
    bar = "".join(f'<td width="11" height="11" bgcolor="{colour(at / (_STEPS - 1))}"></td>' for at in range(_STEPS))
    ends = f"<td>{_words(f'{scale.low} ', 10)}</td>", f"<td>{_words(f' {scale.high};  {scale.whole}', 10)}</td>"
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="0"><tr>{ends[0]}{bar}{ends[1]}</tr></table>'


def _swatches(families: Sequence[str], across: int) -> str:
    """Format small squares with their names, `across` per row."""
    square = 'fixedsize="true" width="12" height="12" border="1" cellborder="0"'
    cells = [
        f'<td><table {square} color="{border}" bgcolor="{fill}"><tr><td></td></tr></table></td>'
        f'<td align="left">{_words(f"{_NAMES.get(name, name)}   ", 10)}</td>'
        for name, (fill, border) in ((name, COLOURS[name]) for name in families)
    ]
    rows = "".join(f"<tr>{''.join(cells[at : at + across])}</tr>" for at in range(0, len(cells), across))
    return f'<table border="0" cellborder="0" cellspacing="3" cellpadding="0">{rows}</table>'


def _marks(marks: Sequence[str]) -> str:
    """Format squares as text, as a title above would stretch a table."""
    return "".join(_words("■", 13, MARKS[mark][1]) + _words(f" {SIGNS[mark]} {mark}    ", 10) for mark in marks)


def _words(text: str, size: int, colour: str = "#5c5c5c") -> str:
    return f'<font face="{FONT}" point-size="{size}" color="{colour}">{in_dot_label(text)}</font>'
