"""Call a function once for each item, each call in a forked child of this process."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")


def in_children(function: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
    return [_in_child(function, item) for item in items]


def _in_child(function: Callable[[Item], Any], item: Item) -> Any:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads: the child uses none of them
        child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = pickle.dumps(function(item))
        except BaseException as error:  # a child must not go on as if it were the parent
            answer = pickle.dumps(f"{type(error).__name__}: {error}")
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else "the process ended without an answer"
