"""README and docs as tests see them: pages, headings, links and fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
EXPLICIT_ID = re.compile(r"\{ *#([\w-]+) *\}\s*$")
FILE_NAME = re.compile(r"`([\w./-]+\.\w+)`")


def pages() -> list[Path]:
    return [README, *sorted(DOCS.rglob("*.md"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block, and the paragraph above it."""

    page: Path
    language: str
    text: str
    above: str

    @property
    def file(self) -> str | None:
        """The file that it is the content of: the last one named in the paragraph above."""
        named = FILE_NAME.findall(self.above)
        return named[-1] if named else None

    def __str__(self) -> str:
        return f"{name(self.page)}: {self.text.strip().splitlines()[0][:40]}"


def blocks(page: Path, heading: str = "") -> list[Block]:
    """The blocks of a page, or of the section below a heading of the second level."""
    text = page.read_text()
    if heading:
        _, found_heading, below = text.partition(f"\n## {heading}\n")
        assert found_heading, f"{name(page)} has no section {heading!r}"
        text = below.partition("\n## ")[0]
    found = []
    for match in FENCE.finditer(text):
        indent = match[1]
        lines = [line.removeprefix(indent) for line in match[3].splitlines()]
        above = text[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
        found.append(Block(page, match[2], "\n".join(lines) + "\n", above))
    return found


def shell_lines(blocks: list[Block]) -> list[str]:
    """The commands of shell blocks, without their comments."""
    lines = [line.partition("  #")[0].strip() for b in blocks for line in b.text.splitlines()]
    return [line for line in lines if line]


def prose(page: Path) -> str:
    """The text without its fenced blocks and code spans, where a link would be none."""
    text = FENCE.sub("", page.read_text())
    return re.sub(r"`[^`\n]*`", "`code`", text)


def links(page: Path) -> list[str]:
    text = prose(page)
    return LINK.findall(text) + IMAGE.findall(text)


def anchors(page: Path) -> set[str]:
    """The ids of a page's headings, as GitHub and MkDocs make them."""
    return {_anchor(heading) for heading in HEADING.findall(FENCE.sub("", page.read_text()))}


def _anchor(heading: str) -> str:
    explicit = EXPLICIT_ID.search(heading)
    if explicit:
        return explicit[1]
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text)).strip("-")
