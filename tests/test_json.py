"""The file: exact bytes, lossless values, a digest that sees damage, a header that names the version."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graphs import chain, everything, mlp, tensor
from tests.refusals import changed, refused, without_digest
from torch_ir import deserialize_ir, serialize_ir
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
    OpNode,
    Param,
    Slot,
    TensorData,
    TensorMeta,
)
from torch_ir.ir.document import write_document
from torch_ir.ir.encoding import MAX_NESTING, decode, encode
from torch_ir.ir.values import DTYPES, LAYOUTS, MEMORY_FORMATS

DOCUMENTED = """\
{
"format": "torch-ir",
"version": 1,
"model_name": "SimpleMLP",
"pytorch_version": "2.13.0",
"graph_inputs": [
{"name": "x", "shape": [1, 4], "dtype": "float32"}
],
"graph_outputs": [
{"name": "linear_1", "shape": [1, 2], "dtype": "float32"}
],
"weights": [
{"name": "fc1.weight", "shape": [8, 4], "dtype": "float32"},
{"name": "fc1.bias", "shape": [8], "dtype": "float32"},
{"name": "fc2.weight", "shape": [2, 8], "dtype": "float32"},
{"name": "fc2.bias", "shape": [2], "dtype": "float32"}
],
"weight_name_mapping": {"p_fc1_weight": "fc1.weight", "p_fc1_bias": "fc1.bias", "p_fc2_weight": "fc2.weight", \
"p_fc2_bias": "fc2.bias"},
"nodes": [
{"name": "linear", "op_type": "aten.linear.default", "inputs": [{"name": "x", "shape": [1, 4], "dtype": "float32", \
"producer_node": "x", "producer_output_idx": 0}, {"name": "p_fc1_weight", "shape": [8, 4], "dtype": "float32"}, \
{"name": "p_fc1_bias", "shape": [8], "dtype": "float32"}], "outputs": [{"name": "linear", "shape": [1, 8], "dtype": \
"float32"}], "attrs": {}, "args": ["input", "weight", "bias"], "module": "fc1", "module_class": "Linear"},
{"name": "relu", "op_type": "aten.relu.default", "inputs": [{"name": "linear", "shape": [1, 8], "dtype": "float32", \
"producer_node": "linear", "producer_output_idx": 0}], "outputs": [{"name": "relu", "shape": [1, 8], "dtype": \
"float32"}], "attrs": {}, "args": ["self"], "module": "relu", "module_class": "ReLU"},
{"name": "linear_1", "op_type": "aten.linear.default", "inputs": [{"name": "relu", "shape": [1, 8], "dtype": \
"float32", "producer_node": "relu", "producer_output_idx": 0}, {"name": "p_fc2_weight", "shape": [2, 8], "dtype": \
"float32"}, {"name": "p_fc2_bias", "shape": [2], "dtype": "float32"}], "outputs": [{"name": "linear_1", "shape": \
[1, 2], "dtype": "float32"}], "attrs": {}, "args": ["input", "weight", "bias"], "module": "fc2", "module_class": \
"Linear"}
],
"params": {"p_fc1_weight": {"kind": "parameter"}, "p_fc1_bias": {"kind": "parameter"}, "p_fc2_weight": {"kind": \
"parameter"}, "p_fc2_bias": {"kind": "parameter"}},
"digest": "sha256:773856e9bdae8408af3f0765fd7039a7b5d4d68e87c91b7911d4d5bab1d2c069"
}
"""


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_the_documented_model_to_the_byte() -> None:
    """The file of the model of the documentation is exactly this, and reading it gives it again."""
    assert mlp().to_json() == DOCUMENTED
    assert IR.from_json(DOCUMENTED).to_json() == DOCUMENTED


def test_documented_keys_in_the_documented_order() -> None:
    """After the header come the documented keys; ours follow, and only those that have something to say."""
    documented = [
        "model_name", "pytorch_version", "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "nodes",
    ]  # fmt: skip
    assert list(chain("aten.neg.default").to_dict()) == ["format", "version", *documented]
    assert list(everything().to_dict()) == [
        "format", "version", *documented, "constants", "params", "mutations", "symbols", "constraints", "input_tree",
        "output_tree", "functions", "device", "fixed_layout", "modules", "extensions",
    ]  # fmt: skip
    assert list(json.loads(everything().to_json()))[-1] == "digest"


def test_reading_and_writing_gives_the_same_bytes() -> None:
    """For a graph that uses every part of the format, through each of the documented functions."""
    text = everything().to_json()
    assert IR.from_json(text).to_json() == text
    assert serialize_ir(IR.from_json(text)) == text
    assert write_document(IR.from_dict(json.loads(text)).to_dict()) == text
    assert serialize_ir(deserialize_ir(mlp().to_json())) == mlp().to_json()


def test_bytes_do_not_depend_on_hash_seeds() -> None:
    """Two processes with different hash seeds write the same file."""
    program = (
        "from tests.graphs import everything; import sys; sys.stdout.buffer.write(everything().to_json().encode())"
    )
    written = {_python(program, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "4242")}
    assert written == {everything().to_json().encode()}


def test_reading_and_writing_need_no_torch() -> None:
    """Loading, checking, printing and saving a file leave torch unimported."""
    program = (
        "import sys; from torch_ir import IR; from tests.graphs import everything; ir = everything();"
        "ir = IR.from_json(ir.to_json()); str(ir.check()); sys.exit('torch' in sys.modules)"
    )
    assert _python(program).returncode == 0


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", program]
    root = Path(__file__).parents[1]
    return subprocess.run(command, cwd=root, env={**os.environ, **environment}, capture_output=True, check=False)


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
    """What an attribute can be comes back as it was, type and bits; the second file has the bytes of the first."""
    attrs = {f"a{index}": value for index, value in enumerate(attrs.values())}
    ir = everything()
    ir.node("add").attrs = attrs
    text = ir.to_json()
    again = IR.from_json(text)
    assert identical(again.node("add").attrs, attrs)
    assert again.to_json() == text


def test_spellings() -> None:
    """One spelling for each kind of value; what JSON lacks is an object with one key that starts with a dollar."""
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
    """The depth that can be written is one that can be read; a list that holds itself is deep, too."""
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
    """A mistake in a hand-built graph is a SerializationError as well."""
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
        ([0.5], "float16", "0038"),
        ([255], "uint8", "ff"),
        ([18446744073709551615], "uint64", "ffffffffffffffff"),
        ([], "int64", ""),
    ],
)
def test_the_documented_decimal_form_of_constants(numbers: Any, dtype: str, raw: str) -> None:
    """Nested lists of decimals become the bytes that they stand for."""
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
        ([1], "complex64", "cannot be written as decimals"),
    ],
)
def test_decimals_that_do_not_fit_are_refused(numbers: Any, dtype: str, message: str) -> None:
    """Nothing is rounded, cut or guessed beyond what the dtype itself does."""
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
    """None as the whole result is told from a result that was not described."""
    ir = everything()
    ir.graph_outputs, ir.output_tree = [], None
    again = IR.from_json(ir.to_json())
    assert again.output_tree is None
    assert mlp().to_dict().keys().isdisjoint(["input_tree", "output_tree"])
    assert IR.from_json(mlp().to_json()).output_tree == Branch("tuple", (Slot(0),))


def test_reading_gives_shared_tensors() -> None:
    """What a loaded node reads is the very tensor that another makes, and readers are counted."""
    ir = IR.from_json(everything().to_json())
    mm = ir.node("mm").output
    assert ir.node("max_1").inputs[0] is mm
    assert mm.consumers == [ir.node("max_1"), ir.node("cat"), ir.node("cat")]
    assert ir.mutations[0][0] is ir.params[1]
    assert ir.symbols["batch"].tensor is ir.graph_inputs[0]


def test_collection_of_garbage_goes_on_after_reading() -> None:
    """Reading pauses Python's collector; afterwards it is as it was, also after an error."""
    program = (
        "import gc, torch_ir; from tests.graphs import mlp; text = mlp().to_json();"
        "torch_ir.IR.from_json(text); assert gc.isenabled(); gc.disable();"
        "torch_ir.IR.from_json(text); assert not gc.isenabled(); gc.enable()\n"
        "try: torch_ir.IR.from_json('{}')\n"
        "except torch_ir.SerializationError: assert gc.isenabled()\n"
        "else: raise AssertionError"
    )
    assert _python(program).returncode == 0


