"""Lower a graph to a target: try the most specific handlers first, and leave placeholders where all fail.

Handlers receive a throw-away copy, so they cannot modify the graph.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch_ir.errors import ConversionError, GraphError, first_line
from torch_ir.ir import IR, FunctionRef, OpNode, Origin, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.graph.node import copy_value
from torch_ir.ir.regroup.functions import inline, inline_all, outline
from torch_ir.ir.regroup.granularity import public_name
from torch_ir.ir.regroup.shared_functions import share_functions
from torch_ir.rewrite import Match, match
from torch_ir.targets.handlers import BODY, Declined, Rule, identifier
from torch_ir.targets.lowered import NO_LOWERING, Layer, Lowered, Missing, Placeholder
from torch_ir.targets.module_calls import Calls, calls_of, depth, fold_calls, is_whole_block, name_of
from torch_ir.targets.node_summary import describe

if TYPE_CHECKING:
    from torch_ir.targets.splitting import Splitter
    from torch_ir.targets.target import Target

logger = logging.getLogger("torch_ir.targets")
_CHECKS = ("aten._assert", "aten.sym_constrain_range", "torch_ir.fixed_attribute.")  # they compute nothing
_LONGEST = 300  # characters of a reason
_SPLIT = "split by torch, it lacks "
_MOST_NAMES = 4
_REFUSED = object()


class Lowering:
    """The state of a lowering: which nodes are lowered, and why others are not."""

    def __init__(self, target: Target, ir: IR) -> None:
        self.target = target
        self.ir = ir.clone()
        self.taken: dict[OpNode, list[Layer]] = {}
        self.reasons: dict[OpNode, dict[str, None]] = {}
        self._has_modules = any(target.handles(public_name(name)) for name in set(ir.modules.values()))

    def run(self, splitter: Splitter | None = None) -> Lowered:
        """Try handlers at finer and finer granularity until no call is left to inline."""
        self._inline_calls(self._may_inline_now)
        while True:
            calls = calls_of(self.ir, self.target.handles)
            self._lower_patterns()
            self._lower_calls(calls)
            self._lower_nodes()
            if not self._inline_calls(lambda call: True):
                break
        if splitter is not None:
            self._split_nodes(splitter)
        share_functions(self.ir)
        layers = [layer for node in self.ir.nodes for layer in self._layers(node)]
        return Lowered(self.target.name, self.ir, layers)

    def _may_inline_now(self, call: OpNode) -> bool:
        """Whether a call can be inlined at once: it has no handler, or it can be folded again by its module."""
        if is_whole_block(self.ir, call, self.target.handles) and not self.target.patterns:
            return False  # folding would restore it
        module = self.ir.modules.get(call.origin.module, "")
        return public_name(module) == call.op_type or not self.target.handles(call.op_type)

    def _inline_calls(self, is_wanted: Callable[[OpNode], bool]) -> bool:
        """Inline the calls that are not lowered; return whether there were any."""

        def is_open(call: OpNode) -> bool:
            return self._is_open(call) and is_wanted(call)

        def is_plain(call: OpNode) -> bool:
            body = self.ir.functions[call.attrs["function"]]
            return is_open(call) and call not in self.reasons and not body.symbols and not body.params

        count = inline_all(self.ir, is_plain)
        for call in [node for node in self.ir.nodes if node.is_call and is_open(node)]:
            reasons = self.reasons.get(call, {})
            try:
                inside = inline(self.ir, call)
            except GraphError as error:
                self._refuse(call, str(error))
            else:
                self.reasons.update((node, dict(reasons)) for node in inside)
                count += 1
        return count > 0

    def _lower_patterns(self) -> None:
        if not self.target.patterns:
            return
        copies = _Copies(self.ir)
        for pattern, rule in self.target.patterns:
            for node in list(self.ir.nodes):
                found = match(pattern, node) if self._is_open(node) else None
                if found is not None and all(map(self._is_open, found.nodes)):
                    self._lower_match(rule, found, copies)

    def _lower_match(self, rule: Rule, found: Match, copies: _Copies) -> None:
        leak = _read_outside(found)
        if leak:
            self._refuse(found.node, f"{rule.name}: {leak}")
            return
        captures = {name: copies.of(value) for name, value in found.captures.items()}
        value = self._ask(rule, copies.nodes[found.node], captures, [found.node])
        if value is not _REFUSED:
            about, weights = " + ".join(map(describe, found.nodes)), _captured_weights(found)
            self._take(self._outline(rule, found), found.nodes, value, about, weights)

    def _outline(self, rule: Rule, found: Match) -> OpNode | str:
        """Replace a match by one node, or return why that is impossible."""
        name = fresh(rule.name, set(self.ir.functions))
        try:
            return outline(self.ir, found.nodes, name, f"{identifier(self.target.name)}.{rule.name}")
        except GraphError as error:
            return f"{rule.name}: {error}"

    def _lower_calls(self, calls: Calls) -> None:
        """Lower whole calls of modules, outermost first, then of torch functions."""
        for _, level in itertools.groupby(sorted(calls, key=depth), depth):
            whole = {call: calls[call] for call in level if self._is_open_call(calls[call])}
            copies = _Copies(self.ir)
            folded = fold_calls(copies.ir, {call: [copies.nodes[n] for n in nodes] for call, nodes in whole.items()})
            bodies = {call: copies.bodies(copy) for call, copy in folded.items() if isinstance(copy, OpNode)}
            values = {}
            for call, copy in folded.items():
                value = self._ask_all(call, copy, bodies.get(call, {}), whole[call])
                if value is not _REFUSED:
                    values[call] = value
            self._take_calls({call: whole[call] for call in values}, values)

    def _ask_all(self, call: Origin, copy: OpNode | str, bodies: Mapping[str, Any], nodes: Sequence[OpNode]) -> Any:
        """Return the result of the first handler that accepts a call, or _REFUSED."""
        if isinstance(copy, str):
            self._refuse_all(nodes, copy)
            return _REFUSED
        answers = (self._ask(rule, copy, bodies, nodes) for rule in self.target.rules_for(name_of(self.ir, call)))
        return next((answer for answer in answers if answer is not _REFUSED), _REFUSED)

    def _take_calls(self, calls: Calls, values: Mapping[Origin, Any]) -> None:
        abouts = {call: describe(nodes[0]) if len(nodes) == 1 else "" for call, nodes in calls.items()}
        for call, made in fold_calls(self.ir, calls).items():
            self._take(made, calls[call], values[call], abouts[call])

    def _lower_nodes(self) -> None:
        copies = _Copies(self.ir)
        for node in self.ir.nodes:
            for rule in self.target.rules_for(node.op_type) if self._is_open(node) else ():
                value = self._ask(rule, copies.nodes[node], copies.bodies(node), [node])
                if value is not _REFUSED:
                    self.taken[node] = [_layer(node, value)]
                    break

    def _split_nodes(self, splitter: Splitter) -> None:
        """Decompose nodes with torch if handlers accept all parts."""
        for node in self.ir.nodes:
            if self._is_open(node) and node.outputs:
                try:
                    with splitter.split(node) as finer:
                        inside = Lowering(self.target, finer).run(splitter)
                except ConversionError as error:
                    self._refuse(node, f"not split: {error}")
                    continue
                if inside.is_complete:
                    self.taken[node] = inside.layers
                else:
                    self._refuse(node, f"{_SPLIT}{', '.join(dict.fromkeys(map(_lacking, inside.missing)))}")

    def _layers(self, node: OpNode) -> list[Layer]:
        if node in self.taken:
            return self.taken[node]
        if not node.outputs and node.op_type.startswith(_CHECKS):
            return []
        untried = () if self.target.handles(node.op_type) else (NO_LOWERING,)
        why = (*untried, *self.reasons.get(node, ()), *(_merged(node) if self._has_modules else ()))
        return [_layer(node, Placeholder(node, why))]

    def _ask(self, rule: Rule, copy: OpNode, known: Mapping[str, Any], nodes: Sequence[OpNode]) -> Any:
        """Return a handler's result for a copy of these nodes, or _REFUSED."""
        try:
            value = rule(copy, known)
            if value is None:
                value = Declined("it returned None")
            if type(value) is not Declined:
                return value
            why = f"{rule.name}: {value.why}"
        except Exception as error:
            why = f"{rule.name} raised {_summary(error)}"
        self._refuse_all(nodes, why)
        return _REFUSED

    def _take(
        self, call: OpNode | str, nodes: Sequence[OpNode], value: Any, about: str, weights: dict[str, str] | None = None
    ) -> None:
        """Record the call that replaces nodes lowered to one layer."""
        if isinstance(call, str):
            self._refuse_all(nodes, call)
            return
        self.taken.update((node, []) for node in nodes)  # they are inside the call now
        self.taken[call] = [_layer(call, value, about, weights)]

    def _is_open_call(self, nodes: Sequence[OpNode]) -> bool:
        """Whether nodes can become one call; a block that already is one is lowered as a node."""
        is_block = len(nodes) == 1 and is_whole_block(self.ir, nodes[0], self.target.handles)
        return not is_block and all(map(self._is_open, nodes))

    def _is_open(self, node: OpNode) -> bool:
        return node not in self.taken

    def _refuse(self, node: OpNode, why: str) -> None:
        self.reasons.setdefault(node, {})[" ".join(why.split())[:_LONGEST]] = None

    def _refuse_all(self, nodes: Sequence[OpNode], why: str) -> None:
        for node in nodes:
            self._refuse(node, why)


