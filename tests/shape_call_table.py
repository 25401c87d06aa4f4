"""Random calls of every operator that has a shape rule of our own."""

from collections.abc import Callable
from typing import Any

import torch

from tests.shape_calls import (
    DTYPES,
    Calls,
    adaptive,
    adaptive_by,
    attention,
    attention_options,
    average_pooled,
    batch_norm,
    binary,
    clamped,
    class_loss,
    comparison,
    convolution,
    dimension,
    dropout,
    einsum,
    embedding,
    floor,
    gather,
    group_norm,
    image,
    layer_norm,
    linear,
    loss,
    matmul,
    max_pooled,
    pooled_by,
    power,
    shuffled,
    smoothed_class_loss,
    softmax,
    transposed_convolution,
    unary,
    upsampled,
    with_dimension,
)


def joined(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(least=1), call.dtype()
    at = dimension(call, shape)
    others = [[*shape] for _ in range(call.one_of(1, 2))]
    for other in others:
        other[at] = call.one_of(1, 2, 5)
    return [call.tensor(each, call.one_of(dtype, dtype, dtype, torch.float32)) for each in (shape, *others)], at


def mean(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    dims = call.random.sample(range(-len(shape), 0), call.random.randint(0, len(shape)))
    return *call.same(shape), dims, call.one_of(False, True)


def expanded(call: Calls) -> tuple[Any, ...]:
    shape = call.shape()
    return *call.same(shape), [call.one_of(2, 3), *(size if size > 1 else call.one_of(1, 4, -1) for size in shape)]


def permuted(call: Calls) -> tuple[Any, ...]:
    shape = call.shape()
    return *call.same(shape), call.random.sample(range(len(shape)), len(shape))


def selected(call: Calls) -> tuple[Any, ...]:
    return *with_dimension(call), 0


def sliced(call: Calls) -> tuple[Any, ...]:
    return *with_dimension(call), call.one_of(None, 0, 1, -1), call.one_of(None, 2, 100), call.one_of(1, 2)


def split(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return *call.same(shape), call.one_of(1, 2, 3), dimension(call, shape)


def split_sizes(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return *call.same(shape), [1, shape[-1] - 1], -1


def swapped(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return *call.same(shape), dimension(call, shape), dimension(call, shape)


def flat(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    first = call.random.randint(0, len(shape) - 1)
    return *call.same(shape), first, call.random.randint(first, len(shape) - 1)


def reshaped(call: Calls) -> tuple[Any, ...]:
    shape = call.shape()
    count = 1
    for size in shape:
        count *= size
    news = [[count], [-1], [1, count], [count, 1], shape, [*shape, 1], [2, -1], [*shape[1:], *shape[:1]]]
    return *call.same(shape), call.random.choice(news)


def unflattened(call: Calls) -> tuple[Any, ...]:
    shape = [*call.shape(most=2), call.one_of(4, 6)]
    return *call.same(shape), -1, call.one_of([2, -1], [1, shape[-1]], [-1, 1])


def cast(call: Calls) -> tuple[Any, ...]:
    return *unary(call), call.dtype()


def square_of(call: Calls) -> tuple[Any, ...]:
    return call.same(call.shape(most=2))


def count_up(call: Calls) -> tuple[Any, ...]:
    return (call.one_of(0, 1, 5, 2.5),)


def count_from(call: Calls) -> tuple[Any, ...]:
    return call.one_of(0, 2, -1), call.one_of(2, 7, 7.5)


def count_by(call: Calls) -> tuple[Any, ...]:
    return *count_from(call), call.one_of(1, 2, 3, -1)


def products(call: Calls) -> tuple[Any, ...]:
    dtype, outer, inner = call.dtype(), call.shape(most=1, least=1), call.one_of(1, 2, 3)
    one, other = [call.one_of(1, 4), inner], [inner, call.one_of(1, 5)]
    return tuple(call.tensor([*outer, *each], dtype) for each in (one, other))


def product(call: Calls) -> tuple[Any, ...]:
    one, other = products(call)
    return tuple(call.tensor(list(each.shape[1:]), each.dtype) for each in (one, other))


def sum_of_product(makes: Callable[[Calls], tuple[Any, ...]]) -> Callable[[Calls], tuple[Any, ...]]:
    def make(call: Calls) -> tuple[Any, ...]:
        one, other = makes(call)
        shape = [*one.shape[:-1], other.shape[-1]]
        shape = call.one_of(shape, shape[-1:], [1], [*shape[:-1], 1])
        return call.tensor(shape, call.one_of(one.dtype, one.dtype, torch.float32)), one, other

    return make


def logical(call: Calls) -> tuple[Any, ...]:
    kind = call.one_of(torch.bool, torch.bool, torch.int64, torch.float32)
    return tuple(call.tensor(list(each.shape), call.one_of(kind, kind, torch.int64)) for each in call.pair())


def chosen(call: Calls) -> tuple[Any, ...]:
    one, other = call.pair()
    condition = call.tensor(
        call.one_of(list(one.shape), list(other.shape)), call.one_of(torch.bool, torch.bool, torch.uint8)
    )
    return condition, *call.one_of((one, other), (other, one))


def chosen_or_number(call: Calls) -> tuple[Any, ...]:
    condition, one, _ = chosen(call)
    return condition, one, call.one_of(0, 0.5, True)


def number_or_chosen(call: Calls) -> tuple[Any, ...]:
    condition, one, number = chosen_or_number(call)
    return condition, number, one


def mask_filled(call: Calls) -> tuple[Any, ...]:
    one, other = call.pair()
    return one, call.tensor(list(other.shape), torch.bool), call.one_of(0, -1.5, True)


def mask_filled_by_tensor(call: Calls) -> tuple[Any, ...]:
    one, mask, _ = mask_filled(call)
    return one, mask, call.tensor(call.one_of([], [], [1]), call.one_of(one.dtype, torch.float32))


def best(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    at = dimension(call, shape)
    return *call.same(shape), call.one_of(0, 1, shape[at]), at


def stacked(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(), call.dtype()
    tensors = [call.tensor(shape, call.one_of(dtype, dtype, dtype, torch.float32)) for _ in range(call.one_of(1, 2))]
    return tensors, dimension(call, [*shape, 1])


def repeated(call: Calls) -> tuple[Any, ...]:
    shape = call.shape()
    return *call.same(shape), [call.one_of(0, 1, 1, 2, 3) for _ in range(len(shape) + call.one_of(0, 0, 1))]


def repeated_elements(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return *call.same(shape), call.one_of(0, 1, 2, 3), call.one_of(None, dimension(call, shape))


def padded(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    sizes = [call.one_of(0, 0, 1, 2, -1) for _ in range(2 * call.random.randint(1, len(shape)))]
    return *call.same(shape), sizes, call.one_of("constant", "constant", "reflect"), call.one_of(None, 0.0)


def reshaped_as(call: Calls) -> tuple[Any, ...]:
    tensor, shape = reshaped(call)
    return tensor, call.tensor([abs(size) for size in shape], call.dtype())


def indexed(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    common = call.shape(most=3)
    kind = call.one_of(torch.int64, torch.int64, torch.int64, torch.int32, torch.bool)
    indices = [
        call.tensor([call.one_of(size, size, 1) for size in common][call.one_of(0, 0, 1) :], kind) for _ in shape
    ]
    chosen = [call.maybe(each, 0.6) for each in indices[: call.random.randint(1, len(shape))]]
    return *call.same(shape), chosen if any(each is not None for each in chosen) else indices[:1]


def rows(call: Calls) -> tuple[Any, ...]:
    index = call.tensor(call.one_of([3], [1], []), call.one_of(torch.int64, torch.int32))
    return *with_dimension(call), index


def put_at_indices(call: Calls) -> tuple[Any, ...]:
    tensor, indices = indexed(call)
    shape = call.shape(most=2)
    if 0 not in tensor.shape and all(each is None or each.dtype != torch.bool for each in indices):
        places = [slice(None) if each is None else torch.zeros(each.shape, dtype=torch.long) for each in indices]
        found = list(torch.empty(tensor.shape)[tuple(places)].shape)
        shape = call.one_of(found, found, found[1:], [1], shape)
    return tensor, indices, call.tensor(shape, call.one_of(tensor.dtype, tensor.dtype, torch.float32))


def put_in_slice(call: Calls) -> tuple[Any, ...]:
    tensor, *where = sliced(call)
    part = torch.ops.aten.slice.Tensor(torch.empty(tensor.shape, device="meta"), *where)
    return tensor, call.tensor(list(part.shape), call.one_of(tensor.dtype, tensor.dtype, torch.float32)), *where


def put_in_place_of_one(call: Calls) -> tuple[Any, ...]:
    tensor, dim = with_dimension(call)
    part = [size for at, size in enumerate(tensor.shape) if at != dim % tensor.dim()]
    return tensor, call.tensor(part, call.one_of(tensor.dtype, tensor.dtype, torch.float32)), dim, call.one_of(0, -1)


def flipped(call: Calls) -> tuple[Any, ...]:
    shape = call.shape(least=1)
    return *call.same(shape), call.random.sample(range(len(shape)), call.random.randint(0, len(shape)))


def differences(call: Calls) -> tuple[Any, ...]:
    (tensor,) = call.same(call.shape(least=1))
    more = [call.maybe(call.tensor([*tensor.shape[:-1], 1], tensor.dtype), 0.4) for _ in range(2)]
    return tensor, call.one_of(1, 1, 1, 2), -1, *more


def normed(call: Calls) -> tuple[Any, ...]:
    tensor, dims, keeps = mean(call)
    return tensor, call.one_of(1, 2, 2.0, 3), dims, keeps


def padded_convolution(count: int) -> Callable[[Calls], tuple[Any, ...]]:
    def make(call: Calls) -> tuple[Any, ...]:
        x, weight, bias, stride, _, dilation, groups = convolution(count)(call)
        return x, weight, bias, call.one_of(stride, [1] * count), call.one_of("valid", "same"), dilation, groups

    return make


def created(call: Calls) -> tuple[Any, ...]:
    return (call.shape(),)


def created_full(call: Calls) -> tuple[Any, ...]:
    return call.shape(), call.one_of(True, 2, 0.5)


def created_like(call: Calls) -> tuple[Any, ...]:
    return *unary(call), call.shape()


def created_full_like(call: Calls) -> tuple[Any, ...]:
    return *unary(call), call.shape(), call.one_of(True, 2, 0.5)


def filled(call: Calls) -> tuple[Any, ...]:
    return *unary(call), call.one_of(True, 2, 0.5)


def cast_on_cpu(call: Calls) -> tuple[Any, ...]:
    return *unary(call), torch.device("cpu"), call.dtype(), False, call.one_of(False, False, True)


def cast_as(call: Calls) -> tuple[Any, ...]:
    return *unary(call), *unary(call)


def asserted(call: Calls) -> tuple[Any, ...]:
    (tensor,) = unary(call)
    return tensor, None, None, call.one_of(None, tensor.dtype, tensor.dtype)


def varied(call: Calls) -> tuple[Any, ...]:
    tensor, dims, keeps = mean(call)
    return tensor, dims, call.one_of(False, True), keeps


def extreme(call: Calls) -> tuple[Any, ...]:
    return *with_dimension(call), call.one_of(False, True)


def instance_norm(call: Calls) -> tuple[Any, ...]:
    x, weight, bias, mean, variance, *_ = batch_norm(call)
    statistics = call.one_of((None, None), (None, None), (mean, variance))
    return x, weight, bias, *statistics, call.one_of(True, True, False), 0.1, 1e-5, True


def sloped(call: Calls) -> tuple[Any, ...]:
    shape, dtype = call.shape(), call.dtype()
    return call.tensor(shape, dtype), call.tensor([*call.one_of([1], [1], shape[1:2])], dtype)


def outer(call: Calls) -> tuple[Any, ...]:
    one, other = binary(call)[0], binary(call)[0]
    sizes = [call.one_of(1, 3), call.one_of(1, 4)]
    return tuple(call.tensor([size], each.dtype) for size, each in zip(sizes, (one, other), strict=True))


def square(call: Calls) -> tuple[Any, ...]:
    return (call.one_of(0, 1, 4),)


def rectangle(call: Calls) -> tuple[Any, ...]:
    return call.one_of(0, 1, 4), call.one_of(0, 1, 4)


def padded_by_elements(call: Calls) -> tuple[Any, ...]:
    tensor = image(call, call.one_of(1, 2, 3))
    sizes = [call.one_of(0, 1, 1, 2) for _ in range(call.one_of(2, 4, 6))]
    return tensor, sizes, call.one_of("reflect", "replicate"), None


def where_to(call: Calls, with_dtype: bool = True) -> dict[str, Any]:
    """Keywords of operators that create tensors."""
    dtype = {"dtype": call.one_of(None, *DTYPES)} if with_dtype else {}
    return {**dtype, "layout": call.one_of(None, torch.strided), "device": torch.device("cpu"), "pin_memory": False}


MAKERS: dict[str, Callable[[Calls], tuple[Any, ...]]] = {
    "conv1d": convolution(1), "conv2d": convolution(2), "conv3d": convolution(3), "linear": linear,
    "max_pool2d": max_pooled, "avg_pool2d": average_pooled, "adaptive_avg_pool2d": adaptive, "batch_norm": batch_norm,
    "layer_norm": layer_norm, "group_norm": group_norm, "softmax": softmax, "dropout": dropout,
    "embedding": embedding, "gather": gather, "matmul": matmul, "scaled_dot_product_attention": attention,
    "bmm": products, "mm": product, "addmm": sum_of_product(product), "baddbmm": sum_of_product(products),
    "cat": joined, "stack": stacked, "mean": mean, "sum": mean, "cumsum": with_dimension, "argmax": with_dimension,
    "argmin": with_dimension, "topk": best, "sort": with_dimension, "repeat": repeated,
    "repeat_interleave": repeated_elements, "pad": padded, "index": indexed, "index_select": rows,
    "expand": expanded, "permute": permuted, "select": selected, "slice": sliced, "split": split, "chunk": split,
    "split_with_sizes": split_sizes, "squeeze": with_dimension, "unsqueeze": with_dimension, "unbind": with_dimension,
    "transpose": swapped, "t": square_of, "flatten": flat, "reshape": reshaped, "view": reshaped,
    "reshape_as": reshaped_as, "expand_as": Calls.pair, "unflatten": unflattened, "pow": power, "clamp": clamped,
    "clamp_min": floor, "clamp_max": floor, "add": binary, "sub": binary, "mul": binary, "div": binary, "add_": binary,
    "mul_": binary, "rsub": floor, "maximum": Calls.pair, "minimum": Calls.pair, "logical_and": logical,
    "logical_or": logical, "zeros": created, "ones": created, "full": created_full, "new_zeros": created_like,
    "new_ones": created_like, "new_empty": created_like, "new_full": created_full_like, "full_like": filled,
    "type_as": cast_as, "rand": created, "randn": created, "index_put": put_at_indices, "slice_scatter": put_in_slice,
    "select_scatter": put_in_place_of_one, "flip": flipped, "tril": square_of, "triu": square_of, "diff": differences,
    "linalg_vector_norm": normed, "max_pool1d": pooled_by(1), "max_pool3d": pooled_by(3),
    "avg_pool1d": pooled_by(1, is_mean=True), "log_softmax": softmax,
    "adaptive_avg_pool1d": adaptive_by(1), "adaptive_avg_pool3d": adaptive_by(3), "instance_norm": instance_norm,
    "pixel_shuffle": shuffled, "prelu": sloped, "mse_loss": loss, "l1_loss": loss,
    "smooth_l1_loss": loss, "cross_entropy_loss": smoothed_class_loss, "nll_loss_nd": class_loss, "einsum": einsum,
    "amax": mean, "var": varied, "std": varied, "amin": mean, "broadcast_tensors": lambda call: ([*call.pair()],),
    "div_": binary, "sub_": binary, "outer": outer, "clamp_": clamped, "clip": clamped,
    "floor_divide": binary, "_assert_tensor_metadata": asserted,
}  # fmt: skip
OVERLOADS: dict[str, Callable[[Calls], tuple[Any, ...]]] = {
    "where.self": chosen, "where.ScalarOther": chosen_or_number, "where.ScalarSelf": number_or_chosen,
    "masked_fill.Scalar": mask_filled, "masked_fill.Tensor": mask_filled_by_tensor,
    "to.dtype": cast, "to.device": cast_on_cpu, "to.dtype_layout": unary,
}  # fmt: skip
OVERLOADS |= {f"conv{count}d.padding": padded_convolution(count) for count in (1, 2, 3)}
OVERLOADS |= {"conv_transpose1d.default": transposed_convolution(1)}
OVERLOADS |= {f"conv_transpose{count}d.input": transposed_convolution(count) for count in (2, 3)}
OVERLOADS |= {"squeeze.default": unary, "mean.default": unary}
OVERLOADS |= {"var.dim": varied, "std.dim": varied, "max.dim": extreme, "min.dim": extreme}
OVERLOADS |= {"eye.default": square, "eye.m": rectangle}
OVERLOADS |= {"masked_fill_.Scalar": mask_filled, "masked_fill_.Tensor": mask_filled_by_tensor}
OVERLOADS |= {"sum.default": unary, "max.other": Calls.pair, "min.other": Calls.pair}
CREATING = frozenset(
    (
        "rand", "randn", "zeros", "ones", "full", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros",
        "new_ones", "new_empty", "new_full", "to.dtype_layout", "eye",
    )
)  # fmt: skip
BITWISE = ("bitwise_and", "bitwise_or", "__and__", "__or__")
RANGES = {"default": count_up, "start": count_from, "start_step": count_by}


def arguments(func: Any, call: Calls) -> tuple[tuple[Any, ...], dict[str, Any]]:
    packet, overload = str(func).removeprefix("aten.").rsplit(".", 1)
    if packet == "arange":
        return RANGES[overload](call), {"dtype": call.one_of(None, *DTYPES), "device": torch.device("cpu")}
    if packet in ("eq", "ne", "lt", "le", "gt", "ge"):
        return (comparison(call) if overload == "Scalar" else call.pair()), {}
    if packet in BITWISE:
        one, other = logical(call)
        return (one, call.one_of(1, True) if overload == "Scalar" else other), {}
    if packet == "bitwise_not":
        return (call.tensor(call.shape(), call.one_of(torch.bool, torch.int64)),), {}
    if "upsample" in packet:
        return upsampled(f"{packet}.{overload}")(call), {}
    if packet == "pad" and call.one_of(True, False):
        return padded_by_elements(call), {}
    args = (OVERLOADS.get(f"{packet}.{overload}") or MAKERS.get(packet, unary))(call)
    if packet in CREATING or f"{packet}.{overload}" in CREATING:
        return args, where_to(call)
    if packet in ("add", "sub", "add_", "sub_"):
        return args, call.one_of({}, {"alpha": call.one_of(1, 2, 0.5)})
    if packet in ("sum", "cumsum"):
        return args, {"dtype": call.one_of(None, None, *DTYPES)}
    if packet == "scaled_dot_product_attention":
        return args, attention_options(call, *args[:2])
    if packet == "_assert_tensor_metadata":
        return args, call.one_of({}, {"device": torch.device("cpu"), "layout": torch.strided})
    return args, {}
