"""Placeholders are names of nodes: another word is an error with the nearest name, and nothing is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_ir
from tests.explored import with_call
from tests.graphs import mlp
from torch_ir.draw.model_explorer import to_model_explorer
from torch_ir.errors import DrawError


@pytest.mark.parametrize(
    "show",
    [
        lambda ir, path, **names: torch_ir.explore(ir, path, **names),
        lambda ir, path, **names: torch_ir.render(ir, path.with_suffix(".svg"), **names),
        lambda ir, path, **names: to_model_explorer(ir, **names),
    ],
    ids=["explore", "render", "model_explorer"],
)
@pytest.mark.parametrize(("names", "suggested"), [(["relu", "rellu"], "'relu'"), ("rel", "'relu'")])
def test_an_unknown_name_is_refused(show: Callable[..., Any], names: Any, suggested: str, tmp_path: Path) -> None:
    with pytest.raises(DrawError, match=f"placeholders: unknown node '.*'; did you mean {suggested}"):
        show(mlp(), tmp_path / "page.html", placeholders=names)
    assert not list(tmp_path.iterdir())


def test_names_of_functions_and_of_the_other_graph_are_known(tmp_path: Path) -> None:
    torch_ir.explore(with_call(), tmp_path / "one.html", placeholders={"neg", "b"})
    torch_ir.explore(mlp(), tmp_path / "two.html", against=with_call(), placeholders=["relu", "neg"])
    torch_ir.explore(mlp(), tmp_path / "single.html", placeholders="relu")
    torch_ir.explore(mlp(), tmp_path / "listed.html", placeholders=["relu"])
    assert (tmp_path / "single.html").read_bytes() == (tmp_path / "listed.html").read_bytes()
