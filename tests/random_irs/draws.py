"""Seeded draws: names, texts and numbers, with unusual ones more frequent."""

import random
from typing import Any

from torch_ir.ir import Expr
from torch_ir.ir.graph.free_names import FreeNames
from torch_ir.ir.sizes.expressions import KEYWORDS

_WORDS = ("x", "mul", "layer_0", "h", "p_weight", "b_mean", "block", "cache")
# Allowed in names, and yet something that some reader or printer may stumble on.
_ODD_NAMES = (
    "größe", "名前", "x y", "a.b.0", "λ→μ", "$expr", "$0", "🙂", "a,b", "{", "]", "(x)", "#1", "%s", "a:b", "0", "None",
    "e\u0301", "end", "subgraph", "--", "a|b", "&amp;", "@", "return", "digest", "_",
)  # fmt: skip
_ODD_TEXTS = (
    "", "\n", "\t\"quoted\"", "\\", "\\u0000", "<0+1>", "<1+1>", "$tensor", "nodes", '",\n"digest": "sha256:', "]\n",
    "\x00", "\x7f", "\u2028", "\x85", "\u202e", "'", "`", "</script>", "é\u0301", "\U0001f600", "1e999", "NaN",
    "a" * 300, "{}", "[[", "<>",
)  # fmt: skip
_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 1e-5, 5e-324, 1.7976931348623157e308, 1e16, 1e22, 123456789.123456789, 2.0**53,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
_INTS = (0, 1, -1, 2, 3, 7, 64, -100, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))
_LARGE = (2**63, -(2**63) - 1, 2**64, 10**99, -(10**99))
_SIGNS = ("+", "-", "*", "//", "%")
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


class Draw(random.Random):
    """A source of draws, and the names that it gave away."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.names = FreeNames(set())

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def name(self, *words: str) -> str:
        """A name that nothing else here has; one in eight is odd."""
        word = self.choice(_ODD_NAMES) if self.chance(0.12) else self.choice(words or _WORDS)
        return self.names.free(word)

    def text(self) -> str:
        return self.choice(_ODD_TEXTS) if self.chance(0.5) else self.choice((*_WORDS, *_ODD_NAMES))

    def line(self) -> str:
        """A text that can be printed on one line, as keys of weights and names of arguments are."""
        return "".join(filter(str.isprintable, self.text())) or "key"

    def real(self) -> float:
        return self.choice(_FLOATS) if self.chance(0.7) else self.gauss(0, 10)

    def whole(self, *, large: bool = False) -> int:
        if large and self.chance(0.2):
            return self.choice(_LARGE)
        return self.choice(_INTS) if self.chance(0.5) else self.randint(-8, 16)

    def imaginary(self) -> complex:
        return complex(self.real(), self.real())

    def expression(self, symbols: list[str], depth: int = 0) -> str:
        """Arithmetic over symbols that is a whole number from 1 wherever they are."""
        if depth > 2 or self.chance(0.4):
            return self.choice(symbols) if symbols and self.chance(0.8) else str(self.randint(1, 9))
        left, right = (self.expression(symbols, depth + 1) for _ in range(2))
        if self.chance(0.2):
            return f"{self.choice(('max', 'min'))}({left}, {right})"
        return f"{left} + {right}" if self.chance(0.5) else f"({left})*({right})"

    def condition(self, symbols: list[str]) -> str:
        """Something that may be true of symbols."""
        one = f"{self.expression(symbols)} {self.choice(_COMPARISONS)} {self.expression(symbols)}"
        if self.chance(0.3):
            return f"({self.expression(symbols)}) {self.choice(_SIGNS)} {self.randint(1, 4)} != 1 or not {one}"
        return one

    def symbol(self) -> str:
        word = self.choice(("batch", "seq", "s0", "größe", "_u", "B"))
        return self.names.free(word if word not in KEYWORDS else "s")

    def plain(self, symbols: list[str], depth: int = 0) -> Any:
        """Any value that an attribute without a schema may have."""
        if depth < 4 and self.chance(0.25):
            return [self.plain(symbols, depth + 1) for _ in range(self.randint(0, 3))]
        if depth < 3 and self.chance(0.1):
            keys = [self.text().lstrip("$") for _ in range(self.randint(0, 3))]
            return {key: self.plain(symbols, depth + 1) for key in keys}
        return self.leaf(symbols)

    def leaf(self, symbols: list[str]) -> Any:
        kind = self.randrange(9)
        if kind == 0 and symbols:
            return Expr(self.expression(symbols))
        makers = (lambda: None, lambda: self.chance(0.5), lambda: self.whole(large=True), self.real, self.text)
        return self.imaginary() if kind == 1 else self.choice(makers)()
