"""Convert files of the documented format, which has no header, to the current document.

There, an element of a multi-output node is read through a `getitem` node that lists all outputs and states an index;
here, readers reference the output itself. Such files have no argument names: they are bound by position when torch is
available.
"""

from __future__ import annotations

import re
from typing import Any

from torch_ir.errors import SerializationError, did_you_mean
from torch_ir.ir.json.json_fields import field, optional, typed

GETITEM = "<built-in function getitem>"
Record = dict[str, Any]


def upgrade(document: Record) -> Record:
    """Return the same graph without getitem nodes, with every weight named and every restated field filled in."""
    nodes = [typed(node, dict, f"$.nodes[{index}]") for index, node in enumerate(field(document, "nodes", list, "$"))]
    tables = _weight_tables(document, nodes)
    dtypes = _given_dtypes(document, tables["weight_name_mapping"])
    aliases: dict[str, Record] = {}  # from the output name of a getitem to the record of the tensor that it selects
    kept = []
    for index, node in enumerate(nodes):
        path = f"$.nodes[{index}]"
        inputs = [_read_through(tensor, aliases) for tensor in _tensors(node, "inputs", path)]
        inputs = _with_dtypes(inputs, dtypes, "float32")
        first = inputs[0]["dtype"] if inputs else "float32"
        outputs = _with_dtypes(_tensors(node, "outputs", path), dtypes, first)
        if node.get("op_type") == GETITEM:
            aliases[outputs[0]["name"] if outputs else ""] = _picked(node, inputs, outputs, path)
        else:
            kept.append({**node, "inputs": inputs, "outputs": outputs})
    outputs = [_bare(_read_through(tensor, aliases)) for tensor in _tensors(document, "graph_outputs", "$")]
    return {**document, **tables, "nodes": kept, "graph_outputs": _with_dtypes(outputs, dtypes, "float32")}


def _tensors(record: Record, key: str, path: str) -> list[Record]:
    """Return the tensor records of a key; each has at least a name."""
    found: list[Record] = field(record, key, list, path)
    for index, tensor in enumerate(found):
        field(tensor, "name", str, f"{path}.{key}[{index}]")
    return found


def _read_through(tensor: Record, aliases: dict[str, Record]) -> Record:
    return aliases.get(tensor["name"], tensor)


def _picked(node: Record, inputs: list[Record], outputs: list[Record], path: str) -> Record:
    """Return the input that a getitem selects; its output record must match."""
    index = field(field(node, "attrs", dict, path), "index", int, f"{path}.attrs")
    if not 0 <= index < len(inputs) or len(outputs) != 1:
        raise SerializationError(
            f"getitem index {index} is out of range for {len(inputs)} tensors", f"{path}.attrs.index", rule="R8"
        )
    picked, given = inputs[index], outputs[0]
    if any(picked.get(key) != given.get(key) for key in ("shape", "dtype")):
        message = f"{given['name']!r:.80} does not match {picked['name']!r:.80}, which it selects"
        raise SerializationError(message, f"{path}.outputs[0]", rule="R7")
    return picked


def _bare(record: Record) -> Record:
    return {key: value for key, value in record.items() if not key.startswith("producer")}


def _weight_tables(document: Record, nodes: list[Record]) -> Record:
    """Return the mapping with one entry per weight, in their order, and mark constants as such."""
    names: Record = optional(document, "weight_name_mapping", dict, "$") or {}
    constants: Record = optional(document, "constants", dict, "$") or {}
    read = {tensor["name"] for i, node in enumerate(nodes) for tensor in _tensors(node, "inputs", f"$.nodes[{i}]")}
    ordered = [weight["name"] for weight in _tensors(document, "weights", "$")]
    placeholders = _placeholders(names, dict.fromkeys([*ordered, *constants]))
    mapping = {placeholders.get(key) or _placeholder(key, read): key for key in ordered}
    kinds = {name: {"kind": _kind(name, key, constants)} for name, key in mapping.items()}
    kinds |= optional(document, "params", dict, "$") or {}
    return {"weight_name_mapping": mapping, "params": kinds, "model_name": document.get("model_name", "")}


def _placeholders(names: Record, known: dict[str, None]) -> dict[str, str]:
    """Map the key of a weight to the name that nodes read; an entry without a weight is an error."""
    found: dict[str, str] = {}
    for name, key in names.items():
        path = f"$.weight_name_mapping.{name:.80}"
        if typed(key, str, path) not in known:
            raise SerializationError(f"there is no weight {key!r:.80}{did_you_mean(key, known)}", path, rule="R8")
        if key in found:
            message = f"weight {key!r:.80} has two names, {found[key]!r:.80} and {name!r:.80}"
            raise SerializationError(message, path, rule="R8")
        found[key] = name
    return found


def _placeholder(key: str, read: set[str]) -> str:
    """Return the name under which nodes read a weight without a mapping entry: `fc1.weight` is `p_fc1_weight`."""
    plain = re.sub(r"[^a-zA-Z0-9]", "_", key)
    return next((name for prefix in "pbc" if (name := f"{prefix}_{plain}") in read), key)


def _kind(name: str, key: str, constants: Record) -> str:
    if key in constants or name.startswith("c_"):
        return "constant"
    return "buffer" if name.startswith("b_") else "parameter"


def _given_dtypes(document: Record, mapping: dict[str, str]) -> dict[str, Any]:
    """Return the dtypes of inputs and weights, by the names that nodes read."""
    keys = {key: name for name, key in mapping.items()}
    weights = [{**weight, "name": keys.get(weight["name"], weight["name"])} for weight in document["weights"]]
    return {tensor["name"]: tensor.get("dtype") for tensor in [*_tensors(document, "graph_inputs", "$"), *weights]}


def _with_dtypes(records: list[Record], dtypes: dict[str, Any], default: Any) -> list[Record]:
    """Fill in missing dtypes: that of the tensor of the same name, or else the default."""
    found = []
    for record in records:
        dtype = record["dtype"] if "dtype" in record else dtypes.get(record["name"], default)
        dtypes[record["name"]] = dtype
        found.append({**record, "dtype": dtype})
    return found
