"""Valid graphs with one violation each, and the rule, path and node that the error of `check` must name."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.graphs import everything
from torch_ir.errors import GraphError
from torch_ir.ir import IR

Change = Callable[[IR], None]


class Case(NamedTuple):
    """One change of a valid graph, and the expected error."""

    change: Change
    message: str
    rule: str
    path: str
    node: str

    def run(self) -> None:
        ir = everything()
        assert ir.check() is ir
        self.change(ir)
        with pytest.raises(GraphError) as caught:
            ir.check()
        error = caught.value
        assert self.message in str(error)
        assert (error.rule, error.path, error.node) == (self.rule, self.path, self.node)
        assert str(error).endswith(error.hint)


class Cases(list[Case]):
    """Cases, listed by decorating the functions that change the graph."""

    def breaks(self, message: str, rule: str, path: str, *, node: str = "") -> Callable[[Change], Change]:
        def listed(change: Change) -> Change:
            self.append(Case(change, message, rule, path, node))
            return change

        return listed
