"""Run the documentation: every fenced block of a page, in order, in a separate folder.

python tests/documents.py [--write] [--fresh] docs/extract.md ...

| fence | what happens to it |
|---|---|
| `python` | it runs; the blocks of a page share one namespace |
| `python` whose first line is `# name.py` | it is written to that file, for the blocks after it |
| `text`, `mermaid`, `json` right after a `python` block | it is what that block printed |
| `console` | bash runs the lines after `$ ` (`> ` continues one); the lines below are what each printed, status 0 |
| `json` elsewhere | it must parse |
| `text`, `mermaid`, `toml` elsewhere | shown only |

In expected output, `...` stands for any text, and alone on a line for any lines. A command that must fail ends in
`# status N`. With --write, expected output that does not match is replaced by the real one. A page must not show digits
that the processor decides, such as a difference of 8.94e-08; with --write they become `...`. Pages and the commands in
them are forked from a process that has torch already; with --fresh each starts from nothing, as for a reader.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("make ", "pip install ", "git clone ", ". ")  # commands that build or install; everything else runs
LANGUAGES = ("python", "console", "text", "mermaid", "json", "toml")
_LINKED = ("benchmarks", "catalogue", "examples", "tests")  # a page sees these folders of the repository
_PATIENCE = 300  # seconds for one command
_BIN = Path(sys.executable).parent  # which a forked page replaces
IMPORTED = ("sys.modules",)  # words of a page that shows imported modules
# torchao, which transformers imports if installed, warns about missing kernels
_NOISE = re.compile(r"Failed to load .*torchao|W\d{4} .*torch/utils/_pytree\.py")
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>\S*)\s*")
_STATUS = re.compile(r"\s+# status (\d+)$")
# A statistic of computed floats with a rounding error as its value, or with digits that rounding changes.
_ROUNDED = re.compile(
    r"""((?:\bdiff|_diff|\bdiff\ of\ logits|\bmin|\bmean|\bmax|\bmax\ abs|\bcosine)['"]?:?\ )
    -?(?:\d(?:\.\d+)?e-\d+|0\.0{4,}\d+|0\.0*[1-9]\d{3,}|[1-9]\d*\.\d{3,})(?!\d|\.\.)""",
    re.VERBOSE,
)
_FILE_NAME = re.compile(r"# (\w+\.py)")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the line number of its first line of content, `start` and `stop` slice the page."""

    language: str
    line: int
    lines: tuple[str, ...]
    follows: bool  # nothing but blank lines stand between this block and the one before
    start: int
    stop: int


class WrongPageError(Exception):
    """A block that does not match the page; the message begins with file and line."""


def _is_file(block: Block) -> re.Match[str] | None:
    return _FILE_NAME.fullmatch(block.lines[0]) if block.lines else None


def read_blocks(name: str, lines: Sequence[str]) -> Iterator[Block]:
    """The fenced blocks of a page."""
    at, last_stop = 0, -1
    while at < len(lines):
        opening = _FENCE.fullmatch(lines[at])
        at += 1
        if opening is None:
            continue
        start, indent, ticks = at, opening["indent"], opening["ticks"]
        if opening["language"] not in LANGUAGES:
            known = ", ".join(LANGUAGES)
            raise WrongPageError(f"{name}:{at}: the fence says {opening['language']!r}, which is none of {known}")
        while at < len(lines) and lines[at].strip() != ticks:
            at += 1
        if at == len(lines):
            raise WrongPageError(f"{name}:{start}: the fence has no end")
        content = tuple(line.removeprefix(indent) for line in lines[start:at])
        between = [line for line in lines[last_stop + 1 : start - 1] if line.strip()]
        yield Block(opening["language"], start + 1, content, last_stop >= 0 and not between, start, at)
        last_stop = at
        at += 1


@dataclass
class Page:
    """One page while it runs."""

    path: Path
    write: bool = False
    programs: tuple[Path, ...] = ()  # folders of programs, looked through before all others
    wrong: list[str] = field(default_factory=list)
    rewritten: dict[int, tuple[Block, list[str]]] = field(default_factory=dict)
    printed: str | None = None  # by the python block just before
    is_seeded: bool = False
    main: types.ModuleType = field(default_factory=lambda: types.ModuleType("__main__"))

    def __post_init__(self) -> None:
        self.name = self.path.relative_to(ROOT).as_posix() if self.path.is_relative_to(ROOT) else self.path.name
        self.lines = self.path.read_text(encoding="utf-8").splitlines()

    def run(self) -> None:
        """Run every block; errors are in `wrong` afterwards."""
        runners: dict[str, Callable[[Block], str | None]] = {
            "python": self._python, "console": self._console, "json": self._json, "text": self._output,
            "mermaid": self._output,
        }  # fmt: skip
        try:
            for block in read_blocks(self.name, self.lines):
                runner = runners.get(block.language)
                self.printed = runner(block) if runner else None
        except WrongPageError as error:
            self.wrong.append(str(error))
        if self.rewritten:
            for start in sorted(self.rewritten, reverse=True):
                block, new = self.rewritten[start]
                self.lines[block.start : block.stop] = new
            self.path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def _python(self, block: Block) -> str | None:
        named = _is_file(block)
        source = "\n".join(block.lines) + "\n"
        # line numbers and tracebacks are those of the page
        try:
            code = compile("\n" * (block.line - 1) + source, self.name, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise WrongPageError(f"{self.name}:{error.lineno}: {error.msg}") from None
        if named:
            Path(named[1]).write_text(source, encoding="utf-8")
            return None
        linecache.cache[self.name] = (0, None, [f"{line}\n" for line in self.lines], self.name)
        printed = io.StringIO()
        try:
            if not self.is_seeded and (torch := sys.modules.get("torch")):
                torch.manual_seed(0)
                self.is_seeded = True
            with contextlib.redirect_stdout(printed):
                exec(code, vars(self.main))
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(frames) if frame.filename == self.name), block.line)
            told = "".join(traceback.format_exception(error)[1:])
            raise WrongPageError(f"{self.name}:{line}: {type(error).__name__}: {error}\n{told}") from None
        return printed.getvalue()

    def _output(self, block: Block) -> None:
        if block.follows and self.printed is not None:
            self._compare(block, block.lines, self.printed.rstrip().splitlines())

    def _json(self, block: Block) -> None:
        text = "\n".join(block.lines)
        try:
            shown = json.loads(text)
        except ValueError as error:
            raise WrongPageError(f"{self.name}:{block.line}: not JSON: {error}") from None
        if block.follows and self.printed:
            try:
                real = json.loads(self.printed)
            except ValueError:
                raise WrongPageError(f"{self.name}:{block.line}: the block above did not print JSON") from None
            if self.write and not matches(_indented(shown), _indented(real)):
                self.rewritten[block.start] = (block, self.printed.rstrip().splitlines())
            else:
                self._compare(block, _indented(shown), _indented(real))

    def _console(self, block: Block) -> None:
        new: list[str] = []
        for line, command, shown in commands(self.name, block):
            new += [f"{mark} {part}" for mark, part in zip("$" + ">" * len(command), command, strict=False)]
            if command[0].startswith(SKIPPED):
                new += shown
                continue
            status, printed = _run_command("\n".join(command), self.programs)
            found = _STATUS.search(command[-1])
            wanted = int(found[1]) if found else 0
            if status != wanted:
                told = "\n".join(printed)
                raise WrongPageError(f"{self.name}:{line}: status {status} instead of {wanted}\n{told}")
            new += map(_without_rounding, shown if matches(shown, printed) else _kept(shown, printed))
            if not self.write:
                self._compare(Block("console", line + len(command), (), False, 0, 0), shown, printed)
        if self.write and tuple(new) != block.lines:
            self.rewritten[block.start] = (block, new)

    def _compare(self, block: Block, shown: Sequence[str], real: Sequence[str]) -> None:
        portable = [_without_rounding(line) for line in shown]
        if matches(portable, real):
            if self.write and portable != [*shown]:
                self.rewritten[block.start] = (block, portable)
            elif portable != [*shown]:
                rounded = next(line for line, kept in zip(shown, portable, strict=True) if line != kept)
                why = "the processor decides these digits; show `...` instead"
                self.wrong.append(f"{self.name}:{block.line}: {why}: {rounded.strip()}")
            return
        if self.write:
            self.rewritten[block.start] = (block, [*map(_without_rounding, _kept(shown, real))])
            return
        diff = "\n".join(difflib.unified_diff(shown, _kept(shown, real), "the page", "reality", lineterm="", n=2))
        self.wrong.append(f"{self.name}:{block.line}: the output is not what the page shows\n{diff}")


def matches(shown: Sequence[str], real: Sequence[str]) -> bool:
    """Whether output is as shown; `...` matches any text in a line, and alone on a line any lines."""
    if "..." not in map(str.strip, shown):
        return len(shown) == len(real) and all(map(_line_matches, shown, real))
    first = next(index for index, line in enumerate(shown) if line.strip() == "...")
    if not all(map(_line_matches, shown[:first], real)) or len(real) < first:
        return False
    rest = shown[first + 1 :]
    return any(matches(rest, real[start:]) for start in range(first, len(real) + 1))


def _kept(shown: Sequence[str], real: Sequence[str]) -> list[str]:
    """The real output, with lines as shown where those match."""
    if len(shown) != len(real):
        return list(real)
    return [before if _line_matches(before, now) else now for before, now in zip(shown, real, strict=True)]


def _without_rounding(line: str) -> str:
    """Replace digits that differ between processors by `...`."""
    return _ROUNDED.sub(r"\1...", line)


def _line_matches(shown: str, real: str) -> bool:
    pattern = ".*".join(map(re.escape, shown.rstrip().split("...")))
    return re.fullmatch(pattern, real.rstrip()) is not None


def _indented(value: object) -> list[str]:
    return json.dumps(value, indent=1, ensure_ascii=False).splitlines()


def commands(name: str, block: Block) -> Iterator[tuple[int, list[str], list[str]]]:
    """Each command of a console block: its line number, its lines, and the output shown below it."""
    found: list[tuple[int, list[str], list[str]]] = []
    for line, text in enumerate(block.lines, block.line):
        if text.startswith("$ "):
            found.append((line, [text[2:]], []))
        elif not found:
            raise WrongPageError(f"{name}:{line}: a console block begins with a line that starts with '$ '")
        elif text.startswith("> ") and not found[-1][2]:
            found[-1][1].append(text[2:])
        else:
            found[-1][2].append(text)
    for line, command, shown in found:
        while shown and not shown[-1].strip():
            shown.pop()
        yield line, command, shown


def _run_command(command: str, first: Sequence[Path]) -> tuple[int, list[str]]:
    programs = os.pathsep.join(map(str, [*first, _BIN, os.environ.get("PATH", "")]))
    environment = {**os.environ, "PATH": programs, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment, timeout=_PATIENCE, check=False,
    )  # fmt: skip
    printed = done.stdout.decode(errors="replace").rstrip().splitlines()
    return done.returncode, [line for line in printed if not _NOISE.match(line)]


def _run_here(page: Page) -> list[str]:
    """Run a page in the current folder, which looks like the repository to it, with warnings as errors."""
    for folder in _LINKED:
        if (ROOT / folder).is_dir():
            Path(folder).symlink_to(ROOT / folder, target_is_directory=True)
    sys.path[0] = os.getcwd()
    sys.modules["__main__"] = page.main
    warnings.simplefilter("error")
    for module in ("torch", "transformers"):  # libraries warn as they please
        warnings.filterwarnings("default", module=rf"{module}(\..*)?")
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*(LeafSpec|treespec).*")  # torch about itself
    page.run()
    return page.wrong


def run_page(path: Path, write: bool = False, programs: Path | None = None) -> str:
    """Run a page in a separate process and folder and return its errors, or an empty string.

    With a folder of forked programs, the process is one of them, unless the page shows what a process imports.
    """
    is_forked = programs is not None and not _shows_imports(path)
    words = [f"{programs}/page"] if is_forked else [sys.executable, str(Path(__file__).resolve())]
    words += ["--here", *(["--write"] if write else []), *(["--programs", str(programs)] if programs else [])]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*words, str(path.resolve())], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _shows_imports(path: Path) -> bool:
    """Whether a block that runs in the page's own process shows imported modules; a file is run by a command."""
    blocks = read_blocks(path.name, path.read_text(encoding="utf-8").splitlines())
    here = [block.lines for block in blocks if block.language == "python" and not _is_file(block)]
    return any(word in line for lines in here for line in lines for word in IMPORTED)


def pages() -> list[Path]:
    """Every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the code in pages of documentation.")
    parser.add_argument("pages", nargs="*", type=Path, help="Markdown files (default: all)")
    parser.add_argument("--write", action="store_true", help="replace expected output that does not match")
    parser.add_argument("--fresh", action="store_true", help="start every page and command from nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # the child of run_page
    parser.add_argument("--programs", action="append", type=Path, default=[], help=argparse.SUPPRESS)  # likewise
    options = parser.parse_args()
    if options.here:
        running = [Page(path, options.write, tuple(options.programs)) for path in options.pages]
        wrong = [text for page in running for text in _run_here(page)]
    else:
        with contextlib.nullcontext() if options.fresh else _forked_programs() as programs:
            wrong = [text for path in options.pages or pages() if (text := run_page(path, options.write, programs))]
    print("\n".join(wrong))
    return 1 if wrong else 0


def _forked_programs() -> contextlib.AbstractContextManager[Path | None]:
    sys.path.insert(0, str(ROOT))  # this is run as a file
    from tests.forking import forked_programs

    return forked_programs()


if __name__ == "__main__":
    sys.exit(main())
