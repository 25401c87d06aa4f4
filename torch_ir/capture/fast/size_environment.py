"""Torch's `ShapeEnv` for one kind of inputs, created, queried and finished as torch.export does.

torch.export gives each dynamic dimension a symbol and finds out later which symbols are equal. Here, dimensions with
the same name, which the user promises to be equal, share one symbol from the start, so that the layers of a model with
a cache make the same queries.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import Dim
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from torch_ir.capture.export.dynamic import name_promised
from torch_ir.capture.fast.shape_tensors import Form, NotCoveredError
from torch_ir.capture.fast.symbolic_size import SYMBOLIC, WRAPPED
from torch_ir.capture.instrument import intercepted
from torch_ir.ops import torch_internals
from torch_ir.ops.torch_internals import (
    DisableTorchFunction,
    FakeTensor,
    FakeTensorMode,
    combine_args,
    disable_current_modes,
    map_dynamic_shapes,
    pytree,
)


class Request(NamedTuple):
    """Arguments of torch: the signature of forward, the inputs without values, and the dynamic dimensions."""

    signature: inspect.Signature
    leaves: tuple[Any, ...]  # tensors on meta, and constants
    devices: tuple[Any, ...]
    in_spec: Any
    dynamic_shapes: Any


def request_of(model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], dynamic_shapes: Any) -> Request:
    """Return the request for the inputs of a model; it references neither the model nor its tensors."""
    if not isinstance(dynamic_shapes, (dict, tuple, list)):
        raise NotCoveredError(f"dynamic_shapes in a {type(dynamic_shapes).__name__}")
    leaves, in_spec = pytree.tree_flatten((tuple(args), kwargs))
    devices = tuple(
        None if not isinstance(leaf, torch.Tensor) else torch.device("cpu") if leaf.is_meta else leaf.device
        for leaf in leaves
    )
    return Request(inspect.signature(model.forward), tuple(map(_blank, leaves)), devices, in_spec, dynamic_shapes)


def _blank(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.layout is not torch.strided:
        raise NotCoveredError(f"a tensor with layout {leaf.layout}")
    blank = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
    return blank.requires_grad_(leaf.requires_grad)


def request_key(request: Request) -> tuple[Any, ...]:
    """Return a cache key: requests with equal keys get the same answers from torch."""
    parameters = tuple((name, parameter.kind) for name, parameter in request.signature.parameters.items())
    leaves = tuple(map(_leaf_key, request.leaves))
    return parameters, leaves, request.devices, repr(request.in_spec), _asked_key(request.dynamic_shapes), _settings()


def _leaf_key(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad
    return type(leaf), repr(leaf)


def _asked_key(asked: Any) -> Any:
    """Return the requested dynamic shapes as a comparable value."""
    if isinstance(asked, dict):
        return "dict", tuple((key, _asked_key(value)) for key, value in asked.items())
    if isinstance(asked, (list, tuple)):
        return type(asked).__name__, tuple(map(_asked_key, asked))
    if isinstance(asked, Dim):
        root = getattr(asked, "root", None)
        return type(asked).__name__, asked.__name__, asked.min, asked.max, None if root is None else _asked_key(root)
    if asked is None or isinstance(asked, (int, str)):
        return asked
    return repr(asked), name_promised(asked)


def _settings() -> Any:
    return torch_internals.symbolic_shape_settings()


class Facts(NamedTuple):
    """What torch knows about the sizes; environments with equal facts give equal answers."""

    guards: int
    replacements: tuple[Any, ...]
    ranges: tuple[Any, ...]
    others: tuple[Any, ...]
    replaced: frozenset[Any]


class Finished(NamedTuple):
    """The result of a run: the environment with all that torch knows, and the ranges of symbols."""

    environment: Any
    ranges: dict[Any, Any]


class Violation(NamedTuple):
    """The sizes cannot be dynamic as requested."""

    message: str


class Environment:
    """One `ShapeEnv` with its fake inputs."""

    def __init__(self, request: Request, space: Any) -> None:
        self._request = request
        self.space = space
        self.has_looked = False  # at what is not known, which an answer may depend on
        self._nodes: dict[Any, SymNode] = {}
        with torch.enable_grad(), disable_current_modes(), DisableTorchFunction():
            outer = FakeTensorMode()
            leaves = [
                leaf if device is None else FakeTensor(outer, leaf.detach(), device).requires_grad_(leaf.requires_grad)
                for leaf, device in zip(request.leaves, request.devices, strict=True)
            ]
            self._args, self._kwargs = pytree.tree_unflatten(leaves, request.in_spec)
            self._model = _stand_in(request.signature)
            self._shared: dict[tuple[int, int], tuple[int, int]] = {}
            self._dynamic_shapes = self._one_symbol_each(leaves)
            make_inputs: Any = torch_internals.make_fake_inputs  # which torch does not annotate
            made = make_inputs(self._model, self._args, self._kwargs, self._dynamic_shapes)
            self.mode, fake_args, fake_kwargs, self._equalities, self._signature, _ = made
            self._fakes = pytree.tree_leaves((fake_args, fake_kwargs))
            # Torch builds each result once more to cache it; that adds guards, which are needed, unless it is plain.
            torch_internals.forget_results(self.mode, _is_plain)
            self.shapes = self.mode.shape_env
            self.inputs = [self._described(index, fake) for index, fake in enumerate(self._fakes)]
            self.note([self._like_input(described) for described in self.inputs if described is not None])
        torch_internals.watch_unknown(self.shapes, self._look)

    def _like_input(self, described: tuple[list[Any], list[Any], torch.Tensor]) -> torch.Tensor:
        shape, stride, fake = described
        with self.shapes.suppress_guards():
            made = torch.empty_strided(shape, stride, dtype=fake.dtype, device="meta")
            return FakeTensor(self.mode, made, fake.device)

    def _one_symbol_each(self, leaves: Sequence[Any]) -> Any:
        """Return the requested sizes with each name once; record which dimensions share the symbol of another one."""
        indices = {id(leaf): index for index, leaf in enumerate(leaves)}
        first: dict[str, tuple[int, int]] = {}
        ranges: dict[str, tuple[Any, Any]] = {}
        combined: Any = combine_args(self._model, self._args, self._kwargs)
        asked_for = self._request.dynamic_shapes
        by_name = combined if isinstance(asked_for, dict) else type(asked_for)(combined.values())

        def reduced(path: Any, value: Any, asked: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                if asked is not None:
                    raise NotCoveredError("a number among the inputs that varies")
                return None
            if asked is None:
                return None
            sizes = dict(asked.items() if isinstance(asked, dict) else enumerate(asked))
            for dim, wanted in sizes.items():
                name = name_promised(wanted)
                here = (indices[id(value)], dim)
                if name:
                    ranges.setdefault(name, (wanted.min, wanted.max))
                if name and first.setdefault(name, here) != here:
                    index, other = first[name]
                    if leaves[index].shape[other] != value.shape[dim] or ranges[name] != (wanted.min, wanted.max):
                        raise NotCoveredError(f"two sizes or two ranges of {name!r}")
                    self._shared[here] = first[name]
                    sizes[dim] = None
            return sizes

        return map_dynamic_shapes(reduced, by_name, asked_for, tree_name="inputs")

    def _described(self, index: int, fake: Any) -> tuple[list[Any], list[Any], torch.Tensor] | None:
        """Return the sizes and strides of an input, with the shared symbols of other inputs."""
        if not isinstance(fake, torch.Tensor):
            if isinstance(fake, SYMBOLIC):
                raise NotCoveredError("a number among the inputs that varies")
            return None
        shape, stride = list(fake.shape), list(fake.stride())
        shared = [(dim, place) for (at, dim), place in self._shared.items() if at == index]
        if shared:
            if not self._request.leaves[index].is_contiguous():
                raise NotCoveredError("a non-contiguous input that shares sizes with another")
            for dim, (other, place) in shared:
                shape[dim] = self._fakes[other].shape[place]
            expected: Any = 1
            for dim in range(len(shape) - 1, -1, -1):
                stride[dim] = expected
                expected = expected * shape[dim]
        if fake.storage_offset() != 0:
            raise NotCoveredError("an input that begins inside its memory")
        return shape, stride, fake

    def _look(self) -> None:
        self.has_looked = True

    def facts(self) -> Facts:
        shapes = self.shapes
        replaced = frozenset(shapes.replacements)
        self._shorten_chains(replaced)
        replacements = tuple(shapes.replacements.items())
        others = (len(shapes.divisible), shapes.num_deferred_runtime_asserts, len(shapes.axioms))
        return Facts(len(shapes.guards), replacements, tuple(shapes.var_to_range.items()), others, replaced)

    def _shorten_chains(self, replaced: frozenset[Any]) -> None:
        """Replace a -> b -> 7 by a -> 7, as torch does where it meets `a`: equal facts may not differ in that."""
        if any(not replaced.isdisjoint(known.free_symbols) for known in self.shapes.replacements.values()):
            has_looked = self.has_looked
            for symbol in replaced:
                self.shapes.replace(symbol)
            self.has_looked = has_looked

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def node(self, size: Any) -> SymNode:
        """Return torch's node for a size."""
        found = self._nodes.get(size)
        if found is None:
            options = {"constant": size.constant, "optimized_summation": size.is_sum}
            found = self._nodes[size] = SymNode(size.expr, self.shapes, size.kind, size.hint, **options)
        return found

    def number(self, value: Any) -> Any:
        """Convert sizes, also in tuples, to torch's numbers; return other values unchanged."""
        if type(value) is tuple:
            return [self.number(item) for item in value]
        return WRAPPED[value.kind](self.node(value)) if hasattr(value, "is_sum") else value

    def by_own_rule(self, question: Any) -> None:
        """Return None: our own shape rules take fixed sizes only."""

    def note(self, result: Any) -> None:
        """Make the query that torch.export makes for every traced tensor: whether it has a known memory format."""
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                torch_internals.extract_tensor_metadata(leaf)

    def form_of(self, tensor: torch.Tensor) -> Form:
        return self.space.form_of(tensor)  # type: ignore[no-any-return]

    def current(self, form: Form) -> Form:
        """Return a form with its sizes rewritten with what torch knows now."""
        if not form.is_open:
            return form
        shape, stride, offset = (self.number(sizes) for sizes in (form.shape, form.stride, form.offset))
        return self.space.form(shape, stride, offset, form.dtype, form.device)  # type: ignore[no-any-return]

    def fake(self, form: Form) -> torch.Tensor:
        """Return a fake tensor of a form, without adding a guard."""
        shape, stride, offset = (self.number(sizes) for sizes in (form.shape, form.stride, form.offset))
        with self.shapes.suppress_guards():
            if type(offset) is int and not offset:
                made = torch.empty_strided(shape, stride, dtype=form.dtype, device="meta")
            else:
                reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
                made = torch.empty(reach, dtype=form.dtype, device="meta").as_strided(shape, stride, offset)
            return FakeTensor(self.mode, made, form.device)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finished(self) -> Finished | Violation:
        """Check, as torch.export does after forward, that the sizes are dynamic as requested; return their ranges."""
        options = (self._dynamic_shapes, self._equalities, self._signature)
        try:
            no_graph: Any = None  # torch takes one, and does not read it
            torch_internals.solve_constraints(self.mode, no_graph, *options)
        except (ConstraintViolationError, torch_internals.ValueRangeError) as error:
            return Violation(str(error).partition("\n")[0])
        graph = fx.Graph()
        for number, fake in enumerate(self._fakes):
            graph.placeholder(f"input_{number}").meta["val"] = fake
        combined = combine_args(self._model, self._args, self._kwargs)
        ordered = {name: value for name, value in combined.items() if name not in self._kwargs} | self._kwargs
        shapes = self._dynamic_shapes
        by_name = dict(zip(combined, shapes, strict=True)) if not isinstance(shapes, dict) else shapes
        try:
            module: Any = SimpleNamespace(graph=graph, meta={"inline_constraints": {}})  # all that torch asks for
            ranges = torch_internals.make_constraints(self.mode, module, ordered, by_name, 0)
        except ValueError as error:
            raise NotCoveredError(str(error).partition("\n")[0]) from error
        finally:
            for node in graph.nodes:  # which refer to one another, and would keep the fake inputs
                node.meta.clear()
        return Finished(self.shapes, ranges)

    def close(self) -> None:
        """Release the fake inputs; what torch knows about the sizes is kept."""
        self._fakes, self.inputs, self._args, self._kwargs = [], [], (), {}
        self.shapes.tracked_fakes.clear()


def _is_plain(result: Any) -> bool:
    """Whether torch knows without a guard that no size of a tensor is 0 or 1: they are sums of products."""
    if not isinstance(result, torch.Tensor):
        return False
    numbers = (*result.shape, *result.stride(), result.storage_offset())
    return all(type(number) is int or _is_sum(number.node.expr) for number in numbers)


def _is_sum(expr: Any) -> bool:
    """Whether an expression consists of symbols and positive integers, added and multiplied."""
    if not expr.args:
        return bool(expr.is_Symbol or (expr.is_Integer and expr > 0))
    return (expr.is_Add or expr.is_Mul or expr.is_Pow) and all(map(_is_sum, expr.args))


def without_locations() -> AbstractContextManager[None]:
    """Skip the search for the source lines of torch's guards, which nothing here reads; it imports the compiler."""
    place, nowhere = torch_internals.guard_location()
    return intercepted(*place, lambda *_, **__: nowhere)


def _stand_in(signature: inspect.Signature) -> nn.Module:
    """A module whose forward only has a signature."""

    def forward(*args: Any, **kwargs: Any) -> None:
        pass

    forward.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` reads
    model = nn.Module()
    model.forward = forward
    return model
