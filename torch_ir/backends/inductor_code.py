"""Code that Inductor generates for a graph, with the guards on sizes under which it is valid.

Importing this module imports the compiler, which takes seconds: import it only to compile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torch_ir.backends.inductor_cache import private_inductor
from torch_ir.errors import ExecutionError, first_line
from torch_ir.ir import IR, TensorMeta
from torch_ir.ops.quiet_loggers import quieted
from torch_ir.ops.torch_internals import (
    HAS_MKL,
    HAS_MKLDNN,
    CustomGraphPass,
    FakeTensorMode,
    LocalSource,
    inductor_compile,
    scoped_library,
)

Call = Callable[..., Sequence[Any]]


class _OneDNN(CustomGraphPass):
    """Moves float32 linear layers that Inductor packed for MKL to oneDNN, which is faster on AMD processors."""

    def __call__(self, graph: fx.Graph) -> None:
        module = graph.owning_module
        assert module is not None  # Inductor compiles modules
        for node in graph.find_nodes(op="call_function", target=torch.ops.mkl._mkl_linear):
            x, _, weight, bias, rows = node.args
            if weight.op != "get_attr":
                continue
            packed = torch.ops.mkldnn._reorder_linear_weight(getattr(module, weight.target), rows)
            name = f"{weight.target}_packed"
            module.register_buffer(name, packed)
            with graph.inserting_before(node):
                place = graph.get_attr(name)
                place.meta.update(weight.meta)
                operator = torch.ops.mkldnn._linear_pointwise.default
                made = graph.call_function(operator, (x, place, bias, "none", [], ""))
            made.meta.update(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)

    def uuid(self) -> str:
        return "torch_ir: linear layers by oneDNN"


# options of Inductor; frozen weights are constants, packed for its kernels
_OPTIONS: dict[str, Any] = {"freezing": True, "fallback_random": True}  # random numbers are those of eager
if HAS_MKL and HAS_MKLDNN:
    _OPTIONS["post_grad_custom_pre_pass"] = _OneDNN()


@dataclass
class Version:
    """Compiled code with its guards: fixed sizes and numbers, and a guard expression of torch."""

    call: Call
    fixed: list[Any]  # per input; None for dynamic sizes
    sizes: ShapeEnv
    guards: str | None

    def fits(self, values: Sequence[Any]) -> bool:
        if not all(map(_agree, self.fixed, map(_sizes, values))):
            return False
        return not self.guards or self.sizes.evaluate_guards_expression(self.guards, values)


def _sizes(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else value


def _agree(fixed: Any, sizes: Any) -> bool:
    if isinstance(fixed, tuple):
        return all(map(_agree, fixed, sizes))
    return fixed is None or bool(fixed == sizes)


class Versions:
    """A graph with symbolic sizes, and the code compiled for it so far."""

    def __init__(self, ir: IR, module: fx.GraphModule) -> None:
        self._ir = ir
        self._module = module
        self._made: list[Version] = []
        self._met: dict[tuple[Any, ...], Call] = {}  # sizes -> code

    def run(self, *values: Any) -> Sequence[Any]:
        key = tuple(map(_sizes, values))
        call = self._met.get(key)
        if call is None:
            call = self._met[key] = self._fitting(values).call
        return call(*values)

    def _fitting(self, values: Sequence[Any]) -> Version:
        found = next((version for version in self._made if version.fits(values)), None)
        if found is None:
            found = compiled(self._ir, self._module, values)
            self._made.append(found)
        return found


def compiled(ir: IR, module: fx.GraphModule, values: Sequence[Any]) -> Version:
    """Compile the graph for values like these; symbolic sizes stay dynamic."""
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes)
    given = [_symbolic(mode, index, *pair) for index, pair in enumerate(zip(ir.graph_inputs, values, strict=True))]
    fixed = [_fixed(value) for value in given]
    with private_inductor(), torch.no_grad(), _quiet(), _packed_shapes():
        try:
            call = inductor_compile(module, given, options=_OPTIONS)
        except Exception as error:  # any error of the compiler
            raise ExecutionError(f"inductor cannot compile {_failure(error, ir)}") from error
    return Version(call, fixed, sizes, sizes.produce_guards_expression(given))


def _symbolic(mode: FakeTensorMode, index: int, tensor: TensorMeta, value: Any) -> Any:
    """Return a fake value with dynamic sizes where the graph has symbols."""
    source = LocalSource(f"t{index}")  # as torch names it in guards
    if isinstance(value, Tensor):
        varying = [DimDynamic.DYNAMIC if isinstance(size, str) else DimDynamic.STATIC for size in tensor.shape]
        return mode.from_tensor(value, source=source, symbolic_context=StatelessSymbolicContext(varying))
    if type(value) is int and mode.shape_env is not None:
        symbol = mode.shape_env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        return mode.shape_env.create_symintnode(symbol, hint=value, source=source)
    return value


def _fixed(value: Any) -> Any:
    """Return a number, or the sizes of a tensor, with None for dynamic ones."""
    if isinstance(value, Tensor):
        return tuple(map(_fixed, value.shape))
    return None if isinstance(value, torch.SymInt) else value


@contextmanager
def _packed_shapes() -> Iterator[None]:
    """Register the shape of a packed weight, which is that of the weight."""
    if not HAS_MKLDNN:
        yield
        return
    with scoped_library("mkldnn", "FRAGMENT") as library:
        name = "mkldnn::_reorder_convolution_weight"
        torch.library.register_fake(name, lambda self, *how: torch.empty_like(self), lib=library)
        yield


def _quiet() -> AbstractContextManager[None]:
    """Silence torch's warnings; loggers that the user configured still work."""
    known = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.split(".")[0] == "torch"]
    return quieted([logger for logger in known if logger.level == logging.WARNING], logging.ERROR)


def _failure(error: BaseException, ir: IR) -> str:
    """Return the failing node, if the compiler names one, and the first line of the error."""
    node = re.search(r"^While executing %(\w+) ", str(error), re.MULTILINE)
    operator = re.search(r"^\s*target: (\S+)", str(error), re.MULTILINE)
    known = [repr(one) for one in ir.nodes if node and one.name == node[1]]
    place = known[0] if known else operator[1] if operator else "the graph"
    return f"{place}: {first_line(error)}"
