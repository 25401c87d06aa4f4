"""Passes and the pipeline: by name, with options, each checked, and the report."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.graphs import mlp
from tests.proof import captured, module
from tests.rewriting import lines, optimized, proved, small, text
from torch_ir import IR
from torch_ir.cli.dispatch import main
from torch_ir.errors import CommandError, GraphError, RegistryError
from torch_ir.ir.graph.node import OpNode
from torch_ir.passes import find_pass, list_passes, named_pass, optimize
from torch_ir.passes import pass_registry as registry
from torch_ir.passes.random_check import prove, retyped


def test_dead_code_goes_with_all_that_led_to_it() -> None:
    """An unused chain is removed from its end."""
    ir = small(
        "x: float32[2]",
        "neg",
        exp="aten.exp.default(x)",
        log="aten.log.default(exp)",
        neg="aten.neg.default(x)",
    )
    assert text(optimized(ir, ["dead-code"], exact=True)) == lines("""
        graph(x: float32[2]) {
          neg: float32[2] = aten.neg.default(self=x)
          return neg
        }
    """)


def test_dead_code_keeps_what_does_more_than_compute() -> None:
    """Random operators advance the generator, and an assertion may fail: both are kept although unused."""
    ir = small(
        "x: float32[2]",
        "neg",
        rand="aten.rand_like.default(x)",
        check="aten._assert_tensor_metadata.default(x)",
        neg="aten.neg.default(x)",
    )
    assert len(optimized(ir, ["dead-code"]).nodes) == 3


def test_a_weight_of_the_checkpoint_stays_listed() -> None:
    """Else the checkpoint would have one too many."""
    ir = small("x: float32[2]", weights="w: float32[2]", neg="aten.neg.default(x)")
    assert [param.name for param in optimized(ir, ["dead-code"]).params] == ["w"]


def test_equal_computations_become_one() -> None:
    """The second of two equal chains is removed, and the origins of the first include it."""
    ir = small(
        "x: float32[2]",
        a="aten.exp.default(x)",
        b="aten.exp.default(x)",
        c="aten.neg.default(a)",
        d="aten.neg.default(b)",
        e="aten.mul.Tensor(c, d)",
    )
    after = optimized(ir, ["common-subexpressions"], exact=True)
    assert text(after) == lines("""
        graph(x: float32[2]) {
          a: float32[2] = aten.exp.default(self=x)
          c: float32[2] = aten.neg.default(self=a)
          e: float32[2] = aten.mul.Tensor(self=c, other=c)
          return e
        }
    """)
    assert after.nodes[1].origins == ("c", "d")


@pytest.mark.parametrize(
    "calls",
    [
        {"a": "aten.rand_like.default(x)", "b": "aten.rand_like.default(x)", "c": "aten.add.Tensor(a, b)"},
        {"a": "aten.add.Scalar(x, 1)", "b": "aten.add.Scalar(x, 1.0)", "c": "aten.add.Tensor(a, b)"},
        {"a": "aten.add.Scalar(x, 1)", "b": "aten.add.Scalar(x, True)", "c": "aten.add.Tensor(a, b)"},
    ],
    ids=["random", "float", "bool"],
)
def test_what_only_looks_equal_stays(calls: dict[str, str]) -> None:
    """Two draws are two, and 1 is neither 1.0 nor True."""
    assert len(optimized(small("x: float32[2]", **calls), ["common-subexpressions"]).nodes) == 3


def test_two_results_do_not_become_one() -> None:
    """The caller has both, and may write to one of them."""
    ir = small("x: float32[2]", ["a", "b"], a="aten.exp.default(x)", b="aten.exp.default(x)")
    after, report = proved(ir, ["common-subexpressions"])
    assert len(after.nodes) == 2
    assert "the caller would receive" in report.declined[0].why


def test_functions_are_optimised_too() -> None:
    """Passes are applied to the body of a block, and their changes count."""
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(block, block).eval()
    ir = captured(model, torch.randn(2, 4)).at_level("module", leaf=[nn.Sequential])
    body = next(iter(ir.functions.values()))
    x = body.graph_inputs[0]
    body.nodes.insert(0, OpNode("dead", "aten.neg.default", [x], [x.copy("dead")], args=["self"]))
    after = optimized(ir.check(), ["dead-code"], exact=True)
    assert "dead" in str(ir)
    assert "dead" not in str(after)


# -- what is checked ---------------------------------------------------------------------------------------------------


def test_a_pass_that_breaks_the_graph_is_found() -> None:
    """The error names the pass and the violation."""

    def forgetful(ir: IR) -> int:
        ir.nodes.pop(0)
        return 1

    with pytest.raises(GraphError, match=r"pass 'forgetful' broke the graph: .*'linear', which nothing before"):
        optimize(mlp(), passes=[forgetful])


def test_a_pass_that_changes_the_signature_is_found() -> None:
    """The signature is compared after every pass."""

    def greedy(ir: IR) -> int:
        ir.graph_outputs = [*ir.graph_outputs, ir.nodes[0].output]
        return 1

    with pytest.raises(GraphError, match="pass 'greedy' broke the graph"):
        optimize(mlp(), passes=[greedy])


def test_a_pass_that_makes_a_node_lie_is_found() -> None:
    """Shapes are inferred again wherever something changed."""

    def careless(ir: IR) -> int:
        ir.nodes[-1].inputs = (ir.graph_inputs[0], *ir.nodes[-1].inputs[1:])
        return 1

    with pytest.raises(GraphError, match="pass 'careless' broke the graph"):
        optimize(mlp(), passes=[careless])


def test_attributes_that_a_pass_edits_in_place_are_checked() -> None:
    """The recorded shape must be that of the operator with its new attributes, also of an item in a list."""
    ir = small("x: float32[2, 3]", s="aten.sum.dim_IntList(x, [1], False)", r="aten.relu.default(s)")

    def keeping(graph: IR) -> int:
        graph.node("s").attrs["keepdim"] = True
        return 1

    def turning(graph: IR) -> int:
        graph.node("s").attrs["dim"][0] = 0
        return 1

    for step in (keeping, turning):
        with pytest.raises(GraphError, match=f"pass '{step.__name__}' broke the graph: .* returns .*, but the graph"):
            optimize(ir, passes=[step])


def test_a_pass_that_computes_something_else_is_found_by_running() -> None:
    """The graph is valid, but the results differ."""

    def wrong(ir: IR) -> int:
        ir.nodes[1].op_type = "aten.neg.default"
        return 1

    proof = optimize(mlp(), passes=[wrong], verify=True)[1].proof
    assert proof is not None
    assert not proof.is_valid
    assert str(proof).startswith("not the same: linear_1: ")


def test_strides_are_told_anew() -> None:
    """A pass that removes a copy changes the strides of following tensors; the graph declares them."""

    def without_copy(ir: IR) -> int:
        copy = ir.node("contiguous")
        copy.output.replace_all_uses_with(copy.inputs[0])
        copy.inputs = ()
        ir.nodes.remove(copy)
        return 1

    ir = small(
        "x: float32[2, 3]",
        t="aten.t.default(x)",
        contiguous="aten.contiguous.default(t)",
        exp="aten.exp.default(contiguous)",
    )
    assert ir.node("exp").output.stride is None
    once = iter([without_copy])
    after, _ = optimize(ir, passes=[lambda graph: next(once, lambda graph: 0)(graph)])
    assert after.node("exp").output.stride == (1, 3)


def test_the_given_graph_stays_as_it_is() -> None:
    """`optimize` works on a copy."""
    ir = small("x: float32[2]", "neg", exp="aten.exp.default(x)", neg="aten.neg.default(x)")
    before = text(ir)
    optimize(ir)
    assert text(ir) == before


def test_a_graph_that_writes_is_refused() -> None:
    """Only the functional form can be rewritten soundly."""
    x = small("x: float32[2]", neg="aten.neg.default(x)").graph_inputs[0]
    y = x.copy("y")
    ir = IR([OpNode("y", "aten.neg_.default", [x], [y], args=["self"])], [x], [y])
    with pytest.raises(GraphError, match="writes in place, but only functional graphs can be optimised"):
        optimize(ir)


def test_a_proof_tells_rounding_from_a_mistake() -> None:
    """A sum in another order differs in float32 and not in float64."""
    one = small("x: float32[4000]", total="aten.sum.default(x)", big="aten.mul.Scalar(total, 1e6)")
    other = small(
        "x: float32[4000]",
        rows="aten.reshape.default(x, [40, 100])",
        part="aten.sum.dim_IntList(rows, [0])",
        total="aten.sum.default(part)",
        big="aten.mul.Scalar(total, 1e6)",
    )
    assert prove(one, other).is_valid
    assert retyped(one, "float64").graph_outputs[0].dtype == "float64"


def test_nan_everywhere_proves_nothing() -> None:
    """Two graphs that return only NaN look equal; one number is enough to compare them."""
    one, other = (
        small("x: float32[2]", less="aten.sub.Tensor(x, 1e9)", root=f"aten.{name}.default(less)")
        for name in ("sqrt", "log")
    )
    assert str(prove(one, other)) == "not the same: both return only NaN, so nothing was compared"


# -- names and options -------------------------------------------------------------------------------------------------


def test_every_pass_says_what_it_does() -> None:
    """One sentence each, for the list and the documentation."""
    assert [made.name for made in list_passes() if not made.summary.endswith(".")] == []


def test_a_name_is_taken_once() -> None:
    """Another function under a taken name is an error that names the existing one."""
    message = r"pass 'dead-code' is already registered by torch_ir\.passes\.clean\.dead_code\."
    with pytest.raises(RegistryError, match=message):

        @named_pass("dead-code")
        def other(ir: IR) -> int:
            return 0


def test_unknown_names_get_the_nearest() -> None:
    """Of passes, of options and of levels."""
    with pytest.raises(CommandError, match=r"unknown pass 'ded-code'; expected one of .*; did you mean 'dead-code'"):
        find_pass("ded-code")
    with pytest.raises(CommandError, match="pass 'dead-code' has no option 'limit'"):
        find_pass("dead-code:limit=3")
    with pytest.raises(
        CommandError, match="unknown level 'fulll'; expected one of clean, basic, full; did you mean 'full'"
    ):
        optimize(mlp(), "fulll")


def test_options_have_the_kind_of_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line they are texts."""
    monkeypatch.setattr(registry, "_passes", dict(registry._passes))  # other tests look at all passes
    seen: list[object] = []

    @named_pass("test-options")
    def with_options(ir: IR, limit: int = 3, names: tuple[str, ...] = (), deep: bool = False) -> int:
        """Record the options."""
        seen[:] = [limit, names, deep]
        return 0

    optimize(mlp(), passes=["test-options:limit=5:names=a,b:deep=true"])
    assert seen == [5, ["a", "b"], True]
    with pytest.raises(CommandError, match="option 'limit' of pass 'test-options' takes a number, not 'x'"):
        find_pass("test-options:limit=x")


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + torch.exp(x)

    captured(module(forward), torch.randn(2, 3)).save(tmp_path / "model.json")
    return tmp_path / "model.json"


