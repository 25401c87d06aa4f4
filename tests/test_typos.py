"""A mistyped name in a rule, a pattern, a target or a contract is an error, not something that never matches."""

import subprocess
import sys
from typing import Any

import pytest
import torch

import torch_ir
from tests.graphs import chain, tensor
from torch_ir import IR, OpNode, Target, optimize
from torch_ir.errors import RegistryError, SerializationError, UnknownOperatorError
from torch_ir.passes import apply_rules
from torch_ir.rewrite import Pattern, match, op, rule
from torch_ir.targets import Contract, coverage

WRONG = [
    (op("aten.rellu.default", self="x"), r"torch has no operator 'aten\.rellu\.default'; did you mean 'aten\.relu"),
    (op("aten.rellu", self="x"), r"torch has no operator 'aten\.rellu'; did you mean 'aten\.relu"),
    (op("aten.relu.defualt", self="x"), r"did you mean 'aten\.relu\.default'\?"),
    (op("prims.negg.default", self="x"), r"torch has no operator 'prims\.negg\.default'"),
    (op("higher_order.cnd", pred="x"), r"torch has no operator 'higher_order\.cnd'"),
    (op("aten.relu.default", slf="x"), r"aten\.relu\.default has no argument 'slf'; did you mean 'self'\?"),
    (op("aten.relu", **{"tensors.0": "x"}), r"aten\.relu has no argument 'tensors'; there are: self"),
    (op("aten.gelu", self="x").when(aproximate="tanh"), r"has no argument 'aproximate'; did you mean 'approximate'\?"),
    (op("aten.neg.default", self=op("aten.rellu.default", self="x")), r"torch has no operator 'aten\.rellu"),
    (op("aten.relu.default", "aten.rellu.default", self="x"), r"torch has no operator 'aten\.rellu"),
]
RIGHT = [
    op("aten.add", self="x", other=..., alpha=1),  # `alpha` is an argument of some overloads
    op("aten.add.Tensor", "aten.sub.Tensor", self="x", alpha=1),
    op("aten.cat.default", **{"tensors.0": "x"}),
    op("higher_order.cond", pred="x"),
    op("mine.anything.default", whatever="x"),  # a namespace of the user's, registered here or not
    op("fused.attention", query="x"),
    op("torch.nn.Linear", input="x"),
    op("aten.relu.default", **{"0": "x"}),  # a node without names
]


@pytest.mark.parametrize(("pattern", "told"), WRONG)
def test_a_rule_with_a_mistyped_name_is_an_error(pattern: Pattern, told: str) -> None:
    with pytest.raises(RegistryError, match=f"rule 'mine': .*{told}"):

        @rule(pattern)
        def mine(g: Any, node: OpNode, x: Any) -> None:
            return None


@pytest.mark.parametrize("pattern", RIGHT, ids=str)
def test_names_that_may_be_right_are_allowed(pattern: Pattern) -> None:
    made = rule(pattern)(lambda g, node, x: None)
    assert apply_rules(chain("aten.relu.default"), made) == 0
    Target("npu").lowers(pattern)(lambda node, x: node.name)


def test_an_operator_that_is_registered_later_is_known_then() -> None:
    """Unknown operators are looked up again; operators with a user's executor are never unknown."""
    pattern = op("aten.only_in_this_test.default", self="x")
    with pytest.raises(RegistryError, match="only_in_this_test"):
        match(pattern, chain("aten.relu.default").nodes[0])
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("only_in_this_test(Tensor self) -> Tensor")
    assert match(pattern, chain("aten.relu.default").nodes[0]) is None
    library._destroy()


