"""A graph, or a function of one, as it is divided among ranks: where each tensor lies, and what stands for it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import ShardError
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.origins import is_below, joined
from torch_ir.ir.graph.placements import REPLICATE, Partial, Placement, Replicate, Shard, local_shape, plain
from torch_ir.ir.regroup.functions import called_by, fresh
from torch_ir.ops.effects import is_random, writes_in_place
from torch_ir.ops.schema import find_operator
from torch_ir.sharding import dim_rules, product_rules, sum_rules  # noqa: F401  # they enter their rows
from torch_ir.sharding.placement_rules import Ask, Local, rule_of
from torch_ir.sharding.rank_writer import Writer
from torch_ir.sharding.sharding_plan import Plan

_NEAREST = (Replicate, Shard, Partial)  # from which a tensor is best brought elsewhere
OUTSIDE = "\0"  # the module of what is made by no module


class Sharding:
    """What an entry point and its functions share: the plan, the axis, how many there were, and functions done."""

    def __init__(self, ir: IR, plan: Plan, axis: str, ranks: int, axes: int) -> None:
        self.plan, self.axis, self.ranks, self.axes = plan, axis, ranks, axes
        self.shapes = Shapes(ir)
        self.bodies: dict[tuple[Any, ...], RankGraph] = {}


class RankGraph:
    """One graph, or function, as it is sharded: where each tensor lies, and what stands for it there."""

    def __init__(self, whole: Sharding, ir: IR, path: str, is_function: bool) -> None:
        self.whole, self.ir, self.path = whole, ir, path
        self.writer = Writer(ir, whole.shapes, whole.axis, whole.ranks, is_function)
        self.home: dict[TensorMeta, Placement] = {}  # where a tensor lies as it is made
        self.weights = set(ir.params)  # in a function: what every call gives a weight for
        self.functions: dict[str, IR] = {}
        self._forms: dict[TensorMeta, dict[Placement, TensorMeta]] = {}
        self._maker: dict[TensorMeta, str] = {}
        self._left: dict[TensorMeta, list[tuple[str, Placement]]] = {}  # from which module, and to lie where
        self._tied: dict[TensorMeta, dict[str, Placement]] = {}
        self._names: dict[int, FunctionRef] = {}
        self.body: IR | None = None

    # -- what is given ------------------------------------------------------------------------------------------------

    def give(self, tensor: TensorMeta, place: Placement, maker: str, where: str) -> None:
        """Let a tensor be there, in pieces or whole."""
        shape = local_shape(tensor, place, self.whole.ranks, where)
        local = TensorMeta(tensor.name, shape, tensor.dtype, param=tensor.param)
        local.stride = tensor.stride if shape == tensor.shape else None
        self._keep(tensor, place, local, maker)

    def give_weight(self, param: TensorMeta) -> None:
        """A weight in pieces as the plan says; whole if it is tied and its modules want it otherwise."""
        wanted = self.whole.plan.of_weight(param)
        places = set(wanted.values())
        self.give(param, places.pop() if len(places) == 1 else REPLICATE, OUTSIDE, param.key or param.name)
        if places and len(wanted) > 1:
            self._tied[param] = wanted

    def _keep(self, tensor: TensorMeta, place: Placement, local: TensorMeta, maker: str) -> None:
        self._placed(tensor, place, local)
        self.home[tensor] = place
        self._maker[tensor] = maker

    def _placed(self, tensor: TensorMeta, place: Placement, local: TensorMeta) -> TensorMeta:
        before = tensor.placement if self.whole.axes else ()
        local.placement = None if before is None else (*before, str(place))
        self._forms.setdefault(tensor, {})[place] = local
        return local

    # -- what is read -------------------------------------------------------------------------------------------------

    def local(self, tensor: TensorMeta) -> TensorMeta:
        """What stands for a tensor as it is made."""
        return self._forms[tensor][self.home[tensor]]

    def read(self, tensor: TensorMeta, place: Placement) -> TensorMeta:
        """What stands for a tensor, brought to where it is wanted."""
        forms = self._forms[tensor]
        if place not in forms:
            source = min(forms, key=lambda form: _NEAREST.index(type(form)))
            if isinstance(place, Shard):
                local_shape(
                    tensor, place, self.whole.ranks, joined(self.path, self.writer.origin.module) or tensor.name
                )
            self._placed(tensor, place, self.writer.moved(forms[source], source, place))
        return forms[place]

    def _seen(self, tensor: TensorMeta, reader: str) -> Placement:
        """Where a tensor lies for a reader: modules that it left, and those that it enters, have their say."""
        if tensor in self._tied:
            return self._tied[tensor].get(reader, REPLICATE)
        place = self._left_as(tensor, reader)
        if tensor not in self.weights:
            is_index = tensor.dtype.startswith(("int", "uint", "bool"))
            for module, style in self.whole.plan.around(reader):
                if not _is_in(self._maker[tensor], module):
                    place = style.entering(place, len(tensor.shape), is_index)
        return place

    def _left_as(self, tensor: TensorMeta, reader: str) -> Placement:
        """Where a tensor lies after it left those modules that a reader is not in."""
        left = [place for module, place in self._left.get(tensor, ()) if not _is_in(reader, module)]
        return left[-1] if left else self.home[tensor]

    # -- what is made -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for node in self.ir.nodes:
            path = joined(self.path, node.origin.module)
            self.writer.origin = node.origin
            places = {name: self._seen(tensor, path) for name, tensor in zip(node.args, node.inputs, strict=True)}
            if node.is_call and find_operator(node.op_type) is None:
                self._call(node, {name: plain(place) for name, place in places.items()}, path)
            else:
                self._operator(node, places, path)
            for tensor in node.outputs:
                self._leave(tensor, path)

    def _operator(self, node: OpNode, places: dict[str, Placement], path: str) -> None:
        self.functions.update((name, self.ir.functions[name].clone()) for name in called_by([node]))
        ask = Ask(node, places, self.whole.ranks, path or node.name)
        local = self._answer(ask)
        given = {
            name: self.read(tensor, local.inputs.get(name, REPLICATE))
            for name, tensor in zip(node.args, node.inputs, strict=True)
        }
        made = local.write(self.writer, given, ask) if local.write else self._same_node(node, local, given)
        for tensor, place, result in zip(node.outputs, local.outputs, made, strict=True):
            self._check(tensor, place, result, ask)
            self._keep(tensor, place, result, path)

    def _answer(self, ask: Ask) -> Local:
        """How a node runs: by its rule, or else whole on every rank."""
        whole = Local({}, [REPLICATE] * len(ask.node.outputs))
        if is_random(ask.node):
            raise ShardError(f"{ask.where}: {ask.node!r} draws random numbers, which would differ from rank to rank")
        if writes_in_place(ask.node):
            raise ShardError(f"{ask.where}: {ask.node!r} writes in place; shard a graph in the functional form")
        if all(place == REPLICATE for place in ask.places.values()):
            return whole
        rule = rule_of(ask.node)
        return (rule(ask) if rule else None) or whole

    def _same_node(self, node: OpNode, local: Local, given: Mapping[str, TensorMeta]) -> list[TensorMeta]:
        """The same operator, on pieces."""
        attrs = {**node.attrs, **local.attrs}
        made = [tensor.copy() for tensor in node.outputs]
        is_same = not local.attrs and all(
            (tensor.shape, tensor.stride) == (given[name].shape, given[name].stride)
            for name, tensor in zip(node.args, node.inputs, strict=True)
        )
        hints = [dim for tensor in node.outputs for dim in (*tensor.shape, *(tensor.stride or ()))]
        found = None if is_same or not made else self.writer.results(node.op_type, given, attrs, hints)
        for index, tensor in enumerate(made):
            place = local.outputs[index]
            tensor.shape = local_shape(tensor, place, self.whole.ranks, node.origin.module or node.name)
            if not is_same:
                tensor.stride = None
            if found is not None:
                tensor.shape, tensor.stride = found[index].shape, found[index].stride
        node = OpNode(
            node.name, node.op_type, given.values(), made, attrs, args=given, origin=node.origin, origins=node.origins
        )
        self.writer.append(node)
        return made

    def _check(self, tensor: TensorMeta, place: Placement, made: TensorMeta, ask: Ask) -> None:
        """A rule that is wrong about sizes is found here."""
        wanted = local_shape(tensor, place, self.whole.ranks, ask.where)
        same = len(wanted) == len(made.shape) and all(map(self.whole.shapes.is_same_size, wanted, made.shape))
        if not same:
            told = f"{ask.node!r} makes {list(made.shape)} of pieces, where {place} of {list(tensor.shape)} is expected"
            raise ShardError(f"{ask.where}: {told}")

    def _leave(self, tensor: TensorMeta, path: str) -> None:
        """Bring an output of a module that others read to where its style says."""
        place, rank = self.home[tensor], len(tensor.shape)
        for module, style in reversed(self.whole.plan.around(path)):
            if any(not _is_in(self._reader(node), module) for node in tensor.consumers):
                left = style.leaving(place, rank)
                if left != place:
                    self._left.setdefault(tensor, []).append((module, left))
                    self.read(tensor, left)
                    place = left

    def _reader(self, node: OpNode) -> str:
        if node is not self.ir.returns:
            return joined(self.path, node.origin.module)
        return self.path.rpartition(".")[0] if self.path else OUTSIDE

    # -- functions ----------------------------------------------------------------------------------------------------

    def _call(self, node: OpNode, places: dict[str, Placement], path: str) -> None:
        """A call of the body that fits where its operands lie; further operands are what the rank decides."""
        body = self._body(node, places, path)
        assert body.body is not None
        operands = {name: self.read(tensor, places[name]) for name, tensor in zip(node.args, node.inputs, strict=True)}
        for key, tensor in body.writer.decided.items():
            operands[tensor.name] = self.writer.like(key, tensor)
        made = [tensor.copy(outer.name) for tensor, outer in zip(body.body.graph_outputs, node.outputs, strict=True)]
        attrs = {**node.attrs, "function": self._named(body, node.attrs["function"])}
        copy = OpNode(
            node.name, node.op_type, operands.values(), made, attrs, args=operands, origin=node.origin,
            origins=node.origins,
        )  # fmt: skip
        self.writer.append(copy)
        for inner, tensor, result in zip(body.ir.graph_outputs, node.outputs, made, strict=True):
            self._keep(tensor, body.given_as(inner), result, path)

    def _body(self, node: OpNode, places: Mapping[str, Placement], path: str) -> RankGraph:
        """A function sharded for operands that lie so, and for a call in that module; done once for all like it."""
        ir = self.ir.functions[node.attrs["function"]]
        weights = frozenset(name for name, tensor in zip(node.args, node.inputs, strict=True) if tensor in self.weights)
        inner = tuple(dict.fromkeys(node.origin.module for node in ir.nodes))
        styles = tuple(
            tuple((module[len(path) :], style) for module, style in self.whole.plan.around(joined(path, name)))
            for name in inner
        )
        key = (id(ir), tuple(places.items()), weights, styles)
        if key not in self.whole.bodies:
            graph = RankGraph(self.whole, ir, path, is_function=True)
            graph.weights.update(tensor for tensor in ir.graph_inputs if tensor.name in weights)
            for tensor in ir.graph_inputs:
                graph.give(tensor, places[tensor.name], path.rpartition(".")[0] if path else OUTSIDE, path)
            graph.run()
            graph.finish()
            self.whole.bodies[key] = graph
        return self.whole.bodies[key]

    def finish(self) -> None:
        """Make the graph a body: it gives its outputs as they lie for those outside."""
        made = [self.read(tensor, self.given_as(tensor)) for tensor in self.ir.graph_outputs]
        inputs = [*map(self.local, self.ir.graph_inputs), *self.writer.decided.values()]
        self.body = IR(self.writer.nodes, inputs, made, functions=self.functions, output_tree=self.ir.output_tree)

    def given_as(self, output: TensorMeta) -> Placement:
        """Where an output of a function lies for its callers."""
        return plain(self._left_as(output, self._reader(self.ir.returns)))

    def _named(self, body: RankGraph, name: str) -> FunctionRef:
        if id(body) not in self._names:
            assert body.body is not None
            taken = {*self.functions, *self.ir.functions} - ({name} - self.functions.keys())
            self._names[id(body)] = FunctionRef(fresh(name, taken))
            self.functions[self._names[id(body)]] = body.body
        return self._names[id(body)]


def _is_in(path: str, module: str) -> bool:
    """Whether a path is that of a module, or of one inside it."""
    return path != OUTSIDE and (path == module or is_below(path, module))
