"""Run the graph anywhere: one table of back ends, each called as the model is called."""

# they register themselves, in the order in which they are listed
from torch_ir.backends import interpreter, onednn, inductor, onnxruntime, openvino, iree, auto  # noqa: F401, I001  # fmt: skip
from torch_ir.backends.compiled import Compiled, compile
from torch_ir.backends.table import Backend, find_backend, installed_backends, list_backends, register_backend

__all__ = ["Backend", "Compiled", "compile", "find_backend", "installed_backends", "list_backends", "register_backend"]
