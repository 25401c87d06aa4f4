"""Small files that request much work: each is cheap, or rejected with a one-line error."""

from pathlib import Path

import numpy
import pytest

from torch_ir import IR, OpNode, SerializationError, ShardError, Symbol, TensorMeta
from torch_ir.analysis.shapes import open_sizes as sizes
from torch_ir.cli.arguments.input_specs import parse_input
from torch_ir.explorer import explore
from torch_ir.golden.dumps import Dumps
from torch_ir.ir import Origin
from torch_ir.sharding.sharding_plan import _pattern


def test_constraints_that_nothing_meets_are_tried_less_often_the_more_sizes_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`u0 != u0` has no solution, however long it is looked for."""
    count = 2000
    inputs = [TensorMeta(f"x{index}", (f"u{index}",), "float32") for index in range(count)]
    symbols = [Symbol(f"u{index}", tensor=tensor, dim=0) for index, tensor in enumerate(inputs)]
    ir = IR([], inputs, inputs[:1], symbols=symbols, constraints=["u0 != u0"])
    tries = 0

    def admits(*_: object) -> bool:
        nonlocal tries
        tries += 1
        return False

    monkeypatch.setattr(sizes, "admits", admits)
    assert sizes.points_of(ir) == ()
    assert tries < 1_000_000 // count


def test_products_of_many_dimensions_are_bounded() -> None:
    shape = [f"s{index}" for index in range(64)]
    assert len(sizes.products(shape)) <= 2048
    assert set(sizes.products(["a", "b", 3])) == {1, 3, "b", "3*b", "a", "3*a", "a*b", "3*a*b"}


def test_candidates_for_a_size_are_bounded() -> None:
    known = [f"s{index}" for index in range(5000)]
    point = dict.fromkeys(known, 7)
    assert len(list(sizes._candidates(known, (point,)))) < 20_000


def test_a_path_of_500_modules_can_be_explored(tmp_path: Path) -> None:
    x = TensorMeta("x", (1,), "float32")
    nodes, made = [], x
    for index in range(20):
        path = ".".join(f"m{level}" for level in range(480 + index))
        out = TensorMeta(f"y{index}", (1,), "float32")
        nodes.append(OpNode(f"y{index}", "aten.relu.default", [made], [out], origin=Origin(path, 0, "Deep")))
        made = out
    explore(IR(nodes, [x], [made]), tmp_path / "deep.html")
    assert "<html" in (tmp_path / "deep.html").read_text()


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("layers.*.mlp", "layers.0.mlp", True),
        ("layers.*.mlp", "layers.0.1.mlp", False),
        ("**.mlp", "model.layers.0.mlp", True),
        ("**.q_proj", "a.q_proj.b", False),
        ("a.**.c.**.d", "a.b.c.x.c.d", True),
        ("**a*b**b", "abb", True),
        ("a**b**c", "acb", False),
        ("**.a" * 12 + ".b", "a." * 2000 + "c", False),
        ("*.*.*.*.*.*", "a.b.c.d.e.f", True),
    ],
)
def test_patterns_of_a_plan(pattern: str, path: str, matches: bool) -> None:
    assert bool(_pattern(pattern).fullmatch(path)) is matches


def test_a_pattern_that_could_take_for_ever_is_refused() -> None:
    with pytest.raises(ShardError, match=r"more than 3 '\*' that match part of a step; spell it out"):
        _pattern("*x*.*x*.*x*")


def test_an_archive_that_expands_without_measure_is_refused(tmp_path: Path) -> None:
    """300 MB of zeros compress to 300 kB."""
    file = tmp_path / "inputs.npz"
    numpy.savez_compressed(file, x=numpy.zeros(300 << 20, dtype=numpy.uint8))
    with pytest.raises(SerializationError, match=r"expands from [\d,]+ to 314,572,\d+ bytes, more than 100 times"):
        Dumps(file)
    from torch_ir.cli.arguments.input_files import read_files

    with pytest.raises(SerializationError, match="more than 100 times"):
        read_files([parse_input(f"@{file}")])
