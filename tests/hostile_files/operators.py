"""Operators that would access files, code, random numbers or modes, and invalid arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile_files.case import Family, Make
from tests.hostile_files.documents import changed, document, flat, node, one_node, read, typed, written

FAMILY = Family("operators")
_NODE = r"\$\.nodes\[0\](\.op_type)?"

for name, op_type, args, attrs in [
    ("sets storage", "aten.set_.source_Tensor", ("self", "source"), {}),
    ("sets storage, functional", "aten.set.source_Tensor", ("self", "source"), {}),
    ("resizes storage", "aten.resize_.default", ("self",), {"size": [1 << 40], "memory_format": None}),
    ("resizes storage, functional", "aten.resize.default", ("self",), {"size": [1 << 40], "memory_format": None}),
    ("sets data", "aten.set_data.default", ("self", "new_data"), {}),
    ("runs backward", "aten._backward.default", ("self",), {"inputs": [], "gradient": None}),
    ("asks for gradients", "aten.requires_grad_.default", ("self",), {"requires_grad": True}),
    ("pins memory", "aten.pin_memory.default", ("self",), {"device": None}),
    ("records on a stream", "aten.record_stream.default", ("self",), {"s": 0}),
    ("prints", "aten._print.default", (), {"s": "\x1b]0;owned\x07"}),
    ("clears caches of plans", "aten._cufft_clear_plan_cache.default", (), {"device_index": 0}),
    ("prim.Print", "prim.Print.default", ("self",), {}),
    ("prim.rangelist", "prim.rangelist.default", (), {"n": 1 << 40}),
    ("inductor", "inductor.accumulate_grad_.default", ("variable", "new_grad"), {}),
    ("profiler", "profiler._record_function_enter_new.default", (), {"name": "x", "args": None}),
    ("rngprims", "rngprims.philox_rand.default", ("seed", "offset"), {}),
    ("debugprims reads a file", "debugprims.load_tensor.default", (), {"name": "../canary/secret.txt"}),
    ("c10d", "c10d.allreduce_.default", ("tensors",), {}),
    ("functional collectives", "_c10d_functional.all_reduce.default", ("input",),
     {"reduce_op": "sum", "group_name": "0"}),
    ("static_runtime", "static_runtime.to_copy.default", ("self",), {}),
    ("quantized packs", "quantized.linear_prepack.default", ("W",), {"B": None}),
    ("dunder", "aten.__class__.default", ("self",), {}),
    ("chain of dunders", "aten.add.__init__.__globals__", ("self",), {}),
    ("tail after the overload", "aten.add.Tensor.__call__", ("self", "other"), {"alpha": 1}),
    ("attribute of an operator", "aten.add._schema", ("self", "other"), {}),
    ("overload that is none", "aten.add.Evil", ("self", "other"), {}),
    ("no overload", "aten.relu", ("self",), {}),
    ("in place on an input", "aten.add_.Tensor", ("self", "other"), {"alpha": 1}),
    ("in place by fill", "aten.fill_.Scalar", ("self",), {"value": 1}),
    ("out argument", "aten.add.out", ("self", "other", "out"), {"alpha": 1}),
    ("triton kernel", "higher_order.triton_kernel_wrapper_functional", ("x",),
     {"kernel_idx": 0, "constant_args_idx": 0}),
    ("callable as text", "higher_order.cond", ("pred",), {"true_fn": "os.system", "false_fn": "os.system"}),
    ("autograd function", "higher_order.autograd_function_apply", ("x",), {"fwd": "f", "bwd": "b"}),
    ("internals of torch_ir", "torch_ir.decision.__import__", ("self",), {}),
]:  # fmt: skip
    FAMILY.refused(name, one_node(op_type, 2, 3, reads=args, **attrs), "R9|R10|R11|R12", r"\$\.nodes\[0\].*")


# unknown names are drawn and listed, and load nothing
for name, op_type in [
    ("operator that torch lacks", "aten.evil.default"),
    ("library to load", "load_library.x.default"),
    ("import_module of torch.ops", "import_module.os.default"),
    ("module of Python", "os.system.default"),
    ("package that is installed", "transformers.pipeline.default"),
    ("subprocess", "subprocess.run.default"),
    ("torch.load", "torch.load.default"),
    ("builtins.eval", "builtins.eval.default"),
]:
    FAMILY.shown(f"unknown: {name}", one_node(op_type, 2, 3, f="../canary/secret.txt"))


def _reads_a_file(op_type: str) -> Make:
    def make(folder: Path) -> Path:
        secret = str(folder.parent / "canary" / "secret.txt")
        made = node("made", op_type, [], [typed("made", 8)], [], filename=secret, shared=True, size=8, dtype=None)
        return written(flat([made], [typed("x", 2)], [typed("made", 8)]))(folder)

    return make


FAMILY.refused("maps a file", _reads_a_file("aten.from_file.default"), "R10", _NODE)
FAMILY.refused("maps a file, into out", _reads_a_file("aten.from_file.out"), "R10", _NODE)


def _in_function(op_type: str) -> dict[str, Any]:
    found = document()
    found["functions"]["body"]["nodes"][0]["op_type"] = op_type
    return found


FAMILY.refused(
    "maps a file, in a function",
    written(_in_function("aten.from_file.default")),
    "R10",
    r"\$\.functions\.body\.nodes\[0\](\.op_type)?",
)

_ATTRS: list[tuple[str, Callable[[Path], Path], str]] = [
    ("generator", one_node("aten.bernoulli.default", 2, 3, generator={"$int": "5"}), "generator"),
    ("generator by name", one_node("aten.bernoulli.default", 2, 3, generator="default"), "generator"),
    ("alpha as text", changed("nodes[1].attrs.alpha", "1"), "alpha"),
    ("alpha as a list", changed("nodes[1].attrs.alpha", [1]), "alpha"),
    ("alpha as a function", changed("nodes[1].attrs.alpha", {"$function": "body"}), "alpha"),
    ("attribute that is none", changed("nodes[1].attrs.evil", 1), "evil"),
    ("attribute with dunders", changed("nodes[1].attrs.__class__", 1), "__class__"),
    ("dim as a float", one_node("aten.softmax.int", 2, 3, dim=0.5, dtype=None), "dim"),
    ("dim as null", one_node("aten.softmax.int", 2, 3, dim=None, dtype=None), "dim"),
    ("size as text", one_node("aten.reshape.default", 2, 3, shape="6"), "shape"),
    ("tensor as a number", one_node("aten.matmul.default", 2, 2, other=3), "other"),
]
for name, make, attribute in _ATTRS:
    path = rf"\$\.nodes\[\d\](\.inputs|\.attrs(\.{attribute}.*)?)?"
    FAMILY.refused(f"argument: {name}", make, "R11|R12", path)

_LIES: list[tuple[str, Make]] = [
    ("shape", one_node("aten.t.default", 2, 3)),
    ("dim out of range", one_node("aten.cumsum.default", 2, 3, dim=7, dtype=None)),
    ("view of other size", one_node("aten.view.default", 2, 3, size=[7])),
    ("negative sizes", one_node("aten.expand.default", 2, 3, size=[-5, 3], implicit=False)),
    ("two outputs of one", written(flat(
        [node("a", "aten.relu.default", [read("x", 2)], [typed("a", 2), typed("b", 2)], ["self"])],
        [typed("x", 2)], [typed("a", 2), typed("b", 2)]))),
    ("dtype", written(flat(
        [node("a", "aten.relu.default", [read("x", 2)], [typed("a", 2, dtype="int8")], ["self"])],
        [typed("x", 2)], [typed("a", 2, dtype="int8")]))),
]  # fmt: skip
for name, make in _LIES:
    FAMILY.refused(f"declared: {name}", make, "R12", r"\$\.nodes\[0\].*")
