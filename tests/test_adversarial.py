"""Adversarial graphs: time and memory of every command are proportional to the file, or it is rejected."""

import json
import random
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from tests.adversarial import sweep
from tests.adversarial.measuring import Ended, Growth
from tests.adversarial.shapes import REFUSED, SHAPES
from tests.adversarial.verbs import ALL
from tests.damage.planning_files import DEVICE
from tests.graphs import mlp, tensor
from torch_ir import IR, Limits, OpNode, SerializationError, TensorMeta, load_ir, optimize, validate_ir
from torch_ir.analysis import cost_report, liveness
from torch_ir.analysis.cost_model.delta import cost_delta
from torch_ir.analysis.devices.device_file import device_of
from torch_ir.analysis.memory.aliasing import home_of, is_held_by_caller, memory_of, moves_results
from torch_ir.errors import ExpressionError, GraphError
from torch_ir.ir import Origin
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.origins import module_at, modules_around
from torch_ir.ir.regroup.functions import inline_all, op_counts
from torch_ir.ir.sizes.specialize import squeezed_sizes
from torch_ir.pipeline.stage_bounds import Load
from torch_ir.pipeline.stage_cuts import Partition
from torch_ir.rewrite.node_order import NodeOrder

# Cells that took quadratic time once.
_SAMPLE = [("wide", "convert gzip"), ("slices", "split"), ("functions", "optimize clean")]


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_loads_and_passes_the_full_check(name: str) -> None:
    ir = IR.from_json(SHAPES[name](12).to_json())
    if name in REFUSED:
        with pytest.raises(SerializationError, match=r"^\$\.nodes\[\d+\]\.attrs: \S+ lacks the argument '\w+'$"):
            validate_ir(ir)
    else:
        assert validate_ir(ir)


@pytest.mark.slow
def test_a_sample_of_verbs_and_shapes_grows_with_the_file() -> None:
    """Which is a matter of time, and so of a machine that does little else."""
    for growth in sweep.grown(_SAMPLE, 1000):
        assert growth.is_ended, growth
        assert growth.is_bounded, growth


@pytest.mark.slow
def test_every_verb_on_every_shape_grows_with_the_file() -> None:
    cells = [(shape, verb) for shape in SHAPES for verb in ALL]
    grown = (growth for growth in sweep.grown(cells, sweep.SIZE) if growth.shape not in sweep.INLINED)
    worse = [str(growth) for growth in grown if not growth.is_bounded]
    assert not worse, "\n".join(worse)


def test_exponents_are_those_of_the_time_that_grows() -> None:
    """A constant of 0.1 s is subtracted, and noise counts as zero."""

    def growth(*seconds: float) -> Growth:
        sizes = (8, 100, 200, 400)
        return Growth("deep", "cost", sizes, sizes, tuple(Ended(0, one, 0) for one in seconds))

    assert growth(0.1, 0.6, 1.1, 2.1).exponent() == pytest.approx(1)
    assert growth(0.1, 0.6, 2.1, 8.1).exponent() == pytest.approx(2)
    assert growth(0.01, 0.011, 0.012, 0.04).exponent() == 0
    assert not growth(0.1, 0.6, 2.1, 8.1).is_bounded


# -- each bound by itself ---------------------------------------------------------------------------------------------


def test_blanks_are_counted(tmp_path: Path) -> None:
    """Blanks are allowed, but each takes two bytes of memory."""
    document = json.loads(mlp().to_json())
    del document["digest"]
    file = tmp_path / "blank.json"
    file.write_text(json.dumps(document) + " " * 100_000)
    load_ir(file)
    with pytest.raises(SerializationError, match=r"100\d{3} blanks are more than 100000; Limits\(blanks=\.\.\.\)"):
        load_ir(file, Limits(blanks=100_000))


