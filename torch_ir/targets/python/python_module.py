"""Write a graph as a Python module: imports, helpers, functions, and the class `Net`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from torch_ir.errors import ConversionError
from torch_ir.escaping import in_python
from torch_ir.ir import IR, Branch, Dtype, Slot, TensorData, TensorMeta
from torch_ir.ir.files.side_file import SideFile
from torch_ir.ir.graph.io_tree import Tree
from torch_ir.ir.regroup.functions import calls_by_function
from torch_ir.ops.prepare_run import check_operators, with_named_arguments
from torch_ir.ops.registry import executor_of
from torch_ir.ops.schema import find_operator
from torch_ir.ops.tensor_data import from_tensor, spread_bytes, to_tensor
from torch_ir.targets.python.body import Body, Function, sizes_read
from torch_ir.targets.python.helper_source import CLASSES, GLOBALS, HELPERS, IMPORTS, PROVIDERS
from torch_ir.targets.python.source_text import RESERVED, call, free_name, is_plain_name, literal
from torch_ir.targets.torch.nn_module import hold

_FEW = 32  # elements of a constant that is written as numbers
_MOST_SPREAD, _MOST_TIMES = 1 << 26, 64  # bytes of memory that constants may span, or times their size
_NUMBERS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_BUILT_IN = ("aten", "prims", "higher_order", "torch_ir")
_STEP = " " * 4


def write_source(ir: IR, target: Path | None) -> tuple[str, SideFile | None]:
    """Return the source of a graph, and the side file with its large constants, if any."""
    check_operators(ir.check())
    _refuse_executors(ir)
    source = _Source(with_named_arguments(ir), target)
    return source.text(), source.side


def _refuse_executors(ir: IR) -> None:
    """Raise ConversionError for operators that only a registered executor can compute."""
    alone = {
        node.op_type: node
        for node in ir.all_nodes()
        if executor_of(node) is not None and find_operator(node.op_type) is None and not node.is_call
    }
    if alone:
        listed = ", ".join(f"{op_type} (node {node.name!r})" for op_type, node in alone.items())
        raise ConversionError(f"a registered executor computes {listed}, which cannot be written as torch calls")


class _Argument(NamedTuple):
    """One argument of `forward`, and the tree of graph inputs in it."""

    name: str
    tree: Tree
    is_keyword: bool


class _Source:
    """Collects the parts of a file."""

    def __init__(self, ir: IR, target: Path | None) -> None:
        self.ir = ir
        self.taken = {*RESERVED, *HELPERS}
        self.arguments = self._arguments()
        self.helpers: set[str] = set()
        self.functions: list[str] = []
        self.constants = _memory_of_constants(ir)
        large = [(str(tensor.key), data) for tensor, data in self.constants.items() if not _is_small(data)]
        self.side = SideFile(target, large) if target is not None and large else None

    def text(self) -> str:
        network = "\n".join(
            [
                "class Net(Part):",
                f'{_STEP}def __init__(self, device="meta"):',
                f"{_STEP * 2}super().__init__()",
                *(line for tensor in self.ir.params for line in self._declaration(tensor)),
                "",
                *self._forward(self._write_functions(self.ir)),
            ]
        )
        used = [text for name, text in HELPERS.items() if name in self.helpers]
        body = [*self._stored(), *used, CLASSES, *self.functions, network]
        imports = "\n".join(self._imports("\n".join(body)))
        return "\n\n\n".join(part.strip("\n") for part in [f"{self._title()}\n\n{imports}", *body]) + "\n"

    def helper(self, name: str) -> str:
        """Include a helper in the file and return its name."""
        self.helpers.add(name)
        return name

    def _title(self) -> str:
        name = self.ir.model_name if is_plain_name(self.ir.model_name) else "A model"
        return f'"""{name} from its graph; load weights with `Net().load_state_dict(weights, assign=True)`."""'

    def _imports(self, body: str) -> Iterator[str]:
        standard = [line for name, line in IMPORTS.items() if f"{name}." in body]
        yield from [*standard, *([""] if standard else []), "import torch", "from torch import nn"]
        spaces = {node.op_type.partition(".")[0] for node in self.ir.all_nodes() if find_operator(node.op_type)}
        for space in sorted(spaces.difference(_BUILT_IN)):
            yield PROVIDERS.get(space, in_python(f"torch.ops.{space} must be registered before this file is used"))
        yield from ("", "aten = torch.ops.aten")

    def _stored(self) -> Iterator[str]:
        """Yield the line that reads the side file."""
        if self.side is not None:
            yield f"stored = pathlib.Path(__file__).resolve().with_name({self.side.path.name!r}).read_bytes()"

    # -- functions ------------------------------------------------------------------------------------------------

    def _write_functions(self, ir: IR) -> dict[str, Function]:
        """Write the functions of a graph, innermost first, and return them by name."""
        called = calls_by_function(ir)
        return {name: self._write_function(name, body, name in called) for name, body in ir.functions.items()}

    def _write_function(self, name: str, body: IR, is_only_called: bool) -> Function:
        if body.params:
            raise ConversionError(f"function {name!r} has its own weights, which a Python function cannot have")
        writer = Body(body, set(self.taken), self._write_functions(body), self.helper, _STEP)
        tree = Slot(0) if is_only_called and len(body.graph_outputs) == 1 else body.output_tree
        sizes = {size: writer.name_size(size) for size in sorted(sizes_read(body))}
        function = Function(free_name(name, {*self.taken, *GLOBALS}), sizes, isinstance(tree, Slot))
        self.taken.add(function.name)
        given = [
            *(writer.name_tensor(tensor) for tensor in body.graph_inputs),
            *(["*"] if sizes else []),
            *sizes.values(),
        ]
        writer.bind(body.graph_inputs)
        writer.calls()
        writer.line(f"return {writer.returned(tree)}")
        signature = call(f"def {function.name}", given, "")
        self.functions.append("\n".join([*signature[:-1], f"{signature[-1]}:", *writer.lines]))
        return function

    def _forward(self, functions: dict[str, Function]) -> Iterator[str]:
        positional = [argument.name for argument in self.arguments if not argument.is_keyword]
        keywords = [argument.name for argument in self.arguments if argument.is_keyword]
        signature = ["self", *positional, *(["*"] if keywords else []), *keywords]
        lines = call("def forward", signature, _STEP)
        yield from (*lines[:-1], f"{lines[-1]}:")
        writer = Body(self.ir, self.taken, functions, self.helper, _STEP * 2)
        for argument in self.arguments:
            self._unpack(writer, argument.tree, argument.name)
        writer.bind(self.ir.graph_inputs)
        writer.require()
        writer.calls()
        writer.write_back()
        writer.line(f"return {writer.returned(self.ir.output_tree)}")
        yield from writer.lines

    def _arguments(self) -> list[_Argument]:
        positional, keywords = self.ir.input_tree.items
        assert isinstance(positional, Branch)  # a tuple of arguments
        assert isinstance(keywords, Branch)  # a dict of keywords
        for key in keywords.keys:
            if not is_plain_name(key) or key in self.taken:
                raise ConversionError(f"the model takes a keyword {key!r:.60}, which cannot be an argument in the file")
        self.taken.update(keywords.keys)
        wanted = [
            self.ir.graph_inputs[item].name if isinstance(item, Slot) else f"arg{index}"
            for index, item in enumerate(positional.items)
        ]
        placed = zip([free_name(name, self.taken) for name in wanted], positional.items, strict=True)
        named = zip(keywords.keys, keywords.items, strict=True)
        return [*(_Argument(*pair, False) for pair in placed), *(_Argument(*pair, True) for pair in named)]

    def _unpack(self, writer: Body, tree: Tree, place: str) -> None:
        """Name the graph inputs in an argument, and check its other values."""
        if isinstance(tree, Slot):
            tensor = self.ir.graph_inputs[tree]
            writer.name_tensor(tensor, place if place.isidentifier() else "")
            if writer.values[tensor] != place:
                writer.line(f"{writer.values[tensor]} = {place}")
        elif not isinstance(tree, Branch):
            writer.line(f"{self.helper('expect')}({place}, {literal(tree)})")
        else:
            whole = place if tree.kind != "object" else f"{self.helper('items')}({place})"
            for key, item in zip(tree.keys if tree.kind == "dict" else range(len(tree.items)), tree.items, strict=True):
                self._unpack(writer, item, f"{whole}[{literal(key)}]")

    # -- weights --------------------------------------------------------------------------------------------------

    def _declaration(self, tensor: TensorMeta) -> list[str]:
        """Return the call that creates a weight, without values unless it is a constant."""
        param = tensor.param
        assert param is not None  # guaranteed by `check`
        hold(nn.Module(), param, torch.empty(0, device="meta"))  # raises for invalid keys
        arguments = ["self", self._made(tensor), *map(literal, param.keys)]
        if param.kind == "parameter":
            return call("parameter", arguments, _STEP * 2)
        return call("buffer", [*arguments, *([] if param.kind == "buffer" else ["persistent=False"])], _STEP * 2)

    def _made(self, tensor: TensorMeta) -> str:
        if tensor in self.constants:
            made = self._constant(self.constants[tensor])
            strides = None if tensor.stride is None else (tensor.shape, tensor.stride)
            return made if strides is None else f"{made}.as_strided{literal(strides)}"
        if not tensor.is_static:
            raise ConversionError(f"{tensor!r} is a weight with a symbolic size")
        facts = [literal(tensor.shape), *([] if tensor.stride is None else [literal(tensor.stride)])]
        facts += [] if tensor.dtype == "float32" else [f"dtype={literal(Dtype(tensor.dtype))}"]
        return f"torch.empty{'' if tensor.stride is None else '_strided'}({', '.join(facts)}, device=device)"

    def _constant(self, data: TensorData) -> str:
        if _is_small(data):
            return (
                f"torch.tensor({literal(to_tensor(data).tolist())}, dtype={literal(Dtype(data.dtype))}, device='cpu')"
            )
        if self.side is None:
            raw = f'base64.b64decode("{base64.b64encode(data.raw).decode()}")'
        else:
            start = self.side.places[data]["offset"]
            raw = f"stored[{start}:{start + data.size}]"
        arguments = [raw, literal(Dtype(data.dtype)), literal(data.shape)]
        return f"{self.helper('constant')}({', '.join(arguments)})"


def _memory_of_constants(ir: IR) -> dict[TensorMeta, TensorData]:
    """Return the elements of all constants; raise ConversionError if most of the file would be gaps between them."""
    held = {tensor: tensor.param.data for tensor in ir.params if tensor.param and tensor.param.data}
    size = sum(data.size for data in held.values())
    spread = sum(spread_bytes(data, tensor.stride) for tensor, data in held.items())
    if spread > max(_MOST_SPREAD, _MOST_TIMES * size):
        raise ConversionError(f"constants of {size} bytes have strides that spread them over {spread} bytes")
    return {tensor: _memory(tensor) for tensor in held}


def _memory(tensor: TensorMeta) -> TensorData:
    """Return the elements of a constant in memory order if it is not row-major."""
    assert tensor.param is not None  # guaranteed by the caller
    assert tensor.param.data is not None
    if tensor.stride is None:
        return tensor.param.data
    laid = to_tensor(tensor.param.data, tensor.stride)
    return from_tensor(laid.as_strided((laid.untyped_storage().nbytes() // laid.element_size(),), (1,)))


def _is_small(data: TensorData) -> bool:
    return data.dtype in _NUMBERS and 0 < data.size <= _FEW * 8
