"""Contracts: what each limit admits, and one error with the path for every invalid file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.graphs import tensor, weight
from tests.proof import captured, module
from torch_ir import Contract, OpNode, SerializationError
from torch_ir.errors import MissingFileError
from torch_ir.ir import Expr

ROOT = Path(__file__).resolve().parents[1]


def conv(groups: int = 1, stride: Any = (1, 1), channels: int = 8, kernel: int = 3, dtype: str = "float32") -> OpNode:
    x, y = tensor("x", 1, 4, 9, 9, dtype=dtype), tensor("y", 1, channels, 7, 7, dtype=dtype)
    w = weight("w", channels, 4 // groups, kernel, kernel)
    attrs = {"bias": None, "stride": list(stride), "padding": [0, 0], "dilation": [1, 1], "groups": groups}
    return OpNode("conv", "aten.conv2d.default", [x, w], [y], attrs, args=["input", "weight"])


def why_not(node: OpNode, **limits: Any) -> str:
    return Contract("npu", [{"op": node.op_type, **limits}]).why_not(node)


@pytest.mark.parametrize(
    "name", ["aten.conv2d.default", "aten.conv2d", "aten.conv*", "aten.conv?d.default", "*.conv2d.*"]
)
def test_an_operator_is_named_with_or_without_overload_or_by_a_pattern(name: str) -> None:
    assert Contract("npu", [name]).why_not(conv()) == ""


@pytest.mark.parametrize("name", ["aten.conv", "aten.conv2d.padding", "aten.conv2d.Default", "conv.*", "aten.Conv*"])
def test_other_names_do_not_match(name: str) -> None:
    assert Contract("npu", [name]).why_not(conv()) == "not in the contract"


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"attrs": {"groups": 1}}, ""),
        ({"attrs": {"groups": 2}}, "groups is 1, not 2"),
        ({"attrs": {"stride": [1, 2]}}, ""),
        ({"attrs": {"stride": 2}}, "stride is [1, 1], not 2"),
        ({"attrs": {"stride": {"min": 2, "max": 3}}}, "stride is [1, 1], not from 2 to 3"),
        ({"attrs": {"stride": {"max": 1}}}, ""),
        ({"attrs": {"groups": True}}, "groups is 1, not true"),
        ({"attrs": {"padding_mode": "zeros"}}, "it has no attribute padding_mode"),
        ({"dtypes": ["float32", "int8"]}, ""),
        ({"dtypes": ["int8"]}, "input is float32"),
        ({"dtypes": {"weight": ["int8"]}}, "weight is float32"),
        ({"dtypes": {"output": ["float32"], "input": ["float32"]}}, ""),
        ({"rank": 4}, ""),
        ({"rank": {"max": 3}}, "input has rank 4, not at most 3"),
        ({"absent": ["bias"]}, ""),
        ({"absent": ["weight"]}, "weight is given"),
        ({"require": ["weight.shape[0] % 8 == 0"]}, ""),
        ({"require": ["weight.shape[0] % 3 == 0"]}, "needs weight.shape[0] % 3 == 0, but weight.shape[0] = 8"),
        ({"require": ["max(weight.shape[2], weight.shape[-1]) <= 7 and groups == 1"]}, ""),
        ({"require": ["stride[0] == stride[1]"]}, ""),
        ({"require": ["input.rank == 3"]}, "needs input.rank == 3, but input.rank = 4"),
        ({"require": ["output.shape[1] > 8"]}, "needs output.shape[1] > 8, but output.shape[1] = 8"),
        ({"require": ["bias.shape[0] > 1"]}, "needs bias.shape[0] > 1, but bias.shape[0] is absent"),
        ({"require": ["input.shape[7] > 1"]}, "needs input.shape[7] > 1, but input.shape[7] is absent"),
        ({"require": ["stride > 1"]}, "needs stride > 1, but stride is a list"),
        ({"require": ["nothing > 1"]}, "needs nothing > 1, but nothing is absent"),
        ({"require": ["1 // (groups - 1) > 0"]}, "needs 1 // (groups - 1) > 0: cannot evaluate "
         "'1 // (groups - 1) > 0': integer division or modulo by zero"),
    ],
)  # fmt: skip
def test_each_limit_admits_or_says_why_not(limits: dict[str, Any], why: str) -> None:
    assert why_not(conv(), **limits) == why


def test_one_row_of_several_is_enough() -> None:
    """Dense convolutions, or depthwise ones; a node that is neither hears both reasons."""
    contract = Contract(
        "npu",
        [
            {"op": "aten.conv2d", "attrs": {"groups": 1}},
            {"op": "aten.conv2d", "require": ["weight.shape[1] == 1"], "attrs": {"stride": 1}},
        ],
    )
    assert contract.why_not(conv(groups=1)) == contract.why_not(conv(groups=4)) == ""
    assert contract.why_not(conv(groups=2)) == (
        "groups is 2, not 1; or needs weight.shape[1] == 1, but weight.shape[1] = 2"
    )


def test_a_row_may_say_otherwise_than_the_contract() -> None:
    rows = ["aten.conv2d", {"op": "aten.embedding", "dtypes": {"indices": ["int64"]}, "rank": {"max": 2}}]
    contract = Contract("npu", rows, dtypes=["float32"], rank=4)
    ids, y = tensor("ids", 3, dtype="int64"), tensor("y", 3, 8)
    node = OpNode("y", "aten.embedding.default", [weight("w", 9, 8), ids], [y], args=["weight", "indices"])
    assert contract.why_not(node) == ""
    assert contract.why_not(conv(dtype="float16")) == "input is float16"


def test_sizes_that_vary() -> None:
    """They violate `static`, and conditions that read them; other limits hold."""
    x, y = tensor("x", "batch", 8), tensor("y", "batch", 8)
    node = OpNode("y", "aten.relu.default", [x], [y], {"size": Expr("batch")}, args=["self"])
    assert Contract("npu", ["aten.relu"], static=True).why_not(node) == "self has symbolic sizes: batch"
    assert Contract("npu", [{"op": "aten.relu", "static": False}], static=True).why_not(node) == ""
    assert why_not(node, require=["self.shape[1] % 8 == 0"]) == ""
    assert why_not(node, require=["self.shape[0] > 0"]) == (
        "needs self.shape[0] > 0, but self.shape[0] is batch, which is symbolic"
    )
    assert why_not(node, attrs={"size": "batch"}) == "size is batch, not 'batch'"


def test_lists_of_tensors_are_asked_for_one_by_one() -> None:
    ir = captured(module(lambda self, x: torch.cat([x, x[:1]])), torch.randn(3, 4))
    node = ir.nodes[-1]
    assert why_not(node, require=["tensors.0.shape[1] == tensors.1.shape[1]", "tensors.1.rank == 2"]) == ""
    assert why_not(node, absent=["tensors"]) == "tensors is given"


# -- files ------------------------------------------------------------------------------------------------------------


def test_toml_json_and_python_say_the_same(tmp_path: Path) -> None:
    record = {
        "name": "npu",
        "dtypes": ["float32"],
        "ops": ["aten.relu", {"op": ["aten.conv2d"], "attrs": {"groups": 1}}],
    }
    (tmp_path / "a.json").write_text(json.dumps(record))
    (tmp_path / "a.toml").write_text(
        'name = "npu"\ndtypes = ["float32"]\n'
        '[[ops]]\nop = "aten.relu"\n'
        '[[ops]]\nop = ["aten.conv2d"]\nattrs.groups = 1\n'
    )
    found = [Contract.load(tmp_path / "a.json"), Contract.load(tmp_path / "a.toml"), Contract.from_dict(record)]
    assert found[0].rows == found[1].rows == found[2].rows
    assert {repr(contract) for contract in found} == {"Contract('npu', 2 operators)"}


def test_a_file_without_a_name_is_called_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text('ops = ["aten.relu"]')
    assert Contract.load(tmp_path / "chip.toml").name == "chip"


def test_the_example_is_a_contract_of_operators_that_torch_has() -> None:
    contract = Contract.load(ROOT / "examples" / "npu.toml")
    contract.check_names()
    assert contract.why_not(conv()) == ""
    assert "groups is 2, not 1" in contract.why_not(conv(groups=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ops = [", "not TOML: Invalid value (at end of document)"),
        ('name = "npu"', "$: 'ops' is missing"),
        ("ops = []", "ops: no operator is listed"),
        ('ops = "aten.relu"', "$.ops: expected a list, found 'aten.relu'"),
        ("ops = [3]", "ops[0]: expected an object, found int"),
        ('name = 3\nops = ["aten.relu"]', "name: expected a string, found 3"),
        ('nmae = "npu"\nops = ["aten.relu"]', "$: unknown key 'nmae'; did you mean 'name'?"),
        ('ops = ["relu"]',
         "ops[0].op: 'relu' is not an operator name such as 'aten.conv2d'; did you mean 'aten.relu'?"),
        ('dtypes = ["float31"]\nops = ["aten.relu"]', "dtypes: unknown dtype 'float31'; did you mean 'float32'?"),
        ('dtypes = "float32"\nops = ["aten.relu"]', "dtypes: expected a list of dtypes, found 'float32'"),
        ('static = 1\nops = ["aten.relu"]', "static: expected true or false, found 1"),
        ("[[ops]]", "ops[0]: 'op' names no operator"),
        ('[[ops]]\nop = ["aten.relu", 3]', "ops[0].op[1]: expected a string, found 3"),
        ('[[ops]]\nop = "aten.relu"\natrs = {}', "ops[0]: unknown key 'atrs'; did you mean 'attrs'?"),
        ('[[ops]]\nop = "aten.relu"\nattrs = 3', "ops[0].attrs: expected an object, found 3"),
        ('[[ops]]\nop = "aten.relu"\nattrs = {a = {mx = 3}}', "ops[0].attrs.a: unknown key 'mx'; did you mean 'max'?"),
        ('[[ops]]\nop = "aten.relu"\nattrs = {a = {max = "3"}}', "ops[0].attrs.a.max: expected a number, found '3'"),
        ('[[ops]]\nop = "aten.relu"\nattrs = {a = {min = 3, max = 2}}',
         "ops[0].attrs.a: a range needs 'min' or 'max', and must not be empty"),
        ('[[ops]]\nop = "aten.relu"\nattrs = {a = []}',
         "ops[0].attrs.a: expected a value, a list of values or a range, found []"),
        ('[[ops]]\nop = "aten.relu"\nattrs = {a = [[1]]}',
         "ops[0].attrs.a: expected a value, a list of values or a range, found [[1]]"),
        ('[[ops]]\nop = "aten.relu"\nrequire = ["x.shape[0] %"]',
         "ops[0].require[0]: 'x.shape[0] %' is not a condition such as 'weight.shape[0] % 8 == 0'"),
        ('[[ops]]\nop = "aten.relu"\nrequire = ["__import__(\'os\').system(\'true\')"]',
         "ops[0].require[0]: \"__import__('os').system('true')\" is not a condition such as "
         "'weight.shape[0] % 8 == 0'"),
        ('[[ops]]\nop = "aten.relu"\nrequire = ["x.shape[' + "9" * 5000 + '] > 0"]',
         "ops[0].require[0]: 'x.shape[" + "9" * 71 + " is not a condition such as 'weight.shape[0] % 8 == 0'"),
        ('[[ops]]\nop = "aten.relu"\ndtypes = {self = []}', "ops[0].dtypes.self: expected a list of dtypes, found []"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SerializationError) as error:
        Contract.load(tmp_path / "bad.toml")
    assert str(error.value) == f"{tmp_path / 'bad.toml'}: {message}"


def test_files_that_are_no_contract(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="No such file"):
        Contract.load(tmp_path / "none.toml")
    (tmp_path / "npu.yaml").write_text("")
    with pytest.raises(SerializationError, match=r"npu.yaml: a contract must be a .toml or .json file"):
        Contract.load(tmp_path / "npu.yaml")
    (tmp_path / "deep.toml").write_text("ops = " + "[" * 100_000)
    with pytest.raises(SerializationError, match=r"deep.toml: not TOML"):
        Contract.load(tmp_path / "deep.toml")
    (tmp_path / "npu.json").write_text('{"ops": [NaN]}')
    with pytest.raises(SerializationError, match=r"npu.json"):
        Contract.load(tmp_path / "npu.json")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SerializationError, match="not UTF-8"):
        Contract.load(tmp_path / "binary.toml")


def test_operators_that_torch_does_not_have_are_found() -> None:
    contract = Contract("npu", ["aten.relu", "mylib.mix", "aten.cnv2d"])
    with pytest.raises(
        SerializationError, match=r"ops\[2\].op: torch has no operator 'aten.cnv2d'; did you mean 'aten.c"
    ):
        contract.check_names()
    with pytest.raises(SerializationError, match=r"ops\[0\].op: torch has no operator 'aten.zzz\*'"):
        Contract("npu", ["aten.zzz*"]).check_names()
