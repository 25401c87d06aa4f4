"""All state of torch and Python that a capture changes temporarily, in a comparable form."""

import builtins
import logging
import math
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._functorch import eager_transforms, vmap

from torch_ir.capture import instrument, quiet

_PATCHED = [
    (nn.Module, "__call__"),
    (nn.Module, "__getattr__"),
    (torch.autocast, "__enter__"),
    (vmap, "_vmap_increment_nesting"),
    (eager_transforms, "_grad_increment_nesting"),
    (eager_transforms, "_jvp_increment_nesting"),
    (eager_transforms, "_func_increment_nesting"),
    (torch.Tensor, "stride"),
    (torch.Tensor, "is_contiguous"),
    (torch.SymBool, "__bool__"),
    (torch.fx._symbolic_trace._Patcher, "patch_method"),
    (torch.fx._symbolic_trace, "_is_fx_tracing_flag"),
    (torch.compiler, "_is_compiling_flag"),
    (torch.compiler, "_is_exporting_flag"),
    (logging.Logger, "handle"),
    (threading.Thread, "start"),
    (builtins, "max"),
    (builtins, "min"),
    (math, "pow"),
    (sys, "stderr"),
]
_ASKED = (torch.compiler.is_compiling, torch.compiler.is_exporting, torch.fx._symbolic_trace.is_fx_symbolic_tracing)


def torch_state() -> dict[str, Any]:
    """Everything that capture changes for a while, by identity where it is an object."""
    from torch._dynamo import eval_frame
    from torch.export import _trace

    patched = [
        *_PATCHED,
        (eval_frame, "_stance"),
        (_trace, "_compiling_state_context"),
        (_trace, "_override_builtin_ops"),
    ]
    held = {f"{owner.__name__}.{name}": vars(owner).get(name, "inherited") for owner, name in patched}
    hooks = nn.modules.module
    return {
        **held,
        "codes": [function.__code__ for function in _ASKED],
        "libraries": [
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch._C._get_nnpack_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
        ],
        "hooks": (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)),
        "levels": [logging.getLogger(name).level for name in quiet._CHATTY],
        "filters": [id(entry) for entry in warnings.filters],
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "keys": (str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())),
        "undo": list(instrument._undo),
    }


@contextmanager
def untouched() -> Iterator[None]:
    """Torch's state is unchanged, whatever happened."""
    before = torch_state()
    yield
    after = torch_state()
    assert {name: after[name] for name in after if after[name] != before[name]} == {}
