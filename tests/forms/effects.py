"""Effects of a model: writes to buffers and inputs, aliased results, random numbers."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tests.forms.form import Family, captured

family = Family("effects")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def state() -> dict[str, Any]:
    return {"buffers": {"count": torch.tensor(0), "mean": torch.zeros(4), "table": torch.zeros(5, 4)}}


# -- buffers ----------------------------------------------------------------------------------------------------------


@family.forward((X,), (X + 1,), (-X,), parts=state)
def buffers_written(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    self.table[1] = x[0]
    return x * self.count + self.mean


@family.forward((X,), (X + 1,), (-X,), parts=state)
def buffers_assigned_anew(self: Any, x: Tensor) -> Tensor:
    self.count = self.count + x.shape[0]
    self.mean = self.mean + x.sum(0)
    return x - self.mean / self.count


@family.forward((X,), (-X,), (X,), parts=state)
def buffer_written_on_a_condition(self: Any, x: Tensor) -> Tensor:
    self.mean.copy_(torch.where(x.sum() > 0, x.sum(0), self.mean))
    self.table[1:3].masked_fill_(x[:2] > 0, 7.0)
    return x + self.mean


@family.forward((X,), (X + 1,), (-X,), parts=state)
def buffer_written_and_returned(self: Any, x: Tensor) -> Any:
    self.mean.add_(x[0])
    return self.mean, x * 2


@family.forward((X,), (X + 1,), (-X,), parts=state)
def view_of_a_written_buffer_returned(self: Any, x: Tensor) -> Any:
    self.table[:3] += x
    return self.table[1], self.table.t(), self.table[:, 0].sum()


@family.forward((X,), (X + 1,), parts=state)
def buffer_read_before_and_after_writing(self: Any, x: Tensor) -> Any:
    before = self.mean * 1
    old = self.mean
    self.mean.add_(1)
    return before, old + x, self.mean


@family.forward((X,), (X + 1,), parts=state)
def buffer_returned_unwritten(self: Any, x: Tensor) -> Any:
    return self.mean, self.mean.view(2, 2), x


@family.forward((X,), (X + 1,), parts=lambda: {"norm": nn.BatchNorm1d(4), "drop": nn.Dropout(0.3)}, train=True)
def batch_norm_and_dropout_in_training(self: Any, x: Tensor) -> Tensor:
    return self.drop(self.norm(x))


@family.forward(
    (X,), (X + 1,), (X + 2,), parts=lambda: {"inner": nn.ModuleList([nn.BatchNorm1d(4) for _ in range(2)])}, train=True
)
def one_module_called_twice_in_training(self: Any, x: Tensor) -> Tensor:
    return self.inner[1](self.inner[0](self.inner[0](x)))


class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 4), persistent=False)
        self.register_buffer("place", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.index_copy_(0, self.place.reshape(1) % 4, x[:1])
        self.place += 1
        return self.kept.sum(0) + x


family.add("buffer_outside_the_state_dict_written", Ring, ((X,), (X + 1,), (X + 2,), (X + 3,), (X + 4,)), on_meta=False)


@family.forward((X,), (X + 1,), parts=lambda: {"weight": nn.Parameter(torch.ones(4))})
def parameter_written(self: Any, x: Tensor) -> Tensor:
    self.weight.add_(1)
    return x * self.weight


# -- inputs -----------------------------------------------------------------------------------------------------------


@family.forward((X,), (-X,))
def input_written_through_views(self: Any, x: Tensor) -> Tensor:
    x.t()[1].add_(1)
    x.view(-1)[2:5].mul_(2)
    x[:, 0] = x[:, 3]
    return x.sum(0)


@family.forward(
    ({"state": X + 1, "step": torch.tensor(1)}, [X, (X * 2,)]), ({"state": X, "step": torch.tensor(5)}, [-X, (X,)])
)
def nested_inputs_written(self: Any, given: Any, others: Any) -> Any:
    given["state"].add_(others[0])
    given["step"] += 1
    others[1][0].relu_()
    return given["state"] * given["step"]


@family.forward((X,), (-X,))
def input_written_and_returned(self: Any, x: Tensor) -> Any:
    y = x.add_(1)
    return x, y, x[0], y * 2


@family.forward((X, X + 1), (-X, X))
def inputs_swapped(self: Any, x: Tensor, y: Tensor) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x - y


@family.forward((X,), (X.repeat(2, 1),), dynamic_shapes=({0: Dim("rows", min=3)},))
def input_of_varying_size_written(self: Any, x: Tensor) -> Tensor:
    x[1:].sub_(x[:1])
    return x.sum()


@family.forward((X, torch.tensor([[2, 0, 1, 3]] * 3)), (-X, torch.tensor([[0, 1, 2, 3]] * 3)))
def input_scattered_into(self: Any, x: Tensor, index: Tensor) -> Tensor:
    x.scatter_add_(1, index, torch.ones(3, 4))
    x.index_put_((torch.tensor([0, 2]), torch.tensor([1, 1])), torch.tensor(9.0))
    return x.argmax(1)


# -- results that share memory ----------------------------------------------------------------------------------------


@family.forward((X,), (-X,))
def input_returned(self: Any, x: Tensor) -> Any:
    return x, x.t(), x[0], x.detach()


@family.forward((X,), (-X,))
def results_that_share_memory(self: Any, x: Tensor) -> Any:
    y = x + 1
    return y, y, y.t(), {"row": y[1], "whole": y.view(-1)}


@family.forward((X,), (-X,), parts=lambda: {"layer": nn.Linear(4, 4)})
def parameters_returned(self: Any, x: Tensor) -> Any:
    return self.layer.weight, self.layer.weight.t(), self.layer(x)


@family.forward((X,), (-X,))
def constants_returned(self: Any, x: Tensor) -> Any:
    return torch.arange(3), torch.tensor([1.0, 2.0]), x, 5, None, "text", 2.5, True


@family.forward((X,), (-X,))
def results_written_after_they_are_shared(self: Any, x: Tensor) -> Any:
    y = x + 1
    row, kept = y[0], y.clone()
    y.mul_(2)
    row.add_(1)
    return y, row, kept


# -- random numbers ---------------------------------------------------------------------------------------------------


@family.forward((X,), (-X,))
def random_of_every_kind(self: Any, x: Tensor) -> Any:
    y = torch.empty(3, 4).normal_(0, 2)
    y.uniform_(-1, 1)
    drawn = [torch.rand(2), torch.randn_like(x), torch.randint(0, 9, (4,)), torch.randperm(5), torch.normal(x, 1.0)]
    return y, *drawn, torch.bernoulli(x.sigmoid()), x.softmax(1).multinomial(2), torch.poisson(x.abs())


@family.forward((X,), (-X,))
def random_in_place(self: Any, x: Tensor) -> Any:
    y = x.clone()
    y[0].bernoulli_(0.5)
    y[1].exponential_()
    return y, torch.empty(3).cauchy_(), torch.empty(3).log_normal_(), torch.empty(3).geometric_(0.5)


@family.forward((X,))
def random_between_bounds(self: Any, x: Tensor) -> Tensor:
    return x.clone().random_(0, 10)


@family.forward((X,), (-X,), train=True)
def dropout_of_every_kind(self: Any, x: Tensor) -> Any:
    images = x.reshape(1, 3, 2, 2)
    one = F.dropout(x, 0.5), F.alpha_dropout(x, 0.2, True), F.feature_alpha_dropout(images, 0.2, True)
    return *one, F.dropout2d(images, 0.5), F.dropout(x, 0.5, inplace=True), F.rrelu(x, training=True)


@family.forward((X,), (-X,), train=True, parts=lambda: {"gru": nn.GRU(4, 4, 2, dropout=0.5, batch_first=True)})
def dropout_inside_a_recurrent_network(self: Any, x: Tensor) -> Any:
    return self.gru(x[None])


@family.forward((X,), (-X,), train=True)
def dropout_inside_attention(self: Any, x: Tensor) -> Any:
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


@family.forward((X,), (-X,))
def gumbel_softmax(self: Any, x: Tensor) -> Any:
    return F.gumbel_softmax(x, hard=True)


@family.forward((X,), expected=captured("a torch.Generator is a stateful object, which a graph cannot contain"))
def random_with_a_generator(self: Any, x: Tensor) -> Tensor:
    return x + torch.rand(3, 4, generator=torch.Generator().manual_seed(1))


# -- assertions -------------------------------------------------------------------------------------------------------


@family.forward((X,), (-X,))
def python_assertion_on_a_shape(self: Any, x: Tensor) -> Tensor:
    assert x.shape[0] == 3
    return x + 1
