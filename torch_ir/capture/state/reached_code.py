"""The code that a model runs, as far as names show it: functions, and the names of globals and attributes in them."""

from __future__ import annotations

import dis
import functools
import os
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch_ir.capture.program.provenance import is_users_code, is_users_module
from torch_ir.ops.references import ABSENT, LRU_CACHE, cells_of

_MOST = 200  # functions reached from one
_IMPLICIT = frozenset(
    f"__{name}__"
    for name in (
        "call", "enter", "exit", "get", "set", "getattr", "getattribute", "setattr", "getitem", "setitem", "iter",
        "next", "len", "contains", "bool", "eq", "hash", "add", "radd", "iadd", "mul", "rmul", "int", "float", "index",
    )
)  # fmt: skip
_DEPTH = 3  # of modules in modules
_known_functions: WeakKeyDictionary[Any, Sequence[ref[FunctionType]]] = WeakKeyDictionary()
_USED = {
    "STORE_GLOBAL": ("stored", 0), "DELETE_GLOBAL": ("stored", 0), "LOAD_NAME": ("loaded", 0),
    "LOAD_GLOBAL": ("loaded", 1 if sys.version_info >= (3, 11) else 0),
    "STORE_ATTR": ("assigned", 0), "DELETE_ATTR": ("assigned", 0), "LOAD_METHOD": ("attributes", 0),
    "LOAD_ATTR": ("attributes", 1 if sys.version_info >= (3, 12) else 0), "LOAD_SUPER_ATTR": ("attributes", 2),
}  # fmt: skip
# operation -> use of a name, and how many low bits of the argument are flags, in Python 3.10 to 3.14
_USES = {dis.opmap[name]: use for name, use in _USED.items() if name in dis.opmap}


class Names(NamedTuple):
    """The names in a function and in those nested in it."""

    stored: tuple[str, ...]  # globals that it assigns or deletes
    loaded: tuple[str, ...]  # globals that it reads
    attributes: frozenset[str]  # of any object
    assigned: frozenset[str]  # attributes that it assigns or deletes


def functions_of(kind: type) -> Sequence[FunctionType]:
    """Return `forward` of a user's class, and the user's functions that it calls by name, directly or indirectly."""
    start = getattr(kind, "forward", None)
    return _remembered(kind, kind, start) if isinstance(start, FunctionType) else ()


def functions_from(function: FunctionType) -> Sequence[FunctionType]:
    """Return a function and the user's functions that it calls by name, directly or indirectly."""
    return _remembered(function, object, function)


def _remembered(key: Any, kind: type, start: FunctionType) -> Sequence[FunctionType]:
    """Return what is reached from a function, from a memo under a class or function that it may refer to."""
    known = [function() for function in _known_functions.get(key, ())]
    found = [function for function in known if function is not None]
    if not found or len(found) < len(known):
        found = list(reached(kind, start))
        _known_functions[key] = [ref(function) for function in found]
    return found


def methods_of(kind: type, names: frozenset[str]) -> Iterator[FunctionType]:
    """Yield the user's functions that a class defines under some of these names, or that Python calls itself."""
    for base in kind.__mro__:
        if is_users_module(base.__module__):
            for name, value in vars(base).items():
                function = _function(value) if name in names or name in _IMPLICIT else None
                if function is not None and is_users_code(function.__code__):
                    yield function


def package_of(function: FunctionType) -> str:
    """Return the top-level package that defines a function."""
    return str(function.__globals__.get("__name__", "")).partition(".")[0]


def packages_of(kind: type) -> set[str]:
    """Return the top-level packages that define a class and its bases."""
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def is_foreign(function: FunctionType, packages: Collection[str]) -> bool:
    """Whether an installed library other than these packages defines a function."""
    return "-packages" in function.__code__.co_filename and package_of(function) not in packages


