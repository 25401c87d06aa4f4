"""No graph accesses anything outside itself: every operator of torch is classified, and runs are observed (R10)."""

import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from tests.graphs import chain, tensor
from tests.operator_probe import Probe, probe
from tests.operators.cases import database
from torch_ir import IR, ExecutionError, IRExecutor, OpNode, execute_ir
from torch_ir.ops import forbidden as reach
from torch_ir.ops.forbidden import misuses, reaches
from torch_ir.ops.schema import find_operator, operator_names

# Words in operator names, and argument types, that need a review.
_WORDS = re.compile(
    r"file|path|storage|stream|pin_|_pin|seed|rng|generator|cache|thread|debug|print|record|version|share|ptr|retain"
    r"|requires|resize|^set|_set_|dual|primal|lazy|xla|_test|vulkan|cuda|cudnn|cufft|miopen|backward$|sync|token|alloc"
)
_TYPES = re.compile(r"Storage|Stream|Any|__torch__|PyObject|Dict")
_TEXTS = {  # arguments that are text, and choose one of several ways to compute
    "UPLO", "activation", "algorithm", "api_name", "approximate", "assert_msg", "attr", "binary_attr", "driver",
    "equation",
    "indexing", "interpolation", "mode", "norm", "ord", "p", "pad_mode", "padding", "padding_mode", "padding_side",
    "place", "post_op_algorithm", "post_op_name", "reduce", "reduction", "rounding_mode", "scalars_attr", "side",
    "unary_algorithm", "unary_attr", "unary_post_op", "unary_post_op_algorithm", "binary_post_op", "binary_op",
    "output_dtype",
}  # fmt: skip
# Suspicious names of operators that only compute.
_HARMLESS = re.compile(
    r"aten\.(_?cudnn_(?!init)|_?miopen_|.*_backward\b|.*cachemask|_?affine_grid_generator|_.*assert_async|_make_dep_token"
    r"|resize(_as)?(_sparse)?\.|sparse_resize(_and_clear)?\.|_resize_output\.|_fw_primal_copy|_make_dual_copy|pinverse"
    r"|storage_offset|_nested_tensor_storage_offsets|is_set_to|retains_grad|_use_(cudnn|miopen)_ctc|is_vulkan_available"
    r"|_scaled_dot_product_cudnn|linalg_pinv|_sparse_semi_structured)"
    r"|prims\.(resize|_make_token|_sink_tokens|inductor_)|torch_ir\.fixed_attribute"  # one of a table of names
)
_PARTS_OF_TORCH = (
    "torch._inductor.lowering", "torch._inductor.fx_passes.bucketing", "torch._dynamo.variables.streams",
    "torch._functorch._activation_offloading.offload_ops", "torch.distributed._ops.device_mesh",
    "torch.distributed.tensor.experimental._context_parallel._cp_custom_ops", "torch.nn.attention.varlen",
    "torch._dynamo._trace_wrapped_higher_order_op", "torch.distributed.fsdp._fully_shard", "torch.onnx.ops",
    "torch.ao.quantization.fx._decomposed", "torch.distributed._symmetric_memory",
    "torch.distributed._functional_collectives", "torch.testing._internal.custom_op_db",
)  # fmt: skip


