"""Functions: replace several nodes by one call of a named body, and back.

A node with the attribute `function` whose op_type is not an operator computes what that body does; its arguments are
named after the body's inputs. Layers, repeated blocks and fused operators are such nodes. Inside a body, origins are
relative to the call: `q_proj` in the body of a call that came from `layers.3.attn`.

    y: float32[2, 4] = call(x=a, function=@block)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch_ir.errors import GraphError
from torch_ir.ir.graph.attr_types import FunctionRef, values_in
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.ir.graph.node import OpNode, Origin
from torch_ir.ir.graph.origins import common_origin, placed_in, seen_from
from torch_ir.ir.graph.tensor import TensorMeta

if TYPE_CHECKING:
    from torch_ir.ir.graph.graph import IR

CALL = "call"
STAGE = "pipeline.stage"  # op_type of calls of pipeline stages
FUSED = "fused."  # prefix of the op_types of fused operators
MOST_INLINE = 100_000  # nodes, unless the graph and its functions have more than a tenth of that
MOST_COPIES = 10  # of each node of a larger graph
CHARACTERS = 1000  # of module paths, for each of these nodes
Reads = Sequence[tuple[str, TensorMeta]]  # argument names and inputs of a call


def outline(ir: IR, nodes: Iterable[OpNode], name: str, op_type: str = CALL) -> OpNode:
    """Move nodes into a new function of the graph and replace them by one call.

    before   a = aten.neg.default(self=x);  b = aten.relu.default(self=a)
    after    b = call(x=x, function=@block)     with     function block(x) { ...the same two nodes... }
    """
    if name in ir.functions:
        raise GraphError(f"the graph already has a function {name!r}")
    inside, before, after = around(ir, nodes)
    reads = [(tensor.name.replace(".", "_"), tensor) for tensor in read_by(inside)]
    call, ir.functions[name] = enclose(ir, inside, reads, common_origin(inside))
    call.name, call.op_type, call.attrs = inside[-1].name, op_type, {"function": FunctionRef(name)}
    ir.nodes = [*before, call, *after]
    drop_unused(ir, called_by(ir.functions[name].nodes))
    return call


def inline(ir: IR, call: OpNode) -> list[OpNode]:
    """Replace a call by the nodes of its body; remove the function if nothing else calls it."""
    return _put_inline(ir, [call])


def inline_all(ir: IR, is_wanted: Callable[[OpNode], bool] = lambda call: True) -> int:
    """Inline every call of a body, or those selected, until none is left; return how many there were."""
    calls = [node for node in ir.nodes if node.is_call and is_wanted(node)]
    if not calls:
        return 0
    check_size_inline(ir)
    count = 0
    while calls:
        _put_inline(ir, calls)
        count += len(calls)
        calls = [node for node in ir.nodes if node.is_call and is_wanted(node)]
    return count


def with_calls_open(ir: IR, is_wanted: Callable[[OpNode], bool]) -> IR:
    """Return the graph, or a copy in which the selected calls are inlined, in its functions too."""
    if not any(node.is_call and is_wanted(node) for node in ir.all_nodes()):
        return ir
    copy = ir.clone()
    for graph in copy.all_graphs():
        inline_all(graph, is_wanted)
    return copy


def check_size_inline(ir: IR, least: int = MOST_INLINE) -> None:
    """Raise GraphError if inlining would produce too many nodes; nested calls can grow exponentially.

    `least` nodes are always allowed.
    """
    size, characters = _size_inline(ir)[:2]
    most = max(least, MOST_COPIES * sum(1 for _ in ir.all_nodes()))
    if size > most:
        message = f"with its functions inlined, the graph would have {size} nodes, more than {most}"
        raise GraphError(message, "$.functions", rule="R2")
    if characters > CHARACTERS * most:
        message = f"with its functions inlined, the graph would have module paths of {characters} characters"
        raise GraphError(f"{message}, more than {CHARACTERS * most}", "$.functions", rule="R2")


def _size_inline(ir: IR) -> tuple[int, int, int]:
    """Return the nodes, and at most how many characters of module paths and enclosing calls they have once inline.

    Paths in a body are relative to its call: each begins with the path of that call once it is inlined.
    """
    inside = {name: _size_inline(body) for name, body in ir.functions.items()}
    nodes = characters = outer = 0
    for node in ir.nodes:
        length, calls, around = len(node.origin.module), len(node.origin.outer), sum(map(len, node.origin.outer))
        if not node.is_call or node.attrs["function"] not in inside:
            nodes, characters, outer = nodes + 1, characters + length + around, outer + calls
            continue
        count, within, deeper = inside[node.attrs["function"]]
        nodes += count
        characters += within + count * (2 * length + around) + deeper * length
        outer += deeper + count * (calls + 1)
    return nodes, characters, outer


def enclose(ir: IR, inside: Sequence[OpNode], reads: Reads, origin: Origin) -> tuple[OpNode, IR]:
    """Return a call that replaces nodes, and its body; neither is named or part of the graph yet."""
    taken = Names()
    inputs = [tensor.copy(fresh(name, taken)) for name, tensor in reads]
    for tensor in inputs:
        tensor.param = None
    copies = {tensor: tensor.copy(fresh(tensor.name, taken)) for node in inside for tensor in node.outputs}
    gives = given_by(inside)
    for (_, tensor), given in zip(reads, inputs, strict=True):
        copies.setdefault(tensor, given)
    nodes = [node.copy(copies.__getitem__) for node in inside]
    if len(nodes) == 1 and len(inputs) == len(nodes[0].inputs):
        nodes[0].inputs = inputs  # one tensor may be passed for two arguments
    for node, copy in zip(inside, nodes, strict=True):
        copy.origin = seen_from(origin, node.origin)
        node.inputs = ()
    functions: dict[str, IR] = {ref: ir.functions[ref].clone() for ref in called_by(inside)}
    body = type(ir)(nodes, inputs, [copies[tensor] for tensor in gives], functions=functions)
    call = OpNode(
        "",
        CALL,
        [tensor for _, tensor in reads],
        gives,
        args=[tensor.name for tensor in inputs],
        origin=origin,
        origins=dict.fromkeys(origin for node in inside for origin in node.origins),
    )
    return call, body


def around(ir: IR, nodes: Iterable[OpNode]) -> tuple[list[OpNode], list[OpNode], list[OpNode]]:
    """Return the nodes in program order, and the other nodes that come before and after a call of them."""
    chosen = set(nodes)
    inside = [node for node in ir.nodes if node in chosen]
    if not inside or len(inside) != len(chosen):
        raise GraphError("outline needs at least one node, and all of them must be in the graph")
    made = {tensor for node in inside for tensor in node.outputs}
    for symbol in ir.symbols.values():
        if symbol.tensor in made:
            raise GraphError(f"{symbol.tensor!r} determines the size {symbol.name!r} and cannot be outlined")
    first, last = ir.nodes.index(inside[0]), ir.nodes.index(inside[-1])
    before, after, later = ir.nodes[:first], list[OpNode](), set[TensorMeta]()
    for node in ir.nodes[first : last + 1]:
        if node in chosen:
            outer = next((tensor for tensor in node.inputs if tensor in later), None)
            if outer is not None:
                raise GraphError(
                    f"{node!r} reads {outer!r}, which depends on the nodes to outline, but is not one of them"
                )
        elif any(tensor in later or tensor in made for tensor in node.inputs):
            after.append(node)
            later.update(node.outputs)
        else:
            before.append(node)
    return inside, before, [*after, *ir.nodes[last + 1 :]]


def read_by(nodes: Sequence[OpNode]) -> list[TensorMeta]:
    """Return the tensors that nodes read but do not produce, in order of first use."""
    made = {tensor for node in nodes for tensor in node.outputs}
    return list(dict.fromkeys(tensor for node in nodes for tensor in node.inputs if tensor not in made))


def given_by(nodes: Sequence[OpNode]) -> list[TensorMeta]:
    """Return the tensors that nodes produce and other nodes, or the graph outputs, read."""
    chosen = set(nodes)
    made = (tensor for node in nodes for tensor in node.outputs)
    return [tensor for tensor in made if any(reader not in chosen for reader in tensor._uses)]


def called_by(nodes: Iterable[OpNode]) -> list[FunctionRef]:
    """Return the functions that nodes reference, each once."""
    refs = (value for node in nodes for value in values_in(node.attrs) if isinstance(value, FunctionRef))
    return list(dict.fromkeys(refs))


def further_entries(ir: IR) -> dict[str, IR]:
    """Return the functions that no node calls: further entry points over the same weights, such as `decode`."""
    called = set(called_by(ir.nodes))
    return {name: body for name, body in ir.functions.items() if name not in called}


def calls_by_function(ir: IR) -> dict[str, list[OpNode]]:
    """Map each function that is only called to its calls; functions used by control flow operators are excluded."""
    calls: dict[str, list[OpNode]] = {}
    for node in ir.nodes:
        if node.is_call:
            calls.setdefault(node.attrs["function"], []).append(node)
    steering = called_by(node for node in ir.nodes if not node.is_call)
    return {name: found for name, found in calls.items() if name not in steering}


def origins_in(call: OpNode, body: IR) -> list[tuple[str, ...]]:
    """Return the captured nodes that each node of a body represents, for one call."""
    count = sum(len(node.origins) for node in body.nodes)
    captured = iter(call.origins if count == len(call.origins) else ())
    return [tuple(islice(captured, len(node.origins))) or node.origins for node in body.nodes]


def retell_origins(calls: Iterable[OpNode], before: Sequence[str], body: IR) -> None:
    """Update the origins of calls after their body was rewritten; `before` are the body's origins until then."""
    left = [name for node in body.nodes for name in node.origins]
    for call in calls:
        if len(call.origins) == len(before):
            now = dict(zip(before, call.origins, strict=True))
            call.origins = tuple(now.get(name, name) for name in left) or call.origins


