"""Check against torch's operators: rules R9 to R12, and files of other versions of torch."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import catalogue
import torch_ir
from catalogue import Entry
from tests.graphs import everything
from tests.proof import captured_entry
from tests.random_graphs import random_graph
from tests.rewriting import small
from torch_ir import IR, OpNode, SerializationError, TensorMeta, VersionWarning, load_ir, register_executor, validate_ir
from torch_ir.cli.dispatch import main
from torch_ir.ir import Device, Dtype, Expr, FunctionRef, Symbol
from torch_ir.ir.regroup.functions import outline
from torch_ir.ops.registry import unregister
from torch_ir.safety import Report, deserialize_ir, examine
from torch_ir.targets import to_mlir, to_onnx, to_python, to_stablehlo

PEER = Path(__file__).parent / "data" / "peer"
CATALOGUE = [
    pytest.param(entry, id=entry.name, marks=[pytest.mark.slow] if index % 3 else [])
    for index, entry in enumerate(catalogue.entries())
]


def node(op_type: str, attrs: dict[str, Any] | None = None, args: tuple[str, ...] = ("self",), version: str = "") -> IR:
    """A graph of one node with a 2x3 tensor for each argument, which declares another as its output."""
    inputs = [TensorMeta(f"x{index}", (2, 3), "float32") for index in range(len(args))]
    made = TensorMeta("made", (2, 3), "float32")
    return IR([OpNode("made", op_type, inputs, [made], attrs, args=args)], inputs, [made], pytorch_version=version)


def refused(ir: IR, **options: Any) -> tuple[str, str, str]:
    """Rule, path and message of the error about a graph."""
    with pytest.raises(SerializationError) as caught:
        validate_ir(ir, **options)
    return caught.value.rule, caught.value.path, str(caught.value.args[0])


# -- what is legitimate ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the values of .* are unknown")
@pytest.mark.parametrize("entry", CATALOGUE)
def test_captured_graphs_keep_the_rules(entry: Entry) -> None:
    """As they were captured, at every level, and optimised."""
    ir = captured_entry(entry.name)
    assert validate_ir(ir) is True
    assert validate_ir(ir.at_level("module"))
    assert validate_ir(torch_ir.optimize(ir, "full")[0])


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_keep_the_rules(seed: int) -> None:
    """Whatever their nodes, and with functions."""
    assert list(examine(random_graph(seed), Report())) == []


@pytest.mark.parametrize("path", sorted(PEER.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_the_documented_format_keep_the_rules(path: Path) -> None:
    """Their arguments are named by position."""
    if ".values" not in path.name:
        assert load_ir(path).nodes


@pytest.mark.parametrize(
    "op_type", ["call", "fused.gelu", "torch.nn.Linear", "torch.nn.Linear[1]", "__main__.Net", "f.<locals>.Net",
                "torch.Tensor.__getitem__"],
)  # fmt: skip
def test_a_call_may_be_called_anything(op_type: str) -> None:
    """Its name is a label: its function defines the computation."""
    ir = small("x: float32[2, 3]", a="aten.neg.default(x)", b="aten.relu.default(a)")
    outline(ir, ir.nodes, "body", op_type)
    assert validate_ir(ir)


def test_a_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    """JSON or protobuf; the text of a file is checked just so."""
    pytest.importorskip("google.protobuf", reason="torch-ir[protobuf] is not installed")
    ir = small("x: float32[2, 3]", a="aten.neg.default(x)")
    ir.save(tmp_path / "a.json")
    torch_ir.save_protobuf(ir, tmp_path / "a.pb")
    texts = {str(load_ir(tmp_path / name)) for name in ("a.json", "a.pb")} | {str(deserialize_ir(ir.to_json()))}
    assert len(texts) == 1
    wrong = node("aten.relu.nope")
    torch_ir.save_protobuf(wrong, tmp_path / "b.pb")
    with pytest.raises(SerializationError, match="overload"):
        load_ir(tmp_path / "b.pb")
    with pytest.raises(SerializationError, match="overload"):
        deserialize_ir(wrong.to_json())


# -- R9: operators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op_type",
    ["aten.relu.default.__class__", "aten.relu.__class__", "aten.relu.nope", "aten.relu", "aten.relu.default.x",
     "aten.__class__", "__import__('os')", "<built-in function add>", "aten::relu", "a.b.c d", "x..y"],
)  # fmt: skip
def test_what_is_no_operator_is_refused(op_type: str) -> None:
    """Tails, dunders, unknown overloads of known operators, and text that no operator is called."""
    rule, path, _ = refused(node(op_type))
    assert (rule, path) == ("R9", "$.nodes[0].op_type")


def test_an_unknown_operator_is_opaque() -> None:
    """It loads, and is counted; a registered executor makes it runnable."""
    ir = node("mylib.attention.default", {"heads": 4, "anything": "goes"}, ("q", "k"))
    report = Report()
    assert list(examine(ir, report)) == []
    assert report.opaque == {"mylib.attention.default": 1}
    with pytest.raises(torch_ir.ExecutionError, match="no executor for mylib"):
        torch_ir.IRExecutor(ir)
    register_executor("mylib.attention")(lambda inputs, attrs: [inputs[0]])
    try:
        x = torch.ones(2, 3)
        assert torch_ir.execute_ir(ir, (x, x), {})[0] is not None
    finally:
        unregister("mylib.attention")


def test_the_place_is_told_inside_functions() -> None:
    """With the path of the function."""
    ir = small("x: float32[2, 3]", a="aten.neg.default(x)", b="aten.relu.default(a)")
    outline(ir, ir.nodes, "body")
    ir.functions["body"].nodes[1].op_type = "aten.relu.nope"
    assert refused(ir)[:2] == ("R9", "$.functions.body.nodes[1].op_type")


def test_a_file_makes_nobody_import_a_package() -> None:
    """Not to look up an operator of it; only a run does."""
    ir = node("torchao.nope.default")
    program = "import sys, torch_ir; torch_ir.deserialize_ir(sys.stdin.read()); sys.exit('torchao' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], input=ir.to_json(), text=True, check=False).returncode == 0


# -- R10: effects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["aten.from_file.default", "aten.set_.source_Tensor", "prim.Print.default"])
def test_what_reaches_outside_is_refused(op_type: str) -> None:
    """At load already."""
    assert refused(node(op_type))[:2] == ("R10", "$.nodes[0].op_type")


def test_writing_to_what_the_caller_gave_is_refused() -> None:
    """Also through a view; not to tensors that the graph created, and not to declared mutations."""
    calls = {"view": "aten.view.default(x, [3, 2])", "relu": "aten.relu_.default(view)"}
    rule, path, message = refused(small("x: float32[2, 3]", **calls))
    assert (rule, path) == ("R10", "$.nodes[1].op_type")
    assert "writes to 'view', which belongs to the caller" in message
    assert validate_ir(small("x: float32[2, 3]", neg="aten.neg.default(x)", relu="aten.relu_.default(neg)"))
    told = small("x: float32[2, 3]", relu="aten.relu_.default(x)")
    told.mutations = [(told.graph_inputs[0], told.nodes[0].output)]
    assert validate_ir(told)


# -- R11: arguments ----------------------------------------------------------------------------------------------------

SOFTMAX: dict[str, Any] = {"dim": 1, "dtype": None}


@pytest.mark.parametrize(
    ("op_type", "attrs", "path"),
    [
        ("aten.softmax.int", {**SOFTMAX, "dim": "last"}, "attrs.dim"),
        ("aten.softmax.int", {**SOFTMAX, "dim": True}, "attrs.dim"),
        ("aten.softmax.int", {**SOFTMAX, "dim": 1.0}, "attrs.dim"),
        ("aten.softmax.int", {**SOFTMAX, "dim": None}, "attrs.dim"),
        ("aten.softmax.int", {**SOFTMAX, "dtype": "float32"}, "attrs.dtype"),
        ("aten.softmax.int", {**SOFTMAX, "dtype": Device("cpu")}, "attrs.dtype"),
        ("aten.softmax.int", {**SOFTMAX, "dims": 1}, "attrs.dims"),
        ("aten.softmax.int", {"dtype": None}, "attrs"),
        ("aten.relu.default", {"self.0": None}, "attrs.self.0"),
        ("aten.max_pool2d.default", {"kernel_size": [1, 2, 3]}, "attrs.kernel_size"),
        ("aten.max_pool2d.default", {"kernel_size": [1, "2"]}, "attrs.kernel_size"),
        ("aten.view.default", {"size": 6}, "attrs.size"),
        ("aten.view.default", {"size": FunctionRef("f")}, "attrs.size"),
        ("aten.multinomial.default", {"num_samples": 3, "generator": 1}, "attrs.generator"),
    ],
)
def test_attributes_are_of_the_types_of_the_schema(op_type: str, attrs: dict[str, Any], path: str) -> None:
    """The error names the place."""
    ir = node(op_type, attrs)
    if "size" in attrs and isinstance(attrs["size"], FunctionRef):
        ir.functions["f"] = small("x: float32[2, 3]", a="aten.neg.default(x)")
    if path == "attrs.self.0":
        ir.nodes[0].set_inputs((), ())
    assert refused(ir, trusted=True)[:2] == ("R11", f"$.nodes[0].{path}")


def test_tensors_go_where_the_schema_takes_tensors() -> None:
    """Not instead of a number, not as an element of a non-list, not under an unknown name."""
    assert refused(node("aten.softmax.int", {"dtype": None}, ("self", "dim")))[:2] == ("R11", "$.nodes[0].args[1]")
    assert refused(node("aten.add.Tensor", {}, ("self.0", "other")))[:2] == ("R11", "$.nodes[0].args[0]")
    rule, path, message = refused(node("aten.add.Tensor", {"alpha": 1}, ("self", "othr")))
    assert (rule, path) == ("R11", "$.nodes[0].args[1]")
    assert message.endswith("did you mean 'other'?")


def test_what_torch_takes_is_taken() -> None:
    """One number for all of `int[2]`, whole numbers for floats, numbers for tensors, symbols for numbers."""
    pooled = small("x: float32[2, 3, 8, 8]", pool="aten.max_pool2d.default(x, 2)")
    pooled.nodes[0].attrs["kernel_size"] = 2
    assert validate_ir(pooled)
    assert validate_ir(node("aten.mul.Tensor", {"other": 2}))
    assert validate_ir(node("aten.leaky_relu.default", {"negative_slope": 1}))
    x, y = TensorMeta("x", ("n", 3), "float32"), TensorMeta("y", ("n", 3), "float32")
    view = OpNode("y", "aten.view.default", [x], [y], {"size": [Expr("n"), 3]}, args=["self"])
    assert validate_ir(IR([view], [x], [y], symbols=[Symbol("n", 2, 64, x, 0)]))


@pytest.mark.parametrize("sizes", [[10**12], [-1], "many", [True], [[1]]])
def test_lists_by_position_are_as_long_as_there_are_tensors(sizes: Any) -> None:
    """Whatever a version 0 file declares about them."""
    ir = node("aten.cat.default", {"_tensor_list_sizes": sizes, "dim": 0}, ("a", "b"))
    ir.nodes[0].set_inputs(ir.nodes[0].inputs, ())
    assert refused(ir)[:2] == ("R11", "$.nodes[0].inputs")


# -- R12: shapes and dtypes --------------------------------------------------------------------------------------------


def test_shapes_and_dtypes_are_those_that_operators_make() -> None:
    """The error names the inferred shape; a trusted file is not checked."""
    ir = small("x: float32[2, 3]", t="aten.t.default(x)", n="aten.neg.default(t)")
    ir.nodes[0].output.shape = (2, 3)
    ir.nodes[1].output.shape = (2, 3)
    assert refused(ir) == ("R12", "$.nodes[0].outputs[0].shape", "aten.t.default returns [3, 2], not [2, 3]")
    assert validate_ir(ir, trusted=True)
    ir = node("aten.gt.Scalar", {"other": 0})
    assert refused(ir) == ("R12", "$.nodes[0].outputs[0].dtype", "aten.gt.Scalar returns bool, not float32")


def test_arguments_that_do_not_go_together_are_refused() -> None:
    """As torch refuses them."""
    rule, path, message = refused(node("aten.mm.default", {}, ("self", "mat2")))
    assert (rule, path) == ("R12", "$.nodes[0].inputs")
    assert "refuses its arguments" in message


@pytest.mark.parametrize("op_type", ["aten.softmax.int", "aten._softmax.default"])
@pytest.mark.parametrize(("shape", "dim", "last"), [((2, 3, 4), 7, 2), ((2, 3, 4), -4, 2), ((), 1, 0)])
def test_a_dimension_that_is_not_there_is_refused(op_type: str, shape: tuple[int, ...], dim: int, last: int) -> None:
    """Also of operators for which torch looks at it only when it computes."""
    x, made = TensorMeta("x", shape, "float32"), TensorMeta("made", shape, "float32")
    attrs = {"dim": dim, "dtype": None} if op_type == "aten.softmax.int" else {"dim": dim, "half_to_float": False}
    ir = IR([OpNode("made", op_type, [x], [made], attrs, args=["self"])], [x], [made])
    rule, path, message = refused(ir)
    assert (rule, path) == ("R12", "$.nodes[0].inputs")
    assert f"range of [{-last - 1}, {last}], but got {dim}" in message
    ir.nodes[0].attrs["dim"] = last
    assert validate_ir(ir)


def test_the_number_of_results_is_checked() -> None:
    """A node that has too few."""
    assert refused(node("aten.unbind.int", {"dim": 0}))[1] == "$.nodes[0].outputs"


def test_open_sizes_are_held_at_sizes_that_the_graph_admits() -> None:
    """An expression that is right at one size alone is wrong."""
    x = TensorMeta("x", ("n", 3), "float32")
    made = TensorMeta("cat", ("n + 4", 3), "float32")
    cat = OpNode("cat", "aten.cat.default", [x, x], [made], {"dim": 0}, args=["tensors.0", "tensors.1"])
    ir = IR([cat], [x], [made], symbols=[Symbol("n", 2, 64, x, 0)])
    rule, path, message = refused(ir)
    assert (rule, path) == ("R12", "$.nodes[0].outputs[0].shape")
    assert "where n is" in message
    made.shape = ("2*n", 3)
    assert validate_ir(ir)


def test_a_function_speaks_of_the_sizes_of_every_graph_around_it() -> None:
    """Also if one in between has its own sizes."""

    def doubled(size: str) -> IR:
        x, made = TensorMeta("x", (size, 3), "float32"), TensorMeta("cat", (f"2*{size}", 3), "float32")
        node = OpNode("cat", "aten.cat.default", [x, x], [made], {"dim": 0}, args=["tensors.0", "tensors.1"])
        return IR([node], [x], [made], symbols=[Symbol(size, 2, 64, x, 0)])

    ir, between, innermost = doubled("n"), doubled("m"), doubled("n")
    innermost.symbols.clear()
    between.functions["inner"], ir.functions["outer"] = innermost, between
    assert validate_ir(ir)
    innermost.nodes[0].outputs[0].shape = ("3*n", 3)
    assert refused(ir)[:2] == ("R12", "$.functions.outer.functions.inner.nodes[0].outputs[0].shape")


def test_what_torch_cannot_say_is_counted() -> None:
    """The size of `nonzero` is decided by data."""
    ir = node("aten.nonzero.default")
    report = Report()
    assert list(examine(ir, report)) == []
    assert report.declared == {"aten.nonzero.default": 1}


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("aten.split.Tensor", {"split_size": 1, "dim": 0}),
        ("aten.unbind.int", {"dim": 0}),
        ("aten.chunk.default", {"chunks": 2**62, "dim": 0}),
        ("aten.diff.default", {"n": 2**31, "dim": 0, "prepend": None, "append": None}),
        ("aten.matrix_power.default", {"n": -(2**63)}),
        ("aten.combinations.default", {"r": 2**31, "with_replacement": False}),
        (
            "aten.native_group_norm.default",
            {"weight": None, "bias": None, "N": 1, "C": 1, "HxW": 1, "group": 0, "eps": 1.0},
        ),
    ],
)
def test_torch_is_not_asked_what_would_take_for_ever(op_type: str, attrs: dict[str, Any]) -> None:
    """Its rules would take for ever or divide by zero; the declared shape of such a node is accepted."""
    name = "input" if "group_norm" in op_type else "self"
    x, made = TensorMeta("x", (2**40, 2), "float32"), TensorMeta("made", (2, 3), "float32")
    ir = IR([OpNode("made", op_type, [x], [made], attrs, args=[name])], [x], [made])
    report = Report()
    assert list(examine(ir, report)) == []
    assert report.declared == {op_type: 1}


# -- other versions of torch -------------------------------------------------------------------------------------------


def test_an_operator_that_has_changed_since_is_told() -> None:
    """Removed, added or unknown arguments raise one warning; the file loads."""
    ir = small("x: float32[2, 3]", a="aten.softmax.int(x, 1)", b="aten.gelu.default(a)", c="aten.relu.default(b)")
    ir.nodes[0].attrs["half_to_float"] = False
    del ir.nodes[1].attrs["approximate"]
    ir.nodes[2].op_type = "aten.relu.of_old"
    assert refused(ir)[0] == "R11"
    ir.pytorch_version = "2.0.1"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert validate_ir(ir)
    assert [warning.category for warning in told] == [VersionWarning]
    message = str(told[0].message)
    assert message.startswith("written with torch 2.0.1; in torch ")
    for part in ("no argument 'half_to_float'", "aten.gelu.default also takes 'approximate'", "'aten.relu.of_old'"):
        assert part in message


def test_another_version_excuses_no_type() -> None:
    """And nothing that is not an operator, or accesses something outside."""
    old = "2.0.1"
    assert refused(node("aten.softmax.int", {**SOFTMAX, "dim": "x"}, version=old))[0] == "R11"
    assert refused(node("aten.relu.default.__class__", version=old))[0] == "R9"
    assert refused(node("aten.from_file.default", version=old))[0] == "R10"


@pytest.mark.filterwarnings("error")
def test_another_version_with_the_same_operators_is_silent() -> None:
    """There is no warning."""
    assert validate_ir(node("aten.relu.default", version="2.0.1"))
    assert validate_ir(node("aten.gelu.default", version=torch.__version__))


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [Expr("2 - 1"), [Expr("2 - 1")]])
def test_a_dimension_is_a_number(dim: Any) -> None:
    """torch does not accept a symbolic dimension there, and rewrites compute with it."""
    rule, path, told = refused(node("aten.sum.dim_IntList", {"dim": dim, "keepdim": True, "dtype": None}))
    assert (rule, path) == ("R11", "$.nodes[0].attrs.dim")
    assert "takes" in told


def test_check_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each broken rule; 0 if there is none, 1 if there are."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    everything().save(tmp_path / "all.json")
    small("x: float32[2, 3]", a="aten.nonzero_static.default(x, size=1)", b="aten.neg.default(x)").save(good)
    ir = small("x: float32[2, 3]", a="aten.softmax.int(x, 1)", b="aten.relu.default(a)")
    ir.nodes[0].attrs["dim"] = "last"
    ir.nodes[1].op_type = "aten.relu.nope"
    ir.save(bad)
    assert main(["check", str(good)]) == 0
    assert capsys.readouterr().out.startswith("OK: 2 nodes")
    assert main(["check", str(bad)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "R11  $.nodes[0].attrs.dim: aten.softmax.int takes int as 'dim', not 'last'"
    assert second.startswith("R9  $.nodes[1].op_type: ")
    assert main(["check", "--json", str(bad)]) == 1
    record = json.loads(capsys.readouterr().out)
    assert [error["rule"] for error in record["errors"]] == ["R11", "R9"]
    assert main(["check", str(tmp_path / "none.json")]) == 1


def test_verbs_that_compute_check_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others only read the structure, without torch."""
    path = str(tmp_path / "bad.json")
    node("aten.gt.Scalar", {"other": 0}).save(path)
    assert main(["run", path, "--weights", "random"]) == 1
    assert "aten.gt.Scalar returns bool, not float32" in capsys.readouterr().err
    assert main(["info", path]) == 0


