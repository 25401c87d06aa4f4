"""The cases of each kind of the sweep: a dtype of the database, attributes, functions, pairs, nodes of models, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from tests.backend_sweep.attributes import attribute_cases
from tests.backend_sweep.cases import Case, operator_cases
from tests.backend_sweep.chains import chain_cases
from tests.backend_sweep.functions import function_cases, open_cases
from tests.backend_sweep.nodes import node_cases
from tests.backend_sweep.pairs import pair_cases
from tests.backend_sweep.views import view_cases

PARTED: dict[str, Callable[[int, int], Iterator[Case]]] = {
    "attributes": attribute_cases,
    "pairs": pair_cases,
    "views": view_cases,
    "chains": chain_cases,
}
WHOLE: dict[str, Callable[[], Iterator[Case]]] = {"functions": function_cases, "open": open_cases, "nodes": node_cases}


def cases_of(kind: str, part: int, parts: int, samples: int) -> Iterator[Case]:
    """One of several equal parts of the cases of a kind; `samples` are those of each operator of the database."""
    if kind in WHOLE:
        return islice(WHOLE[kind](), part, None, parts)
    return PARTED[kind](part, parts) if kind in PARTED else operator_cases(kind, part, parts, samples)
