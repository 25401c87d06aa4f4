"""Text tables with aligned columns, optionally limited to a width."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_GAP = "  "
_NARROWEST = 12  # characters left of a column that is cut


def aligned(
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    width: int | None = None,
    least: Sequence[int] = (),
    long: int = 0,
) -> list[str]:
    """Format rows in columns; those of `left` are left-aligned, others right-aligned.

    If the table is wider than `width`, the columns of `least` are dropped one by one, and a line above the table names
    them by their titles, the first row; then the column `long` is cut: names at their start, as the end is more
    specific, text at its end.
    """
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = list(range(len(widths)))
    for column in least:
        if width is not None and _whole(widths, shown) > width:
            shown.remove(column)
    if width is not None and (surplus := _whole(widths, shown) - width) > 0:
        widths[long] = max(widths[long] - surplus, _NARROWEST)
        for row in table:
            row[long] = cut(row[long], widths[long])
    dropped = [table[0][column] for column in range(len(widths)) if column not in shown]
    note = [f"(too narrow for: {', '.join(dropped)})"] if dropped else []
    return note + [
        _GAP.join(
            row[column].ljust(widths[column]) if column in left else row[column].rjust(widths[column])
            for column in shown
        ).rstrip()
        for row in table
    ]


def cut(text: str, width: int | None) -> str:
    """Shorten text with an ellipsis: a name, with its count too, at its start; a sentence at its end."""
    if width is None or len(text) <= width:
        return text
    is_sentence = " " in text.partition(" \N{MULTIPLICATION SIGN}")[0]
    return cut_end(text, width) if is_sentence else f"…{text[1 - width :]}"


def cut_end(text: str, width: int) -> str:
    """Shorten text at its end, with an ellipsis."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def _whole(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[column] for column in shown) + len(_GAP) * (len(shown) - 1)
