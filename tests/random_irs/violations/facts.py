"""Violations in redundant facts, and uses before definitions (R7, R8)."""

from tests.random_irs.draws import Draw
from tests.random_irs.violations.kinds import Record, graphs, nodes, placed, reads, tables, tagged, violation


@violation("R7")
def a_reader_says_another_shape(draw: Draw, document: Record) -> str | None:
    if not (found := reads(document)):
        return None
    path, tensor = draw.choice(found)
    tensor["shape"] = [*tensor["shape"], 1]
    return f"{path}.shape"


@violation("R7")
def a_reader_says_another_dtype(draw: Draw, document: Record) -> str | None:
    if not (found := reads(document)):
        return None
    path, tensor = draw.choice(found)
    tensor["dtype"] = "int16" if tensor["dtype"] != "int16" else "int8"
    return f"{path}.dtype"


@violation("R7")
def a_reader_says_another_producer(draw: Draw, document: Record) -> str | None:
    if not (found := reads(document, given=False)):
        return None
    path, tensor = draw.choice(found)
    tensor["producer_node"] = f"{tensor['producer_node']}_1"
    return f"{path}.producer_node"


@violation("R7")
def a_reader_says_another_output(draw: Draw, document: Record) -> str | None:
    if not (found := reads(document, given=False)):
        return None
    path, tensor = draw.choice(found)
    tensor["producer_output_idx"] += draw.choice((1, -1, 100))
    return f"{path}.producer_output_idx"


@violation("R7")
def a_result_says_another_shape(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "graph_outputs")):
        return None
    path, graph = draw.choice(found)
    index = draw.randrange(len(graph["graph_outputs"]))
    graph["graph_outputs"][index]["shape"] = [9, *graph["graph_outputs"][index]["shape"]]
    return f"{path}[{index}].shape"


@violation("R7")
def more_names_than_inputs(draw: Draw, document: Record) -> str:
    path, node = draw.choice(nodes(document))
    node["args"] = [*node.get("args", []), "other"]
    return f"{path}.args"


@violation("R7")
def weights_in_another_order(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in tables(document, "weights") if len(graph["weights"]) > 1]
    if not found:
        return None
    path, graph = draw.choice(found)
    graph["weights"].insert(0, graph["weights"].pop())
    return f"{path.removesuffix('.weights')}.weight_name_mapping.{next(iter(graph['weight_name_mapping']))}"


@violation("R7")
def a_weight_without_a_name(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "weights")):
        return None
    path, graph = draw.choice(found)
    graph["weights"].append({"name": "one.more", "shape": [], "dtype": "int8"})
    return f"{path.removesuffix('.weights')}.weight_name_mapping"


@violation("R7")
def a_stride_too_many(draw: Draw, document: Record) -> str | None:
    """Not on an output, whose record there would disagree."""
    results = [tensor["name"] for tensor in document["graph_outputs"]]
    found = [index for index, tensor in enumerate(document["graph_inputs"]) if tensor["name"] not in results]
    if not found:
        return None
    index = draw.choice(found)
    tensor = document["graph_inputs"][index]
    tensor["stride"] = [1] * (len(tensor["shape"]) + 1)
    return f"$.graph_inputs[{index}].stride"


@violation("R7")
def a_placement_without_a_mesh(draw: Draw, document: Record) -> str | None:
    if document.get("mesh") or not document["graph_inputs"]:
        return None
    index = draw.randrange(len(document["graph_inputs"]))
    document["graph_inputs"][index]["placement"] = ["replicate"]
    return f"$.graph_inputs[{index}].placement"


