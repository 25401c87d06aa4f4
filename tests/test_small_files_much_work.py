"""Valid or nearly valid graphs that took quadratic time or memory, or ended in an error of Python."""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.adversarial.shapes import SHAPES
from tests.graphs import chain, tensor, weight
from torch_ir import (
    IR,
    Cluster,
    ConversionError,
    GraphError,
    Limits,
    OpNode,
    PlanError,
    SerializationError,
    ShardError,
    Symbol,
    Target,
    TensorMeta,
    cost,
    cost_report,
    find_plan,
    liveness,
    optimize,
    shard,
    to_python,
    validate_ir,
)
from torch_ir.analysis import Bank, kv_cache, plan_memory, schedule
from torch_ir.analysis.cost_model import node_costs
from torch_ir.analysis.cost_model.links import Link, Network
from torch_ir.analysis.dependencies import partition
from torch_ir.analysis.dependencies.operators_used import operator_uses
from torch_ir.analysis.dependencies.partition import islands
from torch_ir.analysis.memory.aliasing import counts_in_a_storage, home_of, memory_of
from torch_ir.analysis.shapes import open_sizes
from torch_ir.analysis.shapes.inference import wrong_shapes
from torch_ir.analysis.values.constants import Constants
from torch_ir.ir import FunctionRef, Origin
from torch_ir.ir.graph.garbage_collection import uncollected
from torch_ir.simulators import to_chakra

_MOST = 9.0  # how much longer four times the size may take; sixteen times would be quadratic
_LEAST = 0.01  # seconds below which the time is noise


def relu(index: int, x: TensorMeta, op_type: str = "aten.relu.default", origin: Origin = Origin()) -> OpNode:
    made = [TensorMeta(f"y{index}", x.shape, x.dtype)]
    return OpNode(f"y{index}", op_type, [x], made, args=["self"], origin=origin)


def body(*op_types: str) -> IR:
    """A function of one input, `a`."""
    a = tensor("a", 2)
    nodes = [relu(index, a, op_type) for index, op_type in enumerate(op_types)]
    return IR(nodes, [a], nodes[-1].outputs)


def call(index: int, x: TensorMeta) -> OpNode:
    made = [TensorMeta(f"y{index}", x.shape, x.dtype)]
    return OpNode(f"y{index}", "call", [x], made, {"function": FunctionRef("f0")}, args=["a"])


def functions_and_weights(count: int) -> IR:
    x = tensor("x", 2)
    params = [weight(f"p{index}", 2) for index in range(count)]
    functions = {f"f{index}": body("aten.relu.default") for index in range(count)}
    return IR([relu(0, x)], [x], [tensor("y0", 2)], params=params, functions=functions)


def functions_and_sizes(count: int) -> IR:
    inputs = [tensor(f"x{index}", f"s{index}") for index in range(count)]
    functions = {f"f{index}": body("aten.relu.default") for index in range(count)}
    symbols = [Symbol(f"s{index}", 1, 9, tensor=x, dim=0) for index, x in enumerate(inputs)]
    return IR([], inputs, inputs, functions=functions, symbols=symbols)


def arguments_of_lists(count: int) -> IR:
    x = tensor("x", 2)
    node = OpNode("y", "my.op", [x] * count, [tensor("y", 2)], args=[f"a{index}.0" for index in range(count)])
    return IR([node], [x], node.outputs)


