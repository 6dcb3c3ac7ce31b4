"""Every link in README and docs leads to a page that exists, and to a heading on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import DOCS, ROOT, anchors, links, name, pages

if TYPE_CHECKING:
    from pathlib import Path

ALSO = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
EXAMPLES = sorted(ROOT.glob("examples/*/README.md"))


@pytest.mark.parametrize("page", [*pages(), *ALSO, *EXAMPLES], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = [link for link in links(page) if not _is_good(page, link)]
    assert wrong == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_docs_link_only_to_what_the_site_contains(page: Path) -> None:
    """README may link to the repository's files, a page of the site may not."""
    inside = [urlsplit(link).path for link in links(page) if not urlsplit(link).scheme]
    outside = [p for p in inside if p and not (page.parent / p).resolve().is_relative_to(DOCS)]
    assert outside == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    missing = [
        str(page.relative_to(DOCS))
        for page in sorted(DOCS.rglob("*.md"))
        if not re.search(rf"\b{re.escape(str(page.relative_to(DOCS)))}$", navigation, re.MULTILINE)
    ]
    assert missing == []


def _is_good(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme:  # no network in tests: the syntax has to do
        return parts.scheme in {"https", "mailto"} and bool(parts.netloc or parts.path)
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not parts.fragment or parts.fragment in anchors(target)
