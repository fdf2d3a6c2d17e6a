"""The checks of `make lint` on prose and on the sizes of the code."""

import ast

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


def test_a_package_above_its_budget_is_named_and_the_budget_only_falls() -> None:
    found = {"data": 12, "models": 5, "largest file": 4}
    budget = {"data": 10, "models": 9, "largest file": 4}
    assert [fault.split(":")[0] for fault in too_large(found, budget)] == ["data"]
    assert [fault.split(":")[0] for fault in too_large({"new": 1}, budget)] == ["new"]
    text = '# sizes\ndata = 10\nmodels = 9\n"largest file" = 4\n'
    assert lowered(text, found) == '# sizes\ndata = 10\nmodels = 5\n"largest file" = 4\n'


def test_signatures_and_docstrings_do_not_count_as_body() -> None:
    source = 'def f(\n    a: int,\n) -> int:\n    """Add one."""\n    b = a + 1\n    return b\n'
    assert list(body_lines(ast.parse(source))) == [("f", 2)]