def holds_modules(body: IR) -> bool:
    """Whether a body belongs to a block: a module that ran other modules."""
    return any(node.origin.module for node in body.nodes)


def op_counts(ir: IR, *, with_branches: bool = False) -> Counter[str]:
    """Return how often each operator would occur if every call were inlined; each body is visited once.

    With `with_branches`, the bodies of control flow operators count, too, each once.
    """
    inside = {name: op_counts(body, with_branches=with_branches) for name, body in ir.functions.items()}
    counts: Counter[str] = Counter()
    runs: Counter[FunctionRef] = Counter()
    for node in ir.nodes:
        named = called_by([node]) if with_branches or node.is_call else ()
        bodies = [name for name in named if name in inside]
        for name in bodies:
            if name not in runs:
                counts.update(dict.fromkeys(inside[name], 0))  # operators in the order in which they first occur
            runs[name] += 1
        if not node.is_call or not bodies:
            counts[node.op_type] += 1
    for name, times in runs.items():
        counts.update({op: times * count for op, count in inside[name].items()})
    return counts


def drop_unused(ir: IR, names: Iterable[str]) -> None:
    """Remove those of these functions that no node references any more."""
    called = set(called_by(ir.nodes)) if (names := list(names)) else set()
    for name in names:
        if name not in called:
            ir.functions.pop(name, None)


