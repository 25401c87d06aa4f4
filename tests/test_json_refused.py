"""Invalid files: each violation is a SerializationError with its JSON path."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cpu_time import at_most
from tests.damage.kinds import JUNK
from tests.graphs import everything, mlp
from tests.refusals import changed, refused, without_digest
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, Limits

# -- strict JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "rule"),
    [
        ("", "not JSON: Expecting value at line 1, column 1", "R3"),
        ("\ufeff{}", "not JSON: Unexpected UTF-8 BOM", "R1"),
        ("[]", "$: expected a JSON object", "R1"),
        ("null", "$: expected a JSON object", "R1"),
        ("{}", "$: 'nodes' is missing", "R4"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'", "R3"),
        ('{"a": {"b": [], "b": 1}}', "duplicate key 'b'", "R3"),
        ('{"a": NaN}', "NaN is not JSON", "R3"),
        ('{"a": -Infinity}', "-Infinity is not JSON", "R3"),
        ('{"a": 1e999}', "1e999 is too large for a float", "R3"),
        ('{"a": 1E+999}', "1E+999 is too large for a float", "R3"),
        ('{"a": -17.5e0400}', "-17.5e0400 is too large for a float", "R3"),
        ('{"a": 9223372036854775808}', "9223372036854775808 does not fit 64 bits", "R3"),
        ('{"a": -9223372036854775809}', "-9223372036854775809 does not fit 64 bits", "R3"),
        ('{"a": ' + "9" * 5000 + "}", "does not fit 64 bits", "R3"),
        ('{"a": "\\ud800"}', "half of a surrogate pair", "R3"),
        ('{"\\udc00": 1}', "half of a surrogate pair", "R3"),
        ('{"a": "\ud800"}', "not valid Unicode", "R1"),
        ('{"a": 1,}', "not JSON: ", "R3"),
        ("{'a': 1}", "not JSON: ", "R3"),
        ('{"a": 01}', "not JSON: ", "R3"),
        ('{"a": "tab\there"}', "not JSON: Invalid control character", "R3"),
        ('{"a": 1} // comment', "not JSON: Extra data", "R3"),
        ('{"a": "\\x"}', "not JSON: ", "R3"),
    ],
)
def test_what_is_not_strict_json_is_refused(text: str, message: str, rule: str) -> None:
    """One document, unique keys, numbers in range, valid Unicode; the message names the place."""
    error = refused(text)
    assert message in str(error)
    assert (error.rule, error.path) == (rule, "$")


def test_whole_surrogate_pairs_are_characters() -> None:
    """JSON may spell a character beyond 16 bits as two halves."""
    text = without_digest(mlp().to_json()).replace('"SimpleMLP"', r'"\ud83d\ude00"')
    assert IR.from_json(text).model_name == "\U0001f600"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"nodes": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '["]",' * 100_000,
        '["\\"]",' * 100_000,
        '["\\\\",' * 100_000 + "1" + "]" * 100_000,
        '"' + '\\"' * 200_000,
        '{"' + "[" * 100_000,
        "[]" * 100_000,
    ],
)
def test_deep_nesting_is_refused_quickly(text: str) -> None:
    """Depth is counted before parsing, whatever brackets and quotes are in strings."""
    with at_most(1):
        refused(text)


def test_the_allowed_depth_is_allowed() -> None:
    """The exact limit is allowed, and a caller can set another one: the MLP has six levels."""
    text = mlp().to_json()
    assert IR.from_json(text, Limits(depth=6)).to_json() == text
    with pytest.raises(SerializationError, match="nested deeper than 5 levels"):
        IR.from_json(text, Limits(depth=5))


def test_brackets_in_strings_are_no_nesting() -> None:
    """Names and texts may contain any brackets."""
    ir = mlp()
    ir.model_name = '[{"' * 200 + "\\" * 5
    assert IR.from_json(ir.to_json()).model_name == ir.model_name


def test_many_keys_that_repeat_are_refused_quickly() -> None:
    """Finding a duplicate key of a large object takes no longer than reading it."""
    with at_most(2):
        refused("{" + ",".join(f'"{index}": 0' for index in range(50_000)) + ', "49999": 0}')


# -- wrong values -----------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any, str, str]] = [
    ("model_name", 1, "$.model_name", "R4"),
    ("pytorch_version", [], "$.pytorch_version", "R4"),
    ("device", "gpu", "$.device", "R5"),
    ("device", "cuda:\u00b2", "$.device", "R5"),
    ("device", 0, "$.device", "R4"),
    ("graph_inputs", {}, "$.graph_inputs", "R4"),
    ("graph_inputs[0]", "x", "$.graph_inputs[0]", "R4"),
    ("graph_inputs[0].name", None, "$.graph_inputs[0].name", "R4"),
    ("graph_inputs[0].name", [], "$.graph_inputs[0].name", "R4"),
    ("graph_inputs[0].shape", 4, "$.graph_inputs[0].shape", "R4"),
    ("graph_inputs[0].shape", "44", "$.graph_inputs[0].shape", "R4"),
    ("graph_inputs[0].shape[0]", -1, "$.graph_inputs[0].shape[0]", "R4"),
    ("graph_inputs[0].shape[0]", 1.0, "$.graph_inputs[0].shape[0]", "R4"),
    ("graph_inputs[0].shape[0]", True, "$.graph_inputs[0].shape[0]", "R4"),
    ("graph_inputs[0].shape[0]", [1], "$.graph_inputs[0].shape[0]", "R4"),
    ("graph_inputs[1].shape[0]", "2 *", "$.graph_inputs[1].shape[0]", "R1"),
    ("graph_inputs[1].shape[0]", "1" * 5000, "$.graph_inputs[1].shape[0]", "R1"),
    ("graph_inputs[1].shape[0]", "1e999", "$.graph_inputs[1].shape[0]", "R1"),
    ("nodes[0].inputs[1].shape[0]", 2.0, "$.nodes[0].inputs[1].shape[0]", "R4"),
    ("nodes[0].inputs[1].shape[0]", True, "$.nodes[0].inputs[1].shape[0]", "R4"),
    ("nodes[0].inputs[1].producer_output_idx", False, "$.nodes[0].inputs[1].producer_output_idx", "R4"),
    ("graph_inputs[0].dtype", "float23", "$.graph_inputs[0].dtype", "R5"),
    ("graph_inputs[0].dtype", None, "$.graph_inputs[0].dtype", "R4"),
    ("graph_inputs[0].stride", None, "$.graph_inputs[0].stride", "R4"),
    ("graph_inputs[0].stride", "11", "$.graph_inputs[0].stride", "R4"),
    ("graph_inputs[0].stride", [1, None], "$.graph_inputs[0].stride[1]", "R4"),
    ("graph_inputs[0].producer_node", 3, "$.graph_inputs[0].producer_node", "R4"),
    ("graph_inputs[0].producer_output_idx", "0", "$.graph_inputs[0].producer_output_idx", "R4"),
    ("graph_inputs[0].producer_output_idx", 7, "$.graph_inputs[0].producer_output_idx", "R7"),
    ("nodes[0].call", -1, "$.nodes[0].call", "R4"),
    ("graph_outputs", None, "$.graph_outputs", "R4"),
    ("graph_outputs[0]", None, "$.graph_outputs[0]", "R4"),
    ("weights", "none", "$.weights", "R4"),
    ("weights[0]", [], "$.weights[0]", "R4"),
    ("weights[0].name", "other", "$.weight_name_mapping.p_w", "R7"),
    ("weight_name_mapping", [], "$.weight_name_mapping", "R4"),
    ("weight_name_mapping.p_w", 1, "$.weight_name_mapping.p_w", "R7"),
    ("weight_name_mapping.extra", "first.w", "$.weight_name_mapping", "R7"),
    ("params", [], "$.params", "R4"),
    ("params.p_w", "parameter", "$.params.p_w", "R4"),
    ("params.p_w.kind", "secret", "$.params.p_w.kind", "R5"),
    ("params.p_w.tied", "second.w", "$.params.p_w.tied", "R4"),
    ("params.p_w.tied", [1], "$.params.p_w.tied[0]", "R4"),
    ("params.nobody", {}, "$.weight_name_mapping", "R7"),
    ("constants", [], "$.constants", "R4"),
    ("constants.nobody", {}, "$.constants.nobody", "R8"),
    ("constants.steps", [], "$.constants.steps", "R4"),
    ("constants.steps.dtype", "int15", "$.constants.steps.dtype", "R5"),
    ("constants.steps.shape", None, "$.constants.steps.shape", "R4"),
    ("constants.steps.shape", [3], "$.constants.steps", "R15"),
    ("constants.steps.shape", ["batch"], "$.constants.steps.shape", "R15"),
    ("constants.steps.base64", 5, "$.constants.steps.base64", "R4"),
    ("constants.steps.base64", "AQD//w=", "$.constants.steps.base64", "R15"),
    ("constants.steps.base64", "AQD/\u00e9w==", "$.constants.steps.base64", "R15"),
    ("constants.steps.base64", "AQD/", "$.constants.steps", "R15"),
    ("nodes", {}, "$.nodes", "R4"),
    ("nodes[0]", 1, "$.nodes[0]", "R4"),
    ("nodes[0].name", 1, "$.nodes[0].name", "R4"),
    ("nodes[0].op_type", None, "$.nodes[0].op_type", "R4"),
    ("nodes[0].inputs", {}, "$.nodes[0].inputs", "R4"),
    ("nodes[0].inputs[1]", None, "$.nodes[0].inputs[1]", "R4"),
    ("nodes[0].inputs[1].name", 7, "$.nodes[0].inputs[1].name", "R4"),
    ("nodes[0].outputs", 1, "$.nodes[0].outputs", "R4"),
    ("nodes[0].outputs[0].shape[0]", None, "$.nodes[0].outputs[0].shape[0]", "R4"),
    ("nodes[0].outputs[0].stride", 5, "$.nodes[0].outputs[0].stride", "R4"),
    ("nodes[0].attrs", [], "$.nodes[0].attrs", "R4"),
    ("nodes[0].args", "self", "$.nodes[0].args", "R4"),
    ("nodes[0].args[1]", 1, "$.nodes[0].args[1]", "R4"),
    ("nodes[0].args", ["self"], "$.nodes[0].args", "R7"),
    ("nodes[0].module", 1, "$.nodes[0].module", "R4"),
    ("nodes[0].call", "1", "$.nodes[0].call", "R4"),
    ("nodes[0].call", True, "$.nodes[0].call", "R4"),
    ("nodes[0].module_class", [], "$.nodes[0].module_class", "R4"),
    ("nodes[0].source", {}, "$.nodes[0].source", "R4"),
    ("nodes[0].origins", {}, "$.nodes[0].origins", "R4"),
    ("nodes[0].origins[1]", None, "$.nodes[0].origins[1]", "R4"),
    ("nodes[1].attrs.dtype", {"$dtype": "float23"}, "$.nodes[1].attrs.dtype.$dtype", "R5"),
    ("nodes[1].attrs.dtype", {"$dtype": 1}, "$.nodes[1].attrs.dtype.$dtype", "R4"),
    ("nodes[1].attrs.dtype", {"$dtype": "int8", "more": 1}, "$.nodes[1].attrs.dtype", "R5"),
    ("nodes[1].attrs.dtype", {"$Dtype": "int8"}, "$.nodes[1].attrs.dtype", "R5"),
    ("nodes[1].attrs.device", {"$device": "tpu"}, "$.nodes[1].attrs.device.$device", "R5"),
    ("nodes[1].attrs.layout", {"$layout": "dense"}, "$.nodes[1].attrs.layout.$layout", "R5"),
    ("nodes[1].attrs.layout", {"$layout": []}, "$.nodes[1].attrs.layout.$layout", "R5"),
    ("nodes[1].attrs.memory_format", {"$memory_format": "nhwc"}, "$.nodes[1].attrs.memory_format.$memory_format", "R5"),
    ("nodes[1].attrs.size", {"$expr": "batch +"}, "$.nodes[1].attrs.size.$expr", "R1"),
    ("nodes[1].attrs.size", {"$expr": 1}, "$.nodes[1].attrs.size.$expr", "R4"),
    ("nodes[1].attrs.far", {"$float": "infinity"}, "$.nodes[1].attrs.far.$float", "R5"),
    ("nodes[1].attrs.far", {"$float": 1.0}, "$.nodes[1].attrs.far.$float", "R5"),
    ("nodes[1].attrs.large", {"$int": "1e5"}, "$.nodes[1].attrs.large.$int", "R3"),
    ("nodes[1].attrs.large", {"$int": "--1"}, "$.nodes[1].attrs.large.$int", "R3"),
    ("nodes[1].attrs.large", {"$int": "1" * 101}, "$.nodes[1].attrs.large.$int", "R3"),
    ("nodes[1].attrs.large", {"$int": "\u0663"}, "$.nodes[1].attrs.large.$int", "R3"),
    ("nodes[1].attrs.imaginary", {"$complex": [1]}, "$.nodes[1].attrs.imaginary.$complex", "R3"),
    ("nodes[1].attrs.imaginary", {"$complex": [1, "2"]}, "$.nodes[1].attrs.imaginary.$complex", "R3"),
    ("nodes[1].attrs.imaginary", {"$complex": 1}, "$.nodes[1].attrs.imaginary.$complex", "R4"),
    ("nodes[1].attrs.nested[1][0]", {"$function": []}, "$.nodes[1].attrs.nested[1][0].$function", "R4"),
    ("nodes[3].attrs.function", {"$function": "nobody"}, "$.nodes[3].attrs.function.$function", "R8"),
    ("mutations", {}, "$.mutations", "R4"),
    ("mutations[0]", [], "$.mutations[0]", "R4"),
    ("mutations[0].target", "b_stat", "$.mutations[0].target", "R8"),
    ("mutations[0].value", 1, "$.mutations[0].value", "R4"),
    ("symbols", [], "$.symbols", "R4"),
    ("symbols.batch", 3, "$.symbols.batch", "R4"),
    ("symbols.batch.min", "1", "$.symbols.batch.min", "R4"),
    ("symbols.batch.dim", True, "$.symbols.batch.dim", "R4"),
    ("symbols.batch.tensor", "y", "$.symbols.batch.tensor", "R8"),
    ("constraints", "batch", "$.constraints", "R4"),
    ("constraints[0]", 1, "$.constraints[0]", "R4"),
    ("constraints[0]", "batch <", "$.constraints[0]", "R1"),
    ("input_tree", 1, "$.input_tree", "R4"),
    ("input_tree", {"$branch": "set", "items": []}, "$.input_tree.$branch", "R5"),
    ("input_tree", {"$branch": "tuple"}, "$.input_tree", "R4"),
    ("input_tree.items[1].keys", ["a", "b"], "$.input_tree.items[1].keys", "R7"),
    ("input_tree.items[1].keys[0]", {"a": 1}, "$.input_tree.items[1].keys[0]", "R4"),
    ("output_tree", None, "$.output_tree", "R4"),
    ("output_tree.tree.keys", ["pair", "pair", 1], "$.output_tree.tree.keys", "R8"),
    ("output_tree.tree.keys", {}, "$.output_tree.tree.keys", "R4"),
    ("output_tree.tree.items[2].type", 1, "$.output_tree.tree.items[2].type", "R4"),
    ("output_tree.tree.items[1]", {"$tensor": "2"}, "$.output_tree.tree.items[1].$tensor", "R4"),
    ("output_tree.tree.items[1]", {"$tensor": 7}, "$.output_tree.tree", "R7"),
    ("functions", [], "$.functions", "R4"),
    ("functions.body", [], "$.functions.body", "R4"),
    ("functions.body.nodes[0].name", 1, "$.functions.body.nodes[0].name", "R4"),
    ("functions.body.shared_weights", ["missing"], "$.functions.body.shared_weights[0]", "R8"),
    ("functions.body.shared_weights", [7], "$.functions.body.shared_weights[0]", "R4"),
    ("shared_weights", ["w"], "$.shared_weights[0]", "R8"),
    ("functions.body.functions.inner.weights", 1, "$.functions.body.functions.inner.weights", "R4"),
    ("extensions", [], "$.extensions", "R4"),
]


@pytest.mark.parametrize(
    ("place", "value", "path", "rule"), WRONG, ids=[f"{place}={str(value)[:20]}" for place, value, *_ in WRONG]
)
def test_a_wrong_value_is_refused_with_its_path(place: str, value: Any, path: str, rule: str) -> None:
    """Each field has one type and its own rules; the error carries the JSON path of the offender, and the rule."""
    error = refused(changed(place, value))
    assert (error.path, error.rule) == (path, rule)
    assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "key", ["model_name", "graph_inputs", "graph_outputs", "weights", "weight_name_mapping", "nodes"]
)
def test_a_missing_key_is_named(key: str) -> None:
    """Required keys must be present."""
    document = everything().to_dict()
    del document[key]
    assert str(refused(document)) == f"$: '{key}' is missing"


def test_dicts_that_no_json_gives_are_refused_the_same_way() -> None:
    """from_dict also accepts data of programs: odd keys, values that are not JSON, endless depth."""
    endless: dict[str, Any] = {}
    endless["deeper"] = endless
    for value in ({1: 2}, object(), endless, {"$x": object()}, {1}):
        document = everything().to_dict()
        document["nodes"][2]["attrs"]["alpha"] = value
        with pytest.raises(SerializationError, match=r"^\$\.nodes\[2\]\.attrs\.alpha"):
            IR.from_dict(document)
    body = everything().to_dict()["functions"]["body"]
    body["functions"]["inner"] = body
    with pytest.raises(SerializationError, match="functions are nested deeper than 20 levels"):
        IR.from_dict({**everything().to_dict(), "functions": {"body": body}})


# -- restated facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("nodes[1].inputs[0].shape", [4, "batch"], "'mm' is made as float32[3, 'batch'] with strides"),
        ("nodes[1].inputs[0].dtype", "float64", "but read as float64[3, 'batch']"),
        ("nodes[1].inputs[0].stride", [3, 1], "but read as float32[3, 'batch'] with strides [3, 1]"),
        ("nodes[1].inputs[0].producer_node", "x", "'mm' is output 0 of 'mm', but a reader says output 0 of 'x'"),
        ("nodes[1].inputs[0].producer_output_idx", 1, "but a reader says output 1 of 'mm'"),
        ("nodes[0].inputs[1].producer_output_idx", 1, "'x' is output 0 of 'x', but a reader says output 1 of 'x'"),
        ("nodes[2].inputs[0].shape", [4], "'b_state' is made as float32[3]"),
        ("nodes[3].inputs[0].producer_output_idx", 1, "'max_1_0' is output 0 of 'max_1', but a reader says output 1"),
        ("nodes[1].outputs[1].producer_node", "mm", "output 1 of 'max_1' says that it is output 0 of 'mm'"),
        ("graph_outputs[0].shape", [1], "'max_1_0' is made as float32['batch'], but read as float32[1]"),
        ("graph_outputs[1].dtype", "int32", "'max_1_1' is made as int64['batch'], but read as int32['batch']"),
        ("graph_outputs[0].name", "max_0", "reads 'max_0', which nothing before it makes; did you mean 'max_1_0'?"),
        ("nodes[1].inputs[0].name", "cat", "reads 'cat', which nothing before it makes"),
        ("graph_inputs[0].producer_node", "mm", "is an input or weight, but has the producer 'mm'"),
        ("weights[2].dtype", "int32", "TensorMeta('c_steps', (2,), 'int32') holds values of int16[2]"),
    ],
)
def test_restated_facts_must_agree(place: str, value: Any, message: str) -> None:
    """Redundant facts of the format must agree."""
    assert message in str(refused(changed(place, value)))


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_document_with_a_wrong_part_is_refused_or_holds(seed: int) -> None:
    """A document with a part replaced by another part or by junk is refused with its place, or is a graph again."""
    randomness = random.Random(seed)
    document = everything().to_dict()
    places = list(_places(document))
    paths = []
    for _ in range(300):
        edited = copy.deepcopy(document)
        outer, key = randomness.choice(places)
        place = _at(edited, outer)
        other, last = randomness.choice(places)
        junk = json.loads(randomness.choice(JUNK))
        place[key] = randomness.choice([junk, junk, copy.deepcopy(_at(document, (*other, last)))])
        try:
            again = IR.from_dict(edited).to_json()
        except SerializationError as error:
            paths.append(error.path)
        else:
            assert IR.from_json(again).to_json() == again
    assert len(paths) > 200
    assert all(path.startswith("$") for path in paths)


def _places(value: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield outer, key
        yield from _places(item, (*outer, key))


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value
