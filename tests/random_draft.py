"""Builder of random graphs: operators are called on real tensors, so that invalid calls are found."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_ir.analysis.cost_model.traffic import is_view
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.shape_rules import Made
from torch_ir.analysis.values.rewrite_context import Knowledge
from torch_ir.errors import ShapeError, TorchIRError
from torch_ir.ir import IR, Dim, Expr, FunctionRef, OpNode, Param, Symbol, TensorMeta, evaluate
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.sizes.specialize import is_row_major
from torch_ir.ops.calling import keywords, mapped, results
from torch_ir.ops.schema import arguments, find_operator
from torch_ir.ops.tensor_data import from_tensor
from torch_ir.ops.torch_types import TORCH_DTYPES, dtype_name, to_torch

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *INTS, "bool", "complex64")
SHAPES: tuple[tuple[int, ...], ...] = (
    (4,), (3, 4), (3, 4), (2, 3, 4), (2, 3, 4), (2, 4, 6, 6), (2, 4, 7), (4, 4), (1, 4), (2, 1, 4), (1,), (),
    (0, 4), (2, 2, 3, 4),
)  # fmt: skip
OPEN_SHAPES: tuple[tuple[Dim, ...], ...] = (("batch", 4), ("batch", "seq", 4), ("batch", 4, 6, 6), ("batch", "2*seq"))
SIZES = {"batch": 3, "seq": 5}
NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3, True, float("nan"), float("inf"))
TAME_NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3)
_LARGEST = 1e3  # of a number in a steady graph


class RefusedError(Exception):
    """The draws are incompatible; others are drawn instead."""


class _Kernels(Shapes):
    """Infer shapes by running the kernels, which is faster than the fake kernels."""

    def _at(
        self, sizes: Mapping[str, Any], operator: OpOverload, inputs: Mapping[str, TensorMeta], attrs: Mapping[str, Any]
    ) -> list[Made]:
        given = {name: _zeros(tensor, sizes) for name, tensor in inputs.items()}
        try:
            made = results(operator, keywords(given, attrs, lambda value: _number(value, sizes)))
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, Warning) as error:
            raise ShapeError(str(error)) from None
        return [(tuple(value.shape), dtype_name(value.dtype), _stride(value)) for value in made]


def _zeros(tensor: TensorMeta, sizes: Mapping[str, Any]) -> torch.Tensor:
    shape = [int(evaluate(dim, sizes)) for dim in tensor.shape]
    if tensor.stride is None:
        return torch.zeros(shape, dtype=TORCH_DTYPES[tensor.dtype])
    stride = [int(evaluate(step, sizes)) for step in tensor.stride]
    room = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    return torch.zeros(room, dtype=TORCH_DTYPES[tensor.dtype]).as_strided(shape, stride)


def _stride(value: torch.Tensor) -> tuple[int, ...] | None:
    return None if is_row_major(tuple(value.shape), value.stride()) else value.stride()


class Draft:
    """Nodes, inputs and weights so far, each with a value; a body takes all its operands as inputs."""

    def __init__(self, draw: random.Random, steady: bool, outer: Draft | None = None) -> None:
        self.draw = draw
        self.steady = steady
        self.outer = outer
        self.nodes: list[OpNode] = []
        self.inputs: list[TensorMeta] = []
        self.params: list[TensorMeta] = []
        self.functions: dict[str, IR] = {}
        self.values: dict[TensorMeta, torch.Tensor] = {}
        self.exact: set[TensorMeta] = set()
        self.names = FreeNames(set())
        self.generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        self.symbols: list[Symbol] = []
        self.dtype: str
        self.know: Knowledge
        if outer is not None:
            self.dtype, self.know = outer.dtype, outer.know
            return
        self.dtype = draw.choices(DTYPES, (50, 12, 12, 8, 4, 3, 1, 1, 2, 3, 4))[0]
        if draw.random() < 0.25:
            self._open_sizes()
        else:
            for _ in range(draw.randint(1, 3)):
                self.input(draw.choice(SHAPES))
        given = [tensor.copy() for tensor in self.inputs]
        bound = [Symbol(s.name, s.min, s.max, given[self.inputs.index(_bound(s))], s.dim) for s in self.symbols]
        nothing = IR([], given, [], symbols=bound)
        self.know = Knowledge(nothing)
        self.know.shapes = _Kernels(nothing)

    @property
    def tensors(self) -> list[TensorMeta]:
        return [*self.inputs, *self.params, *(made for node in self.nodes for made in node.outputs)]

    def _open_sizes(self) -> None:
        least = self.draw.choice((2, 2, 1, 0))
        shape = self.draw.choice(OPEN_SHAPES)
        first = self.input(shape)
        for dim, size in enumerate(shape):
            if isinstance(size, str):
                name = size.rpartition("*")[2]
                self.symbols.append(Symbol(name, least, 9, first, dim))
        names = {symbol.name for symbol in self.symbols}
        for shape in self.draw.sample(OPEN_SHAPES, 2):
            if all(isinstance(size, int) or size.rpartition("*")[2] in names for size in shape):
                self.input(shape)

    def input(self, shape: Sequence[Dim], dtype: str = "", name: str = "x") -> TensorMeta:
        """Return a new input; some are not row-major."""
        tensor = TensorMeta(self.names.free(name), shape, dtype or self._some_dtype())
        sizes = [int(evaluate(dim, SIZES)) for dim in shape]
        value = random_values(sizes, TORCH_DTYPES[tensor.dtype], self.generator)
        if self.outer is None and tensor.is_static and len(shape) > 1 and self.draw.random() < 0.15:
            order = list(range(len(shape)))
            self.draw.shuffle(order)
            laid = value.permute(order).contiguous().permute([order.index(dim) for dim in range(len(shape))])
            value, tensor.stride = laid, _stride(laid)
        self.inputs.append(self._with_value(tensor, value))
        return tensor

    def _some_dtype(self) -> str:
        return self.dtype if self.draw.random() < 0.8 else self.draw.choice(DTYPES)

    def _with_value(self, tensor: TensorMeta, value: torch.Tensor, exact: bool = True) -> TensorMeta:
        self.values[tensor] = value
        if exact or not (value.is_floating_point() or value.is_complex()):
            self.exact.add(tensor)
        return tensor

    def weight(self, shape: Sequence[int], dtype: str = "") -> TensorMeta:
        """Return a weight, a buffer, a constant, an existing one, one computed from weights; sometimes an input."""
        dtype = dtype or self.dtype
        kind = self.draw.choices(
            ("parameter", "buffer", "constant", "again", "made", "input"), (50, 10, 12, 10, 8, 10)
        )[0]
        held = [param for param in self.params if (param.shape, param.dtype) == (tuple(shape), dtype)]
        if kind == "again" and held:
            return self.draw.choice(held)
        if kind == "made":
            made: TensorMeta = self.op("mul.Tensor", self.weight(shape, dtype), 2)
            return made
        if kind == "input" or self.outer is not None:
            return self.input(shape, dtype, "w")
        torch_dtype = TORCH_DTYPES[dtype]
        if kind == "constant":
            return self.constant(random_values(shape, torch_dtype, self.generator))
        value = torch.zeros(shape, dtype=torch_dtype)
        if torch_dtype.is_floating_point:
            wide = torch.randn(shape, generator=self.generator) / max(1, math.prod(shape[1:])) ** 0.5
            value = (wide if len(shape) > 1 else torch.rand(shape, generator=self.generator) + 0.5).to(torch_dtype)
        name = self.names.free("p" if kind == "parameter" else "b")
        keys = (name, f"{name}_tied") if self.draw.random() < 0.1 else (name,)
        param = Param(keys, "buffer" if kind == "buffer" else "parameter")
        self.params.append(self._with_value(TensorMeta(name, shape, dtype, param=param), value))
        return self.params[-1]

    def constant(self, value: torch.Tensor) -> TensorMeta:
        """Return a tensor whose values are in the graph."""
        if self.outer is not None:
            return self.input(list(value.shape), dtype_name(value.dtype), "c")
        name = self.names.free("c")
        param = Param((name,), "constant", from_tensor(value))
        self.params.append(self._with_value(TensorMeta(name, value.shape, dtype_name(value.dtype), param=param), value))
        return self.params[-1]

    def pick(self, test: Callable[[TensorMeta], bool] = lambda tensor: True) -> TensorMeta:
        """One of the tensors so far, more often a late one."""
        found = [tensor for tensor in self.tensors if test(tensor)]
        if not found:
            raise RefusedError
        return found[int(len(found) * self.draw.random() ** 0.5)]

    def floating(self, rank: int | None = None, least: int = 0) -> TensorMeta:
        """One of the floating-point tensors, of that rank or at least of some."""
        return self.pick(lambda t: t.dtype in FLOATS and len(t.shape) >= least and rank in (None, len(t.shape)))

    def sharp(self, test: Callable[[TensorMeta], bool] = lambda tensor: True) -> TensorMeta:
        """A tensor for operators that jump: in a steady graph, one that no rounding changes."""
        return self.pick(lambda t: (not self.steady or t in self.exact) and test(t))

    def shape(self, tensor: TensorMeta) -> list[int]:
        """The sizes of a tensor in numbers."""
        return list(self.values[tensor].shape)

    def sizes(self, tensor: TensorMeta) -> list[Any]:
        """Return the sizes of a tensor as attribute values."""
        return [Expr(dim) if isinstance(dim, str) else dim for dim in tensor.shape]

    def dim(self, tensor: TensorMeta) -> int:
        """Any dimension, also counted from the end."""
        if not tensor.shape:
            raise RefusedError
        return self.draw.randrange(-len(tensor.shape), len(tensor.shape))

    def number(self) -> Any:
        """A number of those that rules look for."""
        return self.draw.choice(TAME_NUMBERS if self.steady else NUMBERS)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def op(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a new call, or a tuple of all; arguments in schema order or by name."""
        op_type = f"aten.{name}" if "." in name else f"aten.{name}.default"
        operator = find_operator(op_type)
        assert isinstance(operator, OpOverload), op_type
        given = {**dict(zip([a.name for a in arguments(operator)], args, strict=False)), **kwargs}
        values = self._tamed(_called(operator, {key: mapped(value, self._value) for key, value in given.items()}))
        try:
            inputs, attrs, made = self.know.call(op_type, given)
        except TorchIRError:
            raise RefusedError from None
        if not all(map(_is_as_said, made, values)):
            raise RefusedError
        node = OpNode(self.names.free(name.partition(".")[0]), op_type, inputs.values(), made, attrs, args=inputs)
        return self._added(node, values)

    def call(self, function: str, operands: Sequence[TensorMeta]) -> Any:
        """A call of a function of the graph."""
        body = self.functions[function]
        made = [tensor.copy() for tensor in body.graph_outputs]
        for tensor in made:
            tensor.param = None
        args = [tensor.name for tensor in body.graph_inputs]
        node = OpNode(self.names.free("call_0"), "call", operands, made, {"function": FunctionRef(function)}, args=args)
        return self._added(node, self._evaluated(body, [self.values[tensor] for tensor in operands]))

    def branch(self, predicate: TensorMeta, functions: Sequence[str], operand: TensorMeta) -> Any:
        """Call one of two functions, depending on the predicate."""
        body = self.functions[functions[0 if self.values[predicate] else 1]]
        attrs = {"true_fn": FunctionRef(functions[0]), "false_fn": FunctionRef(functions[1])}
        made = [tensor.copy() for tensor in body.graph_outputs]
        node = OpNode(
            self.names.free("cond"), "higher_order.cond", [predicate, operand], made, attrs, args=["pred", "operands.0"]
        )
        return self._added(node, self._evaluated(body, [self.values[operand]]))

    def again(self, node: OpNode, **changed: Any) -> Any:
        """The same call once more, some of its attributes changed."""
        names = dict.fromkeys(full.partition(".")[0] for full in (*node.args, *node.attrs))
        return self.op(node.op_type.removeprefix("aten."), **{**{name: node[name] for name in names}, **changed})

    def _added(self, node: OpNode, values: Sequence[torch.Tensor]) -> Any:
        stays_exact = is_view(node) and all(tensor in self.exact for tensor in node.inputs)
        for index, (tensor, value) in enumerate(zip(node.outputs, values, strict=True)):
            tensor.name = self.names.free(f"{node.name}_{index}") if len(node.outputs) > 1 else node.name
            self._with_value(tensor, value, stays_exact)
        self.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def _value(self, value: Any) -> Any:
        return self.values[value] if isinstance(value, TensorMeta) else _number(value)

    def _tamed(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.steady and not all(map(_is_tame, values)):
            raise RefusedError
        return values

    def _computed(self, node: OpNode, values: Mapping[TensorMeta, torch.Tensor]) -> list[torch.Tensor]:
        operator = find_operator(node.op_type)
        if not isinstance(operator, OpOverload):
            raise RefusedError
        given = {name: values[tensor] for name, tensor in zip(node.args, node.inputs, strict=True)}
        made = self._tamed(_called(operator, keywords(given, node.attrs, _number)))
        if not all(map(_is_as_said, node.outputs, made)):
            raise RefusedError
        return made

    def _evaluated(self, body: IR, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        values = dict(zip(body.graph_inputs, given, strict=True))
        for node in body.nodes:
            values.update(zip(node.outputs, self._computed(node, values), strict=True))
        return [values[tensor] for tensor in body.graph_outputs]

    def body(self, outputs: Sequence[TensorMeta]) -> IR:
        """Return the drawn nodes as the body of a function."""
        return IR(self.nodes, self.inputs, outputs)

    def graph(self) -> IR:
        """Return the drawn nodes with some of the tensors as outputs and as new values of inputs and buffers."""
        return IR(
            self.nodes,
            self.inputs,
            self._results(),
            params=self.params,
            mutations=self._mutations() if self.chance(0.3) else (),
            functions=self.functions,
            symbols=self.symbols,
        )

    def _results(self) -> list[TensorMeta]:
        made = [tensor for node in self.nodes for tensor in node.outputs]
        ends = [tensor for tensor in made if not tensor._uses]
        found = [tensor for tensor in ends if self.chance(0.6)] or [(ends or made)[-1]]
        if self.chance(0.4):
            found += self.draw.sample(made, min(len(made), self.draw.randint(1, 2)))
        if self.chance(0.1):
            found.append(self.draw.choice(found))
        if self.chance(0.1):
            found.append(self.draw.choice([*self.inputs, *self.params]))
        self.draw.shuffle(found)
        return found if self.chance(0.15) else list(dict.fromkeys(found))

    def _mutations(self) -> list[tuple[TensorMeta, TensorMeta]]:
        targets = [param for param in self.params if param.param and param.param.kind == "buffer"]
        pairs = []
        for target in [*targets, *self.inputs]:
            alike = [t for t in self.tensors if (t.shape, t.dtype) == (target.shape, target.dtype) and t is not target]
            if alike and self.chance(0.5):
                pairs.append((target, self.draw.choice(alike)))
        return pairs


def random_values(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Numbers around zero; whole numbers are small."""
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0 if dtype == torch.uint8 else -4, 7, shape, generator=generator).to(dtype)


def _bound(symbol: Symbol) -> TensorMeta:
    assert symbol.tensor is not None
    return symbol.tensor


def _number(value: Any, sizes: Mapping[str, Any] = SIZES) -> Any:
    return evaluate(value, sizes) if isinstance(value, Expr) else to_torch(value)


def _called(operator: OpOverload, arguments: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the result of a call; a warning counts as a refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return results(operator, arguments)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, Warning):
        raise RefusedError from None


def _is_as_said(tensor: TensorMeta, value: torch.Tensor) -> bool:
    shape = tuple(evaluate(dim, SIZES) for dim in tensor.shape)
    return tuple(value.shape) == shape and dtype_name(value.dtype) == tensor.dtype


def _is_tame(value: torch.Tensor) -> bool:
    if not (value.is_floating_point() or value.is_complex()) or not value.numel():
        return True
    return bool(torch.isfinite(value).all()) and float(value.abs().max()) < _LARGEST
