"""Follow tensors through Python code: from which outputs of entry points a tensor was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from torch_ir.ops.torch_internals import TorchDispatchMode, pytree

Origin = tuple[str, str]  # an entry point, and the place of a tensor in its outputs


class Lineage(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Record the origins of every tensor that is computed while this mode is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self._known: dict[int, tuple[Tensor, frozenset[Origin]]] = {}  # with the tensor, so that its id stays its own
        self._direct: dict[int, Origin] = {}

    def start(self, tensor: Tensor, origin: Origin) -> None:
        """Note that a tensor is an output of an entry point."""
        self._known[id(tensor)] = tensor, frozenset((origin,))
        self._direct[id(tensor)] = origin

    def origins(self, tensor: Tensor) -> Iterable[tuple[Origin, bool]]:
        """Yield the outputs that a tensor was computed from, and whether it is that output itself."""
        if id(tensor) in self._direct:
            yield self._direct[id(tensor)], True
        elif id(tensor) in self._known:
            yield from ((origin, False) for origin in sorted(self._known[id(tensor)][1]))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        found = frozenset(origin for each in given for origin in self._known.get(id(each), (each, frozenset()))[1])
        for made in pytree.tree_leaves(result):
            if found and isinstance(made, Tensor):
                self._known[id(made)] = made, found
        return result
