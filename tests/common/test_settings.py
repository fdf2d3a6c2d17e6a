"""Recipes: every wrong key or value is refused with its dotted name; overrides are read as TOML."""

import os
import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field, StrictInt, StrictStr

from common import settings
from common.errors import PipelineError, UsageError
from common.progress import log_lines_to
from common.settings import (
    CONFIGS,
    ROOT,
    FrozenConfig,
    apply_overrides,
    default_data_dir,
    default_store_dir,
    read_toml,
    recipe_path,
)
from models.config.recipe import load_recipe

PIPE = b"a pipe"


def check_even(value: int) -> int:
    if value % 2:
        raise ValueError("odd numbers are not possible")
    return value


class Inner(FrozenConfig):
    width: Annotated[int, Field(ge=1, multiple_of=3)] = 3
    rate: Annotated[float, Field(lt=1, allow_inf_nan=False)] = 0.5


class Outer(FrozenConfig):
    must: str
    name: str = "x"
    is_fast: bool = True
    inner: Inner = Inner()
    loss: Literal["hinge", "mle"] = "mle"
    low: StrictInt | StrictStr = 0
    even: Annotated[int, AfterValidator(check_even)] = 2
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    weights: dict[str, float] = {}  # noqa: RUF012 - pydantic copies defaults


OUTER_KEYS = "even, inner, is_fast, loss, low, must, name, seeds, weights"
INNER_KEYS = "expected one of: rate, width"


@pytest.mark.parametrize(
    ("table", "want"),
    [
        ({"nam": 1}, f"unknown key 'nam'; expected one of: {OUTER_KEYS}; did you mean name?"),
        ({"colour": 1}, f"unknown key 'colour'; expected one of: {OUTER_KEYS}"),
        ({"inner": {"widht": 1}}, f"unknown key 'inner.widht'; {INNER_KEYS}; did you mean width?"),
        ({"inner.width": 1}, f"unknown key 'inner.width'; {INNER_KEYS}; did you mean width?"),
        ({"inner": {"width": {"a": 1}}}, "key 'inner.width' is {'a': 1}: expected a whole number"),
        ({"inner": {"width": "wide"}}, "key 'inner.width' is 'wide': expected a whole number"),
        ({"inner": 3}, "key 'inner' is 3: expected a table"),
        ({"inner": {"width": True}}, "key 'inner.width' is True: expected a whole number"),
        ({"inner": {"width": 3.0}}, "key 'inner.width' is 3.0: expected a whole number"),
        ({"inner": {"rate": "3"}}, "key 'inner.rate' is '3': expected a number"),
        ({"inner": {"rate": float("nan")}}, "key 'inner.rate' is nan: expected a finite number"),
        ({"inner": {"rate": 2}}, "key 'inner.rate' is 2: expected a number less than 1"),
        (
            {"inner": {"width": 0}},
            "key 'inner.width' is 0: expected a number greater than or equal to 1",
        ),
        ({"inner": {"width": 7}}, "key 'inner.width' is 7: expected a multiple of 3"),
        ({"name": 3}, "key 'name' is 3: expected text"),
        ({"is_fast": 1}, "key 'is_fast' is 1: expected true or false"),
        ({"seeds": []}, "key 'seeds' is []: expected at least one entry"),
        ({"seeds": [0, "one"]}, "key 'seeds[1]' is 'one': expected a whole number"),
        ({"loss": "hing"}, "key 'loss' is 'hing': expected 'hinge' or 'mle'; did you mean hinge?"),
        ({"loss": "x"}, "key 'loss' is 'x': expected 'hinge' or 'mle'"),
        ({"low": []}, "key 'low' is []: expected a whole number or text"),
        ({"even": 3}, "key 'even' is 3: odd numbers are not possible"),
        ({"weights": {"a": "much"}}, "key 'weights.a' is 'much': expected a number"),
        ({"weights": 1}, "key 'weights' is 1: expected a table"),
        ({"must": None}, "key 'must' is None: expected text"),
        ({"name": "two\nlines", "seeds": "a\nb"}, r"key 'seeds' is 'a\nb': expected a list"),
        ({"seeds": 0}, "key 'seeds' is 0: expected a list, such as [0, 1]"),
        ({"seeds": "one"}, "key 'seeds' is 'one': expected a list, such as [one]"),
    ],
)
def test_wrong_key_or_value_is_named_with_its_dotted_key(table: dict[str, Any], want: str) -> None:
    with pytest.raises(UsageError) as caught:
        Outer.from_table({"must": "x", **table}, source="recipe r")
    assert str(caught.value).startswith(f"recipe r: {want}")
    assert len(str(caught.value).splitlines()) == 1
    if "did you mean" not in want:
        assert "did you mean" not in str(caught.value)


def test_key_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"^a: key 'must' is missing: expected a value$"):
        Outer.from_table({}, source="a")


# Words of pydantic that name no value of a recipe.
PYDANTIC = re.compile("Input|Value error|should|valid (int|str|bool|num)|dictionary|array")
WRONG_VALUES = (None, True, -1, 1.5, 1e400, 10**30, "x", "", [], ["x"], [{}], {}, {"x": 1}, [-1])


def leaves(config: Any, above: str = "") -> list[str]:
    keys = []
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        keys += [f"{above}{name}"]
        if isinstance(value, FrozenConfig):
            keys += leaves(value, f"{above}{name}.")
        assert field.default is not None
    return keys


