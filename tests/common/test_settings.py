"""Recipes: every wrong key or value is refused with its dotted name; overrides are read as TOML."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from common import settings
from common.errors import PipelineError, UsageError
from common.settings import (
    CONFIGS,
    ROOT,
    FrozenConfig,
    apply_overrides,
    default_data_dir,
    read_toml,
    recipe_path,
)
from models.config.recipe import load_recipe

PIPE = b"a pipe"


class Inner(FrozenConfig):
    width: int = 3
    rate: float = 0.5


class Outer(FrozenConfig):
    name: str = "x"
    inner: Inner = Inner()
    seeds: tuple[int, ...] = (0,)
    weights: dict[str, float] = {}  # noqa: RUF012 - pydantic copies defaults


@pytest.mark.parametrize(
    ("table", "want"),
    [
        ({"nam": 1}, "unknown key 'nam'; expected one of: inner, name, seeds, weights"),
        ({"inner": {"widht": 1}}, "unknown key 'inner.widht'; expected one of: rate, width"),
        ({"inner.width": 1}, "unknown key 'inner.width'; expected one of: rate, width"),
        ({"inner": {"width": "wide"}}, "key 'inner.width' is 'wide': expected a valid int"),
        ({"inner": 3}, "key 'inner' is 3: expected a table"),
        ({"inner": {"width": True}}, "key 'inner.width' is True: expected a valid int"),
        ({"inner": {"width": 3.0}}, "key 'inner.width' is 3.0: expected a valid int"),
        ({"inner": {"rate": "3"}}, "key 'inner.rate' is '3': expected a valid number"),
        ({"name": 3}, "key 'name' is 3: expected a valid string"),
        ({"seeds": [0, "one"]}, "key 'seeds[1]' is 'one': expected a valid int"),
        ({"weights": {"a": "much"}}, "key 'weights.a' is 'much': expected a valid number"),
        ({"name": "two\nlines", "seeds": "a\nb"}, r"key 'seeds' is 'a\nb': expected a list"),
        ({"seeds": 0}, "key 'seeds' is 0: expected a list, such as [0, 1]"),
        ({"seeds": "one"}, "key 'seeds' is 'one': expected a list, such as [one]"),
    ],
)
def test_wrong_key_or_value_is_named_with_its_dotted_key(table: dict[str, Any], want: str) -> None:
    with pytest.raises(UsageError) as caught:
        Outer.from_table(table, source="recipe r")
    assert str(caught.value).startswith(f"recipe r: {want}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1.5e3", -1500.0),
        ("[0, 1]", [0, 1]),
        ("[one, hops-1, 3, true,]", ["one", "hops-1", 3, True]),
        ("['quoted, 3', 4]", ["quoted, 3", 4]),
        ("['quoted, 3', word]", "['quoted, 3', word]"),
        ("[a, , b]", "[a, , b]"),
        ("[[a, b], c]", [["a", "b"], "c"]),
        ("'quoted 3'", "quoted 3"),
        ("hops-1", "hops-1"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nseeds = [5]", "1\nseeds = [5]"),  # a word: never half read
        ("[" * 5_000, "[" * 5_000),
        ("9" * 5_000, "9" * 5_000),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_value_of_an_override_is_toml_or_a_bare_word(text: str, value: object) -> None:
    overrides = [f'a."b.c:d".e={text}', "a.f=2"]
    assert apply_overrides({}, overrides) == {"a": {"b.c:d": {"e": value}, "f": 2}}


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *((text, "expected key=value") for text in ("a", "=3", "", "a=" + "a." * 999)),
        ("a.b.c=1", "--set 'a.b.c=1': 'b' is not a table"),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_impossible_override_is_refused(override: str, named: str) -> None:
    table = {"a": {"b": 3}}
    with pytest.raises(UsageError, match=re.escape(named)):
        apply_overrides(table, [override])
    assert apply_overrides(table, ["a.b = 5", "a.b=6", "x.y=7"]) == {"a": {"b": 6}, "x": {"y": 7}}
    assert table == {"a": {"b": 3}}


def test_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('name = "a"\r\n', encoding="utf-8-sig", newline="")
    assert read_toml(path) == {"name": "a"}


RECIPES = [*sorted(CONFIGS.glob("*.toml")), ROOT / "tests/drills/drill.toml"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_survives_writing(path: Path, tmp_path: Path) -> None:
    recipe, copy = load_recipe(str(path)), tmp_path / path.name
    copy.write_text(recipe.to_toml())
    assert load_recipe(str(copy)) == recipe


def test_recipes_are_found_by_name_or_file(tmp_path: Path) -> None:
    assert recipe_path("smoke") == CONFIGS / "smoke.toml"
    mine = tmp_path / "mine.toml"
    mine.write_text("")
    assert recipe_path(str(mine)) == mine
    with pytest.raises(UsageError, match=r"'smok': no such recipe; known: .*smoke"):
        recipe_path("smok")
    with pytest.raises(UsageError, match="no such file"):
        recipe_path(str(tmp_path / "none.toml"))
    with pytest.raises(UsageError, match="no such"):
        recipe_path("x" * 5_000)
    mine.write_text("a = ")
    with pytest.raises(UsageError, match="not a TOML file"):
        load_recipe(str(mine))


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b"a = 1\na = 2", "not a TOML file"),
        ('name = "a"'.encode("utf-16"), "cannot be read: not UTF-8 text"),
        (None, "cannot be read: No such file"),
        (PIPE, "cannot be read: not a regular file"),
        (b"a = " + b"[" * 5_000 + b"]" * 5_000, "not a TOML file: maximum recursion depth"),
        (b"a = " + b"9" * 5_000, "not a TOML file: Exceeds the limit"),
        (b"a = 'x'\n" + b".".join([b"a"] * 20_000) + b" = 1", "line 2: expected fewer than 100"),
        (b"[" + b".".join([b"a"] * 20_000) + b"]", "line 1: expected fewer than 100 dots"),
        (b"a = '" + b"x" * 300_000 + b"'", "expected settings, at most 262144 bytes"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_invalid_settings_file_is_one_line(
    tmp_path: Path, content: bytes | None, want: str
) -> None:
    path = tmp_path / "r.toml"
    if content == PIPE:  # reading it would wait for ever
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(PipelineError) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: {want}")
    assert len(str(caught.value).splitlines()) == 1


def test_data_folder_has_an_order_of_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = (tmp_path / "new", tmp_path / "old")
    monkeypatch.setattr(settings, "KAGGLE_MOUNTS", mounts)
    raw, sample = tmp_path / "raw", tmp_path / "sample"
    monkeypatch.setattr(settings, "RAW_DATA", raw)
    monkeypatch.setattr(settings, "SAMPLE", sample)
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    with pytest.raises(PipelineError, match="--data DIR"):
        default_data_dir()
    sample.mkdir()
    assert default_data_dir() == sample
    (raw / "tpugraphs" / "npz").mkdir(parents=True)
    assert default_data_dir() == raw / "tpugraphs"
    (raw / "npz").mkdir()
    assert default_data_dir() == raw
    (mounts[1] / "npz").mkdir(parents=True)
    assert default_data_dir() == mounts[1]
    (mounts[0] / "npz_all" / "npz").mkdir(parents=True)
    assert default_data_dir() == mounts[0]
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path / "named"))
    with pytest.raises(PipelineError, match=r"PIPELINE_DATA=.*named: no such folder"):
        default_data_dir()
    (tmp_path / "named").mkdir()
    assert default_data_dir() == tmp_path / "named"