def test_a_node_read_alone_stands_alone() -> None:
    """OpNode.from_dict without a graph makes its own tensors; a wrong number of names is a SerializationError."""
    record = mlp().nodes[0].to_dict()
    node = OpNode.from_dict(record)
    assert [t.name for t in node.inputs] == ["x", "p_fc1_weight", "p_fc1_bias"]
    assert node.inputs[0].producer_node == "x"
    with pytest.raises(
        SerializationError, match=r"^\$\.args: OpNode\('linear', .*\) has 3 inputs, but 1 argument names"
    ):
        OpNode.from_dict({**record, "args": ["input"]})


# -- the digest -------------------------------------------------------------------------------------------------------


def test_any_changed_byte_of_the_body_is_seen() -> None:
    """Whatever one byte of a file becomes, loading says so, or the graph is the same."""
    raw = mlp().to_json().encode()
    body = range(2, raw.index(b',\n"digest"'))
    randomness = random.Random(1)
    for position in body:
        damaged = bytearray(raw)
        damaged[position] = (damaged[position] + randomness.randrange(1, 256)) % 256
        try:
            text = damaged.decode()
        except UnicodeDecodeError:
            continue
        refused(text)


def test_a_lost_or_added_byte_is_seen() -> None:
    """Also in the digest line itself; only the very last line break may be missing."""
    text = mlp().to_json()
    for position in range(2, len(text) - 1):
        refused(text[:position] + text[position + 1 :])
    assert IR.from_json(text[:-1]).to_json() == text
    refused(text.replace("\n", "\r\n"))


