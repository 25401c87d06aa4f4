"""Tensors of a capture do not outlive it: the next capture and the next eager call equal those of a fresh process.

Each model keeps a table of its own making outside of itself. The oracle is the same model alone, in eager mode.
"""

import ctypes
import functools
import gc
import itertools
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_ir
from torch_ir.capture.fast.shape_tensors import Ghost
from torch_ir.errors import CaptureWarning

_GLOBAL: Any = None
_DICT: dict[Any, Any] = {}
_FULL: dict[Any, Any] = {"kept": 1, "table": None}
_LIST: list[Any] = []
_SLOTS: list[Any] = [None, "kept"]
_ORDERED: Any = OrderedDict()
_DEFAULT: Any = defaultdict(list)
_DEQUE: Any = deque(maxlen=4)
_NESTED: dict[str, dict[Any, Any]] = {"tables": {}}


def made(n: int) -> torch.Tensor:
    return torch.arange(n).cos()


@functools.lru_cache
def cached(n: int) -> torch.Tensor:
    return made(n)


@functools.cache
def cached_pair(n: int) -> tuple[Any, ...]:
    return n, {"cos": [made(n)]}


class Helper:
    def __init__(self) -> None:
        self.table: Any = None
        self.tables: dict[int, Any] = {}

    @functools.cached_property
    def lazy(self) -> torch.Tensor:
        return made(4)


class Shared:
    table: Any = None


_HELPER = Helper()


def from_lru(_: nn.Module, n: int) -> torch.Tensor:
    return cached(n)


def from_nested_lru(_: nn.Module, n: int) -> torch.Tensor:
    return cached_pair(n)[1]["cos"][0]


def from_global(_: nn.Module, n: int) -> torch.Tensor:
    global _GLOBAL
    if _GLOBAL is None or _GLOBAL.shape[0] != n:
        _GLOBAL = made(n)
    return _GLOBAL


def from_dict(_: nn.Module, n: int) -> torch.Tensor:
    if n not in _DICT:
        _DICT[n] = made(n)
    return _DICT[n]


def from_full_dict(_: nn.Module, n: int) -> torch.Tensor:
    if _FULL["table"] is None or _FULL["table"][0].shape[0] != n:
        _FULL["table"] = (made(n), "beside")
    return _FULL["table"][0]


def from_list(_: nn.Module, n: int) -> torch.Tensor:
    for table in _LIST:
        if table.shape[0] == n:
            return table
    _LIST.append(made(n))
    return _LIST[-1]


def from_slots(_: nn.Module, n: int) -> torch.Tensor:
    if _SLOTS[0] is None or _SLOTS[0].shape[0] != n:
        _SLOTS[0] = made(n)
    return _SLOTS[0]


def from_other_containers(_: nn.Module, n: int) -> torch.Tensor:
    if n not in _ORDERED:
        _ORDERED[n] = made(n)
        _DEFAULT[n].append(_ORDERED[n] * 2)
        _DEQUE.append(_ORDERED[n] * 3)
    return _ORDERED[n] + _DEFAULT[n][0]


def from_nested_dict(_: nn.Module, n: int) -> torch.Tensor:
    return (
        _NESTED["tables"].setdefault(n, {"cos": made(n)})["cos"]
        if n not in _NESTED["tables"]
        else (_NESTED["tables"][n]["cos"])
    )


def from_class(_: nn.Module, n: int) -> torch.Tensor:
    if Shared.table is None or Shared.table.shape[0] != n:
        Shared.table = made(n)
    return Shared.table


def from_own_class(model: nn.Module, n: int) -> torch.Tensor:
    kind: Any = type(model)
    if kind.table is None or kind.table.shape[0] != n:
        kind.table = made(n)
    return kind.table


def from_helper(model: Any, n: int) -> torch.Tensor:
    if model.helper.table is None or model.helper.table.shape[0] != n:
        model.helper.table = made(n)
    if n not in model.helper.tables:
        model.helper.tables[n] = (model.helper.table * 2,)
    return model.helper.tables[n][0]


