"""The documentation as a site: it builds without a warning, needs no network, and its reference is complete."""

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import torch_ir
import torch_ir.errors
from tests import browser
from tests.documents import ROOT
from tests.test_rooms import ROOMS

DOCS = ROOT / "docs"
PUBLIC = [name for name in torch_ir.__all__ if name != "__version__"]
_LISTED = re.compile(r"^- \[[^\]]+\]\(([^)]+\.md)\)", re.MULTILINE)
_LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


class Page(HTMLParser):
    """The identifiers of a page, and the resources that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.identifiers: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.identifiers.add(found.get("id") or "")
        self.loaded.append(found.get(_LOADING.get(tag, "")) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once; `--strict` makes every warning an error, links and anchors included."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_navigation_once() -> None:
    """The lists of index.md are the navigation."""
    listed = _LISTED.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(listed) == sorted(pages)


def test_navigation_has_the_groups_of_the_index(site: Path) -> None:
    groups = re.findall(r"^## (.+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    tabs = re.findall(r'class="md-tabs__link">\s*(.+?)\s*</a>', (site / "tour.html").read_text(encoding="utf-8"))
    assert tabs == ["Home", *groups]


def test_pages_load_nothing_from_a_network(site: Path) -> None:
    """No script, style, font, picture or frame of another host; no diagram whose program the theme would fetch."""
    files = [*site.rglob("*.html")]
    assert len(files) > 50
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not [url for url in Page(text).loaded if re.match(r"(\w+:)?//", url)], file
        assert 'class="mermaid"' not in text, file
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_search_works_without_a_server(site: Path) -> None:
    """Pages opened from a file cannot fetch an index, so that it is a script, read by a worker that is in the site."""
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = ")
    assert any("iframe-worker" in url for url in Page((site / "index.html").read_text(encoding="utf-8")).loaded)


@pytest.mark.skipif(browser.find() is None, reason=browser.ABSENT)
def test_a_browser_searches_without_a_network(site: Path) -> None:
    """A page that is opened from a file finds other pages, and loads only files."""
    asked: list[str] = []
    with browser.launched() as chromium:
        page = chromium.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__input")
        page.keyboard.type("golden pack")
        page.wait_for_selector(".md-search-result__item")
        assert "localise.html" in page.inner_html(".md-search-result__list")
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


def test_files_outside_the_documentation_are_pages(site: Path) -> None:
    """A link to `../examples/demo.py` leads to a page of the site."""
    text = (site / "repository" / "examples" / "demo.py.html").read_text(encoding="utf-8")
    assert "ResNet-18" in text
    assert 'href="repository/examples/demo.py.html"' in (site / "examples.html").read_text(encoding="utf-8")
    security = (site / "repository" / "SECURITY.html").read_text(encoding="utf-8")
    assert 'href="../security.html"' in security


def test_reference_has_every_public_name(site: Path) -> None:
    identifiers = set[str]()
    for file in (site / "api").glob("*.html"):
        identifiers |= Page(file.read_text(encoding="utf-8")).identifiers
    missing = [name for name in PUBLIC if f"torch_ir.{name}" not in identifiers]
    assert not missing, f"put them on a page of docs/api: {missing}"


def test_public_names_say_what_they_are() -> None:
    """Every public name and every public method has at least one sentence."""
    silent = []
    for name in PUBLIC:
        thing = getattr(torch_ir, name)
        silent += [] if _is_told(thing) else [name]
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(inner) and not member.startswith("_") and not _is_told(inner):
                silent.append(f"{name}.{member}")
    assert silent == []


def test_every_error_has_its_line() -> None:
    """The table of errors, and that of warnings, name each of them."""
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| \[?`(\w+)`", text, re.MULTILINE))
    errors = {name for name, value in vars(torch_ir.errors).items() if inspect.isclass(value)}
    kinds = {name for name in errors if issubclass(getattr(torch_ir.errors, name), (Exception, Warning))}
    assert kinds - {"TorchIRError"} == named


def test_the_rooms_of_the_page_are_those_of_the_house() -> None:
    """The table of architecture.md lists the imports that are enforced."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+? \| (nothing|`[^|]+`) \| [^|]+ \|$", text, re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows} == ROOMS


def test_the_files_that_architecture_names_exist() -> None:
    """Each path in back quotes, from the root or from torch_ir/; a bare name is looked for in every folder."""
    text = re.sub(
        r"^```.*?^```", "", (DOCS / "architecture.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert len(named) > 50
    missing = [name for name in named if not _is_in_the_repository(name)]
    assert not missing


def _is_in_the_repository(name: str) -> bool:
    places = [ROOT / name, ROOT / "torch_ir" / name]
    return any(place.exists() for place in places) or any((ROOT / "torch_ir").rglob(name.rstrip("/")))


def _is_told(thing: object) -> bool:
    told = inspect.getdoc(thing) or ""
    return len(told.split()) >= 3 and told.split("\n\n")[0].rstrip().endswith((".", ":"))