def test_a_file_is_held_twice_at_most_while_it_is_read(tmp_path: Path) -> None:
    """As bytes and as text: 50 MB of blanks use 100 MB."""
    document = json.loads(mlp().to_json())
    del document["digest"]
    file = tmp_path / "blank.json"
    file.write_text(json.dumps(document) + " " * (50 << 20))
    code = """
import resource, sys
from torch_ir.ir import IR
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
IR.load(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 120 << 10


def test_large_numbers_are_found_wherever_pieces_of_a_text_meet() -> None:
    """The text is looked through in pieces of 1 MiB."""
    for place in range((1 << 20) - 24, (1 << 20) + 2):
        text = '{"format": "' + "x" * (place - 20) + '", "version": 99999999999999999999}'
        with pytest.raises(SerializationError, match="does not fit 64 bits"):
            IR.from_json(text)


def test_replacing_one_of_many_inputs_leaves_the_order_of_readers() -> None:
    x, y = tensor("x", 2), tensor("y", 2)
    both = OpNode("both", "aten.add.Tensor", [x, x], [tensor("both", 2)], {"alpha": 1}, args=["self", "other"])
    other = OpNode("other", "aten.add.Tensor", [y, x], [tensor("other", 2)], {"alpha": 1}, args=["self", "other"])
    x.replace_all_uses_with(x)
    assert x.consumers == [both, both, other]
    x.replace_all_uses_with(y)
    assert (both.inputs, other.inputs, x.consumers, y.consumers) == ((y, y), (y, y), [], [other, other, both, both])


def test_inputs_of_a_node_with_many_are_replaced_one_by_one() -> None:
    """As an assignment of all inputs would: the same inputs, and the same count of uses."""
    rng = random.Random(0)
    pool = [tensor(f"x{index}", 1) for index in range(60)]
    read = [rng.choice(pool[:40]) for _ in range(100)]
    names = [f"tensors.{index}" for index in range(100)]
    node = OpNode("cat", "aten.cat.default", read, [tensor("cat", 100)], {"dim": 0}, args=names)
    for _ in range(200):
        old, new = rng.choice(node.inputs), rng.choice(pool)
        old.replace_all_uses_with(new)
        read = [new if one is old else one for one in read]
        if rng.random() < 0.1:
            node.inputs = read = read[1:] + read[:1]
        assert {one: one.consumers.count(node) for one in pool if one.consumers} == Counter(read)
    assert node.inputs == tuple(read)
    assert node["tensors"] == read
    assert node["tensors.7"] is read[7]


def test_elements_of_nested_lists() -> None:
    x, y = tensor("x", 2), tensor("y", 2)
    out = [tensor("out", 2)]
    node = OpNode("n", "custom.op", [y, x], out, {"xs.0.1": None, "xs.2": 3}, args=["xs.1", "xs.0.0"])
    assert node["xs"] == [[x, None], y, 3]
    assert node["xs.0"] == [x, None]
    with pytest.raises(KeyError, match=r"xs\.0"):
        OpNode("n", "custom.op", [x], [tensor("out", 2)], args=["xs.1"])["xs"]


def test_order_of_inserted_nodes() -> None:
    """Compared with a list; 600 insertions at one place use up the labels there."""
    rng = random.Random(0)
    names = iter(range(10_000))

    def node() -> OpNode:
        return OpNode(f"n{next(names)}", "aten.relu.default", [], [])

    expected = [node() for _ in range(5)]
    order = NodeOrder(expected)
    for step in range(1200):
        place = expected[3] if step % 2 else rng.choice(expected)
        new = [node() for _ in range(rng.randrange(3))]
        order.insert_before(place, new)
        at = expected.index(place)
        expected = [*expected[:at], *new, *expected[at:]]
        if step % 7 == 0:
            some = rng.sample(expected, 5)
            assert order.sorted([*some, node()]) == sorted(some, key=expected.index)
    assert order.nodes() == expected


def test_equal_names_are_numbered_in_order() -> None:
    taken = Names(["a", "a_2", "b"])
    assert [fresh(name, taken) for name in ("a", "a", "b", "c", "a", "c")] == ["a_1", "a_3", "b_1", "c", "a_4", "c_1"]


def test_long_prologues_are_merged() -> None:
    """Without recursion."""
    better, report = optimize(SHAPES["prologue"](1500), passes=["merge-projections"])
    assert [change.node for change in report.changes] == ["p0", "p1"]
    assert better.check().nodes[-1].name == "sum"


def _views(count: int) -> list[TensorMeta]:
    """A tensor, and a chain of views of it."""
    tensors = [tensor("x", 2, 3)]
    for index in range(count):
        made = TensorMeta(f"y{index}", tensors[-1].shape[::-1], "float32")
        attrs = {"dim0": 0, "dim1": 1}
        OpNode(f"y{index}", "aten.transpose.int", [tensors[-1]], [made], attrs, args=["self"])
        tensors.append(made)
    return tensors


def test_memory_of_long_chains_of_views_is_not_looked_for() -> None:
    short, long = _views(20), _views(2000)
    assert memory_of(short[-1]) == {short[0]}
    assert home_of(short[-1]) is short[0]
    assert not is_held_by_caller(short[0])
    assert memory_of(long[-1]) is None
    assert home_of(long[-1]) in long
    assert is_held_by_caller(long[0])
    OpNode("return", "return", [long[-1]], [])
    assert moves_results(long[-1], long[-2])


def test_sums_of_very_many_open_sizes_are_written_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is one sum; those of all steps take n * n characters, and are refused."""
    ir = SHAPES["many symbols"](100)
    sums = [step.bytes for step in liveness(ir).steps]
    assert sums[-1] == " + ".join(sorted(f"4*s{index}" for index in range(100)))
    assert liveness(ir).peak == sums[-1]
    again = liveness(ir)
    assert [step.bytes for step in reversed(again.steps)] == sums[::-1]
    module = import_module("torch_ir.analysis.memory.live_tensors")  # the function of this name hides it
    monkeypatch.setattr(module, "_MOST_CHARACTERS", 1000)
    assert liveness(ir).peak == sums[-1]
    with pytest.raises(ExpressionError, match=r"live memory at 'y\d+' is a sum of too many symbolic sizes; set them"):
        [step.bytes for step in liveness(ir).steps]
    assert liveness(ir, {f"s{index}": 2 for index in range(100)}).peak == 800


