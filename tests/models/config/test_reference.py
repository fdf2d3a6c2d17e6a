"""The page of all recipe keys is as the classes say."""

from models.config.reference import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `.venv/bin/python -m models.config.reference`"
    )
