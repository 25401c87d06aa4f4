"""Every higher-order operator of torch: a form that captures it, or the reason why torch.export never emits it."""

import importlib
import pkgutil
from typing import Any

import torch
import torch._higher_order_ops as hops
from torch import Tensor, nn
from torch._higher_order_ops import out_dtype
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.strict_mode import strict_mode
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.forms.form import Family

family = Family("higher-order operators")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Q = torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(1))


def layer() -> dict[str, Any]:
    return {"layer": nn.Linear(4, 4)}


# -- attention --------------------------------------------------------------------------------------------------------


@family.forward((Q,), (Q * 2,))
def flex_attention_plain(self: Any, q: Tensor) -> Tensor:
    return flex_attention(q, q, q)


@family.forward((Q,), (Q * 2,))
def flex_attention_with_scores(self: Any, q: Tensor) -> Tensor:
    def causal(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.where(query >= key, score * 2, -float("inf"))

    return flex_attention(q, q, q, score_mod=causal, scale=0.5)


@family.forward((Q,), (Q * 2,), parts=lambda: {"buffers": {"bias": torch.randn(2, 16)}})
def flex_attention_with_a_buffer(self: Any, q: Tensor) -> Any:
    def biased(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + self.bias[head, key]

    return flex_attention(q, q, q, score_mod=biased, return_lse=True)


@family.forward((Q,), (Q * 2,))
def flex_attention_with_a_block_mask(self: Any, q: Tensor) -> Tensor:
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")
    return flex_attention(q, q, q, block_mask=mask)


@family.forward((Q,), (Q * 2,))
def flex_attention_with_literals(self: Any, q: Tensor) -> Tensor:
    def slopes(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + torch.tensor([0.5, 0.25])[head] * (key - query)

    return flex_attention(q, q, q, score_mod=slopes)


@family.forward((Q, Q[:, :1]), (Q * 2, Q[:, 1:]))
def flex_attention_in_groups(self: Any, q: Tensor, k: Tensor) -> Tensor:
    return flex_attention(q, k, k, enable_gqa=True)


# -- bodies -----------------------------------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def region(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).relu() + torch.tensor([1.0, 2.0, 3.0, 4.0])


@family.forward((X,), (-X,), parts=layer, strict_export=True)
def nested_region_called_twice(self: Any, x: Tensor) -> Tensor:
    return region(region(x, self.layer.weight), self.layer.weight)


@family.forward((X,), (-X,), parts=layer)
def hints(self: Any, x: Tensor) -> Tensor:
    return hints_wrapper(
        lambda x, w: (x @ w).relu() + torch.tensor(1.0), (x, self.layer.weight), {}, hints={"outer": True, "level": 3}
    )


@family.forward((X,), (-X,), parts=layer)
def strict(self: Any, x: Tensor) -> Any:
    return strict_mode(lambda x: self.layer(x) + torch.tensor(1.0), (x,))


@family.forward((X,), (-X,), strict_export=True)
def foreach(self: Any, x: Tensor) -> Any:
    return foreach_map(torch.add, [x, x * 2], [x + 1, x + 2])


SMALL = torch.arange(12, dtype=torch.int8).reshape(3, 4) - 120


@family.forward((SMALL, SMALL.t()), (-SMALL, SMALL.t()))
def wide_results(self: Any, x: Tensor, y: Tensor) -> Any:
    product = out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)
    return product, out_dtype(torch.ops.aten.mul.Tensor, torch.int32, x, 100)


@family.forward((X,), (-X,))
def printed(self: Any, x: Tensor) -> Tensor:
    torch._higher_order_ops.print("moving on {} {word}", 1, word="step")
    return x + 1


@family.forward((X,), (-X,), parts=lambda: {"buffers": {"seen": torch.zeros(4)}})
def printed_beside_a_write(self: Any, x: Tensor) -> Tensor:
    torch._higher_order_ops.print("moving on {}", x.sum())
    self.seen.add_(1)
    torch._higher_order_ops.print("moved on")
    return x + self.seen


@torch.library.custom_op("torch_ir_forms::logged", mutates_args=())
def logged(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x.sum()


@logged.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(())


_register_effectful_op(torch.ops.torch_ir_forms.logged.default, _EffectType.ORDERED)


@family.forward((X,), (-X,), parts=lambda: {"buffers": {"seen": torch.zeros(4)}})
def effects_in_order(self: Any, x: Tensor) -> Any:
    y, total = logged(x)
    self.seen.add_(total)
    return logged(y)[0] + self.seen


@family.forward((X,), (-X,), parts=layer)
def wrapped(self: Any, x: Tensor) -> Tensor:
    return torch.ops.higher_order.wrap(lambda x: self.layer(x).sin(), x)


@family.forward((X,), (-X,), parts=layer)
def quantised_body(self: Any, x: Tensor) -> Tensor:
    return hops.InvokeQuant(codegen_low_precision=False)(
        lambda x, y: (x @ y).relu(), x, self.layer.weight, scheme="nf4"
    )


# -- the registry -----------------------------------------------------------------------------------------------------

# Operators that are in a captured program, or that functionalisation puts there -> a form that has them.
CAPTURED = {
    "auto_functionalized": "custom_operator_that_writes",
    "cond": "cond_nested",
    "flat_apply": "flex_attention_with_a_buffer",
    "flex_attention": "flex_attention_with_scores",
    "flex_attention_backward": "flex_attention_backward_simple",
    "foreach_map": "foreach",
    "hints_wrapper": "hints",
    "invoke_quant_packed": "invoke_quant_packed_simple",
    "invoke_subgraph": "nested_region_called_twice",
    "map_impl": "map_with_closures",
    "out_dtype": "wide_results",
    "print": "printed",
    "scan": "scan_with_closures",
    "strict_mode": "strict",
    "while_loop": "while_with_closures",
    "while_loop_stack_output": "while_loop_stack_output_simple",
    "with_effects": "effects_in_order",
    "wrap_with_autocast": "autocast_regions",
    "wrap_with_set_grad_enabled": "no_grad_regions",
}
# Operators that capture traces through, so that only what they compute is left -> a form that calls them.
TRACED_THROUGH = {
    "associative_scan": "associative_scan_generic",
    "autograd_function_apply": "custom_autograd_function",
    "custom_function_call": "custom_autograd_function",
    "invoke_quant": "quantised_body",
    "tag_activation_checkpoint": "checkpointed",
    "wrap": "wrapped",
}
_COMPILER = "inserted by torch.compile after capture"
_TRAINING = "part of a backward pass; inference programs have none"
_GPU = "a kernel for GPUs"
# Operators that no exported program has, or that cannot be carried -> why.
NOT_CAPTURED = {
    "_export_tracepoint": "torch.export removes it",
    "aoti_call_delegate": "inserted by AOTInductor after capture",
    "auto_functionalized_v2": "made by the caller's own run_decompositions(); the error says so",
    "call_torchbind": "calls a stateful C++ object, which a graph cannot contain",
    "control_deps": _COMPILER,
    "dynamo_bypassing_wrapper": _COMPILER,
    "executorch_call_delegate": "put in by ExecuTorch, after capture",
    "graphsafe_run_with_rng_state": _TRAINING,
    "inductor_compiled_code": _COMPILER,
    "inline_asm_elementwise": _GPU,
    "invoke_leaf_function": "calls an untraced Python function, which a file cannot contain",
    "local_map_hop": "torch.export's own verifier refuses it",
    "register_hook": _TRAINING,
    "run_and_save_rng_state": _TRAINING,
    "run_const_graph": _COMPILER,
    "run_dtensor_rng_op": _COMPILER,
    "run_with_rng_state": _TRAINING,
    "trace_wrapped": _TRAINING,
    "triton_kernel_wrapper_functional": _GPU,
    "triton_kernel_wrapper_mutation": _GPU,
    "wrap_activation_checkpoint": _COMPILER,
}


def registered() -> list[str]:
    """Return every higher-order operator of torch; some are registered by late imports."""
    for module in pkgutil.iter_modules(hops.__path__, f"{hops.__name__}."):
        importlib.import_module(module.name)
    importlib.import_module("torch._dynamo._trace_wrapped_higher_order_op")
    importlib.import_module("torch._inductor.fx_passes.control_dependencies")
    return sorted(torch._ops._higher_order_ops)
