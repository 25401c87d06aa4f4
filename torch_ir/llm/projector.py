"""Cut an encoder in two: the tower, and the projector that maps its results to embeddings of the language model."""

from __future__ import annotations

from torch_ir.analysis.dependencies.slices import ancestors, descendants, subgraph
from torch_ir.ir import IR, Branch, Slot
from torch_ir.ir.graph.free_names import Names, fresh
from torch_ir.llm.joined_entries import feature_outputs, keep_outputs

_HIDDEN = "hidden"  # names of the results of a tower: hidden.0, hidden.1, ...


def split_projector(encoder: IR, tower: str, argument: str) -> IR | None:
    """Move what follows the module `tower` to a separate graph, whose input is a dict `argument`; None if it cannot.

    A projector has weights and reads nothing but results of the tower. Sizes that depend on the data stay in one graph.
    """
    inside = [node for node in encoder.nodes if f"{node.origin.module}.".startswith(f"{tower}.")]
    made = [tensor for node in inside for tensor in node.outputs]
    after = set(descendants(encoder, made)).difference(inside)
    needed = {tensor for node in after for tensor in node.inputs}
    if encoder.symbols or not needed.intersection(encoder.params) or after.intersection(ancestors(encoder, made)):
        return None
    outputs = feature_outputs(encoder)
    results = {tensor for node in after for tensor in node.outputs}
    read = [
        tensor for tensor in encoder.tensors() if tensor in needed | set(outputs.values()) and tensor not in results
    ]
    cut = [tensor for tensor in dict.fromkeys(read) if tensor.param is None]
    if any(tensor.producer is None for tensor in cut):
        return None
    projector = subgraph(encoder, cut, outputs.values())
    names = [f"{_HIDDEN}.{at}" for at in range(len(cut))]
    taken = Names(tensor.name for tensor in projector.tensors())
    for name, tensor in zip(names, projector.graph_inputs, strict=True):
        tensor.name = fresh(f"{argument}_{name.replace('.', '_')}", taken)
    given = Branch("dict", tuple(map(Slot, range(len(cut)))), tuple(names))
    projector.input_tree = Branch("tuple", (Branch("tuple", ()), Branch("dict", (given,), (argument,))))
    projector.output_tree = encoder.output_tree
    projector.model_name = f"{encoder.model_name}.projector"
    keep_outputs(encoder, dict(zip(names, cut, strict=True)))
    return projector