class _Copies:
    """Copies of all nodes and tensors of a graph, for handlers."""

    def __init__(self, ir: IR) -> None:
        self.ir = ir.clone()
        self.nodes = dict(zip(ir.nodes, self.ir.nodes, strict=True))
        self._tensors = dict(zip(ir.tensors(), self.ir.tensors(), strict=True))

    def of(self, value: Any) -> Any:
        """Return the copy of a captured value."""
        if isinstance(value, OpNode):
            return self.nodes[value]
        if isinstance(value, TensorMeta):
            return self._tensors[value]
        return [self.of(item) for item in value] if isinstance(value, list) else copy_value(value)

    def bodies(self, node: OpNode) -> dict[str, IR | None]:
        """Return the graph inside a call as `body`; those of control flow under their attribute names."""
        found = {name: self.ir.functions.get(v) for name, v in node.attrs.items() if isinstance(v, FunctionRef)}
        return {BODY: found.get("function"), **found}


def log_layers(layers: Sequence[Layer], log: Callable[[str], object] | None) -> None:
    """Log a line per layer, to the given function or to the logger."""
    for layer in layers:
        mark = f"  ({'; '.join(layer.value.why)})" if type(layer.value) is Placeholder else ""
        if log is not None:
            log(layer.about + mark)
        else:
            logger.log(logging.INFO if mark else logging.DEBUG, "%s%s", layer.about, mark)


