"""Check that pages, docstrings and comments are plain: `python -m tests.support.prose [FILE ...]`.

A sentence is marked if it has one of the words that made the project's texts hard to read. Without
files, the shares of marked and of long sentences are compared with the limits. With files, their
marked and long sentences are printed.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from common.files import missing_path
from common.settings import ROOT
from tests.support.budget import project_files

MARKERS = re.compile(
    r"\bwhat\b(?![^.]*\?)"  # a question may have it
    r"|\b(tell|tells|told|beside|anew|likewise|alike|thrice)\b"
    r"|\b(so|as) (many|much)\b|\bof (one's|its) own\b"
    r"|\bgo(es|ne)? on\b|\b(stands?|lies?)\b|(^|; )Of (?!course)",
    re.IGNORECASE,
)
MAX_WORDS = 25
# Shorter pieces are cells of a table or labels.
MIN_WORDS = 5


class Limits(NamedTuple):
    """Largest shares of sentences, in percent."""

    marked: float
    long: float


# All texts are below these limits. A limit may be lowered after a rewrite, but never raised.
LIMITS = {"pages": Limits(5, 10), "packages": Limits(8, 6), "tests": Limits(8, 2)}


def sentences(text: str) -> list[str]:
    """Split Markdown into sentences.

    Returns:
        Sentences and table cells of at least MIN_WORDS words, without headings and code blocks.
    """
    text = re.sub(r"```.*?```|<[^>]+>|!\[[^\]]*\]\([^)]*\)", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text).replace("**", "")
    text = re.sub(r"^\s*\|[-:| ]+\|\s*$|^#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*([-*]|\d+\.)\s+|\s*\|\s*", "\n\n", text, flags=re.MULTILINE)
    found = [
        part
        for block in re.split(r"\n\s*\n", text)
        for part in re.split(r"(?<=[.!?])\s+(?=[A-Z(\[])", " ".join(block.split()))
    ]
    return [part for part in found if len(part.split()) >= MIN_WORDS]


def python_sentences(source: str) -> list[str]:
    """Return the sentences of all docstrings, and the comments, of a module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found += sentences(ast.get_docstring(node) or "")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found += sentences(token.string.lstrip("#! "))
    return found


def read(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return python_sentences(text) if path.suffix == ".py" else sentences(text)


def is_long(sentence: str) -> bool:
    return len(sentence.split()) > MAX_WORDS


def share(texts: Iterable[str], is_counted: Callable[[str], object]) -> float:
    counted = [bool(is_counted(sentence)) for sentence in texts]
    return 100 * sum(counted) / max(len(counted), 1)


def scopes() -> dict[str, list[Path]]:
    """Return the files of the repository that each limit is for."""
    paths: dict[str, list[Path]] = {scope: [] for scope in LIMITS}
    for name in project_files("*.md", "*.py"):
        scope = "pages" if name.endswith(".md") else name.partition("/")[0]
        if name != "CHANGELOG.md":
            paths[scope if scope in paths else "packages"].append(ROOT / name)
    return paths


def faults() -> Iterator[str]:
    for scope, paths in scopes().items():
        texts = [sentence for path in paths for sentence in read(path)]
        measured = Limits(share(texts, MARKERS.search), share(texts, is_long))
        for name, value, limit in zip(Limits._fields, measured, LIMITS[scope], strict=True):
            sys.stdout.write(f"{scope}: {value:.1f} % {name} sentences, at most {limit} %\n")
            if value > limit:
                yield f"{scope}: too many {name} sentences; list them with -m tests.support.prose"


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]]
    for path in files:
        if not path.is_file():
            sys.exit(f"error: {missing_path(path, 'a page or a Python file')}")
    texts = [s for path in files for s in read(path) if MARKERS.search(s) or is_long(s)]
    sys.stdout.writelines(f"{sentence}\n" for sentence in texts)
    sys.exit(None if files else "\n".join(faults()) or None)
