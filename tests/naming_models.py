"""Small models whose names must be the same on every path of capture."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.proof import module

X = torch.arange(8.0).reshape(2, 4) / 4 - 1
Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
CASES: dict[str, Callable[[], Case]] = {}
# Models that the fast recorder leaves to torch.export, and why.


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__] = build
    return build


def call(forward: Callable[..., Any], *args: Any, parts: dict[str, Any] | None = None, **kwargs: Any) -> Case:
    """A model with this `forward` and these parts, and its inputs."""
    return module(forward, **(parts or {})), args, kwargs


# -- inputs -----------------------------------------------------------------------------------------------------------


@case
def simple_mlp() -> Case:
    return nn.Sequential(OrderedDict(one=nn.Linear(4, 8), act=nn.ReLU(), two=nn.Linear(8, 2))).eval(), (X,), {}


@case
def nested_inputs() -> Case:
    def forward(self: Any, xs: Any, table: Any, *, key: Any) -> Tensor:
        return xs[0] + xs[1][0] + table["k y"] + table["In"][1] + key["z"]

    return call(forward, [X, (X,)], {"k y": X, "In": (X, X)}, key={"z": X})


Pair = namedtuple("Pair", "left right")


@case
def named_tuples() -> Case:
    def forward(self: Any, pair: Any, table: Any) -> Any:
        return {"pair": Pair(pair.left + 1, pair.right), "rest": [table["a"], None, 3]}

    return call(forward, Pair(X, X), OrderedDict(a=X))


@case
def star_arguments() -> Case:
    def forward(self: Any, x: Tensor, *args: Any, scale: int = 2, **kwargs: Any) -> Tensor:
        return x * scale + args[0] + args[1][0] + kwargs["B"] + kwargs["a"]

    return call(forward, X, X, [X], B=X, scale=3, a=X)


@case
def plain_values() -> Case:
    def forward(self: Any, x: Tensor, count: int, mode: str, mask: Any = None, flag: bool = False) -> Any:
        return x * count if mode == "many" and flag else x

    return call(forward, X, 3, "many", None, flag=True)


@case
def builtin_names() -> Case:
    def forward(self: Any, input: Tensor, max: Tensor, lambda_: Tensor) -> Tensor:
        return input.max(0)[0] + max.sum() + lambda_.abs() + input.abs()

    return call(forward, X, X, X)


@case
def colliding_names() -> Case:
    """An input takes the name of a leaf, of a weight, and of calls."""

    def forward(
        self: Any, x: Any, x_0: Tensor, p_a_weight: Tensor, add: Tensor, add_2: Tensor, max_1: Tensor
    ) -> Tensor:
        return self.a(x[0]) + x_0 + p_a_weight + add + add_2 + max_1.max(0)[0]

    return call(forward, [X], X, X, X, X, X, parts={"a": nn.Linear(4, 4)})


# -- weights and constants --------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


@case
def tied_weights() -> Case:
    return Tied().eval(), (torch.tensor([1, 2]),), {}


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("Lost", torch.ones(4), persistent=False)
        self.register_parameter("w-1", nn.Parameter(torch.ones(4)))
        self.register_parameter("w_1", nn.Parameter(torch.ones(4)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kept + self.Lost + getattr(self, "w-1") + self.w_1


@case
def buffers() -> Case:
    return Held().eval(), (X,), {}


OUTSIDE = torch.full((4,), 3.0)


class Literals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.ones(4)
        self.same = self.plain

    def forward(self, x: Tensor) -> Tensor:
        torch.tensor([7.0])  # nothing reads it
        return x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + self.same + OUTSIDE


@case
def constants() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + torch.tensor(1.0)

    return call(forward, X, parts={"first": Literals(), "second": Literals()})


# -- calls ------------------------------------------------------------------------------------------------------------


@case
def writes() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.count += 1
        y = x.clone()
        y[0] = 3
        y[:, 1] += 1
        x.mul_(2)
        return y.relu_().add_(self.count).add_(x)

    return call(forward, X.clone(), parts={"buffers": {"count": torch.zeros(4)}})


@case
def buffer_assigned() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x * self.count

    return call(forward, X, parts={"buffers": {"count": torch.zeros(4)}})


@case
def statistics() -> Case:
    return (
        nn.Sequential(nn.Conv1d(4, 3, 1), nn.BatchNorm1d(3), nn.ReLU(inplace=True)).train(),
        (X.reshape(1, 4, 2),),
        {},
    )


@case
def several_results() -> Case:
    def forward(self: Any, x: Tensor) -> Any:
        values, places = x.max(1)
        left, right = x.split(2, 1)
        top = torch.topk(x, 2)
        return values + places + left[:, 0] + right[:, 1] + x.unbind(1)[0], top, torch.std_mean(x)

    return call(forward, X)


@case
def dropout() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.drop(x) + F.dropout(x)

    model, args, kwargs = call(forward, X, parts={"drop": nn.Dropout(0.5)})
    return model.train(), args, kwargs


@case
def casts() -> Case:
    """torch.export asserts the dtype of what is cast, which takes no name from other calls."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return (x + 1).to(torch.float64) + 1

    return call(forward, X)


@case
def transformer() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (torch.ones(1, 3, 8),), {}


@case
def recurrent() -> Case:
    return nn.GRU(4, 3, num_layers=2, bidirectional=True).eval(), (X.reshape(2, 1, 4),), {}


# -- modules ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(4, 4)
        self.d = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(x))


def helper(x: Tensor) -> Tensor:
    return x.sin()


@case
def called_twice() -> Case:
    """The line is that of `forward`, also for a function that it calls, and for hooks."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return helper(self.block(self.block(x)))

    block = Block()
    block.c.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    block.c.register_forward_hook(lambda _, args, result: result + 1)
    return call(forward, X, parts={"block": block})


@case
def made_in_forward() -> Case:
    return call(lambda self, x: nn.ReLU()(x) + self.block.forward(x), X, parts={"block": Block()})


@case
def shared_module() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.b(x)
        x = self.a(x)
        return self.b(x)

    layer = Block()
    return call(forward, X, parts={"a": layer, "b": layer})


@case
def shared_in_containers() -> Case:
    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        for part in self.parts.values():
            x = part(x)
        return self.stack(x)

    layer = nn.Linear(4, 4)
    stack = nn.Sequential(layer, nn.ReLU(), layer)
    return call(
        forward,
        X,
        parts={"layers": nn.ModuleList([layer, Block(), layer]), "stack": stack, "parts": nn.ModuleDict({"p": stack})},
    )


@case
def shared_nested_call() -> Case:
    layer = nn.Linear(4, 4)
    return call(lambda self, x: self.b(self.a(self.b(x))), X, parts={"a": layer, "b": layer})


@case
def shared_by_index() -> Case:
    layer = nn.Linear(4, 4)
    return call(
        lambda self, x: self.layers[2](self.layers[0](x)),
        X,
        parts={"layers": nn.ModuleList([layer, nn.ReLU(), layer])},
    )


@case
def shared_block() -> Case:
    """Submodules that are called without their parents have the path of the access, too."""
    block = Block()
    return call(lambda self, x: self.b(self.a(x)) + self.b.c(x) + self.a.d[0](x), X, parts={"a": block, "b": block})
