"""Corrupted or hostile protobuf files: an error with a path, or a valid graph."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import torch_ir
from tests.graphs import chain, everything, mlp
from torch_ir import IR, SerializationError, Target, from_protobuf, to_protobuf
from torch_ir.formats import lowered_from_protobuf, lowered_to_protobuf

DESCRIPTORS = Path(torch_ir.__file__).parent / "formats" / "torch_ir.binpb"
DIGEST_LENGTH = 34


def message_class(name: str) -> Any:
    """The class of a file's message, built as any Python reader would."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"torch_ir.v1.{name}"))


Model = message_class("Model")
LoweredModel = message_class("LoweredModel")


# -- damage -----------------------------------------------------------------------------------------------------------


def outcome(data: bytes) -> IR | None:
    """The graph, or None where the bytes are refused; anything else fails the test."""
    try:
        return from_protobuf(data).check()
    except SerializationError:
        return None


def test_every_flipped_bit_is_seen() -> None:
    """The digest finds any accident."""
    data = to_protobuf(chain("aten.neg.default", "aten.relu.default"))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert outcome(bytes(damaged)) is None, bit


def test_every_cut_is_seen() -> None:
    """A file that is cut short is refused, unless it lacks nothing but the digest."""
    data = to_protobuf(mlp())
    whole = [length for length in range(len(data)) if outcome(data[:length])]
    assert whole == [len(data) - DIGEST_LENGTH]
    assert from_protobuf(data[:-DIGEST_LENGTH]).to_json() == mlp().to_json()


def test_damage_without_a_digest_ends_in_an_error_or_a_graph() -> None:
    """Several flipped, lost, doubled and foreign bytes, where nothing but the reader protects."""
    rng = random.Random(7)
    data = to_protobuf(everything())[:-DIGEST_LENGTH]
    read = 0
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(damaged))
            rng.choice(CHANGES)(damaged, at, rng)
        ir = outcome(bytes(damaged))
        if ir is not None:
            assert from_protobuf(to_protobuf(ir)).to_json() == ir.to_json()
            read += 1
    assert 0 < read < 150


def _flip(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] ^= 1 << rng.randrange(8)


def _drop(data: bytearray, at: int, rng: random.Random) -> None:
    del data[at : at + rng.randrange(1, 20)]


def _double(data: bytearray, at: int, rng: random.Random) -> None:
    data[at:at] = data[at : at + rng.randrange(1, 20)]


def _overwrite(data: bytearray, at: int, rng: random.Random) -> None:
    data[at] = rng.randrange(256)


CHANGES = [_flip, _flip, _overwrite, _drop, _double]


# -- bad messages -----------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[Callable[[Any], object], str, str]] = []


def refused(message: str, rule: str) -> Callable[[Callable[[Any], object]], None]:
    """A changed message of a valid file, its error, and the rule that it violates."""
    return lambda change: REFUSALS.append((change, message, rule))


@refused("$.format: format is 'onnx', not 'torch-ir'", "R4")
def _(model: Any) -> None:
    model.format = "onnx"


@refused("$.version: the file has format version 2, but this torch_ir reads versions up to 1", "R4")
def _(model: Any) -> None:
    model.version = 2


@refused("$: the file contains no graph", "R4")
def _(model: Any) -> None:
    model.ClearField("graph")


@refused("$: the file contains unknown fields", "R4")
def _(model: Any) -> None:
    model.graph.nodes[0].MergeFromString(b"\xf8\x07\x01")  # field 127


@refused("$.types[0].dtype: unknown dtype 'float33'; did you mean 'float32'?", "R5")
def _(model: Any) -> None:
    model.types[0].dtype = "float33"


@refused("$.types[0].shape[0]: a dimension is neither a size nor an expression", "R4")
def _(model: Any) -> None:
    model.types[0].shape[0].Clear()


@refused("$.types[0].shape[0]: a dimension cannot be -1", "R4")
def _(model: Any) -> None:
    model.types[0].shape[0].size = -1


@refused("$.graph_inputs[0]: unknown type 77; there are ", "R8")
def _(model: Any) -> None:
    model.graph.inputs[0].type = 77


@refused("$.nodes[1]: unknown type 77; there are ", "R8")
def _(model: Any) -> None:
    model.graph.nodes[1].outputs[0].type = 77


@refused("$.nodes[1]: unknown operation 77; there are ", "R8")
def _(model: Any) -> None:
    model.graph.nodes[1].operation = 77


@refused("$.nodes[1]: unknown place 77; there are ", "R8")
def _(model: Any) -> None:
    model.graph.nodes[1].place = 77


@refused("$.nodes[2]: unknown tensor 99; there are 8 before it", "R8")
def _(model: Any) -> None:
    model.graph.nodes[2].inputs[0] = 99


