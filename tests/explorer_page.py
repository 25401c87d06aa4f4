"""What tests read from a page of the explorer."""

from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"


def boxes(page: Any) -> list[str]:
    """Return the titles of all drawn boxes, including expanded frames."""
    found: list[str] = page.locator(".place > text.title").all_text_contents()
    return found


def box(page: Any, start: str) -> Any:
    """The box or frame that is called so."""
    return page.locator(f'.place[aria-label^="{start}"]')


def fill(page: Any, start: str) -> str:
    found: str = box(page, start).locator("> .card").evaluate("card => getComputedStyle(card).fill")
    return found


def panel(page: Any) -> dict[str, str]:
    """The rows of the side panel: name -> the rest."""
    rows = page.locator(".panel tr").all()
    return {row.locator("th").text_content(): " ".join(row.locator("td").all_text_contents()).strip() for row in rows}


def closed(page: Any) -> Any:
    page.keyboard.press("c")
    return page