def one_module_called_often(count: int) -> IR:
    """Two nodes for each call of the same module."""
    x = tensor("x", 2)
    nodes = [relu(0, x, origin=Origin("m", 0, "M"))]
    for index in range(1, 2 * count):
        nodes.append(relu(index, nodes[-1].output, origin=Origin("m", index // 2, "M")))
    return IR(nodes, [x], nodes[-1].outputs, modules={"m": "M"})


def contraction_of_many(count: int) -> IR:
    inputs = [tensor(f"x{index}", 2) for index in range(count)]
    attrs = {"equation": f"{','.join('a' * count)}->", "path": None}
    names = [f"tensors.{index}" for index in range(count)]
    node = OpNode("y", "aten.einsum.default", inputs, [tensor("y")], attrs, args=names)
    return IR([node], inputs, node.outputs)


def caches(count: int) -> IR:
    inputs = [tensor(f"past{index}", 1, 2, 3) for index in range(count)]
    nodes = [relu(index, x) for index, x in enumerate(inputs)]
    return IR(nodes, inputs, [node.output for node in nodes])


def operators_in_calls(count: int) -> IR:
    x = tensor("x", 2)
    nodes = [call(index, x) for index in range(count)]
    functions = {"f0": body(*(f"my.op{index}" for index in range(count)))}
    return IR(nodes, [x], nodes[-1].outputs, functions=functions)


def _sharded(ir: IR) -> None:
    with suppress(ShardError):  # not all sizes can be divided
        shard(ir, {"**": "rowwise"}, {"tp": 2})


@pytest.mark.parametrize(
    ("make", "ask", "size"),
    [
        (functions_and_weights, IR.to_json, 600),
        (functions_and_weights, lambda ir: IR.from_dict(ir.to_dict()), 500),
        (functions_and_sizes, IR.check, 1500),
        (functions_and_sizes, lambda ir: ir.specialize(**dict.fromkeys(ir.symbols, 3)), 300),
        (arguments_of_lists, IR.check, 3000),
        (one_module_called_often, IR.fold_blocks, 1000),
        (one_module_called_often, lambda ir: ir.at_level("module"), 500),
        (contraction_of_many, cost, 2000),
        (caches, kv_cache, 3000),
        (operators_in_calls, operator_uses, 1000),
        (operators_in_calls, lambda ir: cost(ir).by_op(), 1000),
        (SHAPES["weights"], lambda ir: Target("none").lower(ir).missing, 500),
        (SHAPES["tied keys"], _sharded, 300),
        (SHAPES["sizes between"], lambda ir: optimize(ir, passes=["fuse-elementwise"]), 400),
    ],
)
def test_four_times_the_size_takes_about_four_times_the_time(
    make: Callable[[int], IR], ask: Callable[[IR], object], size: int
) -> None:
    def seconds(count: int) -> float:
        ir = make(count)
        with uncollected():
            start = time.process_time()
            ask(ir)
            return max(_LEAST, time.process_time() - start)

    allowed = _MOST * min(seconds(size) for _ in range(3))
    assert any(seconds(4 * size) < allowed for _ in range(3))


def test_a_plan_for_two_banks_does_not_list_all_pairs_of_live_tensors() -> None:
    """3,000 tensors that live at the same time have 4.5 million pairs."""
    x = tensor("x", 2)
    nodes = [relu(index, x) for index in range(3000)]
    ir = IR(nodes, [x], [node.output for node in nodes])
    tracemalloc.start()
    plan = plan_memory(ir, [Bank("near", 64), Bank("far")])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.used["near"] == 64
    assert peak < 20 << 20


def test_a_module_path_that_is_too_long_is_refused() -> None:
    """The paths of all modules around one of n characters have n * n / 4 characters."""
    x = tensor("x", 2)
    ir = IR([relu(0, x, origin=Origin("a." * 600, 0, "A"))], [x], [tensor("y0", 2)])
    text = ir.to_json()
    message = (
        r"\$\.nodes\[0\]\.module: a module path of 1200 characters is longer than 1000; Limits\(name_length=\.\.\.\)"
    )
    with pytest.raises(SerializationError, match=message) as caught:
        IR.from_json(text)
    assert caught.value.rule == "R2"
    assert IR.from_json(text, Limits(name_length=1200)).to_json() == text


def test_a_path_in_outer_that_is_too_long_is_refused() -> None:
    x = tensor("x", 2)
    ir = IR([relu(0, x, origin=Origin("a.b", 0, "A", outer=(f"{'a' * 1200}@1",)))], [x], [tensor("y0", 2)])
    with pytest.raises(SerializationError, match="a module path of 1202 characters is longer than 1000"):
        IR.from_json(ir.to_json())


@pytest.mark.parametrize("name", ["input_split_sizes", "output_split_sizes"])
def test_split_sizes_of_many_ranks_are_not_listed(name: str) -> None:
    """The mesh of a file may have more ranks than memory has bytes."""
    ranks = 10**12
    x, y = (TensorMeta(name, (ranks,), "float32", placement=("replicate",)) for name in "xy")
    node = OpNode("y", "_c10d_functional.all_to_all_single", [x], [y], {"group_name": "tp", name: [1]}, args=["input"])
    with pytest.raises(GraphError, match=f"expected {ranks} equal parts of dimension 0"):
        IR([node], [x], [y], mesh={"tp": ranks}).check()


def test_a_broadcast_to_many_ranks_is_timed_at_once() -> None:
    network = Network(Link(1e9, 1e-6), Link(1e8, 1e-5), 8)
    x = tensor("x", 4)
    node = OpNode("y", "_c10d_functional.broadcast", [x], [tensor("y", 4)], {"group_name": "dp"}, args=["input"])
    ranks = 8 * 10**11
    assert network.seconds(node, 16.0, {"dp": ranks}) == pytest.approx(10**11 * 1e-5 + 7 * 10**11 * 1e-6)
    assert network.seconds(node, 16.0, {"dp": 8}) == pytest.approx(7e-6 + 16 * 8 / 7 / 1e9)
    assert network.seconds(node, 16.0, {"dp": 16}) == pytest.approx(1e-5 + 14e-6 + 16 * 16 / 15 / 1e8)


_OFFS = [({}, []), ({"k": 2, "dim": 9}, ["self"]), ({"k": "a", "dim": -1}, ["self"]), ({"k": 2}, ["self"])]


@pytest.mark.parametrize(("attrs", "args"), _OFFS)
def test_a_router_with_other_arguments_is_none(attrs: dict[str, object], args: list[str]) -> None:
    """Such a graph is refused before it runs; its cost is that of rows of unknown experts."""
    x, w = tensor("x", 4, 8), tensor("w", 3, 8, 5)
    router = OpNode("k", "aten.topk.default", [x] if args else [], [tensor("k", 4, dtype="int32")], attrs, args=args)
    names = ["self", "mat2", "offs"]
    product = OpNode("y", "aten._grouped_mm.default", [x, w, router.output], [tensor("y", 4, 5)], args=names)
    assert cost(IR([router, product], [x, w], product.outputs)).macs in (4 * 8 * 5, 3 * 8 * 5)


def test_a_loop_over_a_scalar_counts_once() -> None:
    s = tensor("s")
    a = tensor("a")
    inner = IR([relu(0, a)], [a], [tensor("y0")])
    loop = OpNode("y", "higher_order.scan", [s], [tensor("y")], {"combine_fn": FunctionRef("f")}, args=["xs.0"])
    assert cost(IR([loop], [s], loop.outputs, functions={"f": inner})).bytes == 8


@pytest.mark.parametrize("ask", [cost, cost_report, liveness, schedule, plan_memory])
def test_a_cast_of_nothing_is_analysed_as_any_other_node(ask: Callable[[IR], object]) -> None:
    node = OpNode("y", "aten.to.dtype", [], [tensor("y", 2)], {"dtype": None})
    assert ask(IR([node], [], node.outputs))


def test_labels_of_a_contraction_are_letters() -> None:
    x = tensor("x", 2)
    attrs = {"equation": "\N{GREEK SMALL LETTER ALPHA}->", "path": None}
    node = OpNode("y", "aten.einsum.default", [x], [tensor("y")], attrs, args=["tensors.0"])
    with pytest.raises(GraphError, match="does not match the arguments of its operator"):
        cost(IR([node], [x], node.outputs))


def test_a_collective_without_a_group_has_no_trace(tmp_path: Path) -> None:
    ir = chain("_c10d_functional.all_reduce")
    with pytest.raises(GraphError, match="'all_reduce' names no process group, so it has no trace"):
        to_chakra(ir, tmp_path)


def test_sizes_at_which_functions_are_checked_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constraint that is hard to meet takes many tries, which all functions of a graph share."""
    x = tensor("x", "s")
    functions = {}
    for index in range(20):
        a = tensor("a", "s")
        functions[f"f{index}"] = IR([relu(0, a)], [a], [tensor("y0", "s")])
    symbols = [Symbol("s", 1, 10**9, tensor=x, dim=0)]
    ir = IR([], [x], [x], functions=functions, symbols=symbols, constraints=["s == 987654321"])
    tries = 0

    def admits(*_: object) -> bool:
        nonlocal tries
        tries += 1
        return False

    monkeypatch.setattr(open_sizes, "admits", admits)
    assert validate_ir(ir)
    assert tries <= open_sizes._TRIES
    assert not list(wrong_shapes(ir))
    assert tries <= 2 * open_sizes._TRIES


def test_a_size_that_a_call_decides_is_decided_by_its_body_once_it_is_inlined() -> None:
    x, a = tensor("x", 4), tensor("a", 4)
    found = OpNode("n", "aten.nonzero.default", [a], [tensor("n", "u0", 1, dtype="int64")], args=["self"])
    made = tensor("y", "u0", 1, dtype="int64")
    node = OpNode("y", "call", [x], [made], {"function": FunctionRef("f")}, args=["a"])
    functions, symbols = {"f": IR([found], [a], found.outputs)}, [Symbol("u0", 0, 4, tensor=made, dim=0)]
    flat = IR([node], [x], [made], functions=functions, symbols=symbols).check().at_level("aten").check()
    assert flat.symbols["u0"].tensor is flat.nodes[0].output


def test_a_part_of_a_tensor_that_is_split_at_indices_keeps_it_alive() -> None:
    """Both parts are views of the first input, not one of each input."""
    x, i = tensor("x", 8), tensor("i", 1, dtype="int64")
    source, places = relu(0, x), relu(1, i)
    names = ["self", "tensor_indices_or_sections"]
    parts = [tensor("a", 4), tensor("b", 4)]
    op_type = "aten.tensor_split.tensor_indices_or_sections"
    split = OpNode("s", op_type, [source.output, places.output], parts, {"dim": 0}, args=names)
    memory = liveness(IR([source, places, split], [x, i], [parts[1]]))
    assert memory.steps[-1].dies == (places.output,)


@pytest.mark.parametrize("group", [[1], {}, None, 7])
def test_a_group_that_is_not_a_name_sends_nothing(group: object) -> None:
    x = tensor("x", 2)
    node = OpNode("y", "my.op", [x], [tensor("y", 2)], {"group_name": group}, args=["self"])
    assert cost(IR([node], [x], node.outputs)).communication == 0


def test_nodes_without_their_operands_share_no_memory() -> None:
    """Such a graph is refused before it runs."""
    for op_type in ("aten.as_strided.default", "aten.view_as.default", "aten.reshape.default", "aten.to.dtype"):
        node = OpNode("y", op_type, [], [tensor("y", "s")])
        assert not counts_in_a_storage(node)
        assert home_of(node.output) is node.output
        assert memory_of(node.output) in (set(), {node.output})


def test_a_squeeze_without_outputs_can_be_specialised() -> None:
    x = tensor("x", "s", 2)
    node = OpNode("y", "aten.squeeze.dim", [x], [], {"dim": 0}, args=["self"])
    ir = IR([node], [x], [x], symbols=[Symbol("s", 1, 9, tensor=x, dim=0)])
    assert ir.specialize(s=1).graph_inputs[0].shape == (1, 2)


def test_work_inside_calls_is_counted_once_for_each_function_and_place() -> None:
    """Compared with the graph in which all calls are inlined."""
    ir = SHAPES["modules in calls"](20)
    for node in ir.nodes[::2]:
        node.origin = Origin("outer0", 0, "Outer")
    costs, flat = cost(ir), cost(ir.at_level("aten"))
    assert costs.by_op() == flat.by_op()
    assert costs.by_module() == flat.by_module()
    assert [*costs.by_module(depth=1)] == [*flat.by_module(depth=1)]


def test_module_paths_that_calls_multiply_are_refused() -> None:
    """Twice as many nodes at each level, in modules with longer paths: gigabytes of text in a file of 100 kB."""
    ir = IR.from_json(SHAPES["long path tower"](100).to_json())
    assert len(ir.to_json()) < 200_000
    message = r"with its functions inlined, the graph would have module paths of \d+ characters, more than 100000000"
    tracemalloc.start()
    for ask in (lambda ir: ir.at_level("aten"), cost_report):
        with pytest.raises(GraphError, match=message):
            ask(ir)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20
    assert cost(ir).by_op()


def test_rows_of_modules_that_calls_multiply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_costs, "MOST_INLINE", 1000)  # it takes seconds to reach 100,000
    x, function = tensor("x", 2), body("aten.relu.default")
    for level in range(20):
        first, second = call(0, x), call(1, tensor("y0", 2))
        first.origin, second.origin = (Origin(f"{name}{level}", 0, "M") for name in "ab")
        given = tensor("a", 2)
        first.inputs, second.inputs = (given,), (first.output,)
        function = IR([first, second], [given], [second.output], functions={"f0": function})
    with pytest.raises(GraphError, match="have 1024 modules or more in all calls"):
        cost(function).by_module()
    assert [*cost(function).by_op()] == ["aten.relu.default"]


def test_islands_that_grow_while_others_wait_are_found_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the chain adds a predecessor to everything that depends on it."""
    ir = SHAPES["growing island"](400)
    chosen = {node for node in ir.nodes if not node.name.startswith("b")}
    found = islands(ir, chosen)
    assert [len(island.nodes) for island in found] == [101, 1]
    monkeypatch.setattr(partition, "_LEAST_WORK", 10_000)
    monkeypatch.setattr(partition, "_WORK_PER_NODE", 10)
    with pytest.raises(GraphError, match="depend on each other in too many ways to be partitioned into islands"):
        islands(ir, chosen)


def test_sets_of_islands_have_bits_for_those_that_are_still_read() -> None:
    """Not for all of a long chain, of which every second node is chosen."""
    ir = SHAPES["deep"](2000)
    pieces = partition._Pieces(len(ir.nodes))
    chosen = set(ir.nodes[::2])
    for node in ir.nodes:
        pieces.add(node, node in chosen)
        assert max(pieces.before.values(), default=0).bit_length() < 10


def test_constants_that_their_strides_spread_are_not_laid_out(tmp_path: Path) -> None:
    """300 constants of 8 bytes, each over a megabyte: those beyond the budget are unknown, and are not written."""
    ir = SHAPES["spread constants"](300)
    known = Constants(ir)
    values = [known.value(param) for param in ir.params]
    assert 250 < sum(value is not None for value in values) < 257
    with pytest.raises(ConversionError, match="constants of 2400 bytes have strides that spread them over 314574000 "):
        to_python(ir)
    assert to_python(SHAPES["spread constants"](3))


def test_functions_in_more_and_more_modules_are_not_planned() -> None:
    """A plan is searched in each module that calls a function: twice as many at each level."""
    with pytest.raises(PlanError, match="the functions of the graph are called in too many modules to be planned in e"):
        find_plan(SHAPES["module tower"](600), Cluster(4, 1e9))
