"""Texts that a written Python module begins with: always the classes, the rest where it is used."""

from __future__ import annotations

import builtins

# which part of the standard library a text speaks of -> the line that imports it
IMPORTS = {name: f"import {name}" for name in ("base64", "collections", "functools", "math", "pathlib")}

# parts of torch that register operators only when they are imported
PROVIDERS = {"quantized_decomposed": "import torch.ao.quantization.fx._decomposed  # noqa: F401  # it has operators"}

CLASSES = '''
class Part(nn.Module):
    """A place in the state dict; what is in it can also be asked for in brackets."""

    def __getitem__(self, name):
        return getattr(self, str(name))


def holder(module, key):
    """The part that a state-dict key is in, which is made where it is missing, and the name there."""
    *path, name = key.split(".")
    for step in path:
        if step not in module._modules:
            module.register_module(step, Part())
        module = module._modules[step]
    return module, name


def parameter(module, tensor, *keys):
    """Let a module have a parameter under its keys; several where weights are tied."""
    weight = nn.Parameter(tensor, requires_grad=False)
    for part, name in (holder(module, key) for key in keys):
        part.register_parameter(name, weight)


def buffer(module, tensor, *keys, persistent=True):
    """Let a module have a buffer under its keys; one that is not persistent is in no state dict."""
    for part, name in (holder(module, key) for key in keys):
        part.register_buffer(name, tensor, persistent)
'''
# what no function of a graph may be called, because the rest of the file speaks of it
GLOBALS = frozenset(["Part", "holder", "parameter", "buffer", "Net", "nn", "stored", *IMPORTS, *dir(builtins)])

HELPERS = {
    "flat": '''
def flat(result):
    """The results of an operator in one list, absent ones left out."""
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in flat(part)]
    return [] if result is None else [result]
''',
    "items": '''
def items(value):
    """What torch finds in a container of a class that was registered with it."""
    if isinstance(value, (tuple, list)):
        return value
    return torch.utils._pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]
''',
    "expect": '''
def expect(value, captured):
    """Refuse an argument that the model was not captured for."""
    if value is not captured and value != captured:
        raise ValueError(f"an argument is {value!r}, but the model was captured for {captured!r}")
''',
    "Record": '''
class Record(dict):
    """What the model returns as an object: a dict whose fields are also attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
''',
    "named_tuple": '''
@functools.cache
def named_tuple(name, fields):
    """A named tuple as the model returns it; fields that Python does not take get others."""
    return collections.namedtuple(name, fields, rename=True)
''',
    "decision": '''
def decision(value, assumed, place):
    """Refuse data on which the model would decide otherwise than it did when it was captured."""
    found = value.item()
    if found != assumed and (found == found or assumed == assumed):
        raise ValueError(f"{place}: the model was captured where the value is {assumed}, and here it is {found}")
''',
    "fixed_shape": '''
def fixed_shape(value, shape, place):
    """Refuse data of which the model makes other sizes than it did when it was captured."""
    if list(value.shape) != list(shape):
        raise ValueError(f"{place}: the model was captured where the shape is {shape}, and here it is {value.shape}")
''',
    "constant": '''
def constant(raw, dtype, shape):
    """A tensor with these bytes."""
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)
''',
}
