"""Write a graph as a Python file: a class of ATen calls that needs only torch.

to_python(ir, "net.py")
net = importlib.import_module("net").Net()
net.load_state_dict(weights, assign=True)
"""

from __future__ import annotations

import os

from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import is_stream, real_target
from torch_ir.ir.files.side_file import write_pair
from torch_ir.ir.graph.given_graph import require_graph
from torch_ir.ir.regroup.separate_stacks import without_stacks


def to_python(ir: IR, path: str | os.PathLike[str] | None = None) -> str:
    """Return the source of a class `Net` that computes the graph, with the signature and state dict of the model.

    Functions of the graph, such as repeated blocks, fused operators and loop bodies, become Python functions. With a
    path, the text is written to that file and large constants to a `.safetensors` side file; without one, they are in
    the text. Of a graph's texts, only numbers, quoted strings and sanitised names enter the code.
    """
    require_graph(ir, "to_python")
    from torch_ir.safety.validate import validate_file
    from torch_ir.targets.python.python_module import write_source

    validate_file(ir)
    target = None if path is None else real_target(path)
    text, side = write_source(without_stacks(ir), None if target is None or is_stream(target) else target)
    if target is not None:
        write_pair(target, text.encode(), side)
    return text
