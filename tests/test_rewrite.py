"""Rules: a pattern, a builder, a rewriter that applies rules to a fixed point, never visibly to the caller."""

import pytest

from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR, OpNode, TensorMeta, op, optimize, validate_ir
from torch_ir.errors import GraphError, RegistryError
from torch_ir.rewrite import rule


@rule(op("aten.neg.default", self=op("aten.neg.default", self="x")))
def two_negations(g, node, x):  # type: ignore[no-untyped-def]
    """neg(neg(x))  ->  x"""
    return x


def test_two_negations_cancel() -> None:
    """neg(neg(x)) is x."""
    ir = small(
        "x: float32[2, 3]",
        neg="aten.neg.default(x)",
        neg_1="aten.neg.default(neg)",
        relu="aten.relu.default(neg_1)",
    )
    after = optimized(ir, [two_negations])
    assert text(after) == lines("""
        graph(x: float32[2, 3]) {
          relu: float32[2, 3] = aten.relu.default(self=x)
          return relu
        }
    """)


def test_a_chain_is_followed_to_its_end() -> None:
    """Rules are applied to a fixed point: five negations are one."""
    calls = {f"neg{index}": f"aten.neg.default({f'neg{index - 1}' if index else 'x'})" for index in range(5)}
    after = optimized(small("x: float32[2]", **calls, relu="aten.relu.default(neg4)"), [two_negations])
    assert [node.op_type for node in after.nodes] == ["aten.neg.default", "aten.relu.default"]


def test_a_copy_that_the_caller_holds_stays() -> None:
    """The result did not share memory; it must not become the input itself."""
    ir = small("x: float32[2]", neg="aten.neg.default(x)", neg_1="aten.neg.default(neg)")
    after, report = proved(ir, [two_negations])
    assert len(after.nodes) == 2
    assert [decline.why for decline in report.declined] == [
        "the caller would receive a tensor that shares memory with another one"
    ]


def test_other_readers_keep_what_they_read() -> None:
    """The first negation has another reader, and stays."""
    ir = small(
        "x: float32[2]",
        ["relu", "exp"],
        neg="aten.neg.default(x)",
        neg_1="aten.neg.default(neg)",
        relu="aten.relu.default(neg_1)",
        exp="aten.exp.default(neg)",
    )
    after = optimized(ir, [two_negations])
    assert [node.name for node in after.nodes] == ["neg", "relu", "exp"]


def test_new_nodes_say_what_they_stand_for() -> None:
    """The origins of a new node are the captured nodes that it replaces."""

    @rule(op("aten.mul.Tensor", self=op("aten.neg.default", self="x"), other="y"))
    def negate_later(g, node, x, y):  # type: ignore[no-untyped-def]
        return g.op("aten.neg.default", self=g.op("aten.mul.Tensor", self=x, other=y))

    ir = small("x: float32[2], y: float32[2]", neg="aten.neg.default(x)", mul="aten.mul.Tensor(neg, y)")
    after = optimized(ir, [negate_later])
    assert [node.op_type for node in after.nodes] == ["aten.mul.Tensor", "aten.neg.default"]
    assert all(node.origins == ("neg", "mul") for node in after.nodes)


def test_a_rule_must_give_what_was_there() -> None:
    """A replacement of another shape is rejected at once, naming the rule."""

    @rule(op("aten.relu.default", self="x"))
    def wrong(g, node, x):  # type: ignore[no-untyped-def]
        return g.op("aten.sum.default", self=x)

    with pytest.raises(GraphError, match="rule 'wrong' returns"):
        optimized(small("x: float32[2]", relu="aten.relu.default(x)"), [wrong])


def test_rules_that_undo_each_other_are_stopped() -> None:
    """A sentence instead of an endless loop."""

    @rule(op("aten.relu.default", self="x"))
    def there(g, node, x):  # type: ignore[no-untyped-def]
        return g.op("aten.clamp_min.default", self=x, min=0)

    @rule(op("aten.clamp_min.default", self="x"))
    def back(g, node, x):  # type: ignore[no-untyped-def]
        return g.op("aten.relu.default", self=x)

    from torch_ir.passes import Pass, apply_rules

    both = Pass("both", lambda ir: apply_rules(ir, there, back))
    with pytest.raises(GraphError, match="rules undo each other: there, back"):
        optimized(small("x: float32[2]", relu="aten.relu.default(x)"), [both])