def test_costs_of_calls_that_double_at_each_level_are_refused() -> None:
    """Rows of costs count the nodes inside calls: 2^19 of them in a file of 100 nodes."""
    ir = SHAPES["double tower"](100)
    for report in (cost_report, lambda graph: cost_delta(graph, graph)):
        with pytest.raises(GraphError, match=r"would have \d{7} nodes, more than 100000"):
            report(ir)


def test_times_on_a_device_are_of_fewer_inlined_nodes() -> None:
    """A file of 900 nodes has 90,000 once inline, each of which is timed in three modes."""
    ir = SHAPES["wide tower"](600)
    with pytest.raises(GraphError, match=r"would have \d+ nodes, more than 50000"):
        cost_report(ir, device=device_of(DEVICE))
    assert cost_report(SHAPES["wide tower"](12), device=device_of(DEVICE)).run_times


def test_operators_inside_calls_are_counted_once_for_each_function() -> None:
    """n operators in a function that is called n times; compared with the graph in which all are inlined."""
    ir = SHAPES["wide tower"](40)
    counts = op_counts(ir)
    inline_all(ir)
    assert counts == Counter(node.op_type for node in ir.nodes) == {"aten.relu.default": 400}


def test_very_many_places_to_cut_are_thinned_out() -> None:
    """Segments that take no time may be cut anywhere; the traffic is still minimal nearby."""
    loads = [Load(0.0, crossing=1.0 if place == 3001 else 9.0) for place in range(6000)]
    assert Partition(loads).starts(2, 1.0) == (0, 3001)


def test_a_module_on_the_way_to_another() -> None:
    for path in ("", "a", "a.b.c"):
        around = modules_around(path)
        assert [module_at(path, depth) for depth in range(5)] == [*around, *[None] * (5 - len(around))]


def test_dimensions_that_are_none_are_not_squeezed() -> None:
    """Graphs that were not checked against torch can be optimised."""
    x, out = tensor("x", 2, 1), tensor("y", 2)
    node = OpNode("y", "aten.squeeze.dim", [x], [out], {"dim": 5}, args=["self"], origin=Origin())
    assert squeezed_sizes(node) == []
    assert optimize(IR([node], [x], [out]))[0].nodes
