"""Search for the styles of a graph's modules: dynamic programming over its nodes.

A state is where the live tensors are, and the choices that later nodes depend on. Of the ways to reach a state, those
are kept that no other way beats in both time and memory. Equal layers are calls of one function: its ways are searched
once for each placement of its inputs, and all calls of the function make the same choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, TypeVar

from torch_ir.ir import OpNode, TensorMeta
from torch_ir.ir.graph.placements import REPLICATE, Placement
from torch_ir.planning.graph_scopes import Called, Scope, Scopes
from torch_ir.planning.rank_steps import Ranks, RankSteps
from torch_ir.planning.style_options import Variable
from torch_ir.sharding.rank_graph import Held

_MOST_STATES = 2000  # of one node; the slowest of more are dropped
_MOST_WAYS = 32  # of one state
_MOST_OPENING = 4  # variables that begin with one node; the first option of others, usually the whole weight, is taken
_MOST_OUTCOMES = 60_000  # of one search; after them, only the fastest way is followed
_MOST_PLACEMENTS = 8  # of a layer's input, for which its ways are searched

Choices = tuple[Any, ...]  # one for each variable: a Choice, or the Choices of a called function
Given = Mapping[TensorMeta, Held]


class Way(NamedTuple):
    """A way to a state: its time, the bytes of its weights and inputs, and how it came there."""

    seconds: float
    bytes: float
    before: Way | None
    chosen: tuple[tuple[int, Any], ...]  # variables that begin here, and their choices


class State(NamedTuple):
    """Placements of the live tensors, the choices that count from here, and the ways to get here."""

    held: Given
    choices: tuple[Any, ...]
    ways: list[Way]


class Outcome(NamedTuple):
    """A scope in one state: changed records of tensors, its time, the bytes that it adds, and new choices."""

    held: Given
    seconds: float
    bytes: float
    chosen: tuple[tuple[int, Any], ...]


class End(NamedTuple):
    """A way through a whole graph, and the placements of its results."""

    way: Way
    choices: Choices
    places: tuple[Placement, ...]
    results: tuple[Held, ...]


class GraphSearch:
    """Searches one graph or function; `most_bytes` bounds the memory of its weights and inputs."""

    def __init__(self, ranks: Ranks, scopes: Scopes, most_bytes: float) -> None:
        self.ranks, self.scopes, self._most_bytes = ranks, scopes, most_bytes
        self.steps = RankSteps(ranks, scopes.ir, scopes.path, scopes.weights, scopes.is_function)
        self.called = {
            number: GraphSearch(ranks, variable.scopes, most_bytes / len(variable.calls))
            for number, variable in enumerate(scopes.variables)
            if isinstance(variable, Called)
        }
        self._ends: dict[Any, list[End]] = {}
        self._same: dict[Choices, Choices] = {}  # equal choices are one object
        self._entries: dict[Any, Given] = {}
        self._candidates: dict[int, list[Choices]] = {}

    def ends(self, given: Given, fixed: Choices | None = None) -> list[End]:
        """Return the best ways through the graph from inputs placed as given, possibly with fixed choices."""
        key = (tuple(map(id, given.values())), id(fixed))
        if key not in self._ends:
            states = [State({}, (), [Way(0.0, 0.0, None, ())])]
            for at in range(len(self.scopes.rows) - 1):
                states = self._after(at, states, given, fixed)
            self._ends[key] = _best_ends(end for state in states for end in self._finished(state, given))
        return self._ends[key]

    # -- one scope ----------------------------------------------------------------------------------------------------

    def _after(self, at: int, states: list[State], given: Given, fixed: Choices | None) -> list[State]:
        """Return the states after a scope."""
        scope = self.scopes.rows[at]
        before = self.scopes.rows[at - 1].open if at else ()
        if scope.call in scope.opening and fixed is None:
            assert scope.call is not None
            self._candidates[scope.call] = self._layer_choices(scope, states, given)
        found: dict[Any, State] = {}
        for state in states:
            known = dict(zip(before, state.choices, strict=True))
            for outcome in self._outcomes(scope, state, known, given, fixed):
                self.ranks.outcomes += 1
                held = {tensor: outcome.held.get(tensor) or state.held[tensor] for tensor in scope.live}
                choices = {**known, **dict(outcome.chosen)}
                kept = tuple(choices[number] for number in scope.open)
                key = (*map(id, held.values()), *map(id, kept))
                if key not in found:
                    found[key] = State(held, kept, [])
                found[key].ways.extend(self._further(state.ways, outcome))
        for state in found.values():
            state.ways[:] = _unbeaten(state.ways, lambda way: way)
        left = [state for state in found.values() if state.ways]
        most = 1 if self.ranks.outcomes > _MOST_OUTCOMES else _MOST_STATES
        return left if len(left) <= most else sorted(left, key=_fastest)[:most]

    def _further(self, ways: Iterable[Way], outcome: Outcome) -> Iterator[Way]:
        for way in ways:
            if way.bytes + outcome.bytes <= self._most_bytes:
                yield Way(way.seconds + outcome.seconds, way.bytes + outcome.bytes, way, outcome.chosen)

    def _outcomes(
        self, scope: Scope, state: State, known: Mapping[int, Any], given: Given, fixed: Choices | None
    ) -> Iterator[Outcome]:
        """Yield what a scope does, for each choice of the variables that begin with it."""
        options = [[fixed[number]] if fixed else list(self._options(number)) for number in scope.opening]
        options[_MOST_OPENING:] = [each[:1] for each in options[_MOST_OPENING:]]
        for picks in product(*options):
            chosen = tuple(zip(scope.opening, picks, strict=True))
            choices = {**known, **dict(chosen)}
            held, size = self._entered(scope, chosen, choices, given)
            if held is None:
                continue
            there = {**state.held, **held}
            if scope.call is not None:
                called = self._called(scope, there, size, choices[scope.call], chosen)
                if called is not None:
                    yield called
                continue
            styles = tuple(pair for number in scope.styled for pair in choices[number].styles)
            done = self.steps.run(scope.nodes, scope.live, {each: there[each] for each in scope.inputs}, styles)
            if done is not None:
                yield Outcome(done.held, done.seconds, size, chosen)

    def _options(self, number: int) -> Iterable[Any]:
        variable = self.scopes.variables[number]
        return variable.choices if isinstance(variable, Variable) else self._candidates[number]

    def _entered(
        self, scope: Scope, chosen: tuple[tuple[int, Any], ...], choices: Mapping[int, Any], given: Given
    ) -> tuple[dict[TensorMeta, Held] | None, float]:
        """Return the tensors that a node reads first, as given or chosen, and the bytes that begin to count."""
        if not chosen and not scope.entering:
            return {}, 0.0
        size = 0.0
        for number, choice in chosen:
            variable = self.scopes.variables[number]
            if isinstance(variable, Variable):
                for tensor, place in zip(variable.weights, choice.weights, strict=True):
                    held = self.steps.given(tensor, place)
                    if held is None:
                        return None, 0.0
                    size += self.steps.bytes(held)
        found: dict[TensorMeta, Held] = {}
        places = self._places(choices) if scope.entering else {}
        for tensor in scope.entering:
            place = places.get(tensor)
            held = given.get(tensor) or self.steps.given(tensor, place or REPLICATE)
            if held is None:
                return None, 0.0
            found[tensor] = held
            if place is None and tensor not in given:
                size += self.steps.bytes(held)
        return found, size

    def _places(self, choices: Mapping[int, Any]) -> dict[TensorMeta, Placement]:
        """Return the chosen placements of weights and inputs."""
        found: dict[TensorMeta, Placement] = {}
        for number, choice in choices.items():
            variable = self.scopes.variables[number]
            if isinstance(variable, Variable):
                found.update(zip(variable.weights, choice.weights, strict=True))
        return found

    # -- calls --------------------------------------------------------------------------------------------------------

    def _called(
        self, scope: Scope, there: Given, size: float, choices: Choices, chosen: tuple[tuple[int, Any], ...]
    ) -> Outcome | None:
        """Return what calls of one function do with these choices; None if they cannot run so."""
        assert scope.call is not None
        search, held, seconds = self.called[scope.call], dict(there), 0.0
        for node in scope.nodes:
            ends = search.ends(self._passed(scope.call, node, held), choices)
            if not ends:
                return None
            (end,) = ends
            held.update(zip(node.outputs, map(self.steps.result, node.outputs, end.results), strict=True))
            seconds, size = seconds + end.way.seconds, size + end.way.bytes
        return Outcome(held, seconds, size, chosen)

    def _passed(self, call: int, node: OpNode, there: Given) -> Given:
        """Return the inputs of a function as a call passes them."""
        variable, search = self.scopes.variables[call], self.called[call]
        assert isinstance(variable, Called)
        operands = variable.operands(node)
        key = (node, tuple(id(there[tensor]) for tensor in operands.values()))
        if key not in self._entries:
            found = {}
            for inner, tensor in operands.items():
                held = search.steps.given(inner, self.steps.seen(node, tensor, there[tensor]))
                assert held is not None  # it is cut so outside
                found[inner] = held
            self._entries[key] = found
        return self._entries[key]

    def _layer_choices(self, scope: Scope, states: Iterable[State], given: Given) -> list[Choices]:
        """Return the choices of a function that are best for some placement of its inputs.

        The next layer gets what this one returns, so those placements count too.
        """
        assert scope.call is not None
        search = self.called[scope.call]
        entered, _ = self._entered(scope, (), {}, given)
        waiting = [self._passed(scope.call, scope.nodes[0], {**state.held, **(entered or {})}) for state in states]
        seen = {tuple(map(id, each.values())): each for each in waiting}
        waiting = list(seen.values())[:_MOST_PLACEMENTS]
        found: dict[int, Choices] = {}
        for passed in waiting:  # grows
            for end in search.ends(passed):
                found[id(end.choices)] = end.choices
                following = search.next_given(passed, end)
                key = tuple(map(id, following.values()))
                if key not in seen and len(seen) < _MOST_PLACEMENTS:
                    seen[key] = following
                    waiting.append(following)
        return list(found.values())

    def next_given(self, given: Given, end: End) -> Given:
        """Return the inputs of a function if its first result replaces the input of the same form."""
        for result, place in zip(self.scopes.ir.graph_outputs, end.places, strict=True):
            for tensor in given:
                if (tensor.shape, tensor.dtype) == (result.shape, result.dtype):
                    return {**given, tensor: self.steps.given(tensor, place) or given[tensor]}
        return given

    # -- results ------------------------------------------------------------------------------------------------------

    def _finished(self, state: State, given: Given) -> Iterator[End]:
        """Yield the ways through the graph from a state after its last node."""
        scope = self.scopes.rows[-1]
        entered, size = self._entered(scope, (), {}, given)
        if entered is None:
            return
        there = {**state.held, **entered}
        outputs = self.scopes.ir.graph_outputs
        left = [self.steps.left(tensor, there[tensor]) for tensor in outputs]
        places = [self.scopes.result_place(*each, self.ranks.ranks) for each in zip(outputs, left, strict=True)]
        moves = [*zip(outputs, places, strict=True)]
        moves += [(value, there[target].home) for target, value in self.scopes.ir.mutations]
        done = [self.steps.moved(tensor, there[tensor], place) for tensor, place in moves]
        if None in done:
            return
        seconds = sum(each.seconds for each in done if each)
        results = tuple(each.held[tensor] for each, tensor in zip(done, outputs, strict=False) if each)
        for way in self._further(state.ways, Outcome({}, seconds, size, ())):
            choices = self._choices(way)
            yield End(way, self.same(choices), tuple(places), results)

    def same(self, choices: Choices) -> Choices:
        """Return the first equal choices, which are kept: choices are compared by identity."""
        return self._same.setdefault(choices, choices)

    def _choices(self, way: Way) -> Choices:
        found: dict[int, Any] = {}
        step: Way | None = way
        while step is not None:
            found.update(step.chosen)
            step = step.before
        return tuple(found.get(number) for number in range(len(self.scopes.variables)))


def _best_ends(ends: Iterable[End]) -> list[End]:
    """Return the ends that no other with the same results beats."""
    groups: dict[Any, list[End]] = {}
    for end in ends:
        groups.setdefault(tuple(map(id, end.results)), []).append(end)
    return [end for group in groups.values() for end in _unbeaten(group, lambda end: end.way)]


def _fastest(state: State) -> float:
    return state.ways[0].seconds


T = TypeVar("T")


def _unbeaten(found: Iterable[T], way_of: Callable[[T], Way]) -> list[T]:
    """Return the items that no other one beats in both time and bytes, fastest first."""
    kept: list[T] = []
    for item in sorted(found, key=lambda item: way_of(item)[:2]):
        if not kept or way_of(item).bytes < way_of(kept[-1]).bytes:
            kept.append(item)
    if len(kept) <= _MOST_WAYS:
        return kept
    return [kept[round(at * (len(kept) - 1) / (_MOST_WAYS - 1))] for at in range(_MOST_WAYS)]
