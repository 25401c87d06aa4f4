"""Small files that request much work: each is cheap, or rejected with a one-line error."""

import random
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy
import pytest
import torch

from tests.cpu_time import at_most
from tests.graphs import tensor
from torch_ir import IR, OpNode, SerializationError, ShardError, Symbol, TensorMeta, quantize
from torch_ir.analysis.shapes import open_sizes as sizes
from torch_ir.cli.arguments.input_specs import parse_input
from torch_ir.errors import GraphError, QuantizationError
from torch_ir.explorer import explore
from torch_ir.golden.dumps import open_dumps
from torch_ir.ir import FunctionRef, Origin
from torch_ir.ir.graph.tensor import Param
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH
from torch_ir.quantization import LayerRule, Recipe, Scheme
from torch_ir.quantization.layers import find_places
from torch_ir.quantization.observers import Histogram
from torch_ir.sharding.sharding_plan import Plan, _pattern
from torch_ir.sharding.styles import style_of


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


def test_an_archive_that_expands_without_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 MB of zeros compress to 300 kB."""
    file = tmp_path / "inputs.npz"
    numpy.savez_compressed(file, x=numpy.zeros(300 << 20, dtype=numpy.uint8))
    told = r"expands from [\d,]+ to 314,572,\d+ bytes, more than 100 times"
    with pytest.raises(SerializationError, match=told), open_dumps(file):
        pass
    from torch_ir.cli.arguments.input_files import read_files

    monkeypatch.setitem(sys.modules, "torch_ir.golden.dumps", None)  # inputs need no golden packs
    with pytest.raises(SerializationError, match="more than 100 times"):
        read_files([parse_input(f"@{file}")])


def _layers(names: Iterable[str]) -> IR:
    """A chain of linear layers, one in each of these modules."""
    x = tensor("x", 2, 4)
    params, nodes, source = [], [], x
    for index, name in enumerate(names):
        params.append(TensorMeta(f"w{index}", (4, 4), "float32", param=Param((f"{name}.weight",), "parameter")))
        made, origin = [tensor(f"y{index}", 2, 4)], Origin(name, 0, "torch.nn.modules.linear.Linear")
        inputs, args = [source, params[-1]], ["input", "weight"]
        nodes.append(OpNode(f"y{index}", "aten.linear.default", inputs, made, {"bias": None}, args=args, origin=origin))
        source = nodes[-1].output
    return IR(nodes, [x], [source], params=params)


def test_calls_that_expand_without_measure_are_not_listed() -> None:
    """Sixteen levels of four calls each: 4^16 layers in a file of a few kilobytes."""
    body, name = _layers(["fc"]), ""
    body.params[0].param = None
    body = IR(body.nodes, [*body.graph_inputs, *body.params], body.graph_outputs)
    for level in range(MAX_FUNCTION_DEPTH - 1):
        x, w = tensor("x", 2, 4), tensor("w0", 2, 4)
        w.shape, name = (4, 4), f"f{level}"
        calls, source = [], x
        for number in range(4):
            args, attrs = ["x", "w0"], {"function": FunctionRef(name)}
            calls.append(OpNode(f"c{number}", "call", [source, w], [tensor(f"c{number}", 2, 4)], attrs, args=args))
            source = calls[-1].output
        body = IR(calls, [x, w], [source], functions={name: body})
    with pytest.raises(GraphError, match=r"with its functions inlined, the graph would have \d+ nodes"):
        find_places(body)


def test_the_first_rule_of_a_recipe_decides() -> None:
    """Names are looked up and patterns are tried, in the order of the rules."""
    rng = random.Random(0)
    names = ["a", "b.c", "b.d", "b.d#1", "e"]
    for _ in range(300):
        matches = rng.choices([*names, "*", "b.*", "?", "[ab]*", "nothing"], k=rng.randint(1, 6))
        schemes = [rng.choice(["int8", "int4", None]) for _ in matches]
        operators = [rng.choice(["*", "*", "aten.mm*"]) for _ in matches]
        rules = [LayerRule(m, Scheme.of(s), o) for m, s, o in zip(matches, schemes, operators, strict=True)]
        for name in names:
            path = name.partition("#")[0]
            for op_type in ("aten.linear.default", "aten.mm.default"):
                expected = next((rule for rule in rules if rule.fits(name, path, op_type)), None)
                assert Recipe(tuple(rules)).rule_for(name, path, op_type) is expected


def test_a_recipe_of_a_name_for_each_layer_takes_time_in_proportion() -> None:
    names = [f"layers.{index}" for index in range(1000)]
    ir = _layers(names)
    with at_most(20):  # a million comparisons by pattern take longer
        _, report = quantize(ir, {**dict.fromkeys(names, "int8"), "*": "int4"})
    assert {str(layer.scheme) for layer in report.layers} == {"int8"}
    with pytest.raises(QuantizationError, match="201 rules with patterns are more than 200"):
        Recipe.of({f"{index}*": "int8" for index in range(201)})


def test_values_near_the_largest_number_are_counted() -> None:
    """The bins reach to the next power of two, which float32 does not have."""
    found = Histogram()
    found.add(torch.tensor([-3e38, 0.0, 1.0]))
    assert found.range("percentile", 100)[0] == pytest.approx(-3e38)


def test_the_first_row_of_a_plan_decides() -> None:
    ir = _layers(["a.b", "a.c", "d"])
    plan = Plan({"a.b": "colwise", "a.*": "rowwise", "a.c": "colwise", "**": "replicate"}, ir)
    expected = [style_of(name, "") for name in ("colwise", "rowwise", "replicate")]
    assert [plan.of(path) for path in ("a.b", "a.c", "d")] == expected
    with pytest.raises(ShardError, match=r"501 rows with '\*' are more than 500"):
        Plan({f"a{index}*": "colwise" for index in range(501)}, ir)
    with pytest.raises(ShardError, match=r"'a\.x' matches no module or weight"):
        Plan({"a.b": "colwise", "a.x": "colwise"}, ir)