def test_without_its_digest_line_a_file_may_be_edited() -> None:
    """Deleting the digest line is how one says that a change was meant."""
    edited = mlp().to_json().replace("aten.relu.default", "aten.tanh.default")
    assert "delete its digest line" in str(refused(edited))
    ir = IR.from_json(without_digest(edited))
    assert ir.node("relu").op_type == "aten.tanh.default"


@pytest.mark.parametrize("digest", ["null", '""', '"sha256:"', f'"sha256:{hashlib.sha256(b"").hexdigest()}"', "[]"])
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    """A digest may be absent, but not empty, and not anywhere but at the end."""
    body = without_digest(mlp().to_json())
    assert refused(body.replace("\n}\n", f',\n"digest": {digest}\n}}\n')).path == "$.digest"
    assert refused(body.replace("{\n", f'{{\n"digest": {digest},\n', 1)).path == "$.digest"


# -- header -----------------------------------------------------------------------------------------------------------


def test_a_newer_version_is_refused_by_name() -> None:
    """The message says which version the file has and which can be read."""
    error = refused(changed("version", 2))
    assert str(error) == "$.version: the file has format version 2, but this torch_ir reads versions up to 1"


@pytest.mark.parametrize(("key", "value"), [("version", 0), ("version", "1"), ("version", True), ("format", "onnx")])
def test_a_header_that_is_not_ours_is_refused(key: str, value: Any) -> None:
    """Format and version are what they are, or the file is not read at all."""
    assert refused(changed(key, value)).path == f"$.{key}"


def test_half_a_header_is_refused() -> None:
    """A file without a header is of the documented format; a header without its format or version is a mistake."""
    for key in ("format", "version"):
        document = everything().to_dict()
        del document[key]
        assert refused(document).path in ("$", "$.format")


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("surprise", "$"),
        ("nodes[0].surprise", "$.nodes[0]"),
        ("nodes[0].inputs[0].surprise", "$.nodes[0].inputs[0]"),
        ("nodes[0].outputs[0].surprise", "$.nodes[0].outputs[0]"),
        ("graph_inputs[0].surprise", "$.graph_inputs[0]"),
        ("weights[0].surprise", "$.weights[0]"),
        ("constants.steps.surprise", "$.constants.steps"),
        ("params.p_w.surprise", "$.params.p_w"),
        ("mutations[0].surprise", "$.mutations[0]"),
        ("symbols.batch.surprise", "$.symbols.batch"),
        ("functions.body.surprise", "$.functions.body"),
        ("functions.body.format", "$.functions.body"),
        ("functions.body.nodes[0].surprise", "$.functions.body.nodes[0]"),
        ("output_tree.surprise", "$.output_tree"),
        ("output_tree.tree.surprise", "$.output_tree.tree"),
    ],
)
def test_unknown_keys_are_refused_with_their_path(place: str, path: str) -> None:
    """A key that nobody knows is a mistake or a newer format; it is never ignored."""
    error = refused(changed(place, 1))
    assert error.path == path
    assert "unknown key" in str(error)


def test_a_misspelt_key_names_the_nearest() -> None:
    """The answer to a typing mistake is the key that was meant."""
    document = changed("nodes[0].outputs", [])
    document["nodes"][0]["ouputs"] = document["nodes"][0].pop("outputs")
    assert str(refused(document)) == "$.nodes[0]: unknown key 'ouputs'; did you mean 'outputs'?"
