"""Fold the rows of equal layers: `model.layers.*.mlp` for those of 80 layers that cost the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from torch_ir.analysis.cost_model.table_rows import Row, joined_rows

_Pattern = tuple[str | None, ...]  # a step of a path may itself be `*`: an expert of a checkpoint that stacks them


def fold_layers(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with those of modules that differ only in numbers, and cost the same, joined.

    layers.0.mlp, layers.1.mlp, layers.2.mlp   ->  layers.*.mlp, or layers.0-1.mlp if the last one differs
    """
    groups: dict[Hashable, list[Row]] = {}
    numbers: dict[_Pattern, list[tuple[int, ...]]] = {}
    for row in rows:
        pattern, number = _parted(row.name)
        groups.setdefault((pattern, row.count, row.work.amounts(), row.params), []).append(row)
        numbers.setdefault(pattern, []).append(number)
    return [
        members[0] if len(members) == 1 else joined_rows(_name(members, numbers), members)
        for members in groups.values()
    ]


def _parted(name: str) -> tuple[_Pattern, tuple[int, ...]]:
    """Return the steps of a path with None for its numbers, and the numbers."""
    steps = name.split(".")
    numbers = tuple(int(step) for step in steps if step.isdecimal())
    return tuple(None if step.isdecimal() else step for step in steps), numbers


def _name(members: Sequence[Row], numbers: dict[_Pattern, list[tuple[int, ...]]]) -> str:
    """Name folded rows: `*` for all numbers of a list of modules, otherwise the numbers themselves."""
    pattern = _parted(members[0].name)[0]
    mine = zip(*(_parted(row.name)[1] for row in members), strict=True)
    every = zip(*numbers[pattern], strict=True)
    texts = iter(["*" if set(own) == set(known) else _ranges(own) for own, known in zip(mine, every, strict=True)])
    return ".".join(next(texts) if step is None else step for step in pattern)


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers: `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
