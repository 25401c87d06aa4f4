"""Small graphs for the tests of `torch_ir.ir`."""

from torch_ir.ir import (
    IR,
    Branch,
    Device,
    Dtype,
    Expr,
    FunctionRef,
    Layout,
    MemoryFormat,
    OpNode,
    Origin,
    Param,
    Slot,
    Symbol,
    TensorData,
    TensorMeta,
)
from torch_ir.ir.json.json_fields import Dim


def tensor(name: str, *shape: Dim, dtype: str = "float32") -> TensorMeta:
    return TensorMeta(name, shape, dtype)


def weight(name: str, *shape: Dim, keys: tuple[str, ...] = (), kind: str = "parameter") -> TensorMeta:
    return TensorMeta(name, shape, "float32", param=Param(keys or (name,), kind))


def chain(*op_types: str) -> IR:
    """x -> op -> op -> ... of float32[2, 3], each node named after its operator."""
    last = x = tensor("x", 2, 3)
    nodes = []
    for op_type in op_types:
        name = op_type.split(".")[1]
        made = tensor(name, 2, 3)
        nodes.append(OpNode(name, op_type, [last], [made], args=["self"]))
        last = made
    return IR(nodes, [x], [last], model_name="Chain")


def mlp() -> IR:
    """The model of the documentation, with its arguments named."""
    x, hidden, relu, out = tensor("x", 1, 4), tensor("linear", 1, 8), tensor("relu", 1, 8), tensor("linear_1", 1, 2)
    sizes: dict[str, tuple[int, ...]] = {"fc1.weight": (8, 4), "fc1.bias": (8,), "fc2.weight": (2, 8), "fc2.bias": (2,)}
    w1, b1, w2, b2 = (weight(f"p_{key.replace('.', '_')}", *size, keys=(key,)) for key, size in sizes.items())
    names = ["input", "weight", "bias"]
    nodes = [
        OpNode("linear", "aten.linear.default", [x, w1, b1], [hidden], args=names, origin=Origin("fc1", 0, "Linear")),
        OpNode("relu", "aten.relu.default", [hidden], [relu], args=["self"], origin=Origin("relu", 0, "ReLU")),
        OpNode("linear_1", "aten.linear.default", [relu, w2, b2], [out], args=names, origin=Origin("fc2", 0, "Linear")),
    ]
    return IR(nodes, [x], [out], params=[w1, b1, w2, b2], model_name="SimpleMLP", pytorch_version="2.13.0")


def everything() -> IR:
    """A graph that uses every part of the format once."""
    x, mask = tensor("x", 2, "batch"), tensor("mask", "batch", dtype="bool")
    w = weight("p_w", 3, 2, keys=("first.w", "second.w"))
    state = TensorMeta("b_state", (3,), "float32", stride=(1,), param=Param(("state",), "buffer"))
    steps = TensorMeta("c_steps", (2,), "int16", param=Param(("steps",), "constant", _steps()))
    product = TensorMeta("mm", (3, "batch"), "float32", stride=(1, 3))
    best, where = tensor("max_1_0", "batch"), tensor("max_1_1", "batch", dtype="int64")
    added, joined, called = tensor("add", 3), tensor("cat", 3, "batch"), tensor("call", "batch")
    attrs = {
        "none": None, "flag": True, "count": 3, "half": 0.5, "minus_zero": -0.0, "far": float("-inf"), "large": 2**80,
        "imaginary": 1 - 2j, "text": "a \"quoted\" \u00e9", "nested": [1, [None, "s"], []], "table": {"inner": [1]},
        "dtype": Dtype("bfloat16"), "device": Device("cuda:0"), "layout": Layout("strided"),
        "memory_format": MemoryFormat("channels_last"), "size": Expr("2*batch + 1"), "keepdim": False,
    }  # fmt: skip
    nodes = [
        OpNode(
            "mm", "aten.mm.default", [w, x], [product], args=["self", "mat2"],
            origin=Origin("first", 1, "Linear", "model.py:3", ("block@2",), "torch.nn.functional.linear@1"),
            origins=["mm", "t"],
        ),
        OpNode("max_1", "aten.max.dim", [product], [best, where], attrs, args=["self"]),
        OpNode("add", "aten.add.Tensor", [state, state], [added], {"alpha": 1}, args=["self", "other"]),
        OpNode("call", "call", [best], [called], {"function": FunctionRef("body")}, args=["value"]),
        OpNode("cat", "aten.cat.default", [product, product], [joined], {"tensors.1": None, "dim": 0},
               args=["tensors.0", "tensors.2"]),
    ]  # fmt: skip
    return IR(
        nodes,
        [x, mask],
        [best, where, joined, called],
        params=[w, state, steps],
        mutations=[(state, added)],
        functions={"body": _body()},
        symbols=[Symbol("batch", 1, 64, x, 1)],
        constraints=["batch % 2 == 0"],
        input_tree=Branch("tuple", (Branch("tuple", (Slot(0),)), Branch("dict", (Slot(1),), ("mask",)))),
        output_tree=Branch(
            "dict",
            (
                Branch("list", (Slot(0), Slot(1), 3, Expr("batch"))),
                Slot(2),
                Branch("object", (Slot(3), None), ("logits", "loss"), "model.Output"),
            ),
            ("pair", 1, (0, "key")),
        ),
        model_name="Everything",
        pytorch_version="2.13.0",
        device="cuda",
        fixed_layout="model.py:3",
        modules={"": "model.Everything", "block": "model.Block"},
        extensions={"tool": {"$kept": [1, None, "as it is"]}},
    ).check()


def _steps() -> TensorData:
    return TensorData((2,), "int16", b"\x01\x00\xff\xff")


def _body() -> IR:
    """A function that uses a size of the outer graph, and contains another function."""
    value, negated, inner = tensor("value", "batch"), tensor("neg", "batch"), tensor("call", "batch")
    y, z = tensor("y", "batch"), tensor("relu", "batch")
    nested = IR([OpNode("relu", "aten.relu.default", [y], [z], args=["self"])], [y], [z])
    nodes = [
        OpNode("neg", "aten.neg.default", [value], [negated], args=["self"]),
        OpNode("call", "call", [negated], [inner], {"function": FunctionRef("inner")}, args=["y"]),
    ]
    return IR(nodes, [value], [inner], functions={"inner": nested})
