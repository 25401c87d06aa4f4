"""Let a function of torch's tell when it is called: torch offers no hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def intercepted(owner: Any, name: str, handler: Callable[..., Any]) -> Iterator[None]:
    """Let a handler answer calls of `owner.name`; its first argument is the original."""
    original, before = getattr(owner, name), vars(owner).get(name, _ABSENT)

    def answer(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    setattr(owner, name, answer)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)  # what is left is inherited
        else:
            setattr(owner, name, before)