def from_global_helper(_: nn.Module, n: int) -> torch.Tensor:
    if n not in _HELPER.tables:
        _HELPER.tables[n] = made(n)
    return _HELPER.tables[n]


def from_property(model: Any, n: int) -> torch.Tensor:
    return model.helper.lazy.sum() * made(n)


def from_default(_: nn.Module, n: int, memo: dict[int, Any] = {}) -> torch.Tensor:  # noqa: B006  # as models do
    if n not in memo:
        memo[n] = made(n)
    return memo[n]


def from_function_attribute(_: nn.Module, n: int) -> torch.Tensor:
    function: Any = from_function_attribute
    if getattr(function, "table", None) is None or function.table.shape[0] != n:
        function.table = made(n)
    return function.table


def _closure() -> Callable[[nn.Module, int], torch.Tensor]:
    memo: Any = None
    seen: dict[int, Any] = {}

    def from_closure(_: nn.Module, n: int) -> torch.Tensor:
        nonlocal memo
        if memo is None or memo.shape[0] != n:
            memo = made(n)
        return memo + seen.setdefault(n, memo * 2)

    return from_closure


class Table(nn.Module):
    """A layer that multiplies with a table, which it gets from somewhere."""

    table: Any = None

    def __init__(self, source: Callable[[nn.Module, int], torch.Tensor]) -> None:
        super().__init__()
        self.helper, self.source = Helper(), [source]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * self.source[0](self, x.shape[-1])


