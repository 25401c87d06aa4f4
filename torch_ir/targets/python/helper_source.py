"""Source of the helpers in a generated Python module: always the classes, the rest if used."""

from __future__ import annotations

import builtins

# standard modules that the source may use -> their imports
IMPORTS = {name: f"import {name}" for name in ("base64", "collections", "functools", "math", "pathlib")}

# parts of torch that register operators on import
PROVIDERS = {"quantized_decomposed": "import torch.ao.quantization.fx._decomposed  # noqa: F401  # registers operators"}

CLASSES = '''
class Part(nn.Module):
    """A part of the state dict; its items are also accessible by subscript."""

    def __getitem__(self, name):
        return getattr(self, str(name))


def holder(module, key):
    """Return the part that contains a state-dict key, created if missing, and the name there."""
    *path, name = key.split(".")
    for step in path:
        if step not in module._modules:
            module.register_module(step, Part())
        module = module._modules[step]
    return module, name


def parameter(module, tensor, *keys):
    """Register a parameter under its keys; tied weights have several."""
    weight = nn.Parameter(tensor, requires_grad=False)
    for part, name in (holder(module, key) for key in keys):
        part.register_parameter(name, weight)


def buffer(module, tensor, *keys, persistent=True):
    """Register a buffer under its keys."""
    for part, name in (holder(module, key) for key in keys):
        part.register_buffer(name, tensor, persistent)
'''
# names that the file uses, so that no function of a graph may have them
GLOBALS = frozenset(["Part", "holder", "parameter", "buffer", "Net", "nn", "stored", *IMPORTS, *dir(builtins)])

HELPERS = {
    "flat": '''
def flat(result):
    """Return the results of an operator as one list, without None."""
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in flat(part)]
    return [] if result is None else [result]
''',
    "items": '''
def items(value):
    """Return the items of a container registered with torch's pytree."""
    if isinstance(value, (tuple, list)):
        return value
    return torch.utils._pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]
''',
    "expect": '''
def expect(value, captured):
    """Raise ValueError for an argument that differs from the captured value."""
    if value is not captured and value != captured:
        raise ValueError(f"an argument is {value!r}, but the model was captured for {captured!r}")
''',
    "Record": '''
class Record(dict):
    """An object that the model returns: a dict whose fields are also attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
''',
    "named_tuple": '''
@functools.cache
def named_tuple(name, fields):
    """Return a named tuple class; invalid field names are replaced."""
    return collections.namedtuple(name, fields, rename=True)
''',
    "given": '''
def given(value, dtype, shape, stride=None, place="", reads_offset=False):
    """Raise ValueError for an input of another dtype or shape, or with strides that `place` in the model reads."""
    if not isinstance(value, torch.Tensor):
        return
    if value.dtype != dtype or tuple(value.shape) != shape:
        raise ValueError(f"the model was captured for {dtype} {list(shape)}, not {value.dtype} {list(value.shape)}")
    stride = torch.empty(shape, device="meta").stride() if stride is None else stride
    moved = any(size != 1 and step != old for size, step, old in zip(shape, value.stride(), stride))
    if place and value.numel() and (moved or (reads_offset and value.storage_offset())):
        raise ValueError(f"{place}: the model was captured for an input with strides {stride} and storage offset 0")
''',
    "decision": '''
def decision(value, assumed, place):
    """Raise ValueError if the data would take another branch than at capture."""
    found = value.item()
    if found != assumed and (found == found or assumed == assumed):
        raise ValueError(f"{place}: the model was captured for the value {assumed}, but here it is {found}")
''',
    "require": '''
def require(holds, condition):
    """Raise ValueError for sizes at which the model computes something else."""
    if not holds:
        raise ValueError(f"the model was captured for inputs with {condition}")
''',
    "fixed_shape": '''
def fixed_shape(value, shape, place):
    """Raise ValueError if a data-dependent size differs from the captured one."""
    if list(value.shape) != list(shape):
        raise ValueError(f"{place}: the model was captured for the shape {shape}, but here it is {value.shape}")
''',
    "fixed_value": '''
def fixed_value(value, expected, place):
    """Raise ValueError if an input differs from the value that it was fixed to."""
    if not torch.equal(value, expected):
        raise ValueError(f"the model was captured for {place} = {expected.tolist()}, but here it is {value.tolist()}")
''',
    "fixed_attribute": '''
def fixed_attribute(value, name, assumed, place):
    """Raise ValueError if an input is not the kind of tensor that the model was captured for."""
    if name == "_is_param":
        found = isinstance(value, torch.nn.Parameter)
    elif name.startswith("."):
        found = any(name[1:] in vars(holder) for holder in (value, *type(value).__mro__))
    else:
        found = getattr(value, name)
        found = found() if callable(found) and name.startswith("is_") else found
        found = found if isinstance(found, (bool, int)) else found is not None
    if found != assumed:
        raise ValueError(f"{place}: the model was captured for an input with {name} {assumed}, but here it is {found}")
''',
    "constant": '''
def constant(raw, dtype, shape):
    """Return a tensor with these bytes."""
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)
''',
}
