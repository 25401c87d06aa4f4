"""Every private name of torch that torch_ir uses, under a public name; patches are in `capture.instrument`.

A comment states the torch versions that have a name, according to their sources; `tested_versions` lists those that
were tested. Code that runs for every operator calls torch's own object, not a wrapper.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from functools import cache, wraps
from operator import attrgetter
from threading import Thread
from traceback import FrameSummary
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C import DisableTorchFunction as DisableTorchFunction  # context without torch functions; 2.9 to 2.15
from torch._C import DispatchKey as DispatchKey  # enum of dispatch keys; 2.9 to 2.15
from torch._C import DispatchKeySet as DispatchKeySet  # set of dispatch keys; 2.9 to 2.15
from torch._C import PyTorchFileReader as ArchiveReader  # reads records of files of torch.save; 2.9 to 2.15
from torch._C import _AutoDispatchBelowAutograd as AutoDispatchBelowAutograd  # skips autograd keys; 2.9 to 2.15
from torch._C import _current_autograd_node as running_autograd_node  # None outside backward; 2.9 to 2.15
from torch._C import _disabled_torch_function_impl as disabled_torch_function  # for subclasses; 2.9 to 2.15
from torch._C import _DisableTorchDispatch as no_dispatch  # below tensor subclasses and modes; 2.9 to 2.15
from torch._C import _dispatch_find_schema_or_throw as find_dispatched_schema  # by name; 2.9 to 2.15
from torch._C import _dispatch_get_all_op_names as dispatched_operator_names  # `aten::add.Tensor`; 2.9 to 2.15
from torch._C import _dispatch_tls_local_exclude_set as excluded_dispatch_keys  # of this thread; 2.9 to 2.15
from torch._C import _dispatch_tls_local_include_set as included_dispatch_keys  # of this thread; 2.9 to 2.15
from torch._C import _ExcludeDispatchKeyGuard as ExcludeDispatchKeyGuard  # excludes a key set; 2.9 to 2.15
from torch._C import _ForceDispatchKeyGuard as ForceDispatchKeyGuard  # sets both key sets; 2.9 to 2.15
from torch._C import _len_torch_function_stack as function_mode_count  # the number of active modes; 2.9 to 2.15
from torch._C import _nn as nn_functions  # functions of `torch.nn.functional` in C++; 2.9 to 2.15
from torch._C import _pop_torch_function_stack as pop_function_mode  # the innermost mode; 2.9 to 2.15
from torch._C import _push_on_torch_function_stack as push_function_mode  # enters a mode; 2.9 to 2.15
from torch._C import _set_throw_on_mutable_data_ptr as forbid_data_pointer  # `data_ptr()` raises; 2.9 to 2.15
from torch._decomp import decomposition_table as decomposition_table  # operator -> decomposition; 2.9 to 2.15
from torch._decomp import decompositions as decompositions  # a module, see `with_flat_states`; 2.9 to 2.15
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher  # context; 2.9 to 2.15
from torch._export import utils as export_utils  # a module, see LIST_COMPOSITES; 2.9 to 2.15
from torch._export.utils import _bind_signature_to_inputs as bind_signature_to_inputs  # by name; 2.9 to 2.15
from torch._export.utils import _rename_without_collisions as rename_without_collisions  # one node; 2.9 to 2.15
from torch._export.verifier import load_verifier as load_verifier  # by the name of its dialect; 2.9 to 2.15
from torch._functorch import eager_transforms, vmap  # modules, see TRANSFORMS; 2.9 to 2.15
from torch._guards import detect_fake_mode as detect_fake_mode  # the fake mode of given values; 2.9 to 2.15
from torch._guards import tracing as tracing  # sets the current tracing context; 2.9 to 2.15
from torch._higher_order_ops import utils as higher_order_utils  # a module, see CONTROL_FLOW; 2.9 to 2.15
from torch._higher_order_ops.out_dtype import out_dtype as out_dtype  # computes in another dtype; 2.9 to 2.15
from torch._ops import HigherOrderOperator as HigherOrderOperator  # `cond`, `while_loop`, ...; 2.9 to 2.15
from torch._ops import OpOverload as OpOverload  # one operator with one schema; 2.9 to 2.15
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as TYPE_PROMOTION_KIND  # enum; 2.9 to 2.15
from torch._prims_common import elementwise_dtypes as elementwise_dtypes  # computed and made dtype; 2.9 to 2.15
from torch._subclasses import fake_tensor  # a module, see forget_results; 2.9 to 2.15
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputError  # 2.9 to 2.15
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeError  # 2.9 to 2.15
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # a tensor without values; 2.9 to 2.15
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # makes fake tensors; 2.9 to 2.15
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily  # context; 2.9 to 2.15
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import _combine_args as combine_args  # inputs by argument name; 2.9 to 2.15
from torch.export.dynamic_shapes import _tree_map_with_path as map_dynamic_shapes  # with inputs; 2.9 to 2.15
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.experimental import proxy_tensor
from torch.fx.graph import _Namespace as FxNamespace  # unique names of a graph; 2.9 to 2.15
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen  # of graphs with nested inputs; 2.9 to 2.15
from torch.library import _scoped_library as scoped_library  # a Library that a context removes; 2.9 to 2.15
from torch.overrides import _get_current_function_mode_stack as function_modes  # of this thread; 2.9 to 2.15
from torch.utils import (
    _contextlib,  # a module, see DECORATOR_FILE; 2.9 to 2.15
    _python_dispatch,  # a module, see is_traceable_wrapper_subclass; 2.9 to 2.15
)
from torch.utils import _pytree as pytree  # nested values; 2.9 to 2.15
from torch.utils._device import DeviceContext as DeviceContext  # mode of the default device; 2.9 to 2.15
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # sees operators; 2.9 to 2.15
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes  # context; 2.9 to 2.15
from torch.utils._python_dispatch import transform_subclass as transform_subclass  # inner tensors; 2.9 to 2.15

from torch_ir.errors import TorchIRError
from torch_ir.ops.tested_versions import OLDEST_TORCH, is_before, is_too_old

if is_too_old(torch.__version__):
    raise TorchIRError(f"torch_ir needs torch {OLDEST_TORCH} or newer, and torch {torch.__version__} is installed")

if TYPE_CHECKING:
    from torch._dynamo.source import LocalSource as LocalSource
    from torch._export import config as export_config
    from torch._export.non_strict_utils import make_constraints as make_constraints
    from torch._export.non_strict_utils import make_fake_inputs as make_fake_inputs
    from torch._export.non_strict_utils import produce_guards_and_solve_constraints as solve_constraints
    from torch._inductor import compile as inductor_compile
    from torch._inductor.codecache import CppCodeCache as CppCodeCache
    from torch._inductor.cpp_builder import get_cpp_compiler as get_cpp_compiler
    from torch._inductor.custom_graph_pass import CustomGraphPass as CustomGraphPass
    from torch._inductor.exc import InvalidCxxCompiler as InvalidCxxCompilerError
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir as default_cache_dir
    from torch.fx.passes.shape_prop import _extract_tensor_metadata as extract_tensor_metadata
    from torch.onnx._internal.exporter import _core as onnx_core
    from torch.onnx._internal.exporter import _fx_passes as onnx_fx_passes
    from torch.onnx._internal.exporter import _registration as onnx_registration
    from torch.utils._python_dispatch import any_torch_dispatch_mode_on_stack as has_recording_mode
    from torch.utils._sympy.value_ranges import ValueRangeError as ValueRangeError
    from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges

# -- names whose modules are slow to import, or not in every version: name -> module and name there -----------------

_NON_STRICT = "torch._export.non_strict_utils"  # 2.9 to 2.15
LATE = {
    "CppCodeCache": ("torch._inductor.codecache", "CppCodeCache"),  # compiles and loads C++; 2.9 to 2.15
    "CustomGraphPass": ("torch._inductor.custom_graph_pass", "CustomGraphPass"),  # base of passes; 2.9 to 2.15
    "InvalidCxxCompilerError": ("torch._inductor.exc", "InvalidCxxCompiler"),  # no C++ compiler; 2.9 to 2.15
    "LocalSource": ("torch._dynamo.source", "LocalSource"),  # where a guard finds an input; 2.9 to 2.15
    "ValueRangeError": ("torch.utils._sympy.value_ranges", "ValueRangeError"),  # an empty range; 2.9 to 2.15
    "ValueRanges": ("torch.utils._sympy.value_ranges", "ValueRanges"),  # bounds of a size; 2.9 to 2.15
    "default_cache_dir": ("torch._inductor.runtime.cache_dir_utils", "default_cache_dir"),  # 2.9 to 2.15
    "export_config": ("torch._export.config", ""),  # flags of torch.export, a module; 2.10 to 2.15
    "extract_tensor_metadata": ("torch.fx.passes.shape_prop", "_extract_tensor_metadata"),  # 2.9 to 2.15
    "get_cpp_compiler": ("torch._inductor.cpp_builder", "get_cpp_compiler"),  # its path, or raises; 2.9 to 2.15
    "make_constraints": (_NON_STRICT, "make_constraints"),  # ranges of symbols; 2.9 to 2.15
    "make_fake_inputs": (_NON_STRICT, "make_fake_inputs"),  # with symbolic sizes; 2.9 to 2.15
    "solve_constraints": (_NON_STRICT, "produce_guards_and_solve_constraints"),  # do sizes vary? 2.9 to 2.15
    "has_recording_mode": ("torch.utils._python_dispatch", "any_torch_dispatch_mode_on_stack"),  # 2.11 to 2.13
    "inductor_compile": ("torch._inductor", "compile"),  # a graph module -> code; 2.9 to 2.15
    "onnx_core": ("torch.onnx._internal.exporter._core", ""),  # the module, with `export`; 2.9 to 2.15
    "onnx_fx_passes": ("torch.onnx._internal.exporter._fx_passes", ""),  # the module; 2.9 to 2.15
    "onnx_registration": ("torch.onnx._internal.exporter._registration", ""),  # the module; 2.9 to 2.15
}


def __getattr__(name: str) -> Any:
    """Import a name of `LATE` on first use."""
    if name not in LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, private = LATE[name]
    home = importlib.import_module(module)
    found = globals()[name] = getattr(home, private) if private else home
    return found


# -- private attributes of torch's objects; torch.compile cannot trace an attrgetter ---------------------------------

schema_of: Callable[[OpOverload], torch.FunctionSchema] = attrgetter("_schema")  # 2.9 to 2.15
plain_call: Callable[[OpOverload], Callable[..., Any]] = attrgetter("_op")  # `__call__` without a frame; 2.9 to 2.15
storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")  # address of the C++ object; 2.9 to 2.15
version_of: Callable[[torch.Tensor], int] = attrgetter("_version")  # counts writes to a tensor's memory; 2.9 to 2.15
parameter_table: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter("_parameters")  # 2.9 to 2.15
buffer_table: Callable[[nn.Module], dict[str, torch.Tensor | None]] = attrgetter("_buffers")  # 2.9 to 2.15
module_table: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")  # 2.9 to 2.15
non_persistent_names: Callable[[nn.Module], set[str]] = attrgetter("_non_persistent_buffers_set")  # 2.9 to 2.15
codegen_of: Callable[[torch.fx.Graph], Any] = attrgetter("_codegen")  # writes a graph as Python; 2.9 to 2.15
compiled_call: Callable[[nn.Module], Any] = attrgetter("_compiled_call_impl")  # of `module.compile()`; 2.9 to 2.15
MODULE_CALL = "_call_impl"  # the method of a module that runs hooks and forward; 2.9 to 2.15
MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # attributes of a module; 2.9 to 2.15


def submodule_at(module: nn.Module, path: Iterable[str]) -> nn.Module:
    """Return the submodule at a path of names, in a way that torch.compile can trace (`_modules`; 2.9 to 2.15)."""
    for name in path:
        module = module._modules[name]  # type: ignore[assignment]  # there is a module at each step
    return module


def memory_key(tensor: torch.Tensor) -> int:
    """Return a number that is equal for tensors if and only if they share their storage (`_cdata`; 2.9 to 2.15)."""
    return int(tensor.untyped_storage()._cdata)


def dense_memory_key(value: Any) -> int | None:
    """Return the same number for a strided tensor; None for any other value."""
    return memory_key(value) if isinstance(value, torch.Tensor) and value.layout == torch.strided else None


def next_autograd_number() -> int:
    """Return the number of the next call that autograd records (`_get_sequence_nr`; 2.9 to 2.15)."""
    return int(torch._C._autograd._get_sequence_nr())


def running_autograd_number() -> int | None:
    """Return the number of the call whose gradient is being computed (`_sequence_nr`; 2.9 to 2.15)."""
    node = running_autograd_node()
    return None if node is None else node._sequence_nr()


def count_as_parameter(tensor: torch.Tensor, is_parameter: bool = True) -> None:
    """Set what `isinstance(tensor, nn.Parameter)` reads from a tensor subclass (`_is_param`; 2.9 to 2.15)."""
    tensor._is_param = is_parameter


IS_PARAMETER = "_is_param"  # the attribute that it sets; 2.9 to 2.15
BASE = "_base"  # the attribute with the tensor that a view is of; 2.9 to 2.15
VERSION = "_version"  # the attribute that counts writes to a tensor; 2.9 to 2.15


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks before or after forward (`_forward_hooks`, `_forward_pre_hooks`; 2.9 to 2.15)."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return `tensor.grad` without a warning for tensors that are not leaves (`_grad`; 2.9 to 2.15)."""
    found: torch.Tensor | None = tensor._grad
    return found


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that autograd knows this one as a view of (`_base`; 2.9 to 2.15)."""
    return tensor._base


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share storage (`torch._C._is_alias_of`; 2.9 to 2.15)."""
    return bool(torch._C._is_alias_of(one, other))  # type: ignore[attr-defined]  # missing in torch's stubs