@violation("R7")
def a_result_in_two_places(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    slots = [{"$tensor": index} for index in range(len(graph["graph_outputs"]))]
    graph["output_tree"] = {"tree": {"$branch": "tuple", "items": [*slots, {"$tensor": 0}]}}
    return f"{path}.output_tree.tree"


@violation("R7")
def an_input_in_no_place(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in graphs(document) if graph["graph_inputs"]]
    if not found:
        return None
    path, graph = draw.choice(found)
    empty = {"$branch": "tuple", "items": []}
    graph["input_tree"] = {"$branch": "tuple", "items": [empty, {"$branch": "dict", "items": []}]}
    return f"{path}.input_tree"


@violation("R7")
def keys_that_are_too_few(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["output_tree"] = {"tree": {"$branch": "dict", "items": [1, 2], "keys": ["a"]}}
    return f"{path}.output_tree.tree.keys"


@violation("R7")
def a_call_that_gives_other_arguments(draw: Draw, document: Record) -> str | None:
    found = [(path, node) for path, node in _calls(document) if node["inputs"]]
    if not found:
        return None
    path, node = draw.choice(found)
    index = draw.randrange(len(node["args"]))
    node["args"][index] = f"{node['args'][index]}_other"
    return f"{path}.inputs"


def _calls(document: Record) -> list[tuple[str, Record]]:
    return [(path, node) for path, node in nodes(document) if "function" in node["attrs"]]


@violation("R7")
def a_new_value_of_another_shape(draw: Draw, document: Record) -> str | None:
    """The new value of an input has another shape."""
    made = placed(document)
    changed = {pair["target"] for pair in document.get("mutations", [])}
    pairs = [
        (given, new)
        for given in document["graph_inputs"]
        for new in made
        if (given["shape"], given["dtype"]) != (new["shape"], new["dtype"]) and given["name"] not in changed
    ]
    if not pairs:
        return None
    given, new = draw.choice(pairs)
    pair = {"target": given["name"], "value": new["name"]}
    document["mutations"] = [*document.get("mutations", []), pair]
    return f"$.mutations[{len(document['mutations']) - 1}].value"


@violation("R8")
def two_nodes_of_one_name(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in graphs(document) if len(graph["nodes"]) > 1]
    found = [(path, graph) for path, graph in found if _is_last_unread(graph)]
    if not found:
        return None
    path, graph = draw.choice(found)
    graph["nodes"][-1]["name"] = graph["nodes"][0]["name"]
    return f"{path}.nodes[{len(graph['nodes']) - 1}].name"


def _is_last_unread(graph: Record) -> bool:
    return not any(tensor.get("producer_node") for tensor in graph["nodes"][-1]["outputs"])


@violation("R8")
def two_tensors_of_one_name(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in graphs(document) if graph["graph_inputs"]]
    if not found:
        return None
    path, graph = draw.choice(found)
    graph["graph_inputs"].append(dict(graph["graph_inputs"][0]))
    return f"{path}.graph_inputs[{len(graph['graph_inputs']) - 1}].name"


@violation("R8")
def a_tensor_that_nobody_makes(draw: Draw, document: Record) -> str | None:
    if not (found := reads(document)):
        return None
    path, tensor = draw.choice(found)
    tensor["name"] = "nobody_makes_this"
    tensor.pop("producer_node", None)
    tensor.pop("producer_output_idx", None)
    return path


@violation("R8")
def a_node_before_what_it_reads(draw: Draw, document: Record) -> str | None:
    found = []
    for path, graph in graphs(document):
        names = [node["name"] for node in graph["nodes"]]
        for index, node in enumerate(graph["nodes"]):
            makers = [read.get("producer_node") for read in node["inputs"]]
            found += [(path, graph, index, names.index(maker)) for maker in makers if maker in names]
    if not found:
        return None
    path, graph, reader, maker = draw.choice(found)
    graph["nodes"].insert(maker, graph["nodes"].pop(reader))
    first = graph["nodes"][maker]["inputs"]
    late = {node["name"] for node in graph["nodes"][maker + 1 :]}
    place = next(index for index, read in enumerate(first) if read.get("producer_node") in late)
    return f"{path}.nodes[{maker}].inputs[{place}]"


@violation("R8")
def a_function_that_is_not_there(draw: Draw, document: Record) -> str | None:
    if not (found := tagged(document, "$function")):
        return None
    path, value = draw.choice(found)
    value["$function"] = "not_there"
    return f"{path}.$function"


@violation("R8")
def a_symbol_that_is_not_there(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["constraints"] = [*graph.get("constraints", []), "unknown_size > 1"]
    return f"{path}.constraints[{len(graph['constraints']) - 1}]"


@violation("R8")
def a_symbol_in_an_attribute_that_is_not_there(draw: Draw, document: Record) -> str | None:
    if not (found := tagged(document, "$expr")):
        return None
    path, value = draw.choice(found)
    value["$expr"] = "unknown_size + 1"
    return f"{path}.$expr"


@violation("R8")
def a_symbol_bound_to_nothing(draw: Draw, document: Record) -> str:
    document["symbols"] = {**document.get("symbols", {}), "floating": {"min": 1}}
    return "$.symbols.floating"


@violation("R8")
def a_symbol_without_a_value(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "symbols")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["symbols"]))
    graph["symbols"][name].update(min=5, max=4)
    return f"{path}.{name}"


@violation("R8")
def a_symbol_of_a_dimension_that_is_not_there(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "symbols")):
        return None
    path, graph = draw.choice(found)
    name = draw.choice(list(graph["symbols"]))
    graph["symbols"][name]["dim"] = draw.choice((99, -1))
    return f"{path}.{name}.dim"


