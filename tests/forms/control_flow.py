"""Branches and loops as torch operators: both paths of each branch, several trip counts of each loop."""

from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.export import Dim

from tests.forms.form import Family, refused

family = Family("control flow")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
LARGE, SMALL = X.abs() + 3, -X.abs() - 3
ROWS = ({0: Dim("rows")},)


def layer() -> dict[str, Any]:
    return {"layer": nn.Linear(4, 4), "buffers": {"scale": torch.linspace(0.5, 2, 4)}}


# -- cond -------------------------------------------------------------------------------------------------------------


@family.forward((LARGE,), (SMALL,), parts=layer)
def cond_with_closures(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x * self.scale, (x,))


@family.forward((LARGE,), (X.abs() + 1,), (SMALL,), parts=layer)
def cond_nested(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        return torch.cond(x.max() > 3, lambda x: self.layer(x), lambda x: x + 1, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))


@family.forward((LARGE,), (SMALL,))
def cond_with_several_results(self: Any, x: Tensor) -> Any:
    def positive(x: Tensor) -> Any:
        return x + 1, {"twice": x * 2, "sum": [x.sum()]}

    def negative(x: Tensor) -> Any:
        return x - 1, {"twice": x * -2, "sum": [x.mean()]}

    return torch.cond(x.sum() > 0, positive, negative, (x,))


@family.forward((LARGE,), (SMALL,), (LARGE[:2],), (SMALL.repeat(2, 1),), dynamic_shapes=ROWS)
def cond_on_values_with_varying_sizes(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.reshape(-1)[: x.shape[0]], lambda x: x[:, 0] * x.shape[0], (x,))


@family.forward((X,), (X.repeat(2, 1),), dynamic_shapes=ROWS)
def cond_on_a_size(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda x: x.cos(), lambda x: x.sin(), (x,))


@family.forward((LARGE,), (SMALL,))
def cond_with_in_place_writes(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] += 1
        y.relu_()
        return y

    def negative(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 1:].mul_(3)
        return y

    return torch.cond(x.sum() > 0, positive, negative, (x,))


@family.forward((LARGE,), (SMALL,), parts=lambda: {"buffers": {"seen": torch.zeros(4)}})
def cond_result_written_to_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.seen.copy_(torch.cond(x.sum() > 0, lambda x: x.sum(0), lambda x: x.amax(0), (x,)))
    return x + self.seen


@family.forward((LARGE,), (SMALL,), parts=lambda: {"buffers": {"seen": torch.zeros(4)}})
def cond_that_writes_to_a_buffer(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        self.seen.add_(1)
        return x + self.seen

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))


@family.forward((LARGE,), (SMALL,))
def cond_that_writes_to_its_operand(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))


@family.forward((LARGE,), (X.abs() + 1,), (SMALL,), parts=lambda: {"buffers": {"seen": torch.zeros(4)}})
def nested_cond_that_writes_through_views(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        def large(x: Tensor) -> Tensor:
            self.seen[1:3].add_(x[0, 1:3])
            return x + self.seen

        y = torch.cond(x.max() > 3, large, lambda x: x + 1, (x,))
        self.seen[0] = y.sum()
        x.t()[1].relu_()
        return y

    return torch.cond(x.sum() > 0, positive, lambda x: x - self.seen, (x,)) + self.seen


@family.forward((LARGE,), (SMALL,), (LARGE + 1,), parts=lambda: {"norm": nn.BatchNorm1d(4)}, train=True)
def cond_that_updates_statistics(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: self.norm(x), lambda x: x - 1, (x,))


@family.forward((LARGE,), (SMALL,))
def cond_that_writes_to_one_of_two_views(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor, row: Tensor) -> Tensor:
        row.add_(1)
        return x * 2

    return torch.cond(x.sum() > 0, positive, lambda x, row: x - 1, (x, x[0]))


@family.forward((X, torch.tensor(0)), (SMALL, torch.tensor(2)), (X, torch.tensor(9)), parts=layer)
def while_that_writes_to_its_operands(self: Any, x: Tensor, start: Tensor) -> Any:
    def step(i: Tensor, y: Tensor) -> Any:
        x[1:].add_(1)
        self.scale.mul_(2)
        return i + 1, y + x * self.scale + self.layer.bias

    return while_loop(lambda i, y: i < 3, step, (start, x * 1)), self.scale + 1


@family.forward((X,), (SMALL,))
def while_that_writes_to_what_it_carries(self: Any, x: Tensor) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.add_(1) * 2), (torch.tensor(0), x * 1))


@family.forward((X,), parts=layer, expected=refused("torch.export refuses a scan whose body writes to its operands"))
def scan_that_writes_to_a_buffer(self: Any, x: Tensor) -> Any:
    def step(carried: Tensor, row: Tensor) -> Any:
        self.scale.add_(1)
        return carried + row * self.scale, carried * 1

    return scan(step, torch.zeros(4), x)


