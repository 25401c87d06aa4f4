"""Tensors and operators that are not the ordinary kind: custom operators, complex, sparse, nested, packed."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.forms.form import Family, carried, refused

family = Family("kinds of tensors and operators")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


# -- custom operators -------------------------------------------------------------------------------------------------


@torch.library.custom_op("torch_ir_forms::scaled", mutates_args=())
def scaled(x: Tensor, by: float = 2.0, bias: Tensor | None = None) -> Tensor:
    return x * by if bias is None else x * by + bias


@scaled.register_fake
def _(x: Tensor, by: float = 2.0, bias: Tensor | None = None) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torch_ir_forms::halves", mutates_args=())
def halves(tensors: list[Tensor], sizes: list[int], name: str) -> list[Tensor]:
    return [tensor[:size].clone() for tensor, size in zip(tensors, sizes, strict=True)]


@halves.register_fake
def _(tensors: list[Tensor], sizes: list[int], name: str) -> list[Tensor]:
    return [tensor.new_empty(size, *tensor.shape[1:]) for tensor, size in zip(tensors, sizes, strict=True)]


@torch.library.custom_op("torch_ir_forms::add_to", mutates_args={"x", "count"})
def add_to(x: Tensor, y: Tensor, count: Tensor | None = None) -> None:
    x.add_(y)
    if count is not None:
        count.add_(1)


@torch.library.custom_op("torch_ir_forms::positives", mutates_args=())
def positives(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[x > 0].clone(), (x > 0).sum()


@positives.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size()), x.new_empty((), dtype=torch.int64)


@torch.library.custom_op("torch_ir_forms::double_all", mutates_args={"tensors"})
def double_all(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        tensor.mul_(2)


@family.forward((X,), (-X,))
def custom_operator_with_options(self: Any, x: Tensor) -> Any:
    return scaled(x), scaled(x, 3.0), scaled(x, bias=x[0])


@family.forward((X,), (-X,))
def custom_operator_with_lists(self: Any, x: Tensor) -> Any:
    return halves([x, x * 2], [1, 2], "rows")


@family.forward((X,), (-X,), parts=lambda: {"buffers": {"count": torch.zeros(1), "total": torch.zeros(3, 4)}})
def custom_operator_that_writes(self: Any, x: Tensor) -> Any:
    add_to(self.total, x, self.count)
    y = x * 2
    add_to(y[1:], x[:2])
    add_to(x, y)
    return y, self.total + 0


@family.forward((X,), (-X,))
def custom_operator_that_writes_to_a_list(self: Any, x: Tensor) -> Any:
    y, z = x + 1, x + 2
    double_all([y, z])
    return y, z


@family.forward((X,), (-X,), (X.abs(),))
def custom_operator_of_data_dependent_size(self: Any, x: Tensor) -> Any:
    found, count = positives(x)
    return found * 2, count


@family.forward((X,), (-X,))
def custom_operator_inside_cond(self: Any, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: scaled(x, 3.0), lambda x: scaled(x) + 1, (x,))


# -- complex, quantised and small dtypes ------------------------------------------------------------------------------


@family.forward((torch.complex(X, -X),), (torch.complex(-X, X * 2),))
def complex_numbers(self: Any, x: Tensor) -> Any:
    y = torch.fft.fft(x) * (2 + 3j)
    return y.abs(), y.conj() @ x.t(), torch.view_as_real(y), y.imag, torch.polar(y.real.abs(), y.angle())


@family.forward((X,), (X * 10,))
def small_dtypes(self: Any, x: Tensor) -> Any:
    eight = [x.to(dtype) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8)]
    return *eight, x.half() @ x.half().t(), x.to(torch.uint16), eight[0].float() * 2, x.bfloat16().view(torch.int16)


@family.forward(
    (X,),
    (X * 10,),
    expected=carried("torch.export declares the `qint8` tensor float32; torch has deprecated such tensors"),
)
def eager_quantised_tensor(self: Any, x: Tensor) -> Any:
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


# -- sparse, nested, packed, ragged -----------------------------------------------------------------------------------


@family.forward((X.relu(),), (X.neg().relu(),))
def sparse_inside(self: Any, x: Tensor) -> Any:
    return torch.sparse.mm(x.to_sparse(), x.t())


@family.forward((X.relu().to_sparse(), X.t()), on_meta=False)
def sparse_input(self: Any, x: Tensor, y: Tensor) -> Any:
    return torch.sparse.mm(x, y)


@family.forward((X.relu(),), (X.neg().relu(),))
def sparse_rows_inside(self: Any, x: Tensor) -> Any:
    return x.to_sparse_csr() @ x.t()


@family.forward((X, X[:2]), (-X, X[1:]), expected=refused("torch.export cannot make a nested tensor"))
def nested_tensor_inside(self: Any, x: Tensor, y: Tensor) -> Any:
    return torch.nested.nested_tensor([x, y], layout=torch.jagged).sin().values()


@family.forward(
    (torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged),),
    on_meta=False,
    expected=refused("captured only in strict mode, and has no single shape; pass values and offsets"),
)
def nested_tensor_input(self: Any, x: Tensor) -> Any:
    return x.sin()


@family.forward(
    (X[None].repeat(2, 1, 1), torch.tensor([3, 2])),
    parts=lambda: {"lstm": nn.LSTM(4, 5, batch_first=True, bidirectional=True)},
    expected=refused("torch's fake kernels cannot pack sequences"),
)
def packed_sequence(self: Any, x: Tensor, lengths: Tensor) -> Any:
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    result, (hidden, _) = self.lstm(packed)
    return pad_packed_sequence(result, batch_first=True, total_length=3)[0], hidden


@family.forward(
    (X[None], torch.zeros(2, 1, 5)), (-X[None], torch.ones(2, 1, 5)), parts=lambda: {"gru": nn.GRU(4, 5, 2)}
)
def recurrent_network(self: Any, x: Tensor, hidden: Tensor) -> Any:
    return self.gru(x.transpose(0, 1), hidden)


@family.forward((X, torch.tensor([0, 2, 2, 3])), (-X, torch.tensor([1, 1, 3, 3])))
def embedding_bag(self: Any, x: Tensor, ids: Tensor) -> Any:
    return torch.nn.functional.embedding_bag(ids % 3, x, torch.tensor([0, 2]), mode="mean")


@family.forward(
    (X.to(memory_format=torch.contiguous_format)[None, None],), parts=lambda: {"conv": nn.Conv2d(1, 2, 3, padding=1)}
)
def channels_last(self: Any, x: Tensor) -> Any:
    return self.conv(x.to(memory_format=torch.channels_last)).contiguous()


@family.forward((X, 2, True, "sum", None), (-X, 2, True, "sum", None))
def inputs_that_are_no_tensors(self: Any, x: Tensor, k: int, flag: bool, how: str, nothing: None) -> Any:
    return getattr(x * k, how)() if flag and nothing is None else x


@family.forward((X, 3), (X, 5), dynamic_shapes=(None, Dim.DYNAMIC))
def integer_input_that_varies(self: Any, x: Tensor, k: int) -> Any:
    return x * k, torch.zeros(k), k + 1