def test_the_command_writes_a_better_graph(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table of the savings, the verification, and the file."""
    better = file.parent / "better.json"
    assert main(["optimize", str(file), "-o", str(better), "--level", "clean", "--verify"]) == 0
    told = capsys.readouterr().out
    assert "nodes per run" in told
    assert "common-subexpressions" in told
    assert "verified: the same on 2 sets of random inputs and weights, max diff 0" in told
    assert len(IR.load(better).nodes) == 2


def test_the_report_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers for programs."""
    assert main(["optimize", str(file), "--level", "clean", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["before"]["nodes"], report["after"]["nodes"]) == (3, 2)
    assert [change["rule"] for change in report["changes"]] == ["common-subexpressions"]


def test_the_command_explains(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which rule changed what; a word restricts the list."""
    assert main(["optimize", str(file), "--level", "clean", "--explain"]) == 0
    assert capsys.readouterr().out == "common-subexpressions: once, at exp_1\n"
    assert main(["optimize", str(file), "--level", "clean", "--explain", "no-such"]) == 0
    assert capsys.readouterr().out == "no changes or declines that mention 'no-such'\n"


def test_mistakes_on_the_command_line_are_one_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And status 1."""
    assert main(["optimize"]) == 1
    assert main(["optimize", str(file), "--pass", "nothing"]) == 1
    assert main(["optimize", str(file), "--dtype", "int8"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert [line.startswith("torch-ir: error: ") for line in told] == [True] * 3


def test_the_command_lists_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """With one sentence each."""
    assert main(["optimize", "--list"]) == 0
    assert "dead-code              clean  Remove unused nodes" in capsys.readouterr().out
