"""The page of the command line is as the commands are."""

from pipeline.reference import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `.venv/bin/python -m pipeline.reference`"
    )
