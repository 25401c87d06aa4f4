"""Shard a graph or function: track the placement of each tensor, and its local tensor on a rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from torch_ir.analysis.memory.aliasing import counted_views, counting_functions
from torch_ir.analysis.shapes.inference import Shapes
from torch_ir.errors import INVALID_ARGUMENTS, ShardError
from torch_ir.ir import IR, FunctionRef, OpNode, TensorMeta
from torch_ir.ir.graph.free_names import fresh
from torch_ir.ir.graph.origins import is_within, joined
from torch_ir.ir.graph.placements import (
    REPLICATE,
    Padded,
    Partial,
    Placement,
    Replicate,
    Routed,
    Shard,
    first_divisible,
    local_shape,
    plain,
)
from torch_ir.ir.graph.training_parts import BACKWARD, OPTIMIZER, forward_path, part_of_path
from torch_ir.ir.regroup.functions import called_by
from torch_ir.ops.effects import is_random, writes_in_place
from torch_ir.ops.schema import find_operator
from torch_ir.sharding import (  # noqa: F401  # they register their rules
    attention_rules,
    dim_rules,
    gradient_rules,
    loss_rules,
    product_rules,
    sum_rules,
)
from torch_ir.sharding.expert_rules import routed_node
from torch_ir.sharding.gradient_sums import place_of_sum, wanted_products
from torch_ir.sharding.padded_pieces import has_sum, is_exact, padded
from torch_ir.sharding.placement_rules import Local, PlacedNode, rule_of
from torch_ir.sharding.rank_writer import Writer
from torch_ir.sharding.styles import Style

_NEAREST = (Replicate, Shard, Padded, Partial, Routed)  # preferred sources for moving a tensor, best first
OUTSIDE = "\0"  # marks values that no module computes


class Held(NamedTuple):
    """Placements of a tensor: the one it is computed in, those after leaving modules, and its local tensors."""

    home: Placement
    left: tuple[tuple[str, Placement], ...]
    forms: tuple[tuple[Placement, TensorMeta], ...]


class Styles(Protocol):
    """The styles of modules and weights."""

    def around(self, path: str, /) -> tuple[tuple[str, Style], ...]:
        """Return the enclosing modules with a style, including the module itself, outermost first."""

    def of_weight(self, param: TensorMeta, /) -> dict[str, Placement]:
        """Return the placement of a weight by owning module."""

    def is_gathered(self, param: TensorMeta, /) -> bool:
        """Whether a weight is stored in shards and gathered before each use."""


class Sharding:
    """State shared by an entry point and its functions: plan, axis, ranks, earlier axes, and sharded functions.

    Without `infers`, results have the sizes that rules predict and the layout of the whole tensor: torch is not asked.
    """

    def __init__(self, ir: IR, plan: Styles, axis: str, ranks: int, axes: int, *, infers: bool = True) -> None:
        self.plan, self.axis, self.ranks, self.axes, self.infers = plan, axis, ranks, axes, infers
        self.shapes = Shapes(ir)
        self.bodies: dict[tuple[Any, ...], RankGraph] = {}


class RankGraph:
    """One graph or function being sharded: the placement and local tensor of each tensor."""

    def __init__(self, whole: Sharding, ir: IR, path: str, is_function: bool) -> None:
        self.whole, self.ir, self.path, self._is_function = whole, ir, path, is_function
        self.writer = Writer(ir, whole.shapes, whole.axis, whole.ranks, is_function, infers=whole.infers)
        self.home: dict[TensorMeta, Placement] = {}  # the placement in which a tensor is computed
        self.weights = set(ir.params)  # in a function: also inputs that are weights in every call
        self.gathered: set[TensorMeta] = set()  # weights that are stored in shards and used whole
        self.saved: frozenset[TensorMeta] = frozenset()  # outputs of a function that only backward reads
        self.reduced: dict[TensorMeta, Placement] = {}  # gradients, and where each rank needs them
        self._products: dict[TensorMeta, int] = {}  # products of which each rank needs a shard
        self._part = ""
        operators = (node for node in ir.nodes if ir.functions and not is_function_call(node))
        # bodies of operators such as `cond`, which run whole on every rank, and sharded bodies of calls
        self.functions: dict[str, IR] = {name: ir.functions[name].clone() for name in called_by(operators)}
        self._forms: dict[TensorMeta, dict[Placement, TensorMeta]] = {}
        self._maker: dict[TensorMeta, str] = {}
        self._left: dict[TensorMeta, list[tuple[str, Placement]]] = {}  # placement after leaving a module
        self._tied: dict[TensorMeta, dict[str, Placement]] = {}
        self._names: dict[int, FunctionRef] = {}
        self._counting = counting_functions(ir.functions)
        self.body: IR | None = None

    # -- inputs -------------------------------------------------------------------------------------------------------

    def give(self, tensor: TensorMeta, place: Placement, maker: str, where: str) -> None:
        """Add an input or a weight with this placement."""
        shape = local_shape(tensor, place, self.whole.ranks, where)
        local = TensorMeta(tensor.name, shape, tensor.dtype, param=tensor.param)
        local.stride = tensor.stride if shape == tensor.shape else None
        self._keep(tensor, place, local, maker)

    def give_weight(self, param: TensorMeta) -> None:
        """Add a weight, sharded by the plan; replicated if it is tied and its modules disagree."""
        if self.whole.plan.is_gathered(param):
            self.gathered.add(param)
            self.give(param, first_divisible(param, self.whole.ranks), OUTSIDE, param.key or param.name)
            return
        planned = self.whole.plan.of_weight(param)
        pieces = {place: self.padded(param, place) for place in set(planned.values())}
        wanted = {module: pieces[place] for module, place in planned.items()}
        places = set(wanted.values())
        self.give(param, places.pop() if len(places) == 1 else REPLICATE, OUTSIDE, param.key or param.name)
        if places and len(wanted) > 1:
            self._tied[param] = wanted

    def padded(self, weight: TensorMeta, place: Placement) -> Placement:
        """Return the placement of a weight, in padded pieces if it must be."""
        return padded(weight, place, self.whole.ranks, self.ir.functions)

    def give_state(self, param: TensorMeta, owner: TensorMeta) -> None:
        """Add state of the optimiser, placed like its parameter if it has one number for each of that."""
        place = self.home[owner] if param.shape == owner.shape else REPLICATE
        self.give(param, place, OUTSIDE, param.key or param.name)

    def _keep(self, tensor: TensorMeta, place: Placement, local: TensorMeta, maker: str) -> None:
        self._placed(tensor, place, local)
        self.home[tensor] = place
        self._maker[tensor] = maker

    def _placed(self, tensor: TensorMeta, place: Placement, local: TensorMeta) -> TensorMeta:
        before = tensor.placement if self.whole.axes else ()
        local.placement = None if before is None or isinstance(place, Routed) else (*before, str(place))
        self._forms.setdefault(tensor, {})[place] = local
        return local

    def held(self, tensor: TensorMeta) -> Held:
        """Return where a tensor is."""
        return Held(self.home[tensor], tuple(self._left.get(tensor, ())), tuple(self._forms[tensor].items()))

    def hold(self, tensor: TensorMeta, held: Held, maker: str) -> None:
        """Reuse the placement that was found for a tensor before, in this or an equal graph."""
        self.home[tensor], self._maker[tensor] = held.home, maker
        self._left[tensor], self._forms[tensor] = list(held.left), dict(held.forms)

    # -- reading ------------------------------------------------------------------------------------------------------

    def local(self, tensor: TensorMeta) -> TensorMeta:
        """Return the local tensor in its original placement."""
        return self._forms[tensor][self.home[tensor]]

    def read(self, tensor: TensorMeta, place: Placement) -> TensorMeta:
        """Return the local tensor in the wanted placement, redistributed if necessary."""
        forms = self._forms[tensor]
        if place not in forms:
            source = min(forms, key=lambda form: _NEAREST.index(type(form)))
            if isinstance(place, Shard):
                local_shape(
                    tensor, place, self.whole.ranks, joined(self.path, self.writer.origin.module) or tensor.name
                )
            self._placed(tensor, place, self.writer.moved(forms[source], source, place))
        return forms[place]

    def seen(self, tensor: TensorMeta, reader: str) -> Placement:
        """Return the placement of a tensor for a reader, by the styles of the modules it leaves and enters.

        Styles describe forward. Gradients and updates are computed where their operands are.
        """
        if tensor in self._tied:
            return self._tied[tensor].get(forward_path(reader), REPLICATE)
        if tensor in self.gathered:
            return self.home[tensor] if part_of_path(reader) == OPTIMIZER else REPLICATE
        place = self._left_as(tensor, forward_path(reader))
        if tensor not in self.weights and not part_of_path(reader):
            is_index = tensor.dtype.startswith(("int", "uint", "bool"))
            for module, style in self.whole.plan.around(reader):
                if not _is_in(self._maker[tensor], module):
                    place = style.entering(place, len(tensor.shape), is_index)
        return place

    def _left_as(self, tensor: TensorMeta, reader: str) -> Placement:
        """Return the placement of a tensor after leaving the modules that the reader is not in."""
        left = [place for module, place in self._left.get(tensor, ()) if not _is_in(reader, module)]
        return left[-1] if left else self.home[tensor]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._products = wanted_products(self.reduced)
        for node in self.ir.nodes:
            self.step(node)

    def step(self, node: OpNode) -> None:
        """Write one node, with the collectives before and after it."""
        path = joined(self.path, node.origin.module)
        self.writer.origin = node.origin
        self._begin(part_of_path(path))
        places = self.seen_by(node)
        for tensor in counted_views(node, self.ir.functions, self._counting):
            if self.home[tensor] != REPLICATE:
                raise ShardError(f"{node!r} counts elements in the storage of {tensor.name!r}, which is sharded")
        if is_function_call(node):
            self._call(node, self._as_operands(node, places), path)
        else:
            self._operator(node, places, path)
        for tensor in node.outputs:
            self._leave(tensor, path)
            self._reduce(tensor, path)

    def seen_by(self, node: OpNode) -> dict[str, Placement]:
        """Return the placements of a node's inputs, as its module receives them."""
        path = joined(self.path, node.origin.module)
        return {name: self.seen(tensor, path) for name, tensor in zip(node.args, node.inputs, strict=True)}

    def _as_operands(self, node: OpNode, places: Mapping[str, Placement]) -> dict[str, Placement]:
        """Return the placements of the operands of a call; gathered weights are passed in shards."""
        shards = {
            name: self.home[tensor]
            for name, tensor in zip(node.args, node.inputs, strict=True)
            if tensor in self.gathered
        }
        return {name: plain(place) for name, place in places.items()} | shards

    def _begin(self, part: str) -> None:
        """Forget gathered weights where another part of a training step begins: it gathers them again."""
        if part != self._part:
            for tensor in self.gathered:
                self._forms[tensor] = {self.home[tensor]: self.local(tensor)}
        self._part = part

    def _reduce(self, tensor: TensorMeta, path: str) -> None:
        """Redistribute a gradient for all readers at once, so that its terms can be freed."""
        place = self.reduced.get(tensor)
        if place is None and part_of_path(path) == BACKWARD:
            place = place_of_sum(tensor, self.home[tensor], self._place_for)
        if place is not None:
            local = self.read(tensor, place)
            self._forms[tensor], self.home[tensor] = {place: local}, place

    def _place_for(self, tensor: TensorMeta, reader: OpNode) -> Placement | None:
        return self.seen(tensor, joined(self.path, reader.origin.module)) if tensor in self.home else None

    def _operator(self, node: OpNode, places: dict[str, Placement], path: str) -> None:
        styles = [style for _, style in self.whole.plan.around(path)]
        capacity = next((style.capacity for style in styles if style.capacity), None)
        is_ring = any(style.is_ring for style in styles)
        placed = PlacedNode(node, places, self.whole.ranks, path or node.name, capacity, is_ring)
        try:
            local = self._answer(placed)
            given = {
                name: self.read(tensor, local.inputs.get(name, REPLICATE))
                for name, tensor in zip(node.args, node.inputs, strict=True)
            }
            if has_sum(local):
                given.update(self._without_padding(node, local, given))
            made = local.write(self.writer, given, placed) if local.write else self._same_node(node, local, given)
        except INVALID_ARGUMENTS as error:  # the arguments of an operator without shape rules are not checked
            raise ShardError(f"{placed.where}: {node!r} has other arguments than its rule expects") from error
        for tensor, place, result in zip(node.outputs, local.outputs, made, strict=True):
            self._check(tensor, place, result, placed)
            self._keep(tensor, place, result, path)

    def _without_padding(
        self, node: OpNode, local: Local, given: Mapping[str, TensorMeta]
    ) -> Iterator[tuple[str, TensorMeta]]:
        """Yield the padded operands of a sum with zeros for padding, which weights have already."""
        for name, tensor in zip(node.args, node.inputs, strict=True):
            place = local.inputs.get(name)
            if isinstance(place, Padded) and tensor not in self.weights:
                yield name, self.writer.without_padding(given[name], place)

    def _answer(self, placed: PlacedNode) -> Local:
        """Return how a node runs: by its rule, or else whole on every rank."""
        whole = Local({}, [REPLICATE] * len(placed.node.outputs))
        bodies = (self.ir.functions[name] for name in called_by([placed.node]))
        for node in (placed.node, *(inner for body in bodies for inner in body.all_nodes())):
            if is_random(node):
                raise ShardError(f"{placed.where}: {node!r} draws random numbers, which would differ between ranks")
            if writes_in_place(node):
                raise ShardError(f"{placed.where}: {node!r} writes in place; shard a functional graph")
        if (routed := routed_node(placed)) is not None:
            return routed
        if all(place == REPLICATE for place in placed.places.values()):
            dim = self._products.get(placed.node.outputs[0]) if placed.node.outputs else None
            if dim is None:
                return whole
            operand = placed.node.args[dim]  # rows of the first, or columns of the second
            placed = replace(placed, places={**placed.places, operand: Shard(dim)})
        rule = rule_of(placed.node)
        found = rule(placed) if rule else None
        return found if found and is_exact(placed, found) else whole

    def _same_node(self, node: OpNode, local: Local, given: Mapping[str, TensorMeta]) -> list[TensorMeta]:
        """Write the same operator on local tensors."""
        attrs = {**node.attrs, **local.attrs}
        made = [tensor.copy() for tensor in node.outputs]
        is_same = not local.attrs and all(
            (tensor.shape, tensor.stride) == (given[name].shape, given[name].stride)
            for name, tensor in zip(node.args, node.inputs, strict=True)
        )
        hints = [dim for tensor in node.outputs for dim in (*tensor.shape, *(tensor.stride or ()))]
        asks = self.whole.infers and bool(made) and not is_same
        found = self.writer.results(node.op_type, given, attrs, hints) if asks else None
        for index, tensor in enumerate(made):
            place = local.outputs[index]
            tensor.shape = local_shape(tensor, place, self.whole.ranks, node.origin.module or node.name)
            if not is_same and self.whole.infers:
                tensor.stride = None
            if found is not None:
                tensor.shape, tensor.stride = found[index].shape, found[index].stride
        node = OpNode(
            node.name, node.op_type, given.values(), made, attrs, args=given, origin=node.origin, origins=node.origins
        )
        self.writer.append(node)
        return made

    def _check(self, tensor: TensorMeta, place: Placement, made: TensorMeta, placed: PlacedNode) -> None:
        """Raise ShardError if a rule predicted wrong sizes."""
        wanted = local_shape(tensor, place, self.whole.ranks, placed.where)
        same = len(wanted) == len(made.shape) and all(map(self.whole.shapes.is_same_size, wanted, made.shape))
        if not same:
            expected = f"expected {place} of {list(tensor.shape)}"
            raise ShardError(f"{placed.where}: {placed.node!r} returns {list(made.shape)} for shards; {expected}")

    def _leave(self, tensor: TensorMeta, path: str) -> None:
        """Redistribute an output of a module that others read, by the styles of the modules it leaves."""
        place, rank = self.home[tensor], len(tensor.shape)
        if part_of_path(path) or (tensor in self.saved and not isinstance(place, Partial)):
            return
        for module, style in reversed(self.whole.plan.around(path)):
            if any(not _is_in(self._reader(node), module) for node in tensor.consumers):
                left = style.leaving(place, rank)
                if left != place:
                    self._left.setdefault(tensor, []).append((module, left))
                    self.read(tensor, left)
                    place = left

    def _reader(self, node: OpNode) -> str:
        if node is not self.ir.returns:
            return forward_path(joined(self.path, node.origin.module))
        return self.path.rpartition(".")[0] if self.path else OUTSIDE

    # -- functions ----------------------------------------------------------------------------------------------------

    def _call(self, node: OpNode, places: dict[str, Placement], path: str) -> None:
        """Write a call of the body for these placements; rank-dependent values become additional operands."""
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
        """Return the function sharded for these placements and this module; cached for equal cases."""
        ir = self.ir.functions[node.attrs["function"]]
        weights = frozenset(name for name, tensor in zip(node.args, node.inputs, strict=True) if tensor in self.weights)
        inner = tuple(dict.fromkeys(node.origin.module for node in ir.nodes))
        styles = tuple(
            tuple((module[len(path) :], style) for module, style in self.whole.plan.around(joined(path, name)))
            for name in inner
        )
        gathered = frozenset(
            name for name, tensor in zip(node.args, node.inputs, strict=True) if tensor in self.gathered
        )
        saved = frozenset(at for at, tensor in enumerate(node.outputs) if _is_saved(tensor, self.path))
        key = (id(ir), tuple(places.items()), weights, styles, gathered, saved, part_of_path(path))
        if key not in self.whole.bodies:
            graph = RankGraph(self.whole, ir, path, is_function=True)
            graph.weights.update(tensor for tensor in ir.graph_inputs if tensor.name in weights)
            graph.gathered.update(tensor for tensor in ir.graph_inputs if tensor.name in gathered)
            graph.saved = frozenset(ir.graph_outputs[at] for at in saved)
            for tensor in ir.graph_inputs:
                graph.give(tensor, places[tensor.name], path.rpartition(".")[0] if path else OUTSIDE, path)
            graph.run()
            graph.finish()
            self.whole.bodies[key] = graph
        return self.whole.bodies[key]

    def finish(self) -> None:
        """Complete the body, with outputs in the placements that callers see."""
        made = [self.read(tensor, self.given_as(tensor)) for tensor in self.ir.graph_outputs]
        inputs = [*map(self.local, self.ir.graph_inputs), *self.writer.decided.values()]
        self.body = IR(self.writer.nodes, inputs, made, functions=self.functions, output_tree=self.ir.output_tree)

    def given_as(self, output: TensorMeta) -> Placement:
        """Return the placement of a function's output for its callers."""
        return plain(self._left_as(output, self._reader(self.ir.returns)))

    def _named(self, body: RankGraph, name: str) -> FunctionRef:
        if id(body) not in self._names:
            assert body.body is not None
            taken = {*self.functions, *self.ir.functions} - ({name} - self.functions.keys())
            self._names[id(body)] = FunctionRef(fresh(name, taken))
            self.functions[self._names[id(body)]] = body.body
        return self._names[id(body)]


def is_function_call(node: OpNode) -> bool:
    """Whether a node is a call of a function of the graph, and not an operator that takes functions."""
    return node.is_call and find_operator(node.op_type) is None


def _is_saved(tensor: TensorMeta, path: str) -> bool:
    """Whether only other parts of a training step read a result of forward."""
    return bool(tensor.consumers) and all(part_of_path(joined(path, node.origin.module)) for node in tensor.consumers)


def _is_in(path: str, module: str) -> bool:
    """Whether a path is that of a module or inside it."""
    return path != OUTSIDE and is_within(path, module)
