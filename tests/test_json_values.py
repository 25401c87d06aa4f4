"""Values, constants and structures in the file: each has a representation and round-trips."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import chain, everything, mlp, tensor
from tests.refusals import refused
from torch_ir.errors import GraphError, SerializationError
from torch_ir.ir import (
    IR,
    Branch,
    Device,
    Dtype,
    Expr,
    FunctionRef,
    Layout,
    MemoryFormat,
    Param,
    Slot,
    TensorData,
    TensorMeta,
)
from torch_ir.ir.graph.attr_types import DTYPES, LAYOUTS, MEMORY_FORMATS
from torch_ir.ir.json.json_values import MAX_NESTING, decode, encode

# -- values -----------------------------------------------------------------------------------------------------------


text_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


keys = text_values.filter(lambda key: not key.startswith("$"))


leaf_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**99), 10**99),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.sampled_from([0.0, -0.0, float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1]),
    st.complex_numbers(),
    text_values,
    st.sampled_from(sorted(DTYPES)).map(Dtype),
    st.sampled_from(["cpu", "cuda:0", "meta", "privateuseone:12"]).map(Device),
    st.sampled_from(sorted(LAYOUTS)).map(Layout),
    st.sampled_from(sorted(MEMORY_FORMATS)).map(MemoryFormat),
    st.sampled_from(["batch", "2*batch + 1", "-batch // 2"]).map(Expr),
    st.just(FunctionRef("body")),
)


attribute_values = st.recursive(
    leaf_values,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


def identical(one: Any, other: Any) -> bool:
    """The same type and the same value, down to the sign of zero; not-a-number is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, complex):
        return identical(one.real, other.real) and identical(one.imag, other.imag)
    return repr(one) == repr(other)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(keys.filter(bool), attribute_values, max_size=5))
def test_every_attribute_survives_the_file(attrs: dict[str, Any]) -> None:
    """Every attribute value round-trips with type and bits; the second file equals the first."""
    attrs = {"alpha": 1, **{f"a{index}": value for index, value in enumerate(attrs.values())}}
    ir = everything()
    ir.node("add").attrs = attrs
    text = ir.to_json()
    again = IR.from_json(text)
    assert identical(again.node("add").attrs, attrs)
    assert again.to_json() == text


def test_spellings() -> None:
    """One representation per kind of value; non-JSON values are objects with one key that starts with a dollar."""
    spellings = {
        "null": None, "-0.0": -0.0, '{"$float": "nan"}': float("nan"), '{"$int": "-9223372036854775809"}': -(2**63) - 1,
        "9223372036854775807": 2**63 - 1, '{"$complex": [{"$float": "inf"}, -0.0]}': complex(float("inf"), -0.0),
        '{"$dtype": "bfloat16"}': Dtype("bfloat16"), '{"$device": "cuda:1"}': Device("cuda:1"),
        '{"$layout": "strided"}': Layout("strided"),
        '{"$memory_format": "channels_last"}': MemoryFormat("channels_last"),
        '{"$expr": "2*n"}': Expr("2*n"), '{"$function": "f"}': FunctionRef("f"), '{"$tensor": 3}': Slot(3),
    }  # fmt: skip
    assert {json.dumps(encode(value)): value for value in spellings.values()} == spellings
    assert all(identical(decode(json.loads(text), "$"), value) for text, value in spellings.items())


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"bytes", {"$tag": 1}, {1: 2}, 10**100, -(10**100), range(3), Ellipsis]
)
def test_a_value_without_a_spelling_is_refused_when_it_is_written(value: Any) -> None:
    """Nothing is written that could not be read back."""
    ir = chain("aten.neg.default")
    ir.nodes[0].attrs["value"] = value
    with pytest.raises(SerializationError):
        ir.to_json()


def test_deep_values_are_refused_when_they_are_written() -> None:
    """The depth that can be written can be read; a recursive list is too deep."""
    ir = chain("aten.neg.default")
    fits: list[Any] = []
    for _ in range(MAX_NESTING - 1):
        fits = [fits]
    ir.nodes[0].attrs["value"] = fits
    assert IR.from_json(ir.to_json()).nodes[0]["value"] == fits
    endless: list[Any] = []
    endless.append(endless)
    for value in ([fits], endless):
        ir.nodes[0].attrs["value"] = value
        with pytest.raises(SerializationError, match=f"nested deeper than {MAX_NESTING} levels"):
            ir.to_json()


@pytest.mark.parametrize("name", ["half \ud800", "\udfff"])
def test_half_characters_are_refused_when_they_are_written(name: str) -> None:
    """A string that is not Unicode cannot be in a UTF-8 file."""
    ir = mlp()
    ir.model_name = name
    with pytest.raises(SerializationError, match="surrogates not allowed"):
        ir.to_json()


def test_names_that_are_no_strings_are_refused_when_they_are_written() -> None:
    """An error in a hand-built graph is a SerializationError as well."""
    ir = mlp()
    ir.graph_inputs[0].dtype = object()  # type: ignore[assignment]
    with pytest.raises(SerializationError, match="cannot be written as JSON"):
        ir.to_json()