def reached(kind: type, start: FunctionType) -> Iterator[FunctionType]:
    """Yield a function, as a method of a class, and the user's functions that it calls by name.

    Functions of other libraries are included, without those that they call.
    """
    waiting = [start]
    packages = packages_of(kind) | {package_of(start)}
    found: set[CodeType] = set()
    while waiting and len(found) < _MOST:
        function = waiting.pop()
        code = function.__code__
        if code in found or not is_users_code(code):
            continue
        found.add(code)
        yield function
        if is_foreign(function, packages):
            continue
        names = names_in(code)
        attributes = strings_in(code) if "getattr" in names.loaded else names.attributes
        values = [getattr(kind, name, None) for name in attributes]
        if "super" in names.loaded:
            values += [vars(base)[name] for base in kind.__mro__ for name in attributes & vars(base).keys()]
        values += [function.__globals__.get(name) for name in names.loaded]
        values += [member.value() for member in uses_of(function).members]
        values += [content for _, _, content in cells_of(function)]
        waiting += [each for each in map(_function, values) if each is not None]


def _function(value: Any) -> FunctionType | None:
    """Return the Python function behind a method, property, wrapper or cache."""
    for name in ("fget", "__func__", "func", "__wrapped__"):
        if not isinstance(value, (FunctionType, ModuleType, type)) and type(value) in _WRAPPERS:
            value = getattr(value, name, value)
    return value if isinstance(value, FunctionType) else None


_WRAPPERS = frozenset(
    (property, staticmethod, classmethod, MethodType, functools.partial, functools.cached_property, LRU_CACHE)
)


class Member(NamedTuple):
    """A member of a module or class that a function names: the path in its code, the module or class, and the name."""

    path: tuple[str, ...]
    owner: Any
    name: str

    def value(self) -> Any:
        """Return the member as it is stored; ABSENT if there is none."""
        return next((vars(base)[self.name] for base in _bases(self.owner) if self.name in vars(base)), ABSENT)


def _bases(owner: Any) -> Sequence[Any]:
    return owner.__mro__ if isinstance(owner, type) else (owner,)


class Uses(NamedTuple):
    """Names outside of a function that its code uses."""

    stored: tuple[str, ...]  # globals that it assigns
    objects: tuple[str, ...]  # globals that are neither functions, classes nor modules
    members: tuple[Member, ...]
    outside: tuple[str, ...]  # functions and modules that may return something else each time
    drawing: tuple[str, ...]  # functions of `random` that draw from its global generator
    reading: tuple[str, ...]  # built-in functions that read files or the terminal
    has_environment: bool
    has_globals: bool


def uses_of(function: FunctionType) -> Uses:
    """Return what a function uses; whether a global is an object is decided when it is first asked."""
    found = _known_uses.get(function)
    if found is None:
        names = names_in(function.__code__)
        values = {name: function.__globals__.get(name, ABSENT) for name in names.loaded}
        reading = tuple(name for name in _READING if values.get(name) is ABSENT)
        members = tuple(_members(function))
        found = _known_uses[function] = Uses(
            names.stored,
            tuple(name for name, value in values.items() if not isinstance(value, _CODE) and name not in reading),
            members,
            (
                *(name for name, value in values.items() if _home(value) in _OUTSIDE and not _draws(value)),
                *(member.path[-1] for member in members if _home(member.value()) in _OUTSIDE),
            ),
            tuple(name for name, value in values.items() if _draws(value)),
            reading,
            values.get("os") is os and bool(_ENVIRONMENT & names.attributes),
            "globals" in values,
        )
    return found


_known_uses: WeakKeyDictionary[FunctionType, Uses] = WeakKeyDictionary()
_CODE = (FunctionType, BuiltinFunctionType, type, ModuleType)
# modules whose functions may return something else each time
_OUTSIDE = frozenset(
    ("random", "time", "secrets", "uuid", "datetime", "numpy.random", "pathlib", "tempfile", "io", "shelve", "sqlite3")
)
_READING = ("open", "input")
_ENVIRONMENT = frozenset(("environ", "getenv", "putenv", "unsetenv"))


def _draws(value: Any) -> bool:
    """Whether a value is a function such as `random.randrange`, a method of the hidden generator of that module."""
    return isinstance(value, (BuiltinFunctionType, MethodType)) and value.__self__ is _GENERATOR


_GENERATOR = getattr(random.seed, "__self__")  # noqa: B009  # mypy takes it for a function


