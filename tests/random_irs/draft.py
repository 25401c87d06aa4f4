"""Builder of random graphs: symbols, inputs and weights, then nodes over them, then outputs and mutations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from tests.random_irs import shell
from tests.random_irs.draws import Draw
from tests.random_irs.operators import drawn, made, operators
from tests.random_irs.tensors import Tensors
from tests.random_irs.values import Values
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.analysis.shapes.open_sizes import inside
from torch_ir.errors import GraphError
from torch_ir.ir import IR, FunctionRef, Limits, OpNode, Symbol, TensorMeta
from torch_ir.ops.effects import updates_statistics

# Operators that take functions -> their function arguments, a required tensor, and their lists of tensors.
_HIGHER_ORDER = {
    "cond": (("true_fn", "false_fn"), "pred", ("operands",)),
    "while_loop": (("cond_fn", "body_fn"), "", ("carried_inputs", "additional_inputs")),
    "scan": (("combine_fn",), "", ("init", "xs", "additional_inputs")),
    "associative_scan": (("combine_fn",), "", ("xs", "additional_inputs")),
}
_TRIES = 12
_MOST_DEPTH = 3


class Draft:
    """One graph; the bodies of its functions are nested drafts, which see its symbols and weights."""

    def __init__(self, draw: Draw, *, typed: bool, around: Draft | None = None) -> None:
        self.draw, self.typed, self.around = draw, typed, around
        self.depth = 0 if around is None else around.depth + 1
        self.mesh: dict[str, int] = {}
        if around is None and draw.chance(0.15):
            self.mesh = {axis: draw.randint(1, 8) for axis in draw.sample(("dp", "tp", "größe"), draw.randint(1, 2))}
        self.axes: int = len(self.mesh) if around is None else around.axes
        self.symbols: list[Symbol] = []
        self.inputs: list[TensorMeta] = []
        self.params: list[TensorMeta] = []
        self.nodes: list[OpNode] = []
        self.functions: dict[str, IR] = {}
        self.shapes: Shapes  # once there are inputs

    @property
    def known(self) -> list[str]:
        """Return the symbols that this graph may use."""
        return [*(self.around.known if self.around else []), *(symbol.name for symbol in self.symbols)]

    @property
    def tensors(self) -> list[TensorMeta]:
        return [*self.inputs, *self.params, *(tensor for node in self.nodes for tensor in node.outputs)]

    @property
    def tensor_draws(self) -> Tensors:
        return Tensors(self.draw, self.known, self.axes, tame=self.typed)

    def whole(self) -> IR:
        """Draw a whole graph, with inputs of any kind."""
        self._add_symbols()
        self.inputs += [self.tensor_draws.any(self.draw.name("x", "mask")) for _ in range(self.draw.randint(1, 3))]
        self._add_weights(self.draw.choice((0, 1, 2, 4)))
        self._add_nodes(self.draw.choice((1, 3, 6, 10)))
        return self.graph(self._results(), typed_shell=True)

    def body(self, given: Sequence[TensorMeta]) -> IR:
        """Draw a function for tensors like these."""
        for tensor in given:
            self.inputs.append(tensor.copy(self.draw.names.free(self.draw.choice(("arg", "value", "größe")))))
            self.inputs[-1].param = None
        self._add_nodes(self.draw.choice((1, 2, 3)))
        return self.graph(self._results(), typed_shell=False)

    def entry_point(self) -> IR:
        """A second graph over the weights of the first."""
        assert self.around is not None
        shared = self.around.params[: self.draw.randint(0, len(self.around.params))]
        self.params = [tensor.copy() for tensor in shared]
        self.draw.names.taken.update(tensor.name for tensor in shared)
        return self.whole()

    def graph(self, results: Sequence[TensorMeta], *, typed_shell: bool) -> IR:
        draw, count = self.draw, len(self.inputs)
        has_trees = typed_shell and draw.chance(0.6)
        symbols = self.known
        mutations = self._mutations() if typed_shell else []
        if self.mesh:
            self.tensor_draws.place([*self.inputs, *results, *(value for _, value in mutations)])
        return IR(
            self.nodes,
            self.inputs,
            results,
            params=self.params,
            mutations=mutations,
            functions=self.functions,
            symbols=self.symbols,
            constraints=self._constraints(),
            input_tree=shell.input_tree(draw, count, symbols) if has_trees else None,
            output_tree=shell.tree_over(draw, range(len(results)), symbols) if has_trees else ...,
            model_name=draw.choice(("", "Net", "größe", "a b", "名前", "$expr")),
            pytorch_version=draw.choice(("", version("torch").partition("+")[0])),
            device=draw.choice(("cpu", "cpu", "cuda:1", "meta")),
            mesh=self.mesh,
            fixed_layout=draw.choice(("", "", "model.py:3")),
            modules=shell.modules(draw) if typed_shell and draw.chance(0.5) else None,
            extensions=shell.extensions(draw) if draw.chance(0.3) else None,
        )

    def _add_symbols(self) -> None:
        """Add symbols, each a dimension of a new input, or a number in one."""
        for _ in range(self.draw.choice((0, 0, 1, 2))):
            name = self.draw.symbol()
            low, high = self.draw.choice(((None, None), (1, None), (2, 64), (4, 4), (0, 2**63 - 1), (None, 9)))
            if not self.typed and self.draw.chance(0.1):
                source, dim = TensorMeta(self.draw.name("count"), (), "int64"), None
            else:
                source, dim = self.tensor_draws.any(self.draw.name("sized")), 0
                size = name if self.typed or self.draw.chance(0.7) else f"2*{name} + 1"
                source = TensorMeta(source.name, (size, *source.shape[1:]), source.dtype)
            self.inputs.append(source)
            self.symbols.append(Symbol(name, low, high, source, dim))

    def _constraints(self) -> list[str]:
        if not self.known or self.draw.chance(0.6):
            return []
        if self.typed:  # constraints that always hold leave sizes for shape inference
            return [f"{self.draw.expression(self.known)} >= 0"]
        return [self.draw.condition(self.known) for _ in range(self.draw.randint(1, 2))]

    def _add_weights(self, count: int) -> None:
        for index in range(count):
            keys = [
                f"{self.draw.line()}.{self.depth}.{index}.{tie}" for tie in range(self.draw.choice((1, 1, 1, 2, 3)))
            ]
            self.params.append(self.tensor_draws.weight(self.draw.name("p_w", "b_w", "c_w"), keys))

    def _add_nodes(self, count: int) -> None:
        bare = IR([], self.inputs, [], symbols=[Symbol(s.name, s.min, s.max, s.tensor, s.dim) for s in self.symbols])
        self.shapes = self.around.shapes if self.around is not None and not self.symbols else Shapes(bare)
        kinds = (self._operator, self._call, self._steered, self._unknown)
        weights = (16, 2, 1, 1) if self.depth < _MOST_DEPTH else (16, 0, 0, 1)
        for _ in range(count):
            self.draw.choices(kinds, weights)[0]()
        if not any(node.outputs for node in self.nodes):
            self._unknown()

    def _add(self, op_type: str, inputs: Mapping[str, TensorMeta], outputs: Sequence[TensorMeta], attrs: Any) -> None:
        name = self.draw.name(op_type.split(".")[1] if "." in op_type else op_type)
        for index, tensor in enumerate(outputs):
            tensor.name = name if len(outputs) == 1 else self.draw.name(f"{name}_{index}")
        origins = [self.draw.line() for _ in range(2)] if self.draw.chance(0.1) else ()
        is_split = any("." in name for name in attrs)  # a list with an absent element, which positions cannot represent
        needs_names = self.typed or is_split or "function" in attrs or self.draw.chance(0.95)
        args = inputs if needs_names else ()
        origin = shell.origin(self.draw)
        self.nodes.append(
            OpNode(name, op_type, inputs.values(), outputs, attrs, args=args, origin=origin, origins=origins)
        )

    def _operator(self) -> None:
        """Return a call of a registered operator; its result is inferred where required, and mostly otherwise."""
        values = Values(self.draw, self.known, tame=self.typed)
        for _ in range(_TRIES):
            operator = self.draw.choice(operators(tame=self.typed or self.draw.chance(0.9)))
            call = drawn(operator, self.draw, values, self.tensors)
            if call is None or (self.typed and updates_statistics(operator, {**call.inputs, **call.attrs})):
                continue
            if not self.typed and self.draw.chance(0.8):
                return self._add(*call[:2], self._some_outputs(), call.attrs)
            found = made(call, self.shapes)
            if isinstance(found, list) and (found or self.draw.chance(0.2)):
                return self._add(*call[:2], found, call.attrs)
            if found is None and self.draw.chance(0.3):
                return self._add(*call[:2], self._some_outputs(), call.attrs)
        return None

    def _some_outputs(self) -> list[TensorMeta]:
        return [self.tensor_draws.any("") for _ in range(self.draw.choice((0, 1, 1, 1, 1, 2, 3)))]

    def _new_function(self, given: Sequence[TensorMeta]) -> str:
        body = Draft(Draw(str(self.draw.random())), typed=self.typed, around=self).body(given)
        name = self.draw.name("body", "true_graph_0", "part")
        self.functions[name] = body
        return name

    def _given(self) -> list[TensorMeta]:
        tensors = self.tensors
        return self.draw.choices(tensors, k=self.draw.randint(0, 3)) if tensors else []

    def _call(self) -> None:
        """A call of a function, twice in a row for one in three."""
        given = self._given()
        name = self._new_function(given)
        body = self.functions[name]
        op_type = self.draw.choice(("call", "call", "fused.part", "torch.nn.modules.linear.Linear"))
        inputs = dict(zip((tensor.name for tensor in body.graph_inputs), given, strict=True))
        for _ in range(self.draw.choice((1, 1, 2))):
            self._add(op_type, inputs, _results_of(body), {"function": FunctionRef(name)})

    def _steered(self) -> None:
        """Draw an operator that takes functions."""
        name, (takes, one, lists) = self.draw.choice(list(_HIGHER_ORDER.items()))
        if one and not self.tensors:
            return self._unknown()
        given = self._given()
        attrs: dict[str, Any] = {argument: FunctionRef(self._new_function(given)) for argument in takes}
        inputs = {one: self.draw.choice(self.tensors)} if one else {}
        inputs |= {f"{lists[0]}.{index}": tensor for index, tensor in enumerate(given)}
        attrs |= {argument: [] for argument in lists if f"{argument}.0" not in inputs}
        body = self.functions[attrs[takes[-1]]]
        return self._add(f"higher_order.{name}", inputs, _results_of(body), attrs)

    def _unknown(self) -> None:
        """Draw a placeholder, or an operator of a missing library."""
        op_type = self.draw.choice(("opaque.mylib.f", "mylib.op.default", "opaque.größe", "vendor.matmul.int4"))
        words = self.draw.sample(("dim", "größe", "a b", "table", "x.0", "$n", "<0+1>"), self.draw.randint(0, 3))
        attrs = {word: self.draw.plain(self.known) for word in words}
        given = {f"arg{index}": tensor for index, tensor in enumerate(self._given())}
        self._add(op_type, given, [self.tensor_draws.any("") for _ in range(self.draw.randint(1, 2))], attrs)

    def _results(self) -> list[TensorMeta]:
        tensors = self.tensors
        return [tensors[-1], *self.draw.choices(tensors, k=self.draw.choice((0, 0, 1, 2)))]

    def _mutations(self) -> list[tuple[TensorMeta, TensorMeta]]:
        """Some inputs and buffers get the value of a tensor that is like them."""
        pairs = []
        for target in [*self.inputs, *self.params]:
            alike = [t for t in self.tensors if (t.shape, t.dtype) == (target.shape, target.dtype)]
            if self.draw.chance(0.15):
                pairs.append((target, self.draw.choice(alike)))
        return pairs


def _results_of(body: IR) -> list[TensorMeta]:
    """Return the results of a call of a body, without names."""
    return [TensorMeta("", tensor.shape, tensor.dtype, stride=tensor.stride) for tensor in body.graph_outputs]


def random_ir(seed: int, *, typed: bool = False) -> IR:
    """A valid graph; a typed one also passes the full check, where operators, attributes and shapes go together."""
    for attempt in itertools.count():
        try:
            return _drawn(f"{seed}/{typed}{f'/{attempt}' if attempt else ''}", typed).check(Limits())
        except GraphError as error:
            if error.rule != "R2":  # a product of sizes beyond the limits is drawn again
                raise
    raise AssertionError


def _drawn(seed: str, typed: bool) -> IR:
    draft = Draft(Draw(seed), typed=typed)
    ir = draft.whole()
    if draft.draw.chance(0.15):
        name = draft.draw.name("decode", "prefill")
        with inside(ir):
            ir.functions[name] = Draft(Draw(f"{seed}/second"), typed=typed, around=draft).entry_point()
    return ir
