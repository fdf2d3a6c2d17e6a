"""A message is one line, whatever it quotes."""

import pytest

from common.errors import MAX_CHARACTERS, PipelineError, UsageError, did_you_mean, hide_credentials


def test_unprintable_characters_are_escaped() -> None:
    error = PipelineError("x.csv: row 2: 'a\n\x1c\u2028\udc80' is no index; expected 4;0;2")
    assert str(error) == r"x.csv: row 2: 'a\n\x1c\u2028\udc80' is no index; expected 4;0;2"


def test_long_message_keeps_its_ends() -> None:
    error = UsageError(f"recipe.toml: key '{'k' * 10_000}'; expected one of: loss")
    assert len(str(error)) <= MAX_CHARACTERS + 3
    assert str(error).startswith("recipe.toml: key 'k") and str(error).endswith("one of: loss")


def test_nearest_name_is_suggested_only_if_it_is_near() -> None:
    names = ("layout:xla:default", "layout:xla:random", "Tile")
    assert did_you_mean("layout:xla:defalt", names) == "; did you mean layout:xla:default?"
    assert did_you_mean("TILE", names) == "; did you mean Tile?"
    assert did_you_mean("nlp", names) == did_you_mean("", names) == did_you_mean("x", ()) == ""


@pytest.mark.parametrize("password", ["secret", "sec@ret", "sec/ret", "s/ec@ret", "s:ec@r/et"])
def test_credentials_of_an_address_are_not_shown(password: str) -> None:
    line = f"storage dialect://me:{password}@host/name: cannot be opened; see https://host/x"
    expected = "storage dialect://***@host/name: cannot be opened; see https://host/x"
    assert hide_credentials(line) == str(PipelineError(line)) == expected
