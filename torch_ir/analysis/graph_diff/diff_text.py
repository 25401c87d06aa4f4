"""Diff as text or Markdown: a summary, then the differing nodes in unified style, module by module.

2 added, 1 removed, 14 same

@@ layers.1 @@
- relu_1: float32[1, 16] = aten.relu.default(self=linear_2)
+ gelu: float32[1, 16] = aten.gelu.default(self=linear_2, approximate='none')
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

from torch_ir.analysis.cost_model.delta import CostDelta
from torch_ir.analysis.graph_diff.differ import Diff
from torch_ir.analysis.graph_diff.events import events
from torch_ir.analysis.graph_diff.node_diff import NodeDiff, node_text
from torch_ir.analysis.graph_diff.replacements import SHOWN, Replacement
from torch_ir.errors import listed
from torch_ir.escaping import as_markdown_block, in_markdown
from torch_ir.ir.text.amounts import plural

SIGNS = {"added": "+", "removed": "-", "changed": "~", "renamed": "="}
DIFFERING = ("added", "removed", "changed")
_BY_PASSES = ("folded", "fused", "merged", "rewritten", "once")
_LONGEST_COMMENT = 50_000  # characters; GitHub's limit is 65,536


def summary_text(found: Diff) -> str:
    """Count the nodes by status: `3 added, 2 removed, 1 changed, 40 renamed, 210 same`."""
    return ", ".join(f"{count} {status}" for status, count in found.summary.items() if count) or "no nodes"


def what_passes_did(found: Diff) -> list[str]:
    """Return what passes did, such as `folded 53 batch_norm into conv2d`; nothing for graphs of different models."""
    return [event.title for event in events(found) if event.kind in _BY_PASSES]


def diff_lines(found: Diff, only: Collection[str] = DIFFERING, title: str = "") -> Iterator[str]:
    """Yield the summary, and every node of these statuses below its module, then differing functions."""
    yield f"{title}{summary_text(found)}"
    if found.besides and {*only} >= {*DIFFERING}:
        yield from ("", "@@ signature @@", *map(_signature_line, found.besides))
    for place, rows in _sections(found, only):
        yield from ("", f"@@ {place} @@", *map(_line, rows))
    for (mine, its), inside in found.functions.items():
        if not inside.is_equal:
            name = mine if mine == its else f"{mine} / {its}"
            yield ""
            yield from diff_lines(inside, only, f"function {name}: ")


def as_text(
    found: Diff,
    deltas: Mapping[str, CostDelta],
    *,
    only: Collection[str] = DIFFERING,
    top: int | None = None,
    over: Collection[str] = (),
    width: int | None = None,
) -> str:
    """Format the whole report, with exceeded budgets; one line if the graphs are equal and nothing is shown."""
    is_short = found.is_equal and not any(found.summary[status] for status in only)
    lines = ["the graphs are equal"] if found.is_equal else []
    if not is_short:
        summary, *nodes = diff_lines(found, only)
        lines += [summary, *(f"  {title}" for title in what_passes_did(found)), *nodes]
    if not found.is_equal:
        lines += [line for name, delta in deltas.items() for line in ("", *_titled(name), delta.text(top, width))]
    return "\n".join([*lines, *(f"over budget: {message}" for message in over)])


def as_markdown(
    found: Diff,
    deltas: Mapping[str, CostDelta],
    *,
    only: Collection[str] = DIFFERING,
    top: int | None = None,
    over: Collection[str] = (),
) -> str:
    """Format the whole report as a pull request comment, with the nodes collapsed."""
    if found.is_equal:
        return f"**The graphs are equal**: {summary_text(found)}"
    parts = [*(f"**Over budget**: {message}" for message in over), f"**The graphs differ**: {summary_text(found)}"]
    if titles := what_passes_did(found):
        parts.append("\n".join(f"- {in_markdown(title)}" for title in titles))
    for name, delta in deltas.items():
        parts += [*_titled(in_markdown(name)), _table(delta.totals()), *filter(None, [delta.note])]
        parts += [_table(delta.parts(top))] if delta.rows else []
    nodes = as_markdown_block("\n".join(_shortened([*diff_lines(found, only)])), "diff")
    parts.append(f"<details><summary>Nodes</summary>\n\n{nodes}\n\n</details>")
    return "\n\n".join(parts)


def _titled(name: str) -> list[str]:
    return [f"{name}:"] if name else []


def _sections(found: Diff, only: Collection[str]) -> Iterator[tuple[str, list[NodeDiff]]]:
    """Yield the nodes to show, with a title: replacements, and runs of nodes from one block of the model."""
    of_first = {name: group for group in found.replacements for name in group.first}
    of_second = {name: group for group in found.replacements for name in group.second}

    def block_of(row: NodeDiff) -> Replacement | str:
        mine, its = row.names
        return of_first.get(mine or "") or of_second.get(its or "") or _block(row.node.origin.module)

    sections: dict[Replacement | int, list[NodeDiff]] = {}
    for number, (block, run) in enumerate(groupby((row for row in found.nodes if row.status in only), block_of)):
        sections.setdefault(number if isinstance(block, str) else block, []).extend(run)
    for group, rows in sections.items():
        if isinstance(group, Replacement):
            nodes = [row.first for row in rows if row.first] or [row.node for row in rows]
            places = listed(list(dict.fromkeys(node.origin.module or "(model)" for node in nodes)), SHOWN)
            yield f"{places}: {len(group.first)} -> {plural(len(group.second), 'node')}", sorted(rows, key=_is_new)
        else:
            paths = {row.node.origin.module for row in rows}
            yield (paths.pop() if len(paths) == 1 else _block(rows[0].node.origin.module)) or "(model)", rows


def _is_new(row: NodeDiff) -> bool:
    return row.first is None


def _block(path: str) -> str:
    """Return the block of a module: a layer with a number, or the parent module."""
    outer, _, last = path.rpartition(".")
    return path if last.isdigit() or not outer else outer


def _signature_line(text: str) -> str:
    for sign, side in (("-", "first"), ("+", "second")):
        if text.endswith(f" only in the {side}"):
            return f"{sign} {text.removesuffix(f' only in the {side}')}"
    return f"~ {text}"


def _line(row: NodeDiff) -> str:
    if row.status in ("added", "removed"):
        return f"{SIGNS[row.status]} {node_text(row.node)}"
    mine, its = row.names
    message = f": {'; '.join(row.details)}" if row.details else ""
    return f"{SIGNS.get(row.status, ' ')} {mine if mine == its else f'{mine} -> {its}'}, {row.node.op_type}{message}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ([in_markdown(cell) for cell in row] for row in rows)
    lines = [head, ["---", *("--:" for _ in head[1:])], *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    """Yield as many lines as fit into a comment, with the sign that Markdown colours as changed."""
    length = 0
    for number, line in enumerate(lines):
        length += len(line) + 1
        if length > _LONGEST_COMMENT:
            yield f"… and {len(lines) - number} lines more"
            return
        yield f"!{line[1:]}" if line.startswith("~") else line