def test_no_wrong_value_of_a_recipe_gives_a_message_of_pydantic() -> None:
    from models.config.recipe import Recipe

    messages = set()
    for key in leaves(Recipe()):
        for value in WRONG_VALUES:
            table: dict[str, Any] = {}
            settings.set_value(table, key, value, source="test")
            with suppress(PipelineError):
                Recipe.from_table(table, source="recipe")
                continue
            with pytest.raises(UsageError) as caught:
                Recipe.from_table(table, source="recipe")
            message = str(caught.value)
            assert not PYDANTIC.search(message.replace(repr(value), "")), message
            assert message.startswith("recipe: ") and re.search("expected|known", message), message
            messages.add(message)
    assert len(messages) > 500


@pytest.mark.parametrize(
    ("override", "near"),
    [
        ("features.prun=1", "prune"),
        ("tgrph.hidden=1", "tgraph"),
        ("tgraph.training.step=1", "steps"),
        ("features.padding=zro", "zero"),
        ("tile.models=[late_fusion_sag]", "late_fusion_sage"),
        ("blend.weights.tgrph=1.0", "tgraph"),
        ("tgraph.training.start_from=layout:xla:defalt", "layout:xla:default"),
        ('collection."layout:xla:randm".tgraph.hidden=4', "layout:xla:random"),
        ('collection."tile:xla".tile_bosting.num_leaves=4', "tile_boosting"),
        ('sage_nodes={model="cross_config_sag"}', "cross_config_sage"),
    ],
)
def test_wrong_name_in_a_recipe_gets_the_nearest_name(override: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"; did you mean {near}\\?$"):
        load_recipe("cpu", [override])


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
    with pytest.raises(UsageError, match=r"'smok': no such recipe; known: .*; did you mean smoke"):
        recipe_path("smok")
    with pytest.raises(UsageError, match=r"no such file .*; did you mean .*/mine.toml"):
        recipe_path(str(tmp_path / "mne.toml"))
    with pytest.raises(UsageError, match=r"README.md: is a file; expected a .toml file with a rec"):
        recipe_path(str(ROOT / "README.md"))
    (tmp_path / "config.toml").touch()
    with pytest.raises(UsageError, match=r"is a folder; .*; did you mean .*/config.toml\?$"):
        recipe_path(str(tmp_path))
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
    monkeypatch.setattr(settings, "USER_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "SAMPLE", sample)
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    with pytest.raises(PipelineError, match="--data DIR"):
        default_data_dir()
    sample.mkdir()
    assert default_data_dir() == sample
    (tmp_path / "cache/raw/tpugraphs/npz").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert default_data_dir() == settings.download_dir() == tmp_path / "cache/raw/tpugraphs"
    (raw / "tpugraphs" / "npz").mkdir(parents=True)
    assert default_data_dir() == raw / "tpugraphs"
    (raw / "npz").mkdir()
    assert default_data_dir() == raw
    (mounts[1] / "npz").mkdir(parents=True)
    assert default_data_dir() == mounts[1]
    (mounts[0] / "npz_all" / "npz").mkdir(parents=True)
    assert default_data_dir() == mounts[0]
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path / "named"))
    with pytest.raises(PipelineError, match=r"PIPELINE_DATA=.*named: no such file or folder"):
        default_data_dir()
    (tmp_path / "named").mkdir()
    assert default_data_dir() == tmp_path / "named"


@pytest.mark.parametrize("is_installed", [True, False])
def test_only_a_command_in_the_checkout_writes_into_it(
    is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIPELINE_STORE")
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    monkeypatch.setattr(settings, "IS_INSTALLED", is_installed)
    monkeypatch.setattr(settings, "USER_CACHE", tmp_path / "cache")
    monkeypatch.setattr(settings, "KAGGLE_MOUNTS", ())
    notes: list[str] = []
    for folder in (ROOT, ROOT / "docs", tmp_path):
        monkeypatch.chdir(folder)
        with log_lines_to(notes.append):
            store = default_store_dir(tmp_path / "mine")
        is_in_checkout = folder != tmp_path and not is_installed
        root = ROOT / "data" if is_in_checkout else tmp_path / "cache"
        assert store.parent == root / "store" and store.name.startswith("mine-")
        assert settings.download_dir() == root / "raw" / "tpugraphs"
        last = f"store: {store}; PIPELINE_STORE or --store name another folder"
        assert notes[-1:] == ([] if is_in_checkout else [last])
    store.mkdir(parents=True)
    with log_lines_to(notes.append):
        assert default_store_dir(tmp_path / "mine") == store
    assert len(notes) == (3 if is_installed else 1)
    monkeypatch.setenv("PIPELINE_STORE", str(tmp_path / "named"))
    monkeypatch.setenv("PIPELINE_DATA", str(tmp_path / "data"))
    assert default_store_dir(tmp_path / "mine") == tmp_path / "named" / store.name
    assert settings.download_dir() == tmp_path / "data"


def test_install_commands_name_files_of_a_checkout_and_of_a_wheel() -> None:
    assert not settings.IS_INSTALLED  # an editable install is a checkout
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]
    inside = hatch["build"]["targets"]["wheel"]["force-include"]
    for name in ("collect", "ray", "trackers"):
        *_, first, requirements, second, constraints = settings.how_to_install(name).split()
        assert (first, second) == ("-r", "-c")
        for path in map(Path, (requirements, constraints)):
            assert path.is_file() and inside[path.name] == f"fast_or_slow/{path.name}"
