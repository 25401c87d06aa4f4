"""Adversarial graphs with awkward signatures: inputs, outputs, functions, symbols, meshes, names and origins."""

from tests.adversarial.nodes import add, call, cat, chain, op_node, unary
from tests.graphs import tensor, weight
from torch_ir.ir import IR, Branch, Expr, FunctionRef, OpNode, Origin, Slot, Symbol, TensorMeta
from torch_ir.ir.graph.tensor import Param
from torch_ir.ir.json.encode import MAX_FUNCTION_DEPTH

_TREE_LEVELS = 20
_AXES = 40
_OUTER = 40
_ATTENTION = {"dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def double_tower(n: int) -> IR:
    """Functions that each call the next one twice, as many levels deep as a file may have."""
    levels = min(n, MAX_FUNCTION_DEPTH - 1)
    function, name = _unary_body(), ""
    for level in range(levels):
        x, name = tensor("x", 2, 3), f"f{level}"
        first = call("first", name, x)
        second = call("second", name, first.output)
        rest = chain(second.output, n // levels, unary)
        function = IR([first, second, *rest], [x], [rest[-1].output], functions={name: function})
    return function


def _unary_body() -> IR:
    x = tensor("x", 2, 3)
    made = unary(0, x)
    return IR([made], [x], [made.output])


def changed_inputs(n: int) -> IR:
    """n inputs, each replaced by the sum of it and the next."""
    inputs = [tensor(f"x{index}", 2, 3) for index in range(n)]
    nodes = [add(f"y{index}", one, inputs[index - 1]) for index, one in enumerate(inputs)]
    pairs = [(one, node.output) for one, node in zip(inputs, nodes, strict=True)]
    return IR(nodes, inputs, [nodes[-1].output], mutations=pairs)


def one_output(n: int) -> IR:
    """A chain of n operators whose result is an output n times."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, unary)
    return IR(nodes, [x], [nodes[-1].output] * n)


def entry_points(n: int) -> IR:
    """n functions that nothing calls: entry points over the same weight."""
    ir = _with_weight()
    bodies = {f"entry{index}": _with_weight() for index in range(n)}
    return IR(ir.nodes, ir.graph_inputs, ir.graph_outputs, params=ir.params, functions=bodies)


def _with_weight() -> IR:
    x, held = tensor("x", 2, 3), weight("w", 2, 3)
    made = add("y0", x, held)
    return IR([made], [x], [made.output], params=[held])


def mapped_entries(n: int) -> IR:
    """n outputs, and a second entry point with as many inputs that takes them all."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, unary)
    inputs = [tensor(f"in{index}", 2, 3) for index in range(n)]
    sums = chain(inputs[0], n - 1, lambda i, t: add(f"z{i}", t, inputs[i + 1]))
    names = [source.name for source in inputs]
    second = IR(sums, inputs, [sums[-1].output], input_tree=_keywords(names))
    edges = [{"from": "first", "to": "second", "argument": name, "place": str(at)} for at, name in enumerate(names)]
    described = {"graphs": {"first": ["x"], "second": names}, "edges": edges}
    outputs = [node.output for node in nodes]
    return IR(nodes, [x], outputs, functions={"second": second}, extensions={"entry_points": described})


def cached_layers(n: int) -> IR:
    """A language model whose cache has n tensors, which prefill and decode return and decode takes."""
    x, token = tensor("x", 2, 3), tensor("x", 2, 3)
    places = [f"layers.{index}.key" for index in range(n)]
    past = [tensor(f"past{index}", 2, 3) for index in range(n)]
    new = [add(f"y{index}", token, held) for index, held in enumerate(past)]
    cache = Branch("dict", tuple(map(Slot, range(n))), tuple(places))
    tree = Branch("dict", (cache,), ("cache",))
    taken = Branch("dict", (Slot(0), Branch("dict", tuple(map(Slot, range(1, n + 1))), tuple(places))), ("x", "cache"))
    inputs = Branch("tuple", (Branch("tuple", ()), taken))
    decode = IR(new, [token, *past], [node.output for node in new], input_tree=inputs, output_tree=tree)
    nodes = chain(x, n, unary)
    return IR(nodes, [x], [node.output for node in nodes], output_tree=tree, functions={"decode": decode})


def attention_layers(n: int) -> IR:
    """A language model of n // 4 layers, each with a mask of its own, made of the mask before."""
    tokens = TensorMeta("input_ids", ("batch", "seq"), "int64")
    table = weight("table", 16, 8)
    none = {"dtype": None, "layout": None, "device": None, "pin_memory": None}
    seq = Expr("seq")
    places = op_node("places", "arange.default", [], ("seq",), end=seq, **none)
    column = op_node("column", "unsqueeze.default", [places.output], ("seq", 1), dim=1)
    mask = op_node("mask", "ge.Tensor", [column.output, places.output], ("seq", "seq"))
    for node, dtype in ((places, "int64"), (column, "int64"), (mask, "bool")):
        node.output.dtype = dtype
    attrs = {"padding_idx": -1, "scale_grad_by_freq": False, "sparse": False}
    made = [TensorMeta("rows", ("batch", "seq", 8), "float32")]
    rows = OpNode("rows", "aten.embedding.default", [table, tokens], made, attrs, args=["weight", "indices"])
    heads = op_node("heads", "unsqueeze.default", [rows.output], ("batch", 1, "seq", 8), dim=1)
    nodes, entries, hidden, seen = [places, column, mask, rows, heads], [], heads.output, mask.output
    for layer in range(max(1, n // 4)):
        key, value = (op_node(f"{op}{layer}", f"{op}.default", [hidden], hidden.shape) for op in ("relu", "neg"))
        own = op_node(f"mask{layer}", "logical_and.default", [seen, mask.output], ("seq", "seq"))
        parts, attrs = [hidden, key.output, value.output, own.output], _ATTENTION
        args, made = ["query", "key", "value", "attn_mask"], [TensorMeta(f"y{layer}", hidden.shape, "float32")]
        mixed = OpNode(f"y{layer}", "aten.scaled_dot_product_attention.default", parts, made, attrs, args=args)
        nodes += [key, value, own, mixed]
        entries += [key.output, value.output]
        hidden, seen = mixed.output, own.output
    names = [f"layers.{layer}.{part}" for layer in range(len(entries) // 2) for part in ("key", "value")]
    cache = Branch("dict", tuple(map(Slot, range(1, len(entries) + 1))), tuple(names))
    symbols = [Symbol(name, tensor=tokens, dim=dim) for dim, name in enumerate(("batch", "seq"))]
    return IR(
        nodes, [tokens], [hidden, *entries], params=[table], symbols=symbols, input_tree=_keywords(["input_ids"]),
        output_tree=Branch("dict", (Slot(0), cache), ("logits", "cache")),
    )  # fmt: skip


def empty_joins(n: int) -> IR:
    """Empty pieces of n // 3 results, joined one after the other: the last depends on all, and nothing is moved."""
    x, nodes = tensor("x", 4), []
    for index in range(max(1, n // 3)):
        made = op_node(f"y{index}", "relu.default", [x], (4,))
        piece = op_node(f"z{index}", "slice.Tensor", [made.output], (0,), dim=0, start=0, end=0, step=1)
        last = nodes[-1].output if nodes else piece.output
        nodes += [made, piece, cat(f"c{index}", [last, piece.output], 0)]
    return IR(nodes, [x], [nodes[-1].output])


def _keywords(names: list[str]) -> Branch:
    return Branch("tuple", (Branch("tuple", ()), Branch("dict", tuple(map(Slot, range(len(names)))), tuple(names))))


def nested_outputs(n: int) -> IR:
    """n outputs, each below many dicts."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, unary)
    trees: list[object] = []
    for index in range(n):
        tree: object = Slot(index)
        for level in range(_TREE_LEVELS):
            tree = Branch("dict", (tree,), (f"key{level}",))
        trees.append(tree)
    tree = Branch("list", tuple(trees))
    return IR(nodes, [x], [node.output for node in nodes], output_tree=tree)


def many_arguments(n: int) -> IR:
    """A function of n arguments, called n // 64 times."""
    count = min(n, 64)
    inputs = [tensor("x", 2, 3), *(tensor(f"x{index}", 2, 3) for index in range(1, count))]
    body = chain(inputs[0], count - 1, lambda i, t: add(f"y{i}", t, inputs[i + 1]))
    function = IR(body, inputs, [body[-1].output])
    given = [one.copy() for one in inputs]
    nodes = chain(given[0], max(1, n // 64), lambda i, t: call(f"z{i}", "f", t, *given[1:]))
    return IR(nodes, given, [nodes[-1].output], functions={"f": function})


def branches(n: int) -> IR:
    """n // 2 conditions, one after the other, each with two functions of its own."""
    x, condition = tensor("x", 2, 3), TensorMeta("condition", (), "bool")
    args = ["pred", "operands.0"]

    def step(index: int, source: TensorMeta) -> OpNode:
        attrs = {"true_fn": FunctionRef(f"yes{index}"), "false_fn": FunctionRef(f"no{index}")}
        outputs = [tensor(f"y{index}", 2, 3)]
        return OpNode(f"y{index}", "higher_order.cond", [condition, source], outputs, attrs, args=args)

    nodes = chain(x, max(1, n // 2), step)
    functions = {f"{word}{index}": _unary_body() for index in range(len(nodes)) for word in ("yes", "no")}
    return IR(nodes, [condition, x], [nodes[-1].output], functions=functions)


def constraints(n: int) -> IR:
    """n constraints on one open size."""
    x = tensor("x", "s", 3)
    nodes = chain(x, n, unary)
    texts = [f"s != {index + 2}" for index in range(n)]
    return IR(nodes, [x], [nodes[-1].output], symbols=[Symbol("s", tensor=x, dim=0)], constraints=texts)


def linked_symbols(n: int) -> IR:
    """n open sizes, each one more than the size before, by constraints."""
    inputs = [tensor(f"x{index}", f"s{index}") for index in range(n)]
    nodes = [unary(index, source) for index, source in enumerate(inputs)]
    symbols = [Symbol(f"s{index}", tensor=source, dim=0) for index, source in enumerate(inputs)]
    texts = [f"s{index} == s{index - 1} + 1" for index in range(1, n)]
    return IR(nodes, inputs, [node.output for node in nodes], symbols=symbols, constraints=texts)


def sizes_from_data(n: int) -> IR:
    """n // 2 results whose sizes depend on data."""
    x = tensor("x", 4)
    nodes, symbols = [], []
    for index in range(max(1, n // 2)):
        found = op_node(f"y{index}", "nonzero.default", [x], (f"u{index}", 1))
        found.output.dtype = "int64"
        nodes += [found, op_node(f"z{index}", "neg.default", [found.output], found.output.shape)]
        symbols.append(Symbol(f"u{index}", 0, None, found.output, 0))
    return IR(nodes, [x], [node.output for node in nodes[1::2]], symbols=symbols)


def placements(n: int) -> IR:
    """A chain of n operators over a mesh of 40 axes."""
    everywhere = ("replicate",) * _AXES
    x = TensorMeta("x", (2, 3), "float32", placement=everywhere)
    nodes = chain(x, n, unary)
    for node in nodes:
        node.output.placement = everywhere
    return IR(nodes, [x], [nodes[-1].output], mesh={f"a{index}": 1 for index in range(_AXES)})


def long_names(n: int) -> IR:
    """A chain of n operators whose names are long, with combining characters, and differ at the end only."""
    x = tensor("x", 2, 3)

    def step(index: int, source: TensorMeta) -> OpNode:
        name = "e\u0301" * 100 + f"_{index}"
        return op_node(name, "relu.default", [source], (2, 3))

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output])


def tied_keys(n: int) -> IR:
    """One weight under n keys, and n operators that read it."""
    x = tensor("x", 2, 3)
    held = TensorMeta(
        "w", (2, 3), "float32", param=Param(tuple(f"layers.{index}.w" for index in range(n)), "parameter")
    )
    nodes = chain(x, n, lambda i, t: add(f"y{i}", t, held))
    return IR(nodes, [x], [nodes[-1].output], params=[held])


def many_origins(n: int) -> IR:
    """A chain of n operators, each of which replaces 30 captured nodes."""
    x = tensor("x", 2, 3)
    nodes = chain(x, n, unary)
    for index, node in enumerate(nodes):
        node.origins = [f"captured_{index}_{part}" for part in range(30)]
    return IR(nodes, [x], [nodes[-1].output])


def repeated_calls(n: int) -> IR:
    """A chain of n operators, each in another call of each of 40 enclosing modules."""
    x = tensor("x", 2, 3)
    paths = [".".join(f"m{level}" for level in range(count)) for count in range(1, _OUTER + 1)]

    def step(index: int, source: TensorMeta) -> OpNode:
        outer = tuple(f"{path}@{index + 1}" for path in paths[:-1])
        return unary(index, source, Origin(paths[-1], index, "Deep", f"model.py:{index}", outer, f"torch.f@{index}"))

    nodes = chain(x, n, step)
    return IR(nodes, [x], [nodes[-1].output])


def near_equal_blocks(n: int) -> IR:
    """Layers of eight operators each, of which only the last one differs."""
    x = tensor("x", 2, 3)

    def step(index: int, source: TensorMeta) -> OpNode:
        layer, place = divmod(index, 8)
        origin = Origin(f"layers.{layer}.part{place}", 0, "Part")
        if place == 7:
            name = f"y{index}"
            return op_node(name, "add.Scalar", [source], source.shape, other=layer, alpha=1, origin=origin)
        return unary(index, source, origin)

    nodes = chain(x, 8 * max(1, n // 8), step)
    return IR(nodes, [x], [nodes[-1].output])


INTERFACES = (
    double_tower, changed_inputs, one_output, entry_points, mapped_entries, cached_layers, nested_outputs,
    many_arguments, branches, constraints, linked_symbols, sizes_from_data, placements, long_names, tied_keys,
    many_origins, repeated_calls, near_equal_blocks, attention_layers, empty_joins,
)  # fmt: skip