def _merged(node: OpNode) -> list[str]:
    """Return a note if a node was merged from several captured ones, so that no module handler applies."""
    names = node.origins
    if len(names) < 2 or node.is_call:
        return []
    listed = ", ".join(names[:_MOST_NAMES]) + (" and more" if len(names) > _MOST_NAMES else "")
    return [f"it was merged from {listed}; lower it by operator or by pattern"]


def _read_outside(found: Match) -> str:
    """Return which inner value of a match is used outside, or ""; one layer for all nodes would lose it."""
    for node in found.nodes[:-1]:
        for tensor in node.outputs:
            for reader in tensor.consumers:
                if reader not in found.nodes:
                    return f"{tensor.name!r} is also read by {reader.name!r}"
    return ""


def _layer(node: OpNode, value: Any, about: str = "", weights: dict[str, str] | None = None) -> Layer:
    inputs = tuple(tensor.name for tensor in node.inputs if tensor.param is None)
    outputs = tuple(tensor.name for tensor in node.outputs)
    if weights is None:
        weights = {name: tensor.key for name, tensor in zip(node.args, node.inputs, strict=True) if tensor.key}
    return Layer(node.name, node.op_type, inputs, outputs, weights, value, about or describe(node))


def _captured_weights(found: Match) -> dict[str, str]:
    """Return the weights that a match reads, by capture name if captured."""
    names = {tensor: name for name, tensor in found.captures.items() if isinstance(tensor, TensorMeta)}
    read = (tensor for node in found.nodes for tensor in node.inputs)
    return {names.get(tensor, tensor.name): tensor.key for tensor in read if tensor.key}


def _lacking(row: Missing) -> str:
    """Return an operator that a decomposed node still lacks, with the reasons of its handlers."""
    own = [reason for reason in row.reasons if reason != NO_LOWERING and not reason.startswith(("not split", _SPLIT))]
    return f"{row.op_type} ({'; '.join(own)})" if own else row.op_type


def _summary(error: Exception) -> str:
    """Return an error as one line, even if its own `str()` fails."""
    kind = type(error).__name__
    try:
        text = first_line(Exception(*error.args) if isinstance(error, KeyError) else error)  # str(KeyError) is a repr
    except Exception:
        return kind
    return kind if text == kind else f"{kind}: {text}"