@violation("R8")
def a_change_to_what_is_not_there(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["mutations"] = [*graph.get("mutations", []), {"target": "nothing_is_called_so", "value": "x"}]
    return f"{path}.mutations[{len(graph['mutations']) - 1}].target"


@violation("R8")
def a_change_to_what_a_node_makes(draw: Draw, document: Record) -> str | None:
    made = placed(document)
    if not made:
        return None
    name = draw.choice(made)["name"]
    document["mutations"] = [*document.get("mutations", []), {"target": name, "value": name}]
    return f"$.mutations[{len(document['mutations']) - 1}].target"


@violation("R8")
def two_changes_of_one_tensor(draw: Draw, document: Record) -> str | None:
    if not (found := tables(document, "mutations")):
        return None
    path, graph = draw.choice(found)
    graph["mutations"].append(dict(graph["mutations"][0]))
    return f"{path}[{len(graph['mutations']) - 1}].target"


@violation("R8")
def a_graph_without_effect(draw: Draw, document: Record) -> str:
    document["graph_outputs"] = []
    document.pop("mutations", None)
    document.pop("output_tree", None)
    return "$.graph_outputs"


@violation("R8")
def one_argument_twice(draw: Draw, document: Record) -> str | None:
    found = [(path, node) for path, node in nodes(document) if node.get("args")]
    found = [(path, node) for path, node in found if "function" not in node["attrs"]]
    if not found:
        return None
    path, node = draw.choice(found)
    name = draw.choice(node["args"])
    node["attrs"][name] = 1
    return f"{path}.attrs.{name}"


@violation("R8")
def one_key_of_two_weights(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in tables(document, "params") if len(graph["weights"]) > 1]
    found = [(path, graph) for path, graph in found if not graph.get("shared_weights")]
    if not found:
        return None
    path, graph = draw.choice(found)
    first, *_, last = graph["weight_name_mapping"]
    graph["params"][last]["tied"] = [graph["weight_name_mapping"][first]]
    return f"{path}.{last}.tied[0]"


@violation("R8")
def a_shared_weight_that_is_not_there(draw: Draw, document: Record) -> str | None:
    found = [(path, graph) for path, graph in graphs(document) if path != "$"]
    if not found:
        return None
    path, graph = draw.choice(found)
    graph["shared_weights"] = [*graph.get("shared_weights", []), "not_there"]
    return f"{path}.shared_weights[{len(graph['shared_weights']) - 1}]"


@violation("R8")
def a_constant_without_a_weight(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    graph["constants"] = {**graph.get("constants", {}), "no.weight": {"shape": [], "dtype": "int8", "base64": "AA=="}}
    return f"{path}.constants.no.weight"


@violation("R8")
def one_key_of_a_container_twice(draw: Draw, document: Record) -> str:
    path, graph = draw.choice(graphs(document))
    keys = draw.choice((["a", "a"], [1, True], [1, 1.0], [[1], [1]]))
    graph["output_tree"] = {"tree": {"$branch": "dict", "items": [1, 2], "keys": keys}}
    return f"{path}.output_tree.tree.keys"
