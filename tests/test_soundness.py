"""Every pass, every level and passes in any order keep the results of random graphs."""

import random
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from tests.random_graphs import random_graph, shrunk
from tests.rewriting import small
from tests.soundness import are_exact, fault
from torch_ir import extract_ir
from torch_ir.analysis.values.prologue import split_prologue
from torch_ir.ir import IR
from torch_ir.ir.regroup.functions import outline
from torch_ir.passes import list_passes, optimize
from torch_ir.passes.optimize_levels import LEVELS
from torch_ir.rewrite.change_log import current_journal

pytestmark = pytest.mark.usefixtures("_one_thread")
PASSES = [made.name for made in list_passes()]
_CHUNK = 100  # graphs of one slow test
# They sum a normalised tensor: the result is only rounding, which cannot be compared.
_CANCEL = frozenset((10_787,))


def check(seed: int, passes: list[str]) -> None:
    """Draw a graph and check the passes on it; a failing one is reduced first."""
    ir = random_graph(seed, steady=not are_exact(passes))
    settles = "decompose" not in passes or len(set(passes)) == 1  # it decomposes what other passes merge
    found = fault(ir, passes, settles=settles)
    if found:
        kind = found.partition(":")[0]
        least = shrunk(ir, lambda one: fault(one, passes, settles=settles).partition(":")[0] == kind)
        pytest.fail(f"seed {seed}, {', '.join(passes)}: {fault(least, passes, settles=settles)}\n{least}")


def some_passes(seed: int) -> list[str]:
    """Passes in any order, some of them twice."""
    draw = random.Random(seed)
    return draw.choices(PASSES, k=draw.randint(2, 6))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_sound(level: str) -> None:
    for seed in range(12):
        check(seed, list(LEVELS[level]))


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_is_sound(name: str) -> None:
    for seed in range(1000, 1002):
        check(seed, [name])


def test_passes_are_sound_in_any_order() -> None:
    for seed in range(2000, 2010):
        check(seed, some_passes(seed))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 12_000, _CHUNK))
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_sound_on_thousands(level: str, start: int) -> None:
    for seed in range(start, start + _CHUNK):
        if seed not in _CANCEL or level == "clean":
            check(seed, list(LEVELS[level]))


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_is_sound_on_hundreds(name: str) -> None:
    for seed in range(20_000, 20_100):
        check(seed, [name])


@pytest.mark.slow
@pytest.mark.parametrize("start", range(30_000, 32_000, _CHUNK))
def test_passes_are_sound_in_any_order_on_thousands(start: int) -> None:
    for seed in range(start, start + _CHUNK):
        check(seed, some_passes(seed))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up, self.gate, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        made: Tensor = self.down(torch.sigmoid(self.gate(y)) * self.gate(y) * self.up(y))
        return x + made * 1.0


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_sound_on_repeated_blocks(level: str) -> None:
    """Blocks that are calls of one function stay such calls, with the same results."""
    model = nn.Sequential(*(Block() for _ in range(3))).eval().to("meta")
    ir = extract_ir(model, (torch.empty(2, 4, device="meta"),)).fold_blocks()
    assert ir.functions
    assert fault(ir, LEVELS[level]) == ""


