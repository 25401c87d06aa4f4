"""Violations in the records of a document: keys, types, closed lists and names (R4, R5, R6)."""

from tests.random_irs.draws import Draw
from tests.random_irs.violations.kinds import Record, graphs, nodes, reads, tables, tagged, tensors, violation

_BAD_NAMES = ("", "a\nb", "\x00", 'a"b', "a'b", "<b>", "a\\b", "`", "\u202e", "\u2028")
_BAD_LINES = ("", "a\nb", "\x00", "\x7f", "\u2028")


@violation("R4")
def unknown_key_of_a_graph(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph[draw.choice(("node", "weight", "exec", "größe"))] = []
    return path


@violation("R4")
def unknown_key_of_a_node(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node[draw.choice(("sauce", "attr", "code"))] = "x"
    return path


@violation("R4")
def unknown_key_of_a_tensor(draw: Draw, document: Record) -> str:
    path, tensor = draw.choice(tensors(document))
    tensor["device"] = "cpu"
    return path


@violation("R4")
def missing_key_of_a_graph(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    del graph[draw.choice(("nodes", "weights", "weight_name_mapping", "graph_inputs", "graph_outputs", "model_name"))]
    return path


@violation("R4")
def missing_key_of_a_node(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    del node[draw.choice(("name", "op_type", "inputs", "outputs"))]
    return path


@violation("R4")
def missing_key_of_a_tensor(draw: Draw, document: Record) -> str:
    path, tensor = draw.choice([*tensors(document), *reads(document)])
    del tensor[draw.choice(("name", "shape", "dtype"))]
    return path


@violation("R4")
def wrong_kind_in_a_graph(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    key = draw.choice(("nodes", "weights", "weight_name_mapping", "graph_inputs", "graph_outputs", "model_name"))
    graph[key] = draw.choice((7, True, None))
    return f"{path}.{key}"


@violation("R4")
def wrong_kind_in_an_optional_table(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    key = draw.choice(("constants", "params", "mutations", "symbols", "constraints", "functions", "modules", "mesh"))
    graph[key] = "text"
    return f"{path}.{key}"


@violation("R4")
def wrong_kind_in_a_node(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    key = draw.choice(("name", "op_type", "inputs", "outputs", "attrs", "args", "call", "module", "origins", "outer"))
    node[key] = draw.choice((0.5, True)) if key != "args" else 3
    return f"{path}.{key}"


@violation("R4")
def wrong_kind_in_a_tensor(draw: Draw, document: Record) -> str:
    path, tensor = draw.choice(tensors(document))
    key = draw.choice(("name", "shape", "dtype", "stride", "placement"))
    tensor[key] = 7
    return f"{path}.{key}"


@violation("R4")
def dimension_that_is_none(draw: Draw, document: Record) -> str | None:
    found = [(path, tensor) for path, tensor in tensors(document) if tensor["shape"]]
    if not found:
        return None
    path, tensor = draw.choice(found)
    index = draw.randrange(len(tensor["shape"]))
    tensor["shape"][index] = draw.choice((-1, -(2**63), 1.0, True, None, [1]))
    return f"{path}.shape[{index}]"


@violation("R4")
def another_format(draw: Draw, document: Record) -> str:
    document["format"] = draw.choice(("onnx", "torch-IR", "", 1))
    return "$.format"


@violation("R4")
def a_newer_version(draw: Draw, document: Record) -> str:
    document["version"] = draw.choice((2, 0, -1, "1", 1.0, 2**40))
    return "$.version"


@violation("R4")
def unknown_key_of_a_mutation(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "mutations")):
        return None
    path, graph = draw.choice(found)
    graph["mutations"][0]["when"] = 1
    return f"{path}[0]"


@violation("R4")
def unknown_key_of_a_symbol(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "symbols")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["symbols"]))
    graph["symbols"][name]["step"] = 1
    return f"{path}.{name}"


@violation("R4")
def unknown_key_of_a_weight(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "params")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["params"]))
    graph["params"][name]["path"] = "/etc/passwd"
    return f"{path}.{name}"


@violation("R4")
def inputs_that_are_no_call(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    slots = [{"$tensor": index} for index in range(len(graph["graph_inputs"]))]
    graph["input_tree"] = {"$branch": "list", "items": slots}
    return f"{path}.input_tree"


@violation("R5")
def unknown_dtype(draw: Draw, document: Record) -> str:
    path, tensor = draw.choice(tensors(document))
    tensor["dtype"] = draw.choice(("float33", "", "Float32", "torch.float32", "object"))
    return f"{path}.dtype"


@violation("R5")
def unknown_dtype_of_an_attribute(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["dtype"] = {"$dtype": "float33"}
    return f"{path}.attrs.dtype.$dtype"


@violation("R5")
def unknown_device_of_a_graph(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["device"] = draw.choice(("gpu", "cuda:", "cuda:-1", "cpu:1:2", "cuda:٣"))
    return f"{path}.device"


@violation("R5")
def unknown_device_of_an_attribute(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["device"] = {"$device": draw.choice(("gpu", "/dev/sda", "cuda:x"))}
    return f"{path}.attrs.device.$device"


@violation("R5")
def unknown_layout(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["layout"] = {"$layout": "sparse"}
    return f"{path}.attrs.layout.$layout"


@violation("R5")
def unknown_memory_format(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["memory_format"] = {"$memory_format": "channels_first"}
    return f"{path}.attrs.memory_format.$memory_format"


@violation("R5")
def unknown_tag(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["attrs"]["extra"] = {draw.choice(("$pickle", "$eval", "$")): "gASV"}
    return f"{path}.attrs.extra"


@violation("R5")
def unknown_kind_of_weight(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "params")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["params"]))
    graph["params"][name]["kind"] = draw.choice(("weight", "Parameter", "optimizer"))
    return f"{path}.{name}.kind"


@violation("R5")
def unknown_kind_of_container(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["output_tree"] = {"tree": {"$branch": "set", "items": []}}
    return f"{path}.output_tree.tree.$branch"


@violation("R5")
def unknown_placement(draw: Draw, document: Record) -> str | None:
    """Not on an output, whose record there would disagree."""
    results = {tensor["name"] for _, graph in graphs(document) for tensor in graph["graph_outputs"]}
    keys = {
        key for _, graph in graphs(document) for name, key in graph["weight_name_mapping"].items() if name in results
    }
    results |= keys  # the record of a weight has its key as its name
    found = [(path, tensor) for path, tensor in tensors(document) if tensor.get("placement")]
    found = [(path, tensor) for path, tensor in found if tensor["name"] not in results]
    if not found:
        return None
    path, tensor = draw.choice(found)
    index = draw.randrange(len(tensor["placement"]))
    tensor["placement"][index] = draw.choice(("shard(9)", "split(0)", "shard(-1)", "partial(median)"))
    return f"{path}.placement[{index}]"


@violation("R6")
def name_of_a_node(draw: Draw, document: Record) -> str | None:
    found = [(path, node) for path, node in nodes(document) if not node["outputs"] or _is_unread(document, node)]
    if not found:
        return None
    path, node = draw.choice(found)
    node["name"] = draw.choice(_BAD_NAMES)
    return f"{path}.name"


def _is_unread(document: Record, node: Record) -> bool:
    return all(read.get("producer_node") != node["name"] for _, read in reads(document))


@violation("R6")
def name_of_a_function(draw: Draw, document: Record) -> str | None:
    found = [path for path, graph in graphs(document) if graph.get("functions")]
    if not found:
        return None
    path = draw.choice(found)
    graph = dict(graphs(document))[path]
    name = draw.choice(_BAD_NAMES)
    graph["functions"][name] = next(iter(graph["functions"].values()))
    return f"{path}.functions.{name}"


@violation("R6")
def name_of_a_model(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    key = draw.choice(("model_name", "pytorch_version"))
    graph[key] = draw.choice(("a\nb", "\x1b[31m", "\u202e", "\u2028"))
    return f"{path}.{key}"


@violation("R6")
def name_of_a_symbol(draw: Draw, document: Record) -> str | None:
    if not document["graph_inputs"]:
        return None
    name = draw.choice(("2x", "a b", "max", "nan", "", "x" * 101))
    document["symbols"] = {name: {"tensor": document["graph_inputs"][0]["name"]}, **document.get("symbols", {})}
    return f"$.symbols.{name}"


@violation("R6")
def name_of_an_axis(draw: Draw, document: Record) -> str | None:
    if document.get("mesh"):
        return None
    name = draw.choice(("a b", "", "1"))
    document["mesh"] = {name: 2}
    return f"$.mesh.{name}"


@violation("R6")
def name_of_an_argument(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    name = draw.choice(_BAD_LINES)
    node["attrs"][name] = 1
    return f"{path}.attrs.{name}"


@violation("R6")
def name_of_an_operator(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["op_type"] = draw.choice((*_BAD_LINES, "return"))
    return f"{path}.op_type"


@violation("R6")
def key_of_a_weight(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "params")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["params"]))
    graph["params"][name]["tied"] = [*graph["params"][name].get("tied", []), draw.choice(_BAD_LINES)]
    return f"{path}.{name}.tied[{len(graph['params'][name]['tied']) - 1}]"


@violation("R1")
def expression_outside_the_language(draw: Draw, document: Record) -> str | None:
    if not (found := tagged(document, "$expr")):
        return None
    path, value = draw.choice(found)
    value["$expr"] = draw.choice(("__import__('os')", "a.b", "x[0]", "1 +", "", "lambda: 1", "a if b else c"))
    return f"{path}.$expr"


@violation("R1")
def dimension_outside_the_language(draw: Draw, document: Record) -> str | None:
    """On an unread tensor; the record of a use would disagree."""
    read = {tensor["name"] for _, tensor in reads(document)}
    read |= {tensor["name"] for _, graph in graphs(document) for tensor in graph["graph_outputs"]}
    found = [(path, tensor) for path, tensor in tensors(document) if tensor["shape"] and ".weights[" not in path]
    found = [(path, tensor) for path, tensor in found if tensor["name"] not in read]
    if not found:
        return None
    path, tensor = draw.choice(found)
    index = draw.randrange(len(tensor["shape"]))
    tensor["shape"][index] = draw.choice(("open('x')", "1 < 2 < 3", "))", "0x10", "a;b"))
    return f"{path}.shape[{index}]"


@violation("R1")
def constraint_outside_the_language(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["constraints"] = [*graph.get("constraints", []), "exit() == 0"]
    return f"{path}.constraints[{len(graph['constraints']) - 1}]"
