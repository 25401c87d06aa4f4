"""A graph as a Python file: a class of plain ATen calls that needs torch and nothing else.

to_python(ir, "net.py")
net = importlib.import_module("net").Net()
net.load_state_dict(weights, assign=True)
"""

from __future__ import annotations

import os

from torch_ir.ir import IR
from torch_ir.ir.files.atomic_write import is_stream, real_target
from torch_ir.ir.files.side_file import write_pair


def to_python(ir: IR, path: str | os.PathLike[str] | None = None) -> str:
    """The source of a module `Net` that computes the graph, is called as the model is, and has its state dict.

    Functions of the graph, such as repeated blocks, fused operators and the bodies of loops, are functions there. With
    a path the text is written to that file, and large constants to a `.safetensors` file beside it; without one, they
    are in the text. Nothing that a graph says becomes code but numbers, quoted strings and cleaned names.
    """
    from torch_ir.targets.python.python_module import write_source

    target = None if path is None else real_target(path)
    text, side = write_source(ir, None if target is None or is_stream(target) else target)
    if target is not None:
        write_pair(target, text.encode(), side)
    return text
