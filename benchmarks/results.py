"""Write the pages of docs/results whose code has changed since they were measured.

`make results` runs the programs of such pages one after the other; all of them resume. A page names
its revision and its code. Comments of Python and TOML files, and docstrings, are no changes.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence

from benchmarks import CODE, PAGES, errors_in_one_line
from common.settings import ROOT

# The options of each page's program, in the order of running. gpu.md needs a GPU: `make gpu`.
PROGRAMS = {
    "kernels": ("kernels",),
    "accuracy": ("accuracy --out runs/accuracy", "accuracy --out runs/accuracy --report"),
    "segments": ("segments --out runs/segments",),
    "go": ("go --out runs/go",),
    "claims": ("claims --out runs",),
    "suggest": ("suggest --out runs/suggest",),
    "optimize": ("autotune --out runs/optimize",),
    "speed": ("speed",),
    "rehearsal": ("rehearsal --out runs/rehearsal",),
}


def git(*arguments: str) -> str:
    """Return the output of git in the checkout, or "" if it fails."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False, text=True).stdout  # noqa: S603


def meaning(name: str, text: str) -> str:
    """Return the content of a TOML file, or the syntax tree of a Python file without docstrings."""
    if name.endswith(".toml"):
        return str(tomllib.loads(text))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            body[:1] = [] if isinstance(body[0].value, ast.Constant) else body[:1]
    return ast.dump(tree)


def changes_since(revision: str, code: Sequence[str]) -> Iterator[str]:
    """Yield the files of some paths, but Markdown, with another meaning than at a revision."""
    trees = (revision, "HEAD")
    if not git("rev-parse", "--quiet", "--verify", revision):
        yield f"revision {revision} is not in the history"
    for name in git("diff", "--name-only", *trees, "--", *code, ":(exclude)*.md*").splitlines():
        texts = (git("show", f"{tree}:{name}") for tree in trees)
        is_code = name.endswith((".py", ".toml"))
        if not is_code or len({meaning(name, text) for text in texts}) > 1:
            yield name


def stale(page: str) -> list[str]:
    """Return the files that changed since the revision of a page."""
    path = PAGES / f"{page}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    revisions = set(re.findall(r"\brevision ([0-9a-f]{8,12})\b", text, re.IGNORECASE))
    files = {name for old in revisions for name in changes_since(old, CODE[page])}
    return sorted(files) if revisions else ["the page is missing"]


@errors_in_one_line()
def main() -> None:
    """Write the stale pages."""
    for page, programs in PROGRAMS.items():
        if files := stale(page):
            print(f"{page}.md: changed since: {', '.join(files)}", flush=True)  # noqa: T201
            for words in programs:
                command = [sys.executable, "-m", *f"benchmarks.{words}".split()]
                subprocess.run(command, cwd=ROOT, check=True)  # noqa: S603


if __name__ == "__main__":
    main()
