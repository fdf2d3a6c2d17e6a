"""The checks of `make lint` on prose and on the sizes of the code."""

import ast
import subprocess
import sys

from common.settings import ROOT
from tests.support.budget import body_lines, lowered, too_large
from tests.support.prose import MARKERS, python_sentences, sentences

PAGE = """# What is no sentence

The command prints one table.
It tells nobody what the table hides. `what code says` is not a sentence.

```
what a command prints is no text either
```

| a cell of at least five words | short |
"""


def test_a_page_is_split_into_sentences_and_cells() -> None:
    found = sentences(PAGE)
    assert len(found) == 4
    assert [bool(MARKERS.search(sentence)) for sentence in found] == [False, True, False, False]


def test_docstrings_and_comments_are_read() -> None:
    source = '"""Score the configs of one graph."""\n# Of these the first five count.\n'
    assert len(python_sentences(source)) == 2
    assert MARKERS.search(python_sentences(source)[1])


def test_a_missing_page_is_one_line() -> None:
    command = [sys.executable, "-m", "tests.support.prose", "READM.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: READM.md: no such file") and "README.md?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_package_above_its_budget_is_named_and_the_budget_only_falls() -> None:
    found = {"data": 12, "models": 5, "largest file": 4}
    budget = {"data": 10, "models": 9, "largest file": 4}
    (fault,) = too_large(found, budget)
    assert fault.startswith("error: data: 12 lines; expected at most 10; delete 2 in it, or lower")
    assert [fault.split(":")[1] for fault in too_large({"new": 1}, budget)] == [" new"]
    assert too_large({"largest file": 5}, budget) == [
        "error: largest file: 5 lines; expected at most 4; delete 1 in it"
    ]
    text = '# sizes\ndata = 10\nmodels = 9\n"largest file" = 4\n'
    assert lowered(text, found) == '# sizes\ndata = 10\nmodels = 5\n"largest file" = 4\n'


def test_signatures_and_docstrings_do_not_count_as_body() -> None:
    source = 'def f(\n    a: int,\n) -> int:\n    """Add one."""\n    b = a + 1\n    return b\n'
    assert list(body_lines(ast.parse(source))) == [("f", 2)]
