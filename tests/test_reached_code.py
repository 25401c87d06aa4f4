"""The names that code uses are those that the disassembler of the running Python shows."""

import dis
import inspect
from types import CodeType

import pytest
import torch

from torch_ir.capture.state.reached_code import names_in

USES = {
    "stored": ("STORE_GLOBAL", "DELETE_GLOBAL"),
    "loaded": ("LOAD_GLOBAL", "LOAD_NAME"),
    "assigned": ("STORE_ATTR", "DELETE_ATTR"),
    "attributes": ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR", "DELETE_ATTR"),
}
MANY = "\n".join(f"    number.name_{place} = global_{place}.read_{place}" for place in range(600))


def nested(code: CodeType) -> list[CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return [code, *(each for one in inner for each in nested(one))]


def shown(code: CodeType) -> dict[str, set[str]]:
    used = [(each.opname, each.argval) for one in nested(code) for each in dis.get_instructions(one)]
    return {use: {name for operation, name in used if operation in operations} for use, operations in USES.items()}


@pytest.mark.parametrize(
    "source",
    [
        inspect.getsource(torch.nn.modules.module),
        inspect.getsource(torch.overrides),
        inspect.getsource(dis),
        f"def many(number):\n{MANY}\n    return number",  # more names than a byte counts
        "def f(self):\n    global a, b\n    a = super().x\n    del b, self.y\n    self.z += a.w(b)",
    ],
    ids=["module", "overrides", "dis", "many", "each use"],
)
def test_names_are_those_of_the_disassembler(source: str) -> None:
    code = compile(source, "source.py", "exec")
    found = names_in(code)
    assert {use: set(getattr(found, use)) for use in USES} == shown(code)
    assert found.loaded
    assert found.attributes
