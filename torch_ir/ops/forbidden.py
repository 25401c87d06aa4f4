"""Operators that reach outside a graph: to files, generators, storages, modes, devices, other processes, Python.

No graph may contain them (rule R10). Of torch's own namespaces, those that only compute are listed; operators of other
libraries, which the user imported, may run unless their schema names a file.
"""

from __future__ import annotations

import re
import string
from functools import cache

from torch_ir.ir import OpNode
from torch_ir.ops.schema import HIGHER_ORDER, find_operator
from torch_ir.ops.torch_internals import OpOverload, schema_of

_COMPUTING = frozenset(
    [
        "_quantized", "aten", "mkl", "mkldnn", "onednn", "onnx", "prims", "quantization", "quantized",
        "quantized_decomposed", "torch_attn", "torch_ir",
    ]
)  # fmt: skip
# Collectives of a mesh; the processes involved are determined where the graph runs.
COLLECTIVES = frozenset(
    f"_c10d_functional.{name}.default"
    for name in (
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
        "wait_tensor",
    )
)  # fmt: skip
# Other namespaces of torch.
_REACHING = {
    **dict.fromkeys(
        [
            "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "bucketing", "c10d", "c10d_functional",
            "cplib", "device_mesh", "fsdp", "symm_mem",
        ],
        "communicates with other processes",
    ),
    **dict.fromkeys(["ao", "cuda", "streams"], "controls a device"),
    **dict.fromkeys(["debug_mode_ops", "debugprims", "profiler"], "inspects the process"),
    **dict.fromkeys(["inductor_prims", "rngprims"], "reads or sets the state of generators"),
    **dict.fromkeys(
        [
            "_inductor_debug", "_inductor_test", "_native", "_test", "_torch_testing", "export", "flex_lib", "inductor",
            "mkldnn_prepacked", "onnx_symbolic", "prim", "sparse", "static_runtime", "triton",
        ],
        "is a part of torch's own compilers and tests",
    ),
}  # fmt: skip
_OPERATORS = {
    **dict.fromkeys(
        [
            "_copy_from_and_resize", "_debug_has_internal_overlap", "_has_same_storage_numel", "_lazy_clone",
            "_resize_output_", "_unsafe_set_version_counter", "resize_", "resize_as_", "resize_as_sparse_", "set",
            "set_", "set_data", "sparse_resize_", "sparse_resize_and_clear_", "sym_storage_offset",
        ],
        "changes or exposes the storage of a tensor",
    ),
    **dict.fromkeys(
        ["_backward", "_fw_primal", "_make_dual", "_unpack_dual", "_version", "requires_grad_", "retain_grad"],
        "changes or exposes gradient state",
    ),
    **dict.fromkeys(
        [
            "_cudnn_init_dropout_state", "_cufft_clear_plan_cache", "_cufft_get_plan_cache_max_size",
            "_cufft_get_plan_cache_size", "_cufft_set_plan_cache_max_size", "_pin_memory", "_propagate_xla_data",
            "_use_cudnn_rnn_flatten_weight", "is_pinned", "pin_memory", "record_stream",
        ],
        "controls a device",
    ),
    "_print": "prints",
    "_set_item": "changes a Python object",
    "from_file": "reads or writes files",
}  # fmt: skip
_ADDRESS = "mkldnn.data_ptr.default"
# Higher-order operators that only call functions of the graph; torch has others, which call arbitrary functions.
_HIGHER_ORDER = frozenset(
    [
        "associative_scan", "cond", "flat_apply", "flex_attention", "flex_attention_backward", "foreach_map",
        "hints_wrapper", "invoke_quant", "invoke_quant_packed", "invoke_subgraph", "map_impl", "out_dtype", "print",
        "scan", "strict_mode", "while_loop", "while_loop_stack_output", "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    ]
)  # fmt: skip
_OBJECTS = re.compile(r"__torch__|PyObject|\bAny\b|Storage|Stream|Dict")
# Operators on named dimensions, which older versions of torch have: results depend on names that no graph keeps.
_NAMED = re.compile(r"^(align_as|align_tensors|align_to|refine_names|rename_?)\.|\..*(dimname|names)", re.IGNORECASE)
_FILES = re.compile(r"file|path|folder|dir(ectory)?$|ur[il]$|uri_", re.IGNORECASE)


def reaches(op_type: str) -> str:
    """Return what an operator does outside the graph, such as `reads or writes files`; empty if it only computes."""
    namespace, _, rest = op_type.partition(".")
    name = rest.partition(".")[0]
    if namespace in _REACHING:
        return "" if op_type in COLLECTIVES else _REACHING[namespace]
    if namespace == "aten" and name.startswith("_test_"):
        return "is for torch's own tests"
    if namespace == "aten" and name in _OPERATORS:
        return _OPERATORS[name]
    if namespace == "aten" and _NAMED.search(rest):
        return "uses the names of dimensions"
    if op_type == _ADDRESS:
        return "exposes the address of a tensor"
    operator = find_operator(op_type)
    if isinstance(operator, OpOverload):
        return _by_schema(operator)
    is_torchs = operator is not None and type(operator).__module__.startswith("torch.")
    return "calls a function that is not in the graph" if is_torchs and rest not in _HIGHER_ORDER else ""


@cache
def _by_schema(operator: OpOverload) -> str:
    """Derive what an operator does outside the graph from its schema."""
    schema = schema_of(operator)
    if any(_OBJECTS.search(str(value.type)) for value in (*schema.arguments, *schema.returns)):
        return "takes or returns an object that is not a tensor"
    named = [argument.name for argument in schema.arguments if "str" in str(argument.type)]
    is_torchs = operator.namespace in _COMPUTING
    return "" if is_torchs or not any(map(_FILES.search, named)) else "reads or writes files"


def misuses(node: OpNode) -> str:
    """Return how a node misuses an otherwise allowed operator; empty if it does not."""
    if node.op_type == f"{HIGHER_ORDER}print":
        return "" if _is_plain_text(node.attrs.get("format_str")) else "prints more than text and values"
    return "pins memory" if node.attrs.get("pin_memory") is True else ""


def _is_plain_text(text: object) -> bool:
    """Whether a format has only the fields `{}` and `{name}`: others could access objects, or exhaust memory."""
    if not isinstance(text, str) or not all(sign.isprintable() or sign in "\n\t" for sign in text):
        return False
    try:
        fields = [part[1:] for part in string.Formatter().parse(text) if part[1] is not None]
    except ValueError:
        return False
    return all(re.fullmatch(r"\w*", name or "") and not spec and not conversion for name, spec, conversion in fields)
