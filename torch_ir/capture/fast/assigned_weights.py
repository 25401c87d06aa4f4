"""Assignments to parameters and buffers in forward become writes at the end of the recorded run."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_ir.capture.fast.shape_tensors import Ghost, NotCoveredError
from torch_ir.errors import Cause
from torch_ir.ops.torch_internals import pytree

if TYPE_CHECKING:
    from torch_ir.capture.fast.shape_recorder import Recorder

Place = tuple[MutableMapping[str, Any], str, Any]  # a table, a name in it, and the value there
_CASTS = ("aten.to.", "aten._to_copy.", "aten.alias.", "aten.detach.", "aten._assert_tensor_metadata.")


def write_assigned(recorder: Recorder, places: Sequence[Place], returned: Any) -> Any:
    """Record `self.mean = new` as a write; return the results of the run, apart from the memory that it writes to.

    A buffer that gets another shape or dtype is a cache, and is not written; its old value must not have been read.
    """
    assigned = []
    for table, name, old in places:
        new = table.get(name)
        if new is old or type(old) is not Ghost:
            continue
        table[name] = old
        new = recorder.known(new)
        if type(new) is not Ghost:
            raise NotCoveredError(f"forward replaces {name!r}, a parameter or buffer, by something else than a tensor")
        if (new.form.shape, new.form.dtype) == (old.form.shape, old.form.dtype):
            assigned.append((old, new))
        elif any(old.value in step.inputs and not step.rule.op_type.startswith(_CASTS) for step in recorder.tape.steps):
            raise NotCoveredError(
                f"forward reads the buffer {name!r} and assigns a tensor of another shape or dtype to it",
                cause=Cause.BUFFER_CHANGES_FORM,
            )
    if not assigned:
        return returned
    memory = recorder.tape.memory
    written = {memory[old.value] for old, _ in assigned}

    def apart(tensor: Any) -> Any:
        tensor = recorder.known(tensor)
        return tensor.clone() if type(tensor) is Ghost and memory[tensor.value] in written else tensor

    with recorder:
        returned = pytree.tree_map_only(torch.Tensor, apart, returned)
        for (old, _), new in zip(assigned, [apart(new) for _, new in assigned], strict=True):
            old.copy_(new)
    return returned