def _home(value: Any) -> str:
    """Return the module that a value is, or that defines it."""
    return str(value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", ""))


def _members(function: FunctionType) -> Iterator[Member]:
    """Yield the members of the user's modules and classes that a function reads or assigns as `name.member`.

    Of other modules, those that it assigns, and modules whose functions may return something else each time.
    """
    names = names_in(function.__code__)
    waiting: list[tuple[tuple[str, ...], Any]] = [((name,), function.__globals__.get(name)) for name in names.loaded]
    waiting += [((name,), content) for name, _, content in cells_of(function) if isinstance(content, ModuleType)]
    while waiting:
        path, owner = waiting.pop()
        if len(path) > _DEPTH or not isinstance(owner, (ModuleType, type)):
            continue
        is_own = is_users_module(owner.__name__ if isinstance(owner, ModuleType) else owner.__module__)
        for name in names.attributes:
            member = Member((*path, name), owner, name)
            value = member.value()
            if isinstance(value, ModuleType) and _home(value) in _OUTSIDE:
                yield member
            elif isinstance(value, ModuleType) or (is_own and isinstance(value, type)):
                waiting.append((member.path, value))
            elif name in names.assigned if value is ABSENT or not is_own else True:
                yield member


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> Names:
    """Return the names in a function and in its nested functions."""
    found: dict[str, dict[str, None]] = {use: {} for use in Names._fields}
    for inner in _codes(code):
        for use, name in _used_names(inner):
            found[use][name] = None
    assigned = frozenset(found["assigned"])
    return Names(tuple(found["stored"]), tuple(found["loaded"]), assigned.union(found["attributes"]), assigned)


def _used_names(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the names that instructions use, with the kind of use; `dis` takes fifteen times as long.

    An instruction is a byte for the operation and one for the argument, whose higher bytes are in those before it.
    """
    content = code.co_code
    for place, operation in enumerate(content[::2]):
        if operation in _USES:
            use, shift = _USES[operation]
            argument, bits, before = content[2 * place + 1], 8, place - 1
            while before >= 0 and content[2 * before] == dis.EXTENDED_ARG:
                argument += content[2 * before + 1] << bits
                bits, before = bits + 8, before - 1
            yield use, code.co_names[argument >> shift]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


@functools.lru_cache(maxsize=4096)
def strings_in(code: CodeType) -> frozenset[str]:
    """Return the names of attributes in a function, and its literal strings, which `getattr` may take."""
    literals = (const for inner in _codes(code) for const in inner.co_consts if isinstance(const, str))
    return names_in(code).attributes | frozenset(literals)


def instructions_of(code: CodeType) -> Iterator[tuple[int, dis.Instruction]]:
    """Yield the instructions of a function with their lines."""
    starts, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        yield line, instruction


@functools.lru_cache(maxsize=4096)
def assigned_elsewhere(code: CodeType) -> tuple[tuple[str, int], ...]:
    """Return the attributes that a function assigns to other objects than `self`, with their lines."""
    found, before = [], list[dis.Instruction]()
    for line, instruction in instructions_of(code):
        if instruction.opname == "STORE_ATTR" and not _is_of_self(instruction.argval, before):
            found.append((instruction.argval, line))
        before.append(instruction)
    return tuple(found)


def _is_of_self(name: str, before: Sequence[dis.Instruction]) -> bool:
    """Whether the object of an assignment is `self`: loaded just before, or, for `+=`, before the attribute is read."""
    if before[-1].opname in ("SWAP", "ROT_TWO"):  # the second in Python 3.10
        read = (at for at in range(len(before) - 1, 1, -1) if before[at].opname == "LOAD_ATTR")
        at = next((at for at in read if before[at].argval == name and before[at - 1].opname in ("COPY", "DUP_TOP")), 1)
        return _loads_self(before[at - 2])
    return _loads_self(before[-1])


def _loads_self(instruction: dis.Instruction) -> bool:
    """Whether an instruction leaves `self` on top of the stack; from Python 3.13 on, one may load two variables."""
    names = instruction.argval
    return bool((names[-1] if isinstance(names, tuple) and names else names) == "self")
