"""The prose check counts sentences of pages, docstrings and comments."""

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
