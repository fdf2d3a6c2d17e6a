"""The page of all recipe keys is as the classes say."""

from models.config.recipe import Recipe
from models.config.reference import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `.venv/bin/python -m models.config.reference`"
    )


def test_every_table_and_key_is_on_it() -> None:
    text = page()
    for name, value in Recipe().model_dump(mode="json").items():
        for key in value if isinstance(value, dict) else (name,):
            assert f"`{key}`" in text or f"[{name}.{key}](#{key})" in text or key == "weights"