def test_extensions_are_kept_as_they_are() -> None:
    """Under `extensions` anything that is JSON is allowed, also keys with a dollar; other values are refused."""
    ir = mlp()
    ir.extensions = {"my.tool": {"$schema": 1, "list": [1.5, None, {"deep": []}]}}
    assert IR.from_json(ir.to_json()).extensions == ir.extensions
    for value in ({1}, float("nan"), 2**63, (1, 2), {1: 2}):
        ir.extensions = {"my.tool": [value]}
        with pytest.raises(SerializationError, match=re.escape("$.extensions.my.tool[0]: ")):
            ir.to_json()


# -- constants --------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(set(DTYPES) - {"bool"})), st.lists(st.integers(0, 3), max_size=3), st.randoms())
def test_constants_survive_bit_for_bit(dtype: str, shape: list[int], randomness: random.Random) -> None:
    """Raw bytes of any dtype, not-a-number payloads included; no element is ever a decimal."""
    count = DTYPES[dtype]
    for size in shape:
        count *= size
    data = TensorData(tuple(shape), dtype, randomness.randbytes(count))
    k = TensorMeta("c_k", shape, dtype, param=Param(("k",), "constant", data))
    ir = IR([], [tensor("x", 2)], [tensor("x", 2)], params=[k]).check()
    assert IR.from_json(ir.to_json()).constants == {"k": data}


@pytest.mark.parametrize(
    ("numbers", "dtype", "raw"),
    [
        ([1.5, -2.0], "float32", "0000c03f000000c0"),
        ([[1], [2]], "int16", "01000200"),
        (0.1, "float64", "9a9999999999b93f"),
        ([True, False], "bool", "0100"),
        ([1.0, 3.140625], "bfloat16", "803f4940"),
        ([0.1, -1 / 3, 1.00390625, 1.01171875], "bfloat16", "cd3dabbe803f823f"),  # the nearest; of two, the even one
        ([3.3895e38, 1e-40], "bfloat16", "7f7f0100"),
        ([0.5], "float16", "0038"),
        ([255], "uint8", "ff"),
        ([18446744073709551615], "uint64", "ffffffffffffffff"),
        ([], "int64", ""),
    ],
)
def test_the_documented_decimal_form_of_constants(numbers: Any, dtype: str, raw: str) -> None:
    """Nested lists of decimals become bytes."""
    assert TensorData.from_numbers(numbers, dtype).raw.hex() == raw


@pytest.mark.parametrize(
    ("numbers", "dtype", "message"),
    [
        ([[1, 2], [3]], "int64", "rows of a constant differ in length"),
        ([1, [2]], "int64", "not a number"),
        (["1"], "bool", "not a number"),
        ([None], "float32", "not a number"),
        ([300], "int8", "cannot hold its numbers"),
        ([1.5], "int32", "cannot hold its numbers"),
        ([1e39], "float32", "cannot hold its numbers"),
        ([3.4e38], "bfloat16", "cannot hold its numbers"),
        ([1], "complex64", "cannot be written as decimals"),
    ],
)
def test_decimals_that_do_not_fit_are_refused(numbers: Any, dtype: str, message: str) -> None:
    """Nothing is rounded, truncated or guessed beyond the dtype's own precision."""
    with pytest.raises(GraphError, match=message):
        TensorData.from_numbers(numbers, dtype)
    shape = [len(numbers)]
    record = {"dtype": dtype, "data": numbers}
    ir = IR([], [tensor("x")], [tensor("x")], params=[TensorMeta("c_k", shape, dtype, param=Param(("k",), "constant"))])
    document = ir.to_dict() | {"constants": {"k": record}}
    error = refused(document)
    assert error.rule == "R15"
    assert error.path == ("$.constants.k.dtype" if dtype == "complex64" else "$.constants.k.data")


# -- structures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree",
    [
        Slot(0),
        None,
        Branch("list", (Slot(0),)),
        Branch("tuple", (Slot(0), None, 3, 0.5, "text", Expr("n"))),
        Branch("dict", (Slot(0), 1), ("a", 2)),
        Branch("dict", (Slot(0), 1, 2), (("a", 1), None, 2.5)),
        Branch("object", (Slot(0),), ("logits",), "transformers.Output"),
        Branch("object", (Slot(0), Slot(0)), (), "Pair"),
        Branch("tuple", (Branch("tuple", (Branch("tuple", (Branch("dict", ()), Slot(0))),)),)),
    ],
    ids=repr,
)
def test_structures_survive(tree: Any) -> None:
    """Tuples, lists, dicts with any keys, objects with and without fields, values and a plain None."""
    assert decode(json.loads(json.dumps(encode(tree))), "$") == tree


def test_a_model_that_returns_none_survives() -> None:
    """None as the whole result differs from an absent description of the result."""
    ir = everything()
    ir.graph_outputs, ir.output_tree = [], None
    again = IR.from_json(ir.to_json())
    assert again.output_tree is None
    assert mlp().to_dict().keys().isdisjoint(["input_tree", "output_tree"])
    assert IR.from_json(mlp().to_json()).output_tree == Branch("tuple", (Slot(0),))