CORNERS = {
    "an unread node that only copies": (
        "x: float32[2]",
        {"alias": "aten.alias.default(x)", "neg": "aten.neg.default(x)"},
    ),
    "two copies that are no views": (
        "x: complex64[2]",
        {"conj": "aten.conj_physical.default(x)", "back": "aten.conj_physical.default(conj)"},
    ),
    "bools are not subtracted": ("x: int32[3], y: bool[3]", {"add": "aten.add.Tensor(x, y, alpha=-1)"}),
    "a whole 0 has no negative": (
        "x: float32[9], n: int8[9]",
        {"neg": "aten.neg.default(n)", "add": "aten.add.Tensor(neg, x)"},
    ),
    "a bound that wraps": (
        "x: uint8[4]",
        {"clamp": "aten.clamp.default(x, -1)", "relu": "aten.relu.default(clamp)"},
    ),
    "a bound of another dtype": (
        "x: int64[4]",
        {"hardtanh": "aten.hardtanh.default(x, 0.0, 6.0)", "clamp": "aten.clamp.default(hardtanh, None, 1)"},
    ),
    "infinite and complex": ("x: float32[9], y: complex64[9]", {"add": "aten.add.Tensor(x, y)"}),
    "one and complex": ("x: complex64[9]", {"mul": "aten.mul.Tensor(x, 1)", "div": "aten.div.Tensor(mul, 1.0)"}),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    """Graphs on which a rule that looks right is wrong."""
    inputs, calls = CORNERS[name]
    assert fault(small(inputs, **calls), LEVELS["clean"]) == ""


def test_operands_are_in_order_after_nodes_were_fused() -> None:
    """The concatenation moves behind the fused call, and so behind the sine."""
    ir = IR.parse("""
        graph(w: float32[4], y: float32[2, 3, 2], x: float32[2, 3, 2]) {
          neg: float32[2, 3, 2] = aten.neg.default(self=x)
          cat: float32[2, 3, 4] = aten.cat.default(tensors.0=neg, tensors.1=y, dim=2)
          sin: float32[4] = aten.sin.default(self=w)
          mul: float32[2, 3, 4] = aten.mul.Tensor(self=cat, other=sin)
          mul_1: float32[2, 3, 2] = aten.mul.Tensor(self=neg, other=3.0)
          return mul, mul_1
        }
    """)
    assert fault(ir, LEVELS["full"]) == ""
    better, _ = optimize(ir, "full")
    assert [node.op_type for node in better.nodes if node.is_call] == ["fused.elementwise"]
    assert [tensor.name for tensor in better.node("mul").inputs] == ["sin", "cat"]


def test_what_is_given_to_a_returned_call_is_computed_once() -> None:
    """A call aliases its operands only if its body does."""
    ir = small("x: float32[4]", weights="w: float32[4]", cos="aten.cos.default(w)", mul="aten.mul.Tensor(x, cos)")
    outline(ir, [ir.node("mul")], "body")
    assert [node.name for node in split_prologue(ir)[0]] == ["cos"]
    ir = small("x: float32[4]", weights="w: float32[4]", cos="aten.cos.default(w)", alias="aten.alias.default(cos)")
    outline(ir, [ir.node("alias")], "body")
    assert split_prologue(ir)[0] == []


def test_the_same_seed_gives_the_same_graph() -> None:
    for seed in range(20):
        assert random_graph(seed).to_json() == random_graph(seed).to_json()


def test_graphs_have_everything_that_passes_meet() -> None:
    """Each of these must occur in a few hundred graphs; otherwise it is not tested."""
    seen: Counter[str] = Counter()
    for seed in range(250):
        seen.update(_features(random_graph(seed)))
    wanted = (
        "open sizes", "call", "cond", "new values", "constant", "buffer", "tied", "input returned", "returned twice",
        "no dimension", "no element", "strided input", "unread node", "float32", "float64", "float16", "bfloat16",
        "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "aten.dropout.default",
        "aten._assert_tensor_metadata.default", "aten._assert_scalar.default", "aten.slice_scatter.default",
        "aten.batch_norm.default", "aten._native_batch_norm_legit_functional.default", "aten.conv2d.default",
        "aten.scaled_dot_product_attention.default", "aten.linear.default", "aten.topk.default",
    )  # fmt: skip
    assert [name for name in wanted if not seen[name]] == []


def _features(ir: IR) -> set[str]:
    """Return the features of a graph."""
    tensors, results = list(ir.tensors()), ir.graph_outputs
    found = {node.op_type.rpartition("higher_order.")[2] for node in ir.all_nodes()} | {t.dtype for t in tensors}
    found |= {param.param.kind for param in ir.params if param.param is not None}
    facts = {
        "open sizes": bool(ir.symbols),
        "new values": bool(ir.mutations),
        "tied": bool(ir.tied_weights),
        "input returned": not set(results).isdisjoint(ir.graph_inputs),
        "returned twice": len(set(results)) < len(results),
        "no dimension": any(not tensor.shape for tensor in tensors),
        "no element": any(0 in tensor.shape for tensor in tensors),
        "strided input": any(tensor.stride is not None for tensor in ir.graph_inputs),
        "unread node": any(not made._uses for node in ir.nodes for made in node.outputs),
    }
    return found | {name for name, holds in facts.items() if holds}


def _returns(ir: IR, name: str) -> int:
    """Return another tensor from the graph."""
    changed = [tensor for tensor in ir.tensors() if tensor.name == name and tensor not in ir.graph_outputs]
    ir.graph_outputs = changed or ir.graph_outputs
    return len(changed)


def wrong_values(ir: IR) -> int:
    return _returns(ir, "relu")


def shared_memory(ir: IR) -> int:
    return _returns(ir, "x")


def endless(ir: IR) -> int:
    """Something to do in every run."""
    current_journal().changed("endless", ir.nodes[0].name)
    return 0


def other_random_numbers(ir: IR) -> int:
    before, ir.nodes = ir.nodes, [*ir.nodes[1:], ir.nodes[0]]
    return int(before[0].op_type == "aten.rand_like.default")


def test_faults_are_found() -> None:
    """A wrong pass is distinguished from a right one."""
    copy = small(
        "x: float32[3, 4]", clone="aten.clone.default(x)", relu="aten.relu.default(x)", neg="aten.neg.default(x)"
    )
    copy.graph_outputs = [copy.node("clone").output]
    assert "off by" in fault(copy, [wrong_values])
    assert fault(copy, [shared_memory]) == "input 0 and result 0 share memory"
    assert fault(copy, [endless]) == "not settled: endless at clone"
    assert fault(copy, [lambda ir: 0]) == ""
    drawn = small("x: float32[3, 4]", ["one", "two"], one="aten.rand_like.default(x)", two="aten.randn_like.default(x)")
    assert "off by" in fault(drawn, [other_random_numbers], settles=False)


def test_a_failing_graph_shrinks() -> None:
    """Parts that are unrelated to a failure are removed."""
    ir = random_graph(7)
    least = shrunk(ir, lambda one: any(node.op_type == ir.nodes[-1].op_type for node in one.nodes))
    assert len(least.nodes) <= 3