@refused("$.nodes[0]: unknown tensor 5; there are 5 before it", "R8")
def _(model: Any) -> None:
    model.graph.nodes[0].inputs[0] = 5  # its own output


@refused("$.nodes[1].outputs[1].name: output 1 has no name", "R6")
def _(model: Any) -> None:
    model.graph.nodes[1].outputs[1].name = ""


@refused("$.nodes[2].operation: operation 2 is too large to be shared by nodes", "R2")
def _(model: Any) -> None:
    model.operations[2].attributes.add(name="text").value.text = "x" * 300
    model.graph.nodes[1].operation = 2
    model.operations[2].arguments[:] = model.operations[1].arguments
    model.graph.nodes[2].operation = 2


@refused("$.graph_outputs: unknown tensor; there are ", "R8")
def _(model: Any) -> None:
    model.graph.outputs[0] = 99


@refused("$.nodes[0].args: OpNode('mm', 'aten.mm.default') has 1 inputs, but 2 argument names", "R7")
def _(model: Any) -> None:
    del model.graph.nodes[0].inputs[0]


@refused("$.nodes[1].name: two nodes are called 'mm'", "R8")
def _(model: Any) -> None:
    model.graph.nodes[1].name = "mm"


@refused("$.nodes[0].name: a node has no name", "R6")
def _(model: Any) -> None:
    model.graph.nodes[0].name = ""


@refused("$.operations[0].op_type: an operation has no operator", "R6")
def _(model: Any) -> None:
    model.operations[0].op_type = ""


@refused("$.operations[1].attrs: duplicate 'none'", "R3")
def _(model: Any) -> None:
    model.operations[1].attributes[1].name = "none"


@refused("$.operations[1].attrs.none: a value has no kind", "R4")
def _(model: Any) -> None:
    model.operations[1].attributes[0].value.Clear()


@refused("$.operations[1].attrs.none: a dict cannot have the key '$expr'", "R5")
def _(model: Any) -> None:
    item = model.operations[1].attributes[0].value.dict.items.add(name="$expr")
    item.value.text = "batch"


@refused("$.nodes[1].attrs.none.$expr: OpNode('max_1', 'aten.max.dim'): bad expression", "R1")
def _(model: Any) -> None:
    model.operations[1].attributes[0].value.expression = "__import__('os')"


@refused("$.operations[1].attrs.none.$int: 'ten' is not a whole number", "R3")
def _(model: Any) -> None:
    model.operations[1].attributes[0].value.big_integer = "ten"


@refused("$.operations[1].attrs.none[0][0][0]", "R2")
def _(model: Any) -> None:
    value = model.operations[1].attributes[0].value
    for _level in range(40):
        value = value.list.items.add()
    value.none = True


@refused("$.weights[0]: a weight has no key", "R6")
def _(model: Any) -> None:
    del model.graph.weights[0].keys[:]


@refused("$.weights[1]: duplicate 'p_w'", "R8")
def _(model: Any) -> None:
    model.graph.weights[1].tensor.name = "p_w"


@refused("$.params.p_w.kind: 'unknown' is not one of parameter, buffer, stack, temporary, constant", "R5")
def _(model: Any) -> None:
    model.graph.weights[0].ClearField("kind")


@refused("$.params.p_w.kind: '77' is not one of parameter, buffer, stack, temporary, constant", "R5")
def _(model: Any) -> None:
    model.graph.weights[0].MergeFromString(b"\x18\x4d")


@refused("$.constants.steps: int16[2] takes 4 bytes, but 3 were given", "R15")
def _(model: Any) -> None:
    model.graph.weights[2].values = b"abc"


@refused("$.symbols.batch.tensor: unknown tensor ''", "R8")
def _(model: Any) -> None:
    model.graph.symbols[0].tensor = ""


@refused("$.functions: duplicate 'body'", "R3")
def _(model: Any) -> None:
    model.graph.functions.add(name="body")


@refused("functions are nested deeper than 20 levels", "R2")
def _(model: Any) -> None:
    graph = model.graph
    for level in range(22):
        graph = graph.functions.add(name=f"f{level}")


@refused("$.functions.body.shared_weights[0]: the enclosing graph has no weight 'q_w'; did you mean 'p_w'?", "R8")
def _(model: Any) -> None:
    model.graph.functions[0].shared_weights.append("q_w")


@refused("$.functions.body.nodes[0]: unknown operation 77", "R8")
def _(model: Any) -> None:
    model.graph.functions[0].nodes[0].operation = 77


@refused("$.extensions: not JSON", "R3")
def _(model: Any) -> None:
    model.graph.extensions = "{"


