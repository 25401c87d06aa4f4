"""The text form: printed graphs are parsed to the same graph, and errors have line and column."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cpu_time import at_most
from tests.damage.graph_files import layers
from tests.damage.kinds import KINDS, damaged
from tests.damage.subject import meaning
from tests.graphs import chain, everything, mlp, tensor, weight
from tests.texts import fault_of_reading
from torch_ir.errors import SerializationError
from torch_ir.ir import IR, Branch, Dtype, Limits, OpNode, Param, Slot, Symbol, TensorData, TensorMeta
from torch_ir.ir.graph.garbage_collection import uncollected

DATA = Path(__file__).parent / "data"
STORED = sorted([*DATA.glob("format_1/*.json"), *DATA.glob("patterns/*/*.json"), *DATA.glob("regressions/irs/*.json")])
GRAPH = """
graph Net(x: float32[2, n]) {
  symbol 1 <= n <= 9 from x[1]
  require n != 3
  param p_w: float32[2, n] = "w"
  add: float32[2, n] = aten.add.Tensor(self=x, other=p_w, alpha=1)
  relu: float32[2, n] = aten.relu.default(self=add)
  return relu
}
"""


def refused(text: str, **options: object) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        IR.parse(text, **options)  # type: ignore[arg-type]
    return caught.value


# -- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mlp, everything, lambda: layers(3), lambda: chain("aten.neg.default")])
def test_small_graphs(make: Callable[[], IR]) -> None:
    assert not fault_of_reading(make())


def test_stored_graphs() -> None:
    """Those of the format's first version, of every rule's pattern, and those that once broke something."""
    assert len(STORED) > 100
    for path in STORED:
        assert not fault_of_reading(IR.load(path)), path


def test_hand_written_text() -> None:
    """Indentation, comments and blank lines are free, and functions need no `uses` line."""
    ir = IR.parse("""
        # a comment
        function double(value: float32[2]) {
          add: float32[2] = aten.add.Tensor(self=value, other=value, alpha=1)
          return add
        }
        graph(x: float32[2]) {

            y: float32[2] = call(value=x,function=@double)
            return  y ,
        }
    """)
    assert list(ir.functions) == ["double"]
    assert ir.nodes[0].attrs["function"] == "double"
    assert ir.output_tree == Branch("tuple", (Slot(0),))
    assert IR.parse(GRAPH.replace("\n", "\r\n")).to_json() == IR.parse(GRAPH).to_json()


@pytest.mark.parametrize(
    "name",
    ["None", "0_bias", "1e5", "1_0", "float32", "cpu", "inf", "x y", "a,b", "0", "(x)", "return", "on", "e\u0301"],
)
def test_a_tensor_may_be_called_anything(name: str) -> None:
    """Names that would be read as something else are quoted."""
    x, w, made = TensorMeta(name, (2,), "float32"), weight("w", 2, keys=("a'`\\\" b",)), tensor(f"{name} made", 2)
    node = OpNode("odd node", "my`lib.op", [x, w], [made], {"a=b": Dtype("int8"), "c": name}, args=["x y", "w.0"])
    ir = IR([node], [x], [made, x], params=[w], model_name="A model's `name`", mutations=[(x, made)])
    assert not fault_of_reading(ir.check())


def test_names_of_nodes() -> None:
    """A node is named like its tensor, or its numbered tensors; otherwise the text contains its name."""
    a, b, c = tensor("split_0"), tensor("split_1"), tensor("c")
    nodes = [
        OpNode("split", "my.split", [c], [a, b]),
        OpNode("other", "my.op", [a], [tensor("d")]),
        OpNode("check", "my.assert", [b], []),
    ]
    ir = IR(nodes, [c], [a], output_tree=Slot(0))
    assert str(ir).splitlines()[1:4] == [
        "  split_0: float32[], split_1: float32[] = my.split(0=c)",
        "  d: float32[] = my.op(0=split_0) as other",
        "  my.assert(0=split_1) as check",
    ]
    assert [node.name for node in IR.parse(str(ir)).nodes] == ["split", "other", "check"]


# -- constants --------------------------------------------------------------------------------------------------------


def with_constant(data: TensorData) -> IR:
    c = TensorMeta("c", data.shape, data.dtype, param=Param(("table",), "constant", data))
    return IR([], [tensor("x")], [c], params=[c]).check()


@pytest.mark.parametrize(
    ("dtype", "raw", "text"),
    [
        ("int16", "0100ffff", "[1, -1]"),
        ("bool", "0100", "[True, False]"),
        ("float32", "cdcccc3d00000080", "[0.1, -0.0]"),
        ("float32", "0000807f0000c07f", "[inf, nan]"),
        ("float32", "0100c07f00000000", "0x0100c07f00000000"),  # a NaN that is not the usual one
        ("bfloat16", "cd3d803f", "[0.1, 1.0]"),
        ("bfloat16", "cc3d7f7f", "[0.0996, 3.39e+38]"),
        ("float16", "662eff7b", "[0.1, 65500.0]"),
        ("float64", "9a9999999999b93f000000000000f03f", "[0.1, 1.0]"),
        ("float8_e5m2", "3c00", "0x3c00"),
        ("complex64", "0000803f0000004000000000", None),
    ],
)
def test_short_constants_are_printed_bit_for_bit(dtype: str, raw: str, text: str | None) -> None:
    """As the shortest decimals that are read as the same bits, or as bytes."""
    data = bytes.fromhex(raw)
    if text is None:
        data = data + bytes(4)
        text = f"0x{data.hex()}"
    ir = with_constant(TensorData((2,), dtype, data))
    assert f'  constant c: {dtype}[2] = "table" values {text}\n' in str(ir)
    assert not fault_of_reading(ir)


def test_long_constants_are_printed_without_values_and_must_be_given() -> None:
    ir = with_constant(TensorData((20,), "float32", bytes(range(80))))
    assert '  constant c: float32[20] = "table" values ...\n' in str(ir)
    error = refused(str(ir))
    assert str(error) == (
        "line 2, column 1: the text leaves out the values of 'table'; pass constants={'table': value, ...}"
    )
    assert IR.parse(str(ir), constants=ir.constants).to_json() == ir.to_json()
    assert IR.parse(ir.to_text()).to_json() == ir.to_json()
    assert "omits no constant 'tabel'; did you mean 'table'?" in str(
        refused(str(ir), constants={**ir.constants, "tabel": ir.constants["table"]})
    )
    wrong = TensorData((2,), "float32", bytes(8))
    assert "holds values of float32[2]" in str(refused(str(ir), constants={"table": wrong}))
    assert "values" not in str(IR([], [tensor("x")], [tensor("x")], params=[weight("c", 20, kind="constant")]))


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("graph Net", "grpah Net", "line 2, column 1: expected 'graph' or 'function', found 'grpah Net(x: float32'"),
        ("float32[2, n]) {", "float33[2, n]) {", "line 2, column 14: unknown dtype 'float33'; did you mean 'float32'?"),
        ("self=x", "self=y", "line 6, column 45: no line above defines the tensor 'y'"),
        ("self=add)", "self=ad)", "line 7, column 48: no line above defines the tensor 'ad'; did you mean 'add'?"),
        ("alpha=1)", "alpha=1", "line 6, column 66: expected ',' or ')', found the end of the line"),
        ("alpha=1", "alpha=one", "line 6, column 65: no line above defines the tensor 'one'"),
        ("alpha=1", "alpha=1, alpha=2", "line 6, column 68: duplicate argument 'alpha'"),
        ("relu: float", "add: float", "line 7, column 3: two tensors are called 'add'"),
        ("param p_w", "parm p_w", "expected ':', ':=' or '(' after 'parm'; did you mean 'param'?"),
        ('= "w"', "", "line 5, column 28: expected the key of the weight in quotes, found the end of the line"),
        ('"w"', '"w', "line 5, column 30: the string is never closed"),
        ('"w"', r'"\q"', "line 5, column 30: unknown escape in a string"),
        ('"w"', r'"\ud800"', "line 5, column 30: a string holds half of a surrogate pair"),
        ('"w"', '"w" values [1]', "line 5, column 41: a constant cannot have the shape [2, 'n']"),
        ('n] = "w"', '2] = "w" values 3', "line 5, column 41: expected '[', '0x' or '...', found '3'"),
        ('n] = "w"', '2] = "w" values [1]', "line 5, column 41: float32[2, 2] takes 16 bytes, but 4 were given"),
        ('n] = "w"', '2] = "w" values [None]', "line 5, column 41: a constant of dtype 'float32' cannot hold all"),
        ('n] = "w"', '2] = "w" values 0x123', "line 5, column 41: expected two digits for every byte"),
        ("from x[1]", "from y[1]", "line 3, column 27: no line above defines the tensor 'y'"),
        ("from x[1]", "from x[one]", "line 3, column 29: expected a dimension, found 'one]'"),
        ("from x[1]", "", "line 3, column 1: symbol 'n' is not bound to a tensor"),
        ("n != 3", "m != 3", "line 4, column 1: constraint: 'm != 3' reads an undefined symbol 'm'"),
        ("return relu", "return rleu", "line 8, column 10: no line above defines the tensor 'rleu'"),
        ("return relu", "return relu relu", "line 8, column 15: expected the end of the line, found 'relu'"),
        ("  return relu\n", "", "line 8, column 1: expected 'return' before '}'"),
        ("return relu\n}", "return relu\n", "line 9, column 1: expected '}' before the end"),
        ("return relu\n}", "return relu\n  x := add\n}", "line 9, column 3: expected '}' after 'return'"),
        ("aten.relu.default", "return", "line 7, column 1: OpNode('relu', 'return') has an invalid operator name"),
        ("alpha=1", "alpha=" + "9" * 200, "line 6, column 65: a whole number has more than 100 digits"),
        ("alpha=1", "alpha=1e999", "line 6, column 65: 1e999 is too large for a float"),
        ("alpha=1", "alpha={'a': 1, 'a': 2}", "line 6, column 74: duplicate key 'a'"),
        ("alpha=1", "alpha=@f", "calls 'f', which is not a function"),
        ("[2, n] = aten.relu", "[-2, n] = aten.relu", "line 7, column 17: a dimension cannot be -2"),
        ("[2, n] = aten.relu", "[2 n] = aten.relu", "bad expression '2 n'"),
        ("require n", "uses @f\n  require n", "line 4, column 9: no function of this graph is called 'f'"),
        ("require n", "device tpu\n  require n", "line 4, column 10: unknown device 'tpu'"),
        ("require n", "extension 'a' = {\n  require n", "line 4, column 19: not JSON"),
        ("require n", "inputs x\n  require n", "line 4, column 3: the inputs of a call are a tuple of arguments"),
        ("require n", "inputs ((y,), {})\n  require n", "line 4, column 12: unknown input 'y'"),
        ("return relu", "return (relu, x=relu)", "line 8, column 19: some items of a container have keys"),
        ("return relu", "return slots [0]", "line 8, column 10: no line above defines the tensor 'slots'"),
        ("return relu", "return , relu", "line 8, column 10: expected a value, found ', relu'"),
        ("return relu", "return (relu, x) slots [0, 0]", "line 8, column 26: expected the numbers from 0 to 1"),
    ],
)  # fmt: skip
def test_an_error_names_line_column_and_the_nearest_fix(old: str, new: str, told: str) -> None:
    assert old in GRAPH
    assert told in str(refused(GRAPH.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 2, column 1: expected a line 'graph NAME(...) {'"),
        ("{}", "line 1, column 1: expected 'graph' or 'function', found '{}'"),
        (GRAPH + GRAPH, "line 11, column 1: a second graph"),
        ("function f(x: int8[]) {\n  return x\n}", "line 4, column 1: expected a line 'graph NAME(...) {'"),
        ("function g.f(x: int8[]) {\n  return x\n}" + GRAPH, "line 1, column 1: the function 'g' around this one"),
        ("function " + "f." * 30 + "f(x: int8[]) {", "functions are nested deeper than 20 levels"),
        ("graph(x: int8[]) {\n  return x\n}\n\ud800", "the text is not valid Unicode"),
        ("function f(x: int8[]) {\n  y: int8[] = a.b(self=x)\n  z: int8[2, m] = a.b(self=y)\n  return x\n}" + GRAPH,
         "line 3, column 1: function 'f': TensorMeta('z', (2, 'm'), 'int8'): 'm' reads an undefined symbol 'm'"),
    ],
)  # fmt: skip
def test_whole_texts_that_are_refused(text: str, told: str) -> None:
    assert told in str(refused(text))


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (Limits(nodes=1), "line 7, column 3: 2 nodes are more than 1"),
        (Limits(tensors=1), "line 5, column 9: 2 tensors are more than 1"),
        (Limits(rank=1), "has 2 dimensions, more than 1"),
        (Limits(values=5), "values are more than 5"),
        (Limits(name_length=3), "a name of 4 characters is longer than 3"),
    ],
)
def test_limits_hold(limits: Limits, told: str) -> None:
    error = refused(GRAPH, limits=limits)
    assert told in str(error)
    assert error.rule == "R2"


@pytest.mark.parametrize(
    "value",
    ["[" * 100_000, "(" * 100_000, "{'a': " * 100_000, "`" * 100_000, "'" + "\\n" * 100_000, "a." * 100_000,
     "1" * 100_000, "{" + "a" * 100_000, "[" + "{a " * 50_000, "(" + "(1, " * 50_000],
)  # fmt: skip
def test_hostile_values_end_at_once(value: str) -> None:
    """No deep recursion, and time in proportion to the text."""
    with at_most(5):
        refused(GRAPH.replace("alpha=1", f"alpha={value}"))
        refused(GRAPH.replace("return relu", f"return {value}"))
        refused(GRAPH.replace("return relu", f"return {{{value}"))
        refused(GRAPH.replace("[2, n]", f"[2, {value}]"))


def test_time_is_in_proportion_to_the_text() -> None:
    """Four times the nodes take about four times as long."""

    def seconds(count: int) -> float:
        lines = "".join(f"  t{i + 1}: float32[2, 3] = aten.relu.default(self=t{i})\n" for i in range(count))
        text = f"graph(t0: float32[2, 3]) {{\n{lines}  return t{count}\n}}\n"
        with uncollected():
            started = time.process_time()
            IR.parse(text)
            return time.process_time() - started

    seconds(200)
    allowed = 12 * min(seconds(2000) for _ in range(3))
    assert any(seconds(8000) < allowed for _ in range(3))


def test_damaged_text_is_refused_or_holds() -> None:
    """Every kind of corruption: a typed error with a place, or a valid graph that round-trips in all formats."""
    content, other = everything().to_text().encode(), mlp().to_text().encode()
    outcomes = {"read": 0, "refused": 0}
    for number in range(20 * len(KINDS)):
        kind = list(KINDS)[number % len(KINDS)]
        text = damaged(content, other, kind, random.Random(number)).decode(errors="replace")
        refusal = _refusal(text)
        outcomes["refused" if refusal else "read"] += 1
        assert refusal is None or (refusal.path.startswith("line ") and refusal.rule), refusal
    assert min(outcomes.values()) > 20


def _refusal(text: str) -> SerializationError | None:
    try:
        ir = IR.parse(text)
    except SerializationError as error:
        return error
    meaning(ir)
    return None


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_in_the_text_form_is_read(tmp_path: Path) -> None:
    """`IR.load` looks at how a file begins."""
    path = tmp_path / "net.ir"
    path.write_text(f"# found in a bug report\n{GRAPH}")
    assert str(IR.load(path)) == str(IR.parse(GRAPH))
    path.write_text(GRAPH.replace("self=x", "self=y"))
    with pytest.raises(SerializationError, match="line 6, column 45"):
        IR.load(path)


def test_the_names_of_symbols_must_differ() -> None:
    x = tensor("x", "n", "m")
    ir = IR([], [x], [x], symbols=[Symbol("n", -2, None, x, 0), Symbol("m", None, 7, x, 1)])
    assert not fault_of_reading(ir.check())
    assert "two sizes are called 'n'" in str(refused(str(ir).replace("symbol m ", "symbol n ").replace("m]", "n]")))


@pytest.mark.parametrize("key", ["mine", "\x1b[1m", "\U000e0001 tag", "\N{GRINNING FACE}\n", 'a"b\\'])
def test_extensions_of_any_name_are_read_back(key: str) -> None:
    """Characters that are not printed are escaped, also those outside of the first 65,536."""
    ir = IR([], [tensor("x")], [tensor("x")], extensions={key: {key: [key]}}).check()
    text = str(ir)
    assert "".join(text.split("\n")).isprintable()
    assert IR.parse(text).extensions == ir.extensions