@family.forward((X,), expected=refused("torch.export refuses a map whose body writes to its operands"))
def map_that_writes_to_its_operand(self: Any, x: Tensor) -> Any:
    return torch_map(lambda row: row.add_(1) * 1, x)


@family.forward((X,), expected=refused("torch.export refuses a body that returns its operands"))
def scan_that_returns_what_it_is_given(self: Any, x: Tensor) -> Any:
    return scan(lambda carried, row: (carried + row, carried), torch.zeros(4), x)


@family.forward((LARGE,), (SMALL,))
def cond_with_a_constant_branch(self: Any, x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: torch.ones(3, 4), lambda x: x - torch.arange(4.0), (x,))


@family.forward((LARGE,), (X.abs() + 1,), (SMALL,))
def cond_with_literals(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        y = torch.cond(x.max() > 3, lambda x: x + torch.tensor([1.0, 2, 3, 4]), lambda x: x * torch.tensor(5.0), (x,))
        return y - torch.tensor(0.5)

    return torch.cond(x.sum() > 0, positive, lambda x: x - torch.tensor(1.0), (x,))


@family.forward((LARGE,), (SMALL,), parts=layer)
def cond_with_regions_and_literals(self: Any, x: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.layer(x) + torch.tensor([1.0, 2, 3, 4])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return y @ y.t() + torch.tensor(1.0)

    return torch.cond(x.sum() > 0, positive, lambda x: (x @ x.t()).bfloat16() * torch.tensor(2.0), (x,))


@family.forward((torch.tensor(True), X), (torch.tensor(False), X))
def cond_on_an_input(self: Any, which: Tensor, x: Tensor) -> Tensor:
    return torch.cond(which, lambda x: x.sin(), lambda x: x.cos(), (x,))


@family.forward((LARGE,), (SMALL,), (torch.zeros(3, 4),))
def cond_with_results_of_data_dependent_size(self: Any, x: Tensor) -> Tensor:
    found = x[x > 0]
    return torch.cond(x.sum() > 0, lambda found: found.sum(), lambda found: found.sum() - 1, (found,))


# -- while_loop -------------------------------------------------------------------------------------------------------


@family.forward((torch.tensor(0), X), (torch.tensor(3), X), (torch.tensor(9), X), parts=layer)
def while_with_closures(self: Any, start: Tensor, x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, self.layer(x) * self.scale), (start, x))


@family.forward((X,), (X * 100,))
def while_with_a_python_counter(self: Any, x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (0, x))


@family.forward((X,), (X * 100,), (X / 100,))
def while_on_values_with_several_carried(self: Any, x: Tensor) -> Any:
    def step(x: Tensor, total: Tensor, count: Tensor) -> Any:
        return x / 2, total + x, count + 1

    start = (x, torch.zeros(3, 4), torch.tensor(0))
    return while_loop(lambda x, total, count: x.abs().max() > 1, step, start)


@family.forward((X,), (X.repeat(2, 1),), dynamic_shapes=ROWS)
def while_to_a_varying_size(self: Any, x: Tensor) -> Any:
    return while_loop(lambda i, y: i < x.shape[0], lambda i, y: (i + 1, y + x), (torch.tensor(0), x))


@family.forward((X,), (SMALL,))
def while_with_in_place_writes(self: Any, x: Tensor) -> Any:
    def step(i: Tensor, x: Tensor) -> Any:
        y = x.clone()
        y[0] += i
        return i + 1, y.relu_()

    return while_loop(lambda i, x: i < 4, step, (torch.tensor(0), x))


@family.forward((torch.tensor(1), X), (torch.tensor(3), X))
def while_inside_while(self: Any, n: Tensor, x: Tensor) -> Any:
    def outer(i: Tensor, x: Tensor) -> Any:
        _, x = while_loop(lambda j, x: j < 2, lambda j, x: (j + 1, x + j), (torch.tensor(0), x))
        return i + 1, x * 2

    return while_loop(lambda i, x: i < n, outer, (torch.tensor(0), x))


@family.forward((LARGE,), (SMALL,))
def while_inside_cond(self: Any, x: Tensor) -> Tensor:
    def shrink(x: Tensor) -> Tensor:
        return while_loop(lambda x: x.sum() > 1, lambda x: (x / 2,), (x,))[0]

    return torch.cond(x.sum() > 0, shrink, lambda x: x + 0, (x,))


@family.forward((LARGE,), (SMALL,))
def cond_inside_while(self: Any, x: Tensor) -> Any:
    def step(i: Tensor, x: Tensor) -> Any:
        return i + 1, torch.cond(x.sum() > 0, lambda x: x / 2, lambda x: x + 1, (x,))

    return while_loop(lambda i, x: i < 4, step, (torch.tensor(0), x))


# -- scan, map --------------------------------------------------------------------------------------------------------


@family.forward((X,), (SMALL,), parts=layer)
def scan_with_closures(self: Any, x: Tensor) -> Any:
    return scan(lambda carried, row: (carried + self.layer(row), carried * self.scale), torch.zeros(4), x)


@family.forward((X,), (SMALL,))
def scan_backwards(self: Any, x: Tensor) -> Any:
    return scan(lambda carried, row: (carried * 2 + row, carried + row), torch.zeros(4), x, reverse=True)


@family.forward((X,), (SMALL,))
def scan_over_a_tree(self: Any, x: Tensor) -> Any:
    def step(carried: Any, row: Any) -> Any:
        return {"sum": carried["sum"] + row["a"], "count": carried["count"] + 1}, (
            row["a"] * row["b"],
            carried["sum"] * 1,
        )

    start = {"sum": torch.zeros(4), "count": torch.tensor(0)}
    return scan(step, start, {"a": x, "b": x + 1})


@family.forward((X,), (SMALL,))
def scan_along_the_last_dimension(self: Any, x: Tensor) -> Any:
    return scan(lambda carried, column: (carried + column, carried * 1), torch.zeros(3), x, dim=1)


@family.forward((X,), (LARGE.repeat(2, 1),), dynamic_shapes=ROWS)
def scan_over_a_varying_size(self: Any, x: Tensor) -> Any:
    return scan(lambda carried, row: (carried + row, carried.sin()), torch.zeros(4), x)


@family.forward((X,), (LARGE,), (SMALL,))
def cond_inside_scan(self: Any, x: Tensor) -> Any:
    def step(carried: Tensor, row: Tensor) -> Any:
        new = torch.cond(row.sum() > 0, lambda c, r: c + r, lambda c, r: c - r, (carried, row))
        return new, new * 2

    return scan(step, torch.zeros(4), x)


@family.forward((X,), (SMALL,), parts=layer)
def map_with_closures(self: Any, x: Tensor) -> Tensor:
    return torch_map(lambda row, bias: self.layer(row) + bias, x, self.layer.bias * 2)


@family.forward((X, X + 1), (SMALL, LARGE))
def map_over_several(self: Any, x: Tensor, y: Tensor) -> Any:
    return torch_map(lambda pair, k: (pair[0] * k.sum(), pair[1] + k), (x, y), torch.arange(4.0))


@family.forward((X,), (LARGE.repeat(2, 1),), dynamic_shapes=ROWS)
def map_over_a_varying_size(self: Any, x: Tensor) -> Tensor:
    return torch_map(lambda row: row.softmax(0), x)


@family.forward((X,), (SMALL,))
def associative_scan_generic(self: Any, x: Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


@family.forward((X,), (SMALL,))
def associative_scan_backwards_over_a_tree(self: Any, x: Tensor) -> Any:
    def combine(a: Any, b: Any) -> Any:
        return {"k": a["k"] * b["k"], "v": a["v"] * b["k"] + b["v"]}

    return associative_scan(combine, {"k": x, "v": x + 1}, 1, reverse=True, combine_mode="generic")


@family.forward((X,), (SMALL,), expected=refused("`combine_mode='pointwise'` needs a GPU"))
def associative_scan_pointwise(self: Any, x: Tensor) -> Any:
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="pointwise")


# -- decisions that Python takes --------------------------------------------------------------------------------------


@family.forward((X,), (SMALL,))
def python_loop_over_a_fixed_size(self: Any, x: Tensor) -> Tensor:
    for row in range(x.shape[0]):
        x = x + x[row]
    return x


@family.forward((LARGE,), (SMALL,))
def python_branch_on_a_value(self: Any, x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


@family.forward((torch.tensor([1, 0, 2]),), (torch.tensor([0, 0, 5]),), (torch.tensor([1, 1, 1]),))
def sizes_that_the_data_decides(self: Any, x: Tensor) -> Any:
    found = x.nonzero()
    return found, torch.zeros(found.shape[0]) + 1


@family.forward((torch.tensor(2), X), (torch.tensor(3), X))
def checked_number_from_data(self: Any, n: Tensor, x: Tensor) -> Tensor:
    count = n.item()
    torch._check(count >= 1)
    torch._check(count <= x.shape[0])
    return x[:count] * count


@family.forward((X.abs(),), (X.abs() + 1,))
def assertion_on_values(self: Any, x: Tensor) -> Tensor:
    torch._assert_async((x >= 0).all(), "negative")
    return x.sqrt()