def can_decompose(operator: OpOverload) -> bool:
    """Whether `operator.decompose()` works (`_can_decompose`; 2.9 to 2.15)."""
    return operator._can_decompose()


def call_kernel(operator: OpOverload, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel of one dispatch key (`_op_dk`; 2.9 to 2.15)."""
    return operator._op_dk(key, *args, **kwargs)


def has_autocast_kernel(operator: OpOverload, device: str) -> bool:
    """Whether autocast for a device casts an operator itself (`_dispatch_has_kernel_for_dispatch_key`; 2.9 to 2.15)."""
    name: str = operator.name()  # type: ignore[no-untyped-call]  # torch does not annotate it
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, f"Autocast{device.upper()}")


def updated(
    program: ExportedProgram, module: torch.fx.GraphModule, signature: ExportGraphSignature, **others: Any
) -> ExportedProgram:
    """Return a program with another graph and signature, and optionally other weights (`_update`; 2.9 to 2.15)."""
    return program._update(module, signature, **others)


def destroy_library(library: torch.library.Library) -> None:
    """Remove the operators that a library has defined (`_destroy`; 2.9 to 2.15)."""
    library._destroy()  # type: ignore[no-untyped-call]  # torch does not annotate it


def name_of_target(target: str) -> str:
    """Return the name that torch.fx gives to calls of a target, without a number (`_target_to_str`; 2.9 to 2.15)."""
    return torch.fx.Graph()._target_to_str(target)


def script_type(value: torch.ScriptObject) -> str:
    """Return the qualified class name of a TorchScript object (`_type`; 2.9 to 2.15)."""
    return str(value._type())


# whether a tensor wraps others; torch's type guard excludes plain tensors; 2.9 to 2.15
is_traceable_wrapper_subclass: Callable[[Any], bool] = _python_dispatch.is_traceable_wrapper_subclass
HAS_MKL: bool = torch._C.has_mkl  # whether torch is built with it; 2.9 to 2.15
HAS_MKLDNN: bool = torch._C._has_mkldnn  # whether torch is built with oneDNN; 2.9 to 2.15
make_wrapper_subclass: Callable[..., Any] = torch.Tensor._make_wrapper_subclass  # without memory; 2.9 to 2.15
DROPOUT_COPIES = is_before(torch.__version__, "2.14")  # when off; since 2.14, its shape rule returns the input itself
SYMBOLIC_MATH: dict[str, Callable[..., Any]] = {  # `sqrt` -> the same of a symbolic number; 2.9 to 2.15
    name: getattr(torch, f"_sym_{name}") for name in ("sqrt", "log2", "sin", "cos", "tan", "tanh")
}


# -- functions that capture intercepts: owner and name ---------------------------------------------------------------

SET_GRAD_ENABLED = (torch._C, "_set_grad_enabled")  # every change of the gradient mode; 2.9 to 2.15
CONTROL_FLOW = (higher_order_utils, "_hop_compile_and_call")  # how `cond` runs in eager; new after 2.11; 2.13
LAST_EXPORT = (proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT")  # tensors of the last trace; 2.9 to 2.15
LIST_COMPOSITES = (export_utils, "_materialize_cpp_cia_ops")  # into `torch.ops`, see `decomposing`; 2.9 to 2.15
COMPILER = "torch._dynamo.convert_frame"  # the module whose `compile_lock` torch.compile holds; 2.9 to 2.15
ONNX_SIGNATURE = "_pt_onnx_signature"  # attribute of a translation to ONNX: its parameters; 2.9 to 2.15
TRACE_CALL = (proxy_tensor, "proxy_call")  # records one operator in a trace; 2.13
# where a transform of torch.func begins; 2.9 to 2.15
TRANSFORMS = {
    "torch.vmap": (vmap, "_vmap_increment_nesting"),
    "torch.func.grad": (eager_transforms, "_grad_increment_nesting"),
    "torch.func.jvp": (eager_transforms, "_jvp_increment_nesting"),
    "torch.func.functionalize": (eager_transforms, "_func_increment_nesting"),
}


def is_transforming() -> bool:
    """Whether code runs in a transform of torch.func, or below a dispatch mode (private functions; 2.9 to 2.15)."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_dispatch_stack() > 0


TENSOR_CHECK = (torch, "_check_tensor_all_with")  # raises unless all elements are true; 2.9 to 2.15
DECORATOR_FILE = _contextlib.__file__  # code that `@torch.no_grad()` runs around a function; 2.9 to 2.15


# -- corrections of torch for the whole process, where graphs would be wrong without an error ------------------------


def with_flat_states(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer of the decomposition of `aten.lstm` whose final states have two dimensions.

    Before 2.13, they have three unless the batch has one sequence: `squeeze(1)` where `squeeze(0)` is meant. This
    decomposition is the shape rule, too, for models on meta.
    """

    @wraps(layer)
    def one_layer_lstm(*args: Any, **kwargs: Any) -> Any:
        output, states = layer(*args, **kwargs)
        return output, tuple(state.squeeze(0) if state.dim() == 3 else state for state in states)

    return one_layer_lstm


def correct(version: str) -> None:
    """Correct what is wrong in a version of torch, once (`one_layer_lstm`; 2.9 to 2.15)."""
    if is_before(version, "2.13") and not hasattr(decompositions.one_layer_lstm, "__wrapped__"):
        decompositions.one_layer_lstm = with_flat_states(decompositions.one_layer_lstm)


correct(torch.__version__)


# -- modules that may not be loaded, and names of loggers ------------------------------------------------------------

FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"  # logs each call that a shape rule refuses; 2.9 to 2.15
EXPORT_LOGGERS = (FAKE_TENSOR_LOGGER, "torch._export.non_strict_utils", "torch._dynamo")  # 2.9 to 2.15
PYTREE_LOGGER = "torch.utils._pytree"  # warns of registrations of other libraries; 2.9 to 2.15
# modules that register operators of a namespace when they are imported; 2.9 to 2.15
OPERATOR_MODULES = {
    "_c10d_functional": "torch.distributed._functional_collectives",
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
}


def is_compiler_loaded() -> bool:
    """Whether torch.compile has been used in this process (`torch._dynamo`; 2.9 to 2.15)."""
    return "torch._dynamo" in sys.modules


def rewritten_for_sizes(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Return a call as torch.export rewrites it for symbolic sizes (`_NonStrictTorchFunctionHandler`; 2.9 to 2.15)."""
    from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler

    handler: Any = _NonStrictTorchFunctionHandler()
    rewritten: tuple[Any, Any, Any] = handler._override(func, args, kwargs)
    return rewritten


def watch_unknown(shapes: Any, look: Callable[[], None]) -> None:
    """Report when a `ShapeEnv` looks for what it does not know, other than to decide by its hints.

    `_maybe_evaluate_static`, `_simplify_floor_div`; 2.9 to 2.15.
    """
    deciding = 0
    static, evaluate = shapes._maybe_evaluate_static, shapes.evaluate_expr

    @wraps(evaluate)
    def evaluate_expr(*args: Any, **kwargs: Any) -> Any:
        nonlocal deciding
        deciding += 1
        try:
            return evaluate(*args, **kwargs)
        finally:
            deciding -= 1

    @wraps(static)
    def maybe_static(*args: Any, **kwargs: Any) -> Any:
        answer = static(*args, **kwargs)
        if answer is None and not deciding:
            look()
        return answer

    def looking(original: Any) -> Any:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not deciding:
                look()
            return original(*args, **kwargs)

        return call

    shapes._maybe_evaluate_static, shapes.evaluate_expr = maybe_static, evaluate_expr
    for name in ("bound_sympy", "_simplify_floor_div", "simplify"):
        setattr(shapes, name, looking(getattr(shapes, name)))


def forget_results(mode: Any, is_forgotten: Callable[[Any], bool]) -> None:
    """Do not cache some results of a fake mode, if possible (`_get_output_info_for_cache_entry`; 2.13 to 2.13)."""
    remember: Any = getattr(mode, "_get_output_info_for_cache_entry", None)

    def unless_forgotten(*args: Any) -> Any:
        if is_forgotten(args[-1]):
            raise fake_tensor._BypassDispatchCache("not cached")
        return remember(*args)

    if remember is not None:
        mode._get_output_info_for_cache_entry = unless_forgotten


def guard_location() -> tuple[tuple[Any, str], Any]:
    """Return the method of `ShapeEnv` that finds the source line of a guard (`SLoc`; 2.9 to 2.15), and an empty one."""
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return (ShapeEnv, "_get_stack_summary"), (SLoc(FrameSummary("", 0, ""), None), "")


def symbolic_shape_settings() -> Any:
    """Return a digest of the settings of symbolic shapes (`torch.fx.experimental._config`; 2.9 to 2.15)."""
    return importlib.import_module("torch.fx.experimental._config").get_hash()


def compile_stance() -> Any:
    """Return the stance of torch.compile for the whole process (`torch._dynamo.eval_frame`; 2.9 to 2.15)."""
    return importlib.import_module("torch._dynamo.eval_frame")._stance


def set_compile_stance(stance: Any) -> None:
    """Replace the stance object, which `torch.compiler.set_stance` cannot (`_stance`; 2.9 to 2.15)."""
    frames: Any = importlib.import_module("torch._dynamo.eval_frame")
    frames._stance = stance


def fake_mode(allow_non_fake_inputs: bool = True) -> FakeTensorMode:
    """Return a mode of fake tensors whose sizes may be symbols; the first one imports sympy and `torch._dynamo`."""
    _load_fake_tensors()
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=allow_non_fake_inputs)


@cache
def _load_fake_tensors() -> None:
    """Import what fake tensors need, in another thread.

    Modules of torch keep exceptions of their imports, and an exception keeps the frames of its thread: those of the
    model that is captured, with their tensors. Torch copies a new tensor that is referenced elsewhere.
    """

    def load() -> None:
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        FakeTensorMode(shape_env=ShapeEnv())

    thread = Thread(target=load)
    thread.start()
    thread.join()


def forget_random_states() -> None:
    """Drop the tensors that decompositions of random operators keep (`decompositions_for_rng`; 2.9 to 2.15)."""
    generators: Any = sys.modules.get("torch._decomp.decompositions_for_rng")
    if generators is not None:
        generators.PhiloxStateTracker.reset()
