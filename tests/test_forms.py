"""Every form of program that torch.export captures is supported exactly; the exceptions are named, with a reason."""

from pathlib import Path

import pytest
import torch
from torch._ops import HigherOrderOperator

from tests.coverage import PAGE, page
from tests.forms import FAMILIES, forms, quantised
from tests.forms import higher_order as hops
from tests.forms.form import VERIFIED, Form
from tests.forms.sweep import carry, exported, extract
from tests.proof import quiet
from torch_ir import IRExecutor, WeightLoadError
from torch_ir.capture.program.functional import standard_form
from torch_ir.capture.program.lift_constants import graphs
from torch_ir.weight_loader import validate_weights_against_ir

BY_NAME = {form.name: form for form in forms()}
EVERY = 40  # of the forms, in a default run


def _as_expected(form: Form) -> None:
    outcome = carry(form)
    assert outcome.stage == form.expected.stage, outcome.reason


@pytest.mark.parametrize("form", forms()[::EVERY], ids=lambda form: form.name)
def test_a_sample_of_the_forms(form: Form) -> None:
    """A form reaches the stage in its table: verified, or stopped for a named reason."""
    _as_expected(form)


@pytest.mark.slow
@pytest.mark.parametrize("form", forms(), ids=lambda form: form.name)
def test_every_form(form: Form) -> None:
    """Likewise, all of them."""
    _as_expected(form)


def test_names_and_reasons() -> None:
    """Names are unique, and a form has a reason exactly if it is not verified."""
    assert len(BY_NAME) == sum(len(family.forms) for family in FAMILIES)
    assert [form.name for form in forms() if (form.expected.stage == VERIFIED) == bool(form.expected.reason)] == []


def test_the_page_says_what_the_tables_say() -> None:
    """`python -m tests.coverage --write` writes the page."""
    assert PAGE.read_text(encoding="utf-8") == page()


# -- higher-order operators -------------------------------------------------------------------------------------------


def test_every_higher_order_operator_has_a_verdict() -> None:
    """The tables name all that torch has registered, each once, and forms that are verified."""
    assert sorted([*hops.CAPTURED, *hops.TRACED_THROUGH, *hops.NOT_CAPTURED]) == hops.registered()
    shown = [*hops.CAPTURED.values(), *hops.TRACED_THROUGH.values()]
    assert [name for name in shown if BY_NAME[name].expected.stage != VERIFIED] == []


@pytest.mark.slow
@pytest.mark.parametrize("operator", hops.CAPTURED)
def test_forms_capture_the_operators_that_they_stand_for(operator: str) -> None:
    """The graph of the form has the operator; or its program had, as captured or in its functional form."""
    form = BY_NAME[hops.CAPTURED[operator]]
    with quiet():
        if f"higher_order.{operator}" in {node.op_type for node in extract(form, form.build()).all_nodes()}:
            return
        program = exported(form, form.build())
        functional, _ = standard_form(program)
    assert operator in _called(program.graph_module) | _called(functional.graph_module)


def _called(module: torch.nn.Module) -> set[str]:
    nodes = [node for graph in graphs(module) for node in graph.graph.nodes]
    return {str(node.target) for node in nodes if isinstance(node.target, HigherOrderOperator)}


# -- quantised weights ------------------------------------------------------------------------------------------------


def test_quantised_weights_are_bound_part_by_part(tmp_path: Path) -> None:
    """The graph names the parts of a quantised weight; the state dict and the checkpoint contain the whole."""
    form = quantised.family.forms["torchao_int8_weights"]
    with quiet():
        model, ir = form.build(), extract(form, form.build())
        torch.save(model.state_dict(), tmp_path / "model.pt")
    assert [param.key for param in ir.params][:3] == ["0.weight.qdata", "0.weight.scale", "0.weight.zero_point"]
    assert ir.params[0].dtype == "int8"
    assert validate_weights_against_ir(model.state_dict(), ir) == []
    executor = IRExecutor(ir)
    executor.load_weights(tmp_path / "model.pt")
    (x,) = form.inputs()[0]
    torch.testing.assert_close(executor(x), model(x))
    others = {key: value for key, value in model.state_dict().items() if key != "0.weight"}
    with pytest.raises(WeightLoadError, match=r"'0\.weight\.qdata' is missing"):
        IRExecutor(ir, others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [form for form in quantised.family.forms.values() if form.expected.stage == VERIFIED], ids=lambda f: f.name
)
def test_quantised_graphs_are_quantised(form: Form) -> None:
    """Each contains quantising operators, or weights of a small dtype: none was silently left in float."""
    with quiet():
        ir = extract(form, form.build())
    operators = {node.op_type.partition(".")[0] for node in ir.nodes}
    fake = {node.op_type for node in ir.nodes if "fake_quant" in node.op_type or "_fq_helper" in node.op_type}
    small = {param.dtype for param in ir.params} & {"int8", "float8_e4m3fn"}
    assert operators & {"quantized_decomposed", "torchao"} or fake or small