@refused("$.extensions: expected an object", "R4")
def _(model: Any) -> None:
    model.graph.extensions = "[1]"


@refused("$.extensions: expected one JSON value", "R3")
def _(model: Any) -> None:
    model.graph.extensions = '{}, "more": 1'


@refused("$.extensions: nested deeper than 100 levels", "R2")
def _(model: Any) -> None:
    model.graph.extensions = "[" * 1000 + "]" * 1000


@refused("$.output_tree.tree.$branch: 'unknown' is not one of", "R5")
def _(model: Any) -> None:
    model.graph.output_tree.branch.ClearField("kind")


@pytest.mark.parametrize(("change", "message", "rule"), REFUSALS, ids=itertools.count())
def test_bad_messages_are_refused(change: Callable[[Any], object], message: str, rule: str) -> None:
    """Each with its place, named as in the JSON document."""
    model = Model.FromString(to_protobuf(everything())[:-DIGEST_LENGTH])
    change(model)
    with pytest.raises(SerializationError) as caught:
        from_protobuf(model.SerializeToString())
    assert message in str(caught.value)
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"{caught.value.path}: ")


@pytest.mark.parametrize("levels", [60, 5000])
def test_nesting_that_protobuf_refuses(levels: int) -> None:
    """Deep messages are rejected while they are parsed."""
    value = b"\x08\x01"
    for _ in range(levels):
        value = _field(7, _field(1, value))
    with pytest.raises(SerializationError, match="not a protobuf file"):
        from_protobuf(_field(1, b"torch-ir") + b"\x10\x01" + _field(3, _field(11, value)))


def _field(number: int, content: bytes) -> bytes:
    """A field of the wire format that has a length."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


# -- lowered graphs ---------------------------------------------------------------------------------------------------


def layers() -> bytes:
    """A lowered graph with a placeholder."""
    npu = Target("npu")
    npu.lowers("aten.linear")(lambda node: {"op": "gemm", "sizes": [1, 2], "parts": [None, 0.5, {"deep": 1 << 70}]})
    return lowered_to_protobuf(npu.lower(mlp()).to_dict())


def test_damaged_layers() -> None:
    """Every flipped bit and every cut is seen; without the digest there is an error or a result, and nothing else."""
    data = layers()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SerializationError):
            lowered_from_protobuf(bytes(damaged))
        try:
            again = lowered_to_protobuf(lowered_from_protobuf(bytes(damaged[:-DIGEST_LENGTH])))
        except SerializationError:
            continue
        assert lowered_to_protobuf(lowered_from_protobuf(again)) == again
    for length in range(len(data) - DIGEST_LENGTH):
        with pytest.raises(SerializationError):
            lowered_from_protobuf(data[:length])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "format", "torch-ir"), "$.format: format is 'torch-ir', not 'torch-ir-lowered'"),
        (lambda m: setattr(m, "version", 2), "$.version: the file has version 2, but this torch_ir reads version 1"),
        (
            lambda m: m.lowered.layers[0].MergeFromString(b"\xf8\x07\x01"),
            "$: the file contains unknown fields",
        ),
        (lambda m: m.ClearField("lowered"), "$: the file contains no lowered graph"),
        (lambda m: m.lowered.inputs[0].shape[0].Clear(), "$.inputs[0].shape[0]: a dimension is neither a size nor"),
        (lambda m: m.lowered.weights.add(name="fc1.weight"), "$.weights: duplicate 'fc1.weight'"),
        (lambda m: m.lowered.layers[0].weights.add(argument="bias"), "$.layers[0].weights: duplicate 'bias'"),
        (lambda m: m.lowered.layers[0].value.Clear(), "$.layers[0].value: a value has no kind"),
        (lambda m: m.lowered.layers[0].placeholder.append("why"), "$.layers[0]: a placeholder has a value"),
        (
            lambda m: setattr(m.lowered.layers[0].value, "big_integer", "ten"),
            "$.layers[0].value.$int: 'ten' is not a whole",
        ),
    ],
)
def test_bad_layers_are_refused(change: Callable[[Any], object], message: str) -> None:
    """Each with its place, named as in the JSON file."""
    model = LoweredModel.FromString(layers()[:-DIGEST_LENGTH])
    change(model)
    with pytest.raises(SerializationError) as caught:
        lowered_from_protobuf(model.SerializeToString())
    assert message in str(caught.value)


def test_neither_file_is_taken_for_the_other() -> None:
    """The format is the first thing that is looked at."""
    with pytest.raises(SerializationError, match="format is 'torch-ir-lowered', not 'torch-ir'"):
        from_protobuf(layers())
    with pytest.raises(SerializationError, match="format is 'torch-ir', not 'torch-ir-lowered'"):
        lowered_from_protobuf(to_protobuf(mlp()))
