"""Back ends: one table of them, each compiling a graph to a callable with the model's signature."""

# they register themselves, in the order listed
from torch_ir.backends import interpreter, onednn, inductor, onnxruntime, openvino, iree, auto  # noqa: F401, I001  # fmt: skip
from torch_ir.backends.compiled import Compiled, compile
from torch_ir.backends.table import Backend, find_backend, installed_backends, list_backends, register_backend

__all__ = ["Backend", "Compiled", "compile", "find_backend", "installed_backends", "list_backends", "register_backend"]
