"""Pages of the site that are files of the repository: the changelog, and how to contribute.

MkDocs calls `on_files` (see `hooks` in mkdocs.yml). The files stay where GitHub and PyPI look for
them; their links into docs/ are made relative to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]
INCLUDED = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in INCLUDED:
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name.lower(), content=text))
    return files