def test_dtypes_by_default_are_dtypes() -> None:
    """Torch writes some defaults as numbers; files with such a number still load."""
    attrs = {"n": 3, "dtype": Dtype("int64"), "layout": None, "device": Device("cpu"), "pin_memory": None}
    for dtype in (Dtype("int64"), 4):
        made = TensorMeta("made", (3,), "int64")
        ir = IR([OpNode("made", "aten.randperm.default", [], [made], {**attrs, "dtype": dtype})], [], [made])
        assert validate_ir(ir)


@pytest.mark.parametrize("stride", [0, 2])
@pytest.mark.parametrize("name", ["net.mlir", "net.stablehlo.mlir", "net.py", "net.onnx"])
def test_a_graph_of_a_file_is_validated_before_it_is_converted(name: str, stride: int, tmp_path: Path) -> None:
    """No rule of these formats computes the shape of a pool: its declared one would be written."""
    x, made = TensorMeta("x", (1, 2, 4, 4), "float32"), TensorMeta("pool", (1, 2, 3, 3), "float32")
    attrs = {"kernel_size": [2, 2], "stride": [stride] * 2, "padding": [0, 0], "ceil_mode": False}
    attrs |= {"count_include_pad": True, "divisor_override": None}
    ir = IR([OpNode("pool", "aten.avg_pool2d.default", [x], [made], attrs, args=["self"])], [x], [made])
    write = {".onnx": to_onnx, ".py": to_python}.get(Path(name).suffix, to_stablehlo if "stable" in name else to_mlir)
    path = tmp_path / name
    with pytest.raises(SerializationError, match=r"stride should not be zero|returns") as caught:
        write(IR.from_json(ir.to_json()), path)
    assert caught.value.rule == "R12"
    assert not path.exists()
    trusted = IR.from_json(ir.to_json())
    trusted.limits = None
    if name == "net.py":
        assert to_python(trusted, path) == to_python(ir)
