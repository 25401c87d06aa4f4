"""Private names of torch are used in one file; another file owns the patches of torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_ir
from tests.private_torch import defined_in, private_names, sources
from torch_ir.ops import torch_internals

HOUSE = Path(torch_ir.__file__).parent
SOURCES = sources(HOUSE)
INTERNALS, PATCHES = "ops/torch_internals.py", "capture/instrument.py"
VERSIONS = re.compile(r"2\.\d+ to 2\.\d+")
# file and name -> why it is not private of torch
ALLOWED = {
    ("cli/parser.py", "_choices_actions"): "of argparse",
    ("cli/machine/completion.py", "_actions"): "of argparse",
    ("cli/verbs/llm.py", "_from_config"): "of transformers",
    ("cli/models/config.py", "_from_config"): "of transformers",
    ("cli/models/config.py", "_model_mapping"): "of transformers",
    ("llm/extraction.py", "_model_mapping"): "of transformers",
    ("llm/checkpoint_layout.py", "_weight_conversions"): "of transformers",
    ("llm/torchao_weights.py", "_type"): "a key in configurations of torchao",
    ("sharding/sharding_plan.py", "_tp_plan"): "of transformers",
    ("ops/forbidden.py", "_version"): "the name of an operator",
}


def test_private_names_of_torch_are_in_one_file() -> None:
    """Add a name to `ops/torch_internals.py`, with its description and version, and import it from there.

    An exception whose code is gone is removed from the list.
    """
    others = {name: source for name, source in SOURCES.items() if name not in (INTERNALS, PATCHES)}
    ours = defined_in(others.values())
    # attributes of torch's objects, which must not be used elsewhere even if a class of ours has one of the same name
    theirs = {name for _, name in private_names(SOURCES[INTERNALS], ()) if "." not in name}
    found = [(name, *each) for name, source in others.items() for each in private_names(source, ours, theirs)]
    assert [f"{name}:{line}: {private}" for name, line, private in found if (name, private) not in ALLOWED] == []
    assert ALLOWED.keys() <= {(name, private) for name, _, private in found}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("def f():\n    from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("from torch.fx.graph import _Namespace", "torch.fx.graph._Namespace"),
        ("import torch\ntorch._C._has_mkldnn", "torch._C._has_mkldnn"),
        ("from torch import fx\nfx._symbolic_trace", "torch.fx._symbolic_trace"),
        ("import torch as t\nt.Tensor._make_subclass", "torch.Tensor._make_subclass"),
        ("operator._schema.arguments", "_schema"),
        ("module._modules['a']", "_modules"),
        ("tensor.untyped_storage()._cdata", "_cdata"),
        ("x = 'torch._dynamo.eval_frame'", "torch._dynamo.eval_frame"),
        ("getattr(value, '_base')", "_base"),
        ("getattr(torch, f'_sym_{name}')", "_sym_"),
        ("names = ('_parameters',)", "_parameters"),
    ],
)
def test_what_is_private_is_found(source: str, name: str) -> None:
    """In imports, attribute paths, attributes of objects and strings."""
    assert name in [found for _, found in private_names(source, {"_modules"}, {"_modules", "_parameters"})]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.ops.aten._to_copy.default",
        "import torch\n_aten = torch.ops.aten\n_aten._to_copy.default",
        "import sys\nsys._getframe(1)",
        "self._modules()",
        "node._inputs",
        "origin._replace(name='a')",
        "'use torch._check for sizes'",
        "import torch\ntorch.__version__",
    ],
)
def test_what_is_not_private_is_left_alone(source: str) -> None:
    """Operators, other modules, our own classes, sentences."""
    assert private_names(source, {*defined_in([]), "_inputs"}, {"_modules"}) == []


def test_late_names_are_those_that_type_checkers_see() -> None:
    """The table of late imports equals the imports under TYPE_CHECKING, and each name exists."""
    _, block = [node for node in ast.parse(SOURCES[INTERNALS]).body if isinstance(node, ast.If)]
    seen = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name: ".".join(filter(None, home)) for name, home in torch_internals.LATE.items()} == seen
    assert all(getattr(torch_internals, name) is not None for name in seen)
    assert not hasattr(torch_internals, "nothing")


def test_every_private_name_says_its_versions() -> None:
    """In its statement or in the comment above; in a table without one, on its own line."""
    lines = SOURCES[INTERNALS].splitlines()
    private = private_names(SOURCES[INTERNALS], ())
    untold = []
    for node in ast.parse(SOURCES[INTERNALS]).body:
        is_checked_elsewhere = isinstance(node, ast.If)  # the names of LATE, for type checkers
        named = [line for line, _ in private if node.lineno <= line <= (node.end_lineno or 0)]
        end = node.lineno if isinstance(node, ast.Assign) else node.end_lineno
        above = [line for line in lines[node.lineno - 2 : node.lineno - 1] if line.startswith("#")]
        is_told = any(map(VERSIONS.search, [*above, *lines[node.lineno - 1 : end]]))
        if not is_checked_elsewhere and not is_told:
            untold += [line for line in named if not VERSIONS.search(lines[line - 1])]
    assert untold == []


def test_the_names_do_not_import_the_compiler() -> None:
    """Nor torch's symbolic sizes, which import sympy."""
    late = ("torch._dynamo", "torch._inductor", "torch.onnx._internal", "torch.utils._sympy.value_ranges", "sympy")
    program = f"import sys, torch_ir.ops.torch_internals; sys.exit(str(sys.modules.keys() & {set(late)}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("batch", [1, 3])
def test_final_states_of_a_recurrent_layer_have_two_dimensions(batch: int) -> None:
    """Those of a torch that removes the wrong dimension, and those that are right."""
    wrong = torch_internals.with_flat_states(lambda state: (state, (state.squeeze(1), state.squeeze(1))))
    right = torch_internals.with_flat_states(lambda state: (state, (state.squeeze(0), state.squeeze(0))))
    state = torch.arange(2.0 * batch).reshape(1, batch, 2)
    for layer in (wrong, right):
        output, finals = layer(state)
        assert output is state
        torch.testing.assert_close(finals, (state[0], state[0]))


def test_the_installed_torch_is_corrected_once() -> None:
    """The graph of an LSTM has the shapes of its run, with every torch that is supported."""
    before = torch_internals.decompositions.one_layer_lstm
    torch_internals.correct(torch.__version__)
    assert torch_internals.decompositions.one_layer_lstm is before
    lstm, steps = torch.nn.LSTM(4, 3).eval(), torch.ones(5, 2, 4)
    made, states = lstm(steps)
    ir = torch_ir.extract_ir(lstm.to("meta"), (steps.to("meta"),))
    assert [each.shape for each in ir.graph_outputs] == [tuple(each.shape) for each in (made, *states)]