def test_what_a_pattern_captures_is_what_a_function_takes() -> None:
    """A slip of the pen is found when the rule is written, not when it is applied."""
    with pytest.raises(RegistryError, match="captures 'input', but its function does not take it; did you mean"):

        @rule(op("aten.relu.default", self="input"))
        def slip(g, node, inputs):  # type: ignore[no-untyped-def]
            return inputs


@rule(op("aten.max.dim", self="x", dim="dim", keepdim=False))
def max_of_negation(g, node, x, dim):  # type: ignore[no-untyped-def]
    """max(x)  ->  min of the negation, negated"""
    values, indices = g.ops("aten.min.dim", self=g.op("aten.neg.default", self=x), dim=dim)
    return g.op("aten.neg.default", self=values), indices


def test_ops_returns_every_tensor() -> None:
    """A call with several results returns a tuple of them."""
    ir = small("x: float32[2, 3]", ["y_0", "y_1"], y="aten.max.dim(x, 1)")
    after = optimized(ir, [max_of_negation])
    assert [node.op_type for node in after.nodes] == ["aten.neg.default", "aten.min.dim", "aten.neg.default"]


def test_op_returns_one_tensor() -> None:
    """A call with several results is an error of the rule that suggests the right method."""

    @rule(op("aten.max.dim", self="x"))
    def wrong(g, node, x):  # type: ignore[no-untyped-def]
        return g.op("aten.min.dim", self=x, dim=0)

    ir = small("x: float32[2, 3]", ["y_0", "y_1"], y="aten.max.dim(x, 1)")
    with pytest.raises(GraphError, match=r"aten\.min\.dim has 2 outputs, but g\.op returns one; use g\.ops"):
        optimized(ir, [wrong])


@rule(op("aten.max.dim", keepdim=False))
def keeps(g, node):  # type: ignore[no-untyped-def]
    """max(x, keepdim=False)  ->  squeeze(max(x, keepdim=True))"""
    return [g.op("aten.squeeze.dim", self=made, dim=node["dim"]) for made in g.likes(node, keepdim=True)]


def test_likes_returns_every_tensor() -> None:
    after = optimized(small("x: float32[2, 3]", ["y_0", "y_1"], y="aten.max.dim(x, 1)"), [keeps])
    assert [node.op_type for node in after.nodes] == ["aten.max.dim", "aten.squeeze.dim", "aten.squeeze.dim"]
    assert after.nodes[0].origins == ("y",)


INVALID = {  # their operand has a dtype without shape rules, so a check takes their shapes as declared
    "source and destination of different lengths": ("aten.movedim.intlist", {"source": [1], "destination": [0, 2]}),
    "no such dimension": ("aten.swapdims.default", {"dim0": 7, "dim1": 1}),
    "too few dimensions": ("aten.permute.default", {"dims": [1]}),
}


@pytest.mark.parametrize("call", INVALID.values(), ids=INVALID.keys())
def test_a_node_with_invalid_arguments_stays(call: tuple[str, dict[str, object]]) -> None:
    """A graph that passes every check can be optimised, even where the arguments of a node cannot be checked."""
    x, made = TensorMeta("x", (2, 3, 4), "qint8"), TensorMeta("made", (2, 3, 4), "qint8")
    ir = IR([OpNode("made", call[0], [x], [made], call[1])], [x], [made])
    validate_ir(ir)
    after, _ = optimize(ir, "full")
    assert [node.name for node in after.nodes] == ["made"]


def test_a_rule_that_fails_on_a_valid_node_is_a_bug() -> None:
    """Errors of rules are hidden nowhere else."""

    @rule(op("aten.neg.default", self="x"))
    def failing(g, node, x):  # type: ignore[no-untyped-def]
        return [][1]

    with pytest.raises(IndexError):
        optimized(small("x: float32[2]", neg="aten.neg.default(x)"), [failing])