def _put_inline(ir: IR, calls: Sequence[OpNode]) -> list[OpNode]:
    """Replace these calls by their bodies; return the added nodes."""
    names = list(dict.fromkeys(_function_of(ir, call) for call in calls))
    place = _Place(ir, calls)
    for name in names:
        place.adopt(ir, name)
    chosen = set(calls)
    added: list[OpNode] = []
    nodes: list[OpNode] = []
    for node in ir.nodes:
        new = place.body(ir.functions[node.attrs["function"]], node) if node in chosen else [node]
        nodes += new
        added += new if node in chosen else []
    ir.nodes = nodes
    for symbol in ir.symbols.values():
        if symbol.tensor is not None:
            symbol.tensor = place.moved.get(symbol.tensor, symbol.tensor)
    drop_unused(ir, names)
    return added


def _function_of(ir: IR, call: OpNode) -> str:
    name = call.attrs.get("function")
    if not isinstance(name, FunctionRef) or name not in ir.functions:
        raise GraphError(f"{call!r} does not call a function of the graph")
    if ir.functions[name].symbols or ir.functions[name].params:
        raise GraphError(f"function {str(name)!r} has symbols or weights of its own and cannot be inlined")
    return name


class _Place:
    """The names that are taken in the graph into which bodies are inlined."""

    def __init__(self, ir: IR, calls: Sequence[OpNode]) -> None:
        self.tensors = Names(tensor.name for tensor in ir.tensors())
        self.nodes = Names({node.name for node in ir.nodes} - {call.name for call in calls})
        self.captured = captured_names(ir)
        self.functions = Names(ir.functions)
        self.renamed: dict[IR, dict[str, FunctionRef]] = {}
        self.moved: dict[TensorMeta, TensorMeta] = {}  # output of a call -> the tensor that it is now

    def adopt(self, ir: IR, name: str) -> None:
        """Copy the functions of a function to the graph, under free names."""
        body = ir.functions[name]
        self.renamed[body] = adopt_functions(ir, body, body.functions, self.functions)

    def body(self, body: IR, call: OpNode) -> list[OpNode]:
        """Return the nodes of a body for one call, named after the nodes that the call represents."""
        given = dict(zip(call.args, call.inputs, strict=True))
        copies = {tensor: given[tensor.name] for tensor in body.graph_inputs}
        results = {inner: outer.copy() for inner, outer in zip(body.graph_outputs, call.outputs, strict=True)}
        added = []
        for node, own in zip(body.nodes, origins_in(call, body), strict=True):
            name = fresh(own[0] if node.origins == (node.name,) else node.name, self.nodes)
            for tensor in node.outputs:
                copies[tensor] = results.get(tensor) or tensor.copy(self._tensor_name(tensor, node, name))
            added.append(node.copy(copies.__getitem__, name))
            added[-1].origin, added[-1].origins = placed_in(call.origin, node.origin), own
            if body.functions:
                added[-1].attrs = renamed_functions(node.attrs, self.renamed[body])
        for inner, outer in zip(body.graph_outputs, call.outputs, strict=True):
            outer.replace_all_uses_with(copies[inner])
            self.moved[outer] = copies[inner]
        call.inputs = ()
        return added

    def _tensor_name(self, tensor: TensorMeta, node: OpNode, name: str) -> str:
        """Rename `split_1` of the node `split` to `split_7_1` if the node is now called `split_7`."""
        if not tensor.name.startswith(node.name):
            return fresh(tensor.name, self.tensors)
        return fresh(element_name(name, tensor.name[len(node.name) :], self.captured), self.tensors)


def adopt_functions(ir: IR, body: IR, wanted: Iterable[str], taken: Names) -> dict[str, FunctionRef]:
    """Copy functions of a body to the graph that calls it, under free names; return the new names."""
    names = {name: FunctionRef(fresh(name, taken)) for name in wanted}
    ir.functions.update((new, body.functions[name].clone()) for name, new in names.items())
    return names


def renamed_functions(value: Any, names: Mapping[str, FunctionRef]) -> Any:
    """Return attributes with other names of functions, also in lists, as `flex_attention` has them."""
    if isinstance(value, FunctionRef):
        return names[value]
    if isinstance(value, (list, tuple)):
        return type(value)(renamed_functions(item, names) for item in value)
    return {key: renamed_functions(item, names) for key, item in value.items()} if isinstance(value, dict) else value


def captured_names(ir: IR) -> set[str]:
    """Return the names of all captured nodes, including those inside calls."""
    return {name for node in ir.nodes for name in node.origins}


def element_name(node: str, suffix: str, captured: set[str]) -> str:
    """Return the name of a node's output: one of several has a number, and `_` if a node has that name."""
    if not suffix:
        return node
    name = node + suffix.rstrip("_")
    while name in captured:
        name += "_"
    return name
