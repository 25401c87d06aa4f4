"""Plans: a mapping from paths of modules and weights, with `*` for one step, to parallel styles."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch_ir.errors import ShardError, suggestion
from torch_ir.ir import IR, TensorMeta
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.graph.origins import is_within, modules_around
from torch_ir.ir.graph.placements import REPLICATE, Placement
from torch_ir.sharding.entry_placements import all_entries
from torch_ir.sharding.heads import with_shared_heads
from torch_ir.sharding.styles import Style, style_of

_MOST_PATTERNS = 500  # rows with `*`: each is compared with each path
_LONGEST = 1000  # characters of a path or style in a configuration
_MOST_PARTIAL = 3  # `*` in a pattern that match part of a step, as in `layer*`


class Plan:
    """The styles of modules and weights of one model; rows that match nothing are rejected."""

    def __init__(self, given: Mapping[str, Any], ir: IR) -> None:
        styles = {path: (at, style_of(style, path)) for at, (path, style) in enumerate(given.items())}
        patterns = [path for path in given if "*" in path]
        if len(patterns) > _MOST_PATTERNS:
            raise ShardError(f"plan: {len(patterns)} rows with '*' are more than {_MOST_PATTERNS}; spell them out")
        self._patterns = [(_pattern(path), *styles[path]) for path in patterns]
        self._exact = {path: row for path, row in styles.items() if "*" not in path}
        self._classes = {path: name for entry in all_entries(ir) for path, name in entry.modules.items()}
        self.around = cache(self._around)
        known = paths_of(ir)
        matched = self._exact.keys() & set(known)
        matched |= {
            path for path, (row, *_) in zip(patterns, self._patterns, strict=True) if any(map(row.fullmatch, known))
        }
        for path in given:
            if path not in matched:
                hint = suggestion(path, dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in known))
                raise ShardError(f"plan: {path!r:.80} matches no module or weight of the graph{hint and f'; {hint}'}")

    def of(self, path: str) -> Style | None:
        """Return the style of a module or weight; the first matching row wins."""
        first, style = self._exact.get(path, (math.inf, None))
        earlier = (each for pattern, at, each in self._patterns if at < first and pattern.fullmatch(path))
        return next(earlier, style)

    def _around(self, path: str) -> tuple[tuple[str, Style], ...]:
        """Return the enclosing modules with a style, including the module itself, outermost first."""
        found = ((module, self.of(module)) for module in modules_around(path))
        return tuple((module, style) for module, style in found if style is not None)

    def of_weight(self, param: TensorMeta) -> dict[str, Placement]:
        """Return the placement of a weight by owning module; tied weights have several owners."""
        found: dict[str, Placement] = {}
        for key in param.param.keys if param.param and param.param.in_state_dict else ():
            module = key.rpartition(".")[0]
            style = self.of(key) or self.of(module)
            of_class = self._classes.get(module, "").rpartition(".")[2]
            found[module] = style.of_weight(len(param.shape), of_class) if style else REPLICATE
        return found

    def is_gathered(self, param: TensorMeta) -> bool:
        """Whether a weight is stored in shards and gathered before each use."""
        keys = param.param.keys if param.param and param.param.in_state_dict else ()
        styles = [self.of(key) or self.of(key.rpartition(".")[0]) for key in keys]
        return any(style is not None and style.is_gathered for style in styles)


def paths_of(ir: IR) -> list[str]:
    """Return the paths of all modules and weights in a graph and its further entry points."""
    found: dict[str, None] = {}
    for entry in all_entries(ir):
        keys = [key for param in entry.params if param.param for key in param.param.keys]
        owners = (key.rpartition(".")[0] for key in keys)
        found |= dict.fromkeys([*entry.modules, *(node.origin.module for node in entry.nodes), *owners, *keys])
    return list(found)


def _pattern(path: str) -> re.Pattern[str]:
    """Compile `layers.*.mlp` to a regular expression: `*` matches one step of a path, `**` any number of them.

    Text between two `**` is matched without backtracking, as in `fnmatch`, and partial `*` are limited, so that
    matching is fast for every path.
    """
    parts = re.split(r"\*\*+", path)
    if sum(step.count("*") for part in parts for step in part.split(".") if step != "*") > _MOST_PARTIAL:
        raise ShardError(
            f"plan: {path!r:.80} has more than {_MOST_PARTIAL} '*' that match part of a step; spell it out"
        )
    first, *rest = ["[^.]*?".join(map(re.escape, part.split("*"))) for part in parts]
    found = [f"(?=(?P<g{number}>.*?{part}))(?P=g{number})" for number, part in enumerate(rest[:-1])]
    return re.compile("".join([first, *found, *(f".*{part}" for part in rest[-1:])]))


def transformers_plan(
    source: Any, ir: IR, *, ranks: int | None = None, expert_parallel: bool = False
) -> dict[str, str]:
    """Return transformers' plan for a model or configuration.

    With `ranks`, key and value modules with too few heads to divide are replicated. With `expert_parallel`, whole
    experts are distributed over the ranks, if the configuration has a plan for that.
    """
    require_graph(ir, "transformers_plan")
    if ranks is not None and (type(ranks) is not int or ranks < 1):
        raise ShardError(f"ranks must be an integer of at least 1, not {ranks!r:.80}")
    config = getattr(source, "config", source)
    plan = _below_base(_rows_of(config, "base_model_tp_plan"), ir)
    experts = _below_base(_rows_of(config, "base_model_ep_plan"), ir) if expert_parallel else {}
    if not (experts if expert_parallel else plan):
        kind = "expert" if expert_parallel else "tensor"
        raise ShardError(f"{type(config).__name__} has no plan for {kind} parallelism; write one")
    dense = {path: style for path, style in plan.items() if not any(is_within(path, owner) for owner in experts)}
    known = paths_of(ir)  # a plan covers a family of models; not each has every module
    rows = dense | experts | _of_head(source, ir)
    patterns = {path: _pattern(path) for path in rows}
    found = {path: style for path, style in rows.items() if any(map(patterns[path].fullmatch, known))}
    for path in rows:
        if path not in found and path.rpartition(".")[0] in found:  # a weight of experts that have a style
            raise ShardError(
                f"the plan divides {path}, but the graph stores each expert separately, as the checkpoint does; "
                "capture it with extract_llm(weight_layout='model'), or torch-ir llm --weight-layout model"
            )
    rows = found
    return rows if ranks is None else with_shared_heads(rows, patterns, ir, ranks)


def _rows_of(config: Any, name: str) -> dict[str, str]:
    """Return a plan of a configuration, which a file may replace by anything."""
    rows = getattr(config, name, None) or {}
    texts = [text for row in rows.items() for text in row] if isinstance(rows, dict) else [None]
    if len(texts) > 2 * _MOST_PATTERNS or not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts):
        expected = f"expected at most {_MOST_PATTERNS} module paths, each with a style, of {_LONGEST} characters"
        raise ShardError(f"{name} of {type(config).__name__} is not a plan: {expected}")
    return dict(rows)


def _below_base(plan: Mapping[str, str], ir: IR) -> dict[str, str]:
    """Prefix a plan of the base model with its path: `layers.*` -> `model.layers.*`."""
    if not plan:
        return {}
    first = _pattern(next(iter(plan)))
    bases = {path[: -len(rest)] for path in paths_of(ir) for rest in _tails(path) if first.fullmatch(rest)}
    base = min(bases, key=len, default="")
    return {f"{base}{path}": style for path, style in plan.items()}


def _tails(path: str) -> list[str]:
    steps = path.split(".")
    return [".".join(steps[count:]) for count in range(len(steps))]


def _of_head(source: Any, ir: IR) -> dict[str, str]:
    """Return the plan of the model class for its head; a configuration alone names the class at best."""
    kind = type(source)
    if hasattr(source, "architectures"):  # a configuration
        import transformers

        names = [ir.model_name, *(source.architectures if isinstance(source.architectures, list) else ())]
        found = (getattr(transformers, name, None) for name in names if isinstance(name, str))
        kind = next((each for each in found if isinstance(each, type)), kind)
    return dict(getattr(kind, "_tp_plan", None) or {})