HOLDERS = [
    from_lru, from_nested_lru, from_global, from_dict, from_full_dict, from_list, from_slots, from_other_containers,
    from_nested_dict, from_class, from_own_class, from_helper, from_global_helper, from_property, from_default,
    from_function_attribute, _closure(),
]  # fmt: skip
ROADS: dict[str, dict[str, Any]] = {
    "quick": {},
    "export": {"capture": "export"},
    "open sizes": {"dynamic_shapes": ({0: torch.export.Dim.AUTO},)},
    "record": {"capture": "record"},
    "real record": {"capture": "record", "strict": False},
    "real": {"strict": False},
    "crosscheck": {"crosscheck": True},
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Start and end with empty caches."""
    _empty()
    yield
    _empty()


def _empty() -> None:
    global _GLOBAL, _HELPER
    torch.manual_seed(0)  # for the weights of the next model
    _GLOBAL = Shared.table = Table.table = None
    _HELPER = Helper()
    for container in (_DICT, _LIST, _ORDERED, _DEFAULT, _DEQUE, _NESTED["tables"], from_default.__defaults__[0]):
        container.clear()
    _FULL.update(kept=1, table=None)
    _SLOTS[:] = [None, "kept"]
    vars(from_function_attribute).clear()
    cached.cache_clear()
    cached_pair.cache_clear()
    for cell in HOLDERS[-1].__closure__ or ():
        if isinstance(cell.cell_contents, dict):
            cell.cell_contents.clear()
        else:
            cell.cell_contents = None


def _captured(model: nn.Module, n: int, road: str) -> str:
    options = ROADS[road]
    if options.get("strict") is False:
        return torch_ir.extract_ir(model, (torch.ones(2, n),), **options).to_json()
    with torch.device("meta"):
        blank = type(model)(model.source[0]).eval()  # type: ignore[operator, index]
    blank.helper = model.helper
    return torch_ir.extract_ir(blank, (torch.empty(2, n, device="meta"),), **options).to_json()


def _eager(model: nn.Module, n: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 2 * n).reshape(2, n)).clone()


def _alive(known: list[torch.Tensor]) -> list[torch.Tensor]:
    objects = gc.get_objects()  # often millions, so the loop runs in C
    found = itertools.compress(objects, map({Ghost, torch._subclasses.FakeTensor}.__contains__, map(type, objects)))
    return [tensor for tensor in found if not any(tensor is other for other in known)]


def _check(holder: Callable[..., Any], actions: list[tuple[str, int]]) -> None:
    """Run actions on one model in some order; each returns what it returns alone."""
    alone, before = {}, _alive([])  # torch.compile keeps some, where another test has compiled
    for road, n in dict.fromkeys(actions):
        _empty()
        model = Table(holder).eval()
        alone[road, n] = _eager(model, n) if road == "eager" else _captured(model, n, road)
    _empty()
    model, is_used = Table(holder).eval(), set()
    for road, n in actions:
        found = _eager(model, n) if road == "eager" else _captured(model, n, road)
        if road == "eager":
            assert type(found) is torch.Tensor
            assert torch.equal(found, alone[road, n]), (road, n)
            is_used.add(n)
        elif not (is_used if holder is from_property else is_used & {n}):  # after an eager call, it is a constant
            assert found == alone[road, n], (road, n)
    model = None
    if _alive(before):  # garbage, perhaps; collecting it takes a second in a process of many objects
        gc.collect()
    assert _alive(before) == []


def every_holder(model: nn.Module, n: int) -> torch.Tensor:
    return torch.stack([holder(model, n) for holder in HOLDERS]).sum(0)


@pytest.mark.parametrize(
    "road",
    [pytest.param(road, marks=() if road in ("quick", "real", "record") else pytest.mark.slow) for road in ROADS],
)
def test_a_second_capture_and_eager_are_those_of_a_fresh_process(road: str) -> None:
    """Capture twice, another size, then eager at both sizes, with a table in every holder."""
    _check(every_holder, [(road, 4), (road, 4), (road, 6), ("eager", 4), ("eager", 6)])


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.__name__)
def test_every_holder_is_put_back(holder: Callable[..., Any]) -> None:
    """Recorded twice in turn, with nothing left for eager."""
    _check(holder, [("quick", 4), ("quick", 6), ("quick", 4), ("eager", 4)])


def test_what_was_there_before_is_kept() -> None:
    """Entries and attributes that the capture did not create are kept."""
    _DICT["kept"] = kept = torch.ones(3)
    _LIST.append(torch.ones(9))
    held = _LIST[0]
    for holder in (from_dict, from_full_dict, from_list, from_slots):
        _captured(Table(holder).eval(), 4, "quick")
    assert dict(_DICT) == {"kept": kept}
    assert _FULL == {"kept": 1, "table": None}
    assert len(_LIST) == 1
    assert _LIST[0] is held
    assert _SLOTS == [None, "kept"]


@pytest.mark.parametrize("road", ["quick", "export", "record"])
def test_a_table_made_before_the_capture_is_a_constant(road: str) -> None:
    """A real tensor in a cache is read, as eager reads it, and stays there."""
    table = cached(4)
    ir = torch_ir.IR.from_json(_captured(Table(from_lru).eval(), 4, road))
    assert [param.param.kind for param in ir.params if param.param and param.param.kind == "constant"] == ["constant"]
    assert cached(4) is table


@pytest.mark.parametrize("road", ["quick", "export", "record", "real record"])
def test_a_buffer_that_forward_writes_to_stays_where_it_is(road: str) -> None:
    """It is the result of a call in the graph, and no tensor of the capture for all that."""

    class Counting(Table):
        def __init__(self, source: Callable[[nn.Module, int], torch.Tensor]) -> None:
            super().__init__(source)
            self.register_buffer("count", torch.zeros(4))
            self.plain = [torch.zeros(4)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return super().forward(x) + self.count

    model = Counting(from_dict).eval()
    held, count = model.count, model.plain[0]
    options: dict[str, Any] = {**ROADS[road], "strict": False}
    first, second = (torch_ir.extract_ir(model, (torch.ones(2, 4),), **options).to_json() for _ in range(2))
    assert first == second
    assert model.count is held
    assert model.plain[0] is count
    assert torch.equal(held, torch.zeros(4))
    assert _DICT == {}


@pytest.mark.parametrize("road", ["quick", "export", "record"])
def test_a_failed_capture_leaves_nothing_either(road: str) -> None:
    """Caches that were filled before forward failed are put back as well."""

    class Failing(Table):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(str(super().forward(x).shape))

    with pytest.raises(torch_ir.ExportError, match="ValueError"):
        _captured(Failing(from_dict).eval(), 4, road)
    assert _DICT == {}
    assert _eager(Table(from_dict), 4).isfinite().all()


@pytest.mark.filterwarnings("ignore::torch_ir.errors.CaptureWarning")  # that it explores
def test_every_way_through_a_model_starts_afresh() -> None:
    """Tensors cached on one path are not read on another."""

    class Deciding(Table):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return super().forward(x)
            return super().forward(x) * 2

    first, second = (_captured(Deciding(from_lru).eval(), 4, "quick") for _ in range(2))
    assert first == second
    ir = torch_ir.IR.from_json(first)
    assert not ir.constants
    x = torch.linspace(-1, 2, 8).reshape(2, 4)
    table = torch.arange(4).cos()
    for given in (x, -x):
        expected = given.tanh() * table * (1 if given.sum() > 0 else 2)
        torch.testing.assert_close(torch_ir.IRExecutor(ir)(given), expected)


@pytest.mark.filterwarnings("ignore:forward changes state")
def test_a_tensor_of_an_earlier_capture_is_refused() -> None:
    """If one is met nevertheless, it is not treated as a tensor of this capture."""
    kept: list[Any] = []

    class Keeping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(x.cos())
            return x.sin()

    class Slotted:
        __slots__ = ("tensor",)

    slot = Slotted()
    address = id(slot)  # no name in forward leads to the object

    class Slotting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ctypes.cast(address, ctypes.py_object).value.tensor = x.cos()
            return x.sin()

    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * ctypes.cast(address, ctypes.py_object).value.tensor

    blank = torch.empty(3, device="meta")
    torch_ir.extract_ir(Keeping().eval(), (blank,))
    assert kept == []
    with pytest.warns(CaptureWarning, match="Slotted keeps tensors of the capture, which have no values"):
        torch_ir.extract_ir(Slotting().eval(), (blank,))
    with pytest.raises(torch_ir.TorchIRError, match="kept from an earlier capture"):
        torch_ir.extract_ir(Reading().eval(), (blank,))
    with pytest.raises(torch_ir.TorchIRError, match="kept from an earlier capture"):
        Reading()(torch.ones(3))
    del slot.tensor


def test_a_container_of_a_library_is_left_alone() -> None:
    """A custom class may need arguments to be copied, or have side effects when read."""

    class Lazy(OrderedDict[str, Any]):
        def __init__(self, needed: int) -> None:
            super().__init__()

        def items(self) -> Any:
            raise RuntimeError("it reads what is not there")

    Shared.table = Lazy(1)
    Shared.table["one"] = 1
    assert _captured(Table(from_dict).eval(), 4, "quick") == _captured(Table(from_dict).eval(), 4, "quick")


def _drawn(seed: int, count: int) -> Iterator[tuple[Callable[..., Any], list[tuple[str, int]]]]:
    """Holders with actions in random order."""
    drawn = random.Random(seed)
    actions = [*itertools.product([*ROADS, "eager"], (4, 6))]
    for _ in range(count):
        yield drawn.choice(HOLDERS), drawn.choices(actions, k=drawn.randint(3, 6))


@pytest.mark.parametrize(("holder", "actions"), [*_drawn(0, 2)])
def test_any_order_of_captures_and_eager_calls(holder: Callable[..., Any], actions: list[tuple[str, int]]) -> None:
    _check(holder, actions)


@pytest.mark.slow
@pytest.mark.parametrize(("holder", "actions"), [*_drawn(1, 300)])
def test_many_orders_of_captures_and_eager_calls(holder: Callable[..., Any], actions: list[tuple[str, int]]) -> None:
    _check(holder, actions)
