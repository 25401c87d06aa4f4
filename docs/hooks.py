"""MkDocs hooks: the navigation comes from docs/index.md, and files outside docs/ become pages.

A page links to `../examples/demo.py`, as it does where the repository is browsed. On the site that file is shown at
`repository/examples/demo.py`, a folder is a list of its files, and all links lead there.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SHOWN = "repository"
_GROUP = re.compile(r"^## (?P<group>.+)$|^- \[(?P<title>[^\]]+)\]\((?P<page>[^):]+\.md)\)", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:)(?P<path>[^)#\s]+)(?=[)#])")
_LANGUAGES = {".py": "python", ".toml": "toml", ".cc": "cpp", ".proto": "protobuf", "": "makefile"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make each heading of index.md that lists pages a group of the navigation."""
    groups: dict[str, list[dict[str, str]]] = {}
    group = ""
    for found in _GROUP.finditer((ROOT / "docs" / "index.md").read_text(encoding="utf-8")):
        group = found["group"] or group
        if found["page"]:
            groups.setdefault(group, []).append({found["title"]: found["page"]})
    config.nav = [{"Home": "index.md"}, *({name: pages} for name, pages in groups.items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to, transitively."""
    waiting = [path for file in files.documentation_pages() for path in _outside(file.content_string, file.src_uri)]
    while waiting:
        path = waiting.pop()
        page = _page_of(path)
        if files.get_file_from_path(page) is None:
            text = _text_of(ROOT / path)
            files.append(File.generated(config, page, content=text))
            waiting += _outside(text, page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from docs/ to other files, and back, to pages of the site."""
    here = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # the page itself is the navigation
    if not _is_prose(here):
        return markdown

    def moved(found: re.Match[str]) -> str:
        path = _source(found["path"], here)
        if path.startswith("docs/") and not here.startswith(f"{SHOWN}/"):
            return found["path"]
        return posixpath.relpath(_page_of(path), posixpath.dirname(here) or ".")

    return _LINK.sub(moved, markdown)


def _outside(text: str, page: str) -> Iterator[str]:
    """Return the existing targets of a page's links outside docs/; MkDocs warns about the others."""
    if _is_prose(page):
        paths = (_source(found["path"], page) for found in _LINK.finditer(text))
        yield from (path for path in paths if not path.startswith("docs/") and (ROOT / path).exists())


def _is_prose(page: str) -> bool:
    """Whether a page of the site has links; files shown as code have none."""
    return page.count(".") == 1  # and not demo.py.md


def _source(link: str, page: str) -> str:
    """Return the repository path of a link target on a page of the site."""
    folder = posixpath.dirname(page.removeprefix(f"{SHOWN}/") if page.startswith(f"{SHOWN}/") else f"docs/{page}")
    return posixpath.normpath(posixpath.join(folder, link))


def _page_of(path: str) -> str:
    """Return the page of the site for a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{SHOWN}/{path}/index.md"
    return f"{SHOWN}/{path}" if path.endswith(".md") else f"{SHOWN}/{path}.md"


def _text_of(path: Path) -> str:
    """Return a file as Markdown, and a folder as a list of its files."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    title = f"---\nsearch: {{exclude: true}}\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        kept = (file for file in sorted(path.iterdir()) if file.suffix in _LANGUAGES and file.name[0] not in "._")
        return title + "\n".join(f"- [{file.name}]({file.name}){_summary(file)}" for file in kept) + "\n"
    return f"{title}````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}````\n"


def _summary(path: Path) -> str:
    """Return the first line of a module's docstring."""
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else None
    return f": {told.splitlines()[0]}" if told else ""
