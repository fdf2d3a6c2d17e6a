"""Compare the sizes of the code with `budget.toml`: `python -m tests.support.budget [--lower]`.

`--lower` writes the sizes of today where they are below the budget.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from common.settings import ROOT

BUDGET = ROOT / "budget.toml"


def project_files(*patterns: str) -> list[str]:
    """Return the paths of the project's files by pattern, relative to its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    paths = subprocess.check_output(command, cwd=ROOT, text=True).split()
    return [path for path in paths if (ROOT / path).exists()]


def body_lines(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of lines of each function, without signature and docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1:2] if ast.get_docstring(node) else node.body[:1]
            yield node.name, 1 + (node.end_lineno or 0) - first[0].lineno if first else 0


def sizes() -> dict[str, int]:
    """Return the lines of each package, and of the largest function and file."""
    lines: Counter[str] = Counter()
    for path in project_files("*.py"):
        text = (ROOT / path).read_text()
        package, n_lines = path.split("/")[0], text.count("\n")
        lines[package] += n_lines
        if package != "tests":
            lines["largest file"] = max(lines["largest file"], n_lines)
            for _, body in body_lines(ast.parse(text)):
                lines["largest function"] = max(lines["largest function"], body)
    return dict(lines)


def too_large(found: dict[str, int], budget: dict[str, int]) -> list[str]:
    """Return a line for each size that is above the budget, or not in it."""
    faults = []
    for name, size in found.items():
        if (excess := size - budget.get(name, 0)) > 0:
            ways = f"delete {excess} in it"
            if not name.startswith("largest"):
                ways += f", or lower another package's number by {excess} and say why in the commit"
            faults.append(f"error: {name}: {size} lines; expected at most {size - excess}; {ways}")
    return faults


def lowered(text: str, found: dict[str, int]) -> str:
    """Return the text of the budget, with smaller sizes where the code is smaller."""

    def lower(entry: re.Match[str]) -> str:
        name, size = entry["name"].strip('"'), int(entry["size"])
        return f"{entry['name']} = {min(size, found.get(name, 0))}"

    return re.sub(r'^(?P<name>"[\w ]+"|\w+) = (?P<size>\d+)$', lower, text, flags=re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Print the sizes above the budget, or lower the budget."""
    found = sizes()
    if arguments == ["--lower"]:
        Path(BUDGET).write_text(lowered(BUDGET.read_text(), found))
    faults = too_large(found, tomllib.loads(BUDGET.read_text()))
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