def unclassified() -> list[str]:
    """Unknown namespaces, and unclassified operators that may access something outside."""
    spaces = {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    found = [space for space in sorted(spaces) if space not in reach._COMPUTING and space not in reach._REACHING]
    for name in (name for space in sorted(reach._COMPUTING) for name in operator_names(space)):
        if not reaches(name) and not _HARMLESS.match(name) and (why := _suspicion(name)):
            found.append(f"{name}: {why}")
    return found


def _suspicion(name: str) -> str:
    schema = find_operator(name)._schema
    words = _WORDS.search(name.partition(".")[2].rpartition(".")[0])
    kinds = [str(value.type) for value in (*schema.arguments, *schema.returns) if _TYPES.search(str(value.type))]
    texts = [
        a.name
        for a in schema.arguments
        if "str" in str(a.type) and a.name not in _TEXTS and "Dimname" not in str(a.real_type)
    ]
    return ", ".join([*([words[0]] if words else []), *kinds, *texts])


@pytest.mark.parametrize("which", ["unclassified", pytest.param("all_unclassified", marks=pytest.mark.slow)])
def test_every_operator_is_classified(which: str) -> None:
    """Operators of a new torch are listed here if their name or arguments need a review.

    This process may have operators of other tests, so another one is asked.
    """
    program = f"from tests.test_reach import {which}; print({which}())"
    root = Path(__file__).parents[1]
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "[]"


def all_unclassified() -> list[str]:
    """The same with every part of torch that registers operators."""
    for module in _PARTS_OF_TORCH:
        importlib.import_module(module)
    return unclassified()


def test_higher_order_operators_call_functions_of_the_graph_alone() -> None:
    """Torch has others, which call functions from a table of the process, or from an object."""
    allowed = {name for name in torch._ops._higher_order_ops if not reaches(f"higher_order.{name}")}
    assert allowed <= reach._HIGHER_ORDER
    for name in ("call_torchbind", "invoke_leaf_function", "run_with_rng_state", "inductor_compiled_code"):
        assert reaches(f"higher_order.{name}") == "calls a function that is not in the graph"


@pytest.mark.parametrize("function", ["print", "builtins.print", "os.system", 3, None, ["print"]])
def test_a_branch_is_a_function_of_the_graph_or_nothing(function: object) -> None:
    """A name cannot refer to a Python function."""
    pred, out = tensor("pred", dtype="bool"), tensor("cond", 2)
    attrs = {"true_fn": function, "false_fn": function, "operands": []}
    ir = IR([OpNode("cond", "higher_order.cond", [pred], [out], attrs, args=["pred"])], [pred], [out])
    with pytest.raises(ExecutionError, match=r"OpNode\('cond'"):
        execute_ir(ir, (torch.tensor(True),), {})


def test_operators_of_a_library_run_unless_they_name_files() -> None:
    """Importing a library allows its operators; but a graph file cannot choose files to read."""
    library = torch.library.Library("torch_ir_reach", "DEF")
    library.define("twice(Tensor x, str mode) -> Tensor")
    library.define("store(Tensor x, str filename) -> Tensor")
    library.define("fetch(str[] paths) -> Tensor")
    library.impl("twice", lambda x, mode: x * 2, "CPU")
    assert reaches("torch_ir_reach.twice.default") == ""
    assert reaches("torch_ir_reach.store.default") == "reads or writes files"
    assert reaches("torch_ir_reach.fetch.default") == "reads or writes files"
    ir = chain("torch_ir_reach.twice.default")
    ir.nodes[0].set_inputs(ir.nodes[0].inputs, ["x"])
    ir.nodes[0].attrs = {"mode": "plain"}
    assert torch.equal(IRExecutor(ir).execute((torch.ones(2, 3),))[0], 2 * torch.ones(2, 3))
    library._destroy()


@pytest.mark.parametrize(
    "text",
    ["{x.__class__}", "{x[0]}", "{x!r}", "{x:>999999999}", "{", "\x1b[31m", 7, "{0.__init__.__globals__}"],
)
def test_printing_shows_text_and_values_alone(text: object) -> None:
    """A format could look into objects of the process, fill its memory, or steer a terminal."""
    ir = IR(
        [OpNode("print", "higher_order.print", [tensor("x", 2)], [], {"format_str": text}, args=["x"])],
        [tensor("x", 2)],
        [tensor("x", 2)],
    )
    with pytest.raises(ExecutionError, match="it prints more than text and values"):
        IRExecutor(ir)
    ir.nodes[0].attrs = {"format_str": "{x} is {{x}}, {}"}
    assert misuses(ir.nodes[0]) == ""


def test_memory_is_not_pinned() -> None:
    attrs = {"size": [2], "dtype": None, "layout": None, "device": None, "pin_memory": True}
    out = tensor("zeros", 2)
    with pytest.raises(ExecutionError, match="it pins memory"):
        IRExecutor(IR([OpNode("zeros", "aten.zeros.default", [], [out], attrs)], [], [out]))


def test_the_probe_sees_what_changes() -> None:
    """An operator that writes to an argument, or draws random numbers, without declaring it."""
    library = torch.library.Library("torch_ir_probed", "DEF")
    library.define("writes(Tensor x) -> Tensor")
    library.define("draws(Tensor x) -> Tensor")
    library.impl("writes", lambda x: x.add_(1).clone(), "CPU")
    library.impl("draws", lambda x: x + torch.rand(()), "CPU")
    with Probe() as found:
        torch.ops.torch_ir_probed.writes(torch.zeros(2))
        torch.ops.torch_ir_probed.draws(torch.zeros(2))
    library._destroy()
    assert found.changes == {
        "torch_ir_probed.writes.default": "an argument that its schema does not say",
        "torch_ir_probed.draws.default": "generator",
    }


@pytest.mark.slow
def test_operators_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not generators, modes, switches, files, nor arguments that a schema does not name; all that the samples call."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = probe(database(), samples=1)
    assert {name: what for name, what in found.changes.items() if not reaches(name)} == {}
    assert len(found.seen) > 400


@pytest.mark.parametrize(
    "name", ["sum.dim_DimnameList", "transpose.Dimname", "cat.names", "flatten.using_names", "rename.default"]
)
def test_named_dimensions_are_refused(name: str) -> None:
    """Older versions of torch have operators on named dimensions, and graphs keep no names."""
    assert reaches(f"aten.{name}") == "uses the names of dimensions"