def test_a_user_executor_makes_a_name_known(executors: Any) -> None:
    executors("aten.newer_than_torch.default", lambda inputs, attrs: inputs)
    rule(op("aten.newer_than_torch.default", self="x"))(lambda g, node, x: None)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda g, x: g.op("aten.rellu.default", self=x), "torch has no operator 'aten.rellu.default'; did you mean"),
        (lambda g, x: g.op("relu", self=x), "there is no operator 'relu'"),
        (lambda g, x: g.op("aten.gelu.default", self=x, aproximate="tanh"), "did you mean 'approximate'"),
    ],
)
def test_a_rule_that_makes_something_unknown_is_an_error(made: Any, told: str) -> None:
    """It declined silently, every time."""

    @rule(op("aten.relu.default", self="x"))
    def mine(g: Any, node: OpNode, x: Any) -> Any:
        return made(g, x)

    for apply in (
        lambda ir: apply_rules(ir, mine),
        lambda ir: optimize(ir, passes=[lambda one: apply_rules(one, mine)]),
    ):
        with pytest.raises(UnknownOperatorError, match=f"rule 'mine': .*{told}"):
            apply(chain("aten.relu.default"))


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("aten.liner", r"torch has no operator 'aten\.liner'; did you mean 'aten\.linear"),
        ("aten.linear.defalt", r"did you mean 'aten\.linear\.default'"),
        ("torch.nn.Linaer", r"unknown name 'torch\.nn\.Linaer'; did you mean 'Linear'"),
        ("torch.nn.functional.gellu", r"did you mean 'gelu'"),
        (op("aten.relu.default", self=op("aten.liner")), r"torch has no operator 'aten\.liner'"),
    ],
)
def test_a_handler_with_a_mistyped_name_is_an_error(key: Any, told: str) -> None:
    with pytest.raises(RegistryError, match=f"target 'npu': .*{told}"):
        Target("npu").lowers(key)(lambda node: None)


@pytest.mark.parametrize("key", ["aten.linear", "mine.op", "torch.nn.Linear", "torch.Tensor.view", "my_package.Layer"])
def test_other_handlers_are_kept(key: str) -> None:
    target = Target("npu")
    target.lowers(key)(lambda node: None)
    assert repr(target) == "Target('npu', 1 handlers)"


def test_without_torch_a_handler_is_checked_when_it_looks_mistyped(tmp_path: Any) -> None:
    """Lowering imports torch only to distinguish `aten.liner` from an operator that this graph does not have."""
    ir = IR([OpNode("l", "aten.linear.default", [x := tensor("x", 2)], [tensor("l", 2)])], [x], [tensor("l", 2)])
    ir.save(tmp_path / "linear.json")
    program = (
        "import sys, torch_ir\n"
        "npu = torch_ir.Target('npu')\n"
        "npu.lowers(sys.argv[1])(lambda node: node.name)\n"
        "npu.lower(torch_ir.IR.load('linear.json'))\n"
        "print('torch' in sys.modules)\n"
    )

    def lowered(name: str) -> subprocess.CompletedProcess[str]:
        root = str(torch_ir.__file__).rpartition("/torch_ir/")[0]
        words = [sys.executable, "-c", program, name]
        return subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True)

    assert "RegistryError: target 'npu': torch has no operator 'aten.liner'" in lowered("aten.liner").stderr
    assert lowered("aten.softmax").stdout == lowered("aten.linear").stdout == "False\n"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"op": "aten.conv2dd"}, "torch has no operator 'aten.conv2dd'"),
        ({"op": "aten.conv2d", "attrs": {"grups": 1}}, "has no argument 'grups'; did you mean 'groups'"),
        ({"op": "aten.conv2d", "absent": ["bais"]}, "has no argument 'bais'; did you mean 'bias'"),
        ({"op": "aten.conv2d", "dtypes": {"wieght": ["int8"]}}, "has no argument 'wieght'; did you mean 'weight'"),
    ],
)
def test_a_contract_with_a_mistyped_name_is_an_error(row: dict[str, Any], told: str) -> None:
    """`absent` and `dtypes` of an argument that there is not held for every node."""
    with pytest.raises(SerializationError, match=told):
        coverage(chain("aten.relu.default"), Contract("npu", ["aten.relu", row]), decompose=False)
    right = {"op": "aten.conv2d", "attrs": {"groups": 1}, "absent": ["bias"], "dtypes": {"weight": ["int8"]}}
    assert coverage(chain("aten.relu.default"), Contract("npu", ["aten.relu", right])).share("nodes") == 1
