"""The documentation: every page runs as written, every link resolves, and the runner detects wrong pages."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, WrongPageError, matches, pages, read_blocks, run_page
from tests.needed import need_backend

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "demo")
TRANSLATIONS = sorted(ROOT.glob("README.*.md"))
_LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=_id)
def test_page_runs_as_written(page: Path, request: pytest.FixtureRequest) -> None:
    """In a forked process, with forked commands; where every sweep is in full, each starts from nothing."""
    if 'backend="openvino"' in page.read_text(encoding="utf-8"):
        need_backend("openvino")
    is_fresh = request.config.getoption("--run-slow")
    wrong = run_page(page, programs=None if is_fresh else request.getfixturevalue("programs"))
    assert not wrong, wrong


def test_links_lead_somewhere() -> None:
    wrong = []
    links = [(page, target) for page in (*pages(), *TRANSLATIONS) for target in _LINK.findall(_prose(page))]
    for page, target in links:
        if "://" not in target:
            file, _, anchor = target.partition("#")
            found = (page.parent / file).resolve() if file else page
            if not found.exists():
                wrong.append(f"{_id(page)} links to {target}, which is not there")
            elif anchor and anchor not in _anchors(found):
                wrong.append(f"{_id(page)} links to {target}, which has no such heading")
    assert wrong == []


@pytest.mark.parametrize("page", TRANSLATIONS, ids=_id)
def test_translations_show_the_code_that_runs(page: Path) -> None:
    """The code blocks of README.md, which are run, and the same links."""
    original = ROOT / "README.md"
    assert _code(page) == _code(original)
    targets = [
        [link for link in _LINK.findall(_prose(each)) if not link.startswith("README")] for each in (page, original)
    ]
    assert sorted(targets[0]) == sorted(targets[1])


def test_index_lists_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    missing = {page.name for page in (ROOT / "docs").glob("*.md")} - linked - {"index.md"}
    assert not missing


def test_examples_page_runs_every_example() -> None:
    """Except those that draw the pictures of the documentation."""
    text = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\$ python examples/(\w+)\.py", text, re.MULTILINE))
    assert shown == {path.stem for path in EXAMPLES} - {"pictures", "screenshots"}


@pytest.mark.slow
def test_pictures_are_those_that_the_pages_show(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "pictures.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    images = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    stored = {name for name in images if not name.startswith("explorer-")}  # taken by a browser
    assert {path.name for path in tmp_path.iterdir()} == stored
    for name in stored:
        size = _png_size if name.endswith(".png") else Path.read_bytes
        assert size(tmp_path / name) == size(ROOT / "docs" / "images" / name)


def _code(page: Path) -> list[tuple[str, tuple[str, ...]]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return [(block.language, block.lines) for block in read_blocks(_id(page), lines)]


def _prose(page: Path) -> str:
    """A page without its fenced blocks."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in list(read_blocks(_id(page), lines)):
        lines[block.start : block.stop] = [""] * (block.stop - block.start)
    return "\n".join(lines)


@functools.cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, in GitHub's form."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE) if page.suffix == ".md" else []
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _png_size(path: Path) -> bytes:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return data[16:24]


# -- the runner itself ------------------------------------------------------------------------------------------------

RIGHT = """\
# A page

```python
# helper.py
def double(x):
    return 2 * x
```

```python
from helper import double

number = double(21)
print("the answer", number)
print("0x7f3a1c")
```

```text
the answer 42
0x...
```

```python
import json

print(json.dumps({"number": number, "at": "12:30"}))
```

```json
{"number": 42,
 "at": "..."}
```

```console
$ cat helper.py | head -1
# helper.py
$ cat <<END
> one
> two
> three
> END
one
...
three
$ echo no >&2; exit 3  # status 3
no
$ make coffee
never run
```

```toml
[shown = only
```
"""


def _run(text: str, folder: Path) -> str:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return run_page(page)


def test_a_right_page_passes(tmp_path: Path) -> None:
    assert _run(RIGHT, tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (
            "the answer 42",
            "the answer 43",
            r"page\.md:18: .*not what the page shows[\s\S]*-the answer 43\n\+the answer 42",
        ),
        ("0x...\n", "0x...\nmore\n", r"page\.md:18: [\s\S]*-more"),
        ("number = double(21)", "number = 1 / 0", r"page\.md:12: ZeroDivisionError"),
        ("number = double(21)", "number = = 21", r"page\.md:12: "),
        ("    return 2 * x", "    retrun 2 * x", r"page\.md:6: "),
        ("number = double(21)", "import warnings; warnings.warn('old')", r"page\.md:12: UserWarning: old"),
        ('{"number": 42,', '{"number": 41,', r"page\.md:29: [\s\S]*-.*41"),
        ('{"number": 42,', '{"number": 42,,', r"page\.md:29: not JSON"),
        ("\n# helper.py\n$", "\n# other.py\n$", r"page\.md:35: [\s\S]*-# other\.py"),
        ("\nthree\n$", "\nfour\n$", r"page\.md:41: [\s\S]*-four"),
        ("  # status 3", "", r"page\.md:44: status 3 instead of 0"),
        ("```toml", "```bash", r"page\.md:50: the fence says 'bash'"),
        ("only\n```", "only", r"page\.md:50: the fence has no end"),
    ],
)
def test_a_wrong_page_fails_and_names_the_line(right: str, wrong: str, told: str, tmp_path: Path) -> None:
    assert right in RIGHT
    assert re.search(told, _run(RIGHT.replace(right, wrong, 1), tmp_path))


FLOATS = """\
# A page

```python
print("max diff of logits 8.94e-08, mean 1.02e-08")
print("min -0.376526 mean 0.0539638 max 2.70074, cosine 0.999948")
print("max diff 0, max diff 0.537, eps=1e-05")
```

```text
max diff of logits 8.94e-08, mean 1.02e-08
min -0.376526 mean 0.0539638 max 2.70074, cosine 0.999948
max diff 0, max diff 0.537, eps=1e-05
```
"""
SHOWN = (
    "max diff of logits ..., mean ...\nmin ... mean ... max ..., cosine ...\nmax diff 0, max diff 0.537, eps=1e-05\n"
)


def test_digits_that_the_processor_decides_are_refused(tmp_path: Path) -> None:
    """They are right here, and would be wrong elsewhere; `...` and shorter digits stay."""
    said = _run(FLOATS, tmp_path)
    assert "page.md:10: the processor decides these digits; show `...` instead: max diff of logits 8.94e-08" in said
    assert run_page(tmp_path / "page.md", write=True) == ""
    assert (tmp_path / "page.md").read_text(encoding="utf-8").endswith(f"```text\n{SHOWN}```\n")
    assert run_page(tmp_path / "page.md") == ""


def test_write_puts_the_real_output_into_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(RIGHT.replace("the answer 42", "?").replace("\nno\n", "\nyes\n"), encoding="utf-8")
    assert run_page(page, write=True) == ""
    assert page.read_text(encoding="utf-8") == RIGHT


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("a ... c", "a b c", True),
        ("a ... c", "a b d", False),
        ("...", "", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb", False),
        ("a", "a\nb", False),
        ("a.c", "abc", False),
    ],
)
def test_ellipsis(shown: str, real: str, same: bool) -> None:
    assert matches(shown.splitlines(), real.splitlines()) is same


def test_a_fence_must_close() -> None:
    with pytest.raises(WrongPageError, match=r"page\.md:2: the fence has no end"):
        list(read_blocks("page.md", ["", "```text", "a"]))
