"""Recipes reject wrong values, and the page of recipe keys is up to date."""

import re
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest
import tomli_w

from common.errors import UsageError
from common.settings import FrozenConfig
from data.tree import LAYOUT_COLLECTIONS, collection_named
from models.config.recipe import Recipe, load_recipe
from models.config.reference import PAGE, page
from models.registry import model_entry

RANDOM = 'collection."layout:xla:random"'


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("seeds=[0,0]", r"^recipe smoke: key 'seeds' is \[0, 0\]: expected each entry once$"),
        ("seeds=[]", "seeds.*: expected at least one entry"),
        ("accelerator=tpu", "accelerator.*'auto' or 'cpu'"),
        ('layout.models=["layout_boosting","layout_boosting"]', "each entry once"),
        ('tile.models=["layout_boosting"]', "tile.models"),
        ("blend.weights.typo=3", "blend.weights.typo: no such model; expected .*tile_boosting, "),
        ("blend.weights.layout_boosting=inf", "finite"),
        (
            "blend.weights={cross_config_sage=0, layout_boosting=0}",
            "^recipe smoke: blend.weights: those of cross_config_sage, layout_boosting sum to 0; ",
        ),
        ("cross_config_sage.training.learning_rate=inf", "finite"),
        ("cross_config_sage.hidden=0", "cross_config_sage.hidden"),
        ("valid_configs=1", "'valid_configs' is 1: one config .*; expected 0, .*, or at least 2"),
        ("features.prune=hops-100", "hops-k"),
        ("nosuch.key=1", "nosuch"),
        ("layout_boosting.num_boost_round=true", "is True: expected a whole number"),
        ("layout_boosting.num_leaves=131073", "less than or equal to 131072"),
        ("layout_boosting.linear_start=1", "is 1: expected true or false"),
        ("threads=1025", "less than or equal to 1024"),
        (f"seeds=[{2**31}]", "less than or equal to 2147483647"),
        ("segment_sage.pool_by_bytes=true", "segment_sage.pool_by_bytes"),
        ('collection."layout:xla".tgraph.blocks=1', '"layout:xla": no such collection; .*nlp'),
        (f"{RANDOM}.blend.choose=true", "blend: cannot differ here; expected features, cross_con"),
        (f"{RANDOM}.tgraph.wide=1", f"unknown key '{RANDOM}.tgraph.wide'; expected one of: blocks"),
        (f"{RANDOM}.tgraph.training.steps=0", f"'{RANDOM}.tgraph.training.steps' is 0: expected"),
        (f"{RANDOM}.late_fusion_sage.hidden=8", f"{RANDOM}.late_fusion_sage: cannot differ here"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(override: str, named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        load_recipe("smoke", [override])
    assert "\n" not in str(caught.value)


def test_a_collection_has_its_own_keys_and_all_others_of_the_recipe() -> None:
    recipe = load_recipe("smoke", [f"{RANDOM}.tgraph.training.steps=9", "tgraph.hidden=32"])
    for name, steps in (("layout:xla:random", 9), ("layout:xla:default", 6), ("tile:xla", 6)):
        own = recipe.of(collection_named(name))
        assert own.tgraph.training.steps == steps
        assert own.tgraph.hidden == 32
        assert not own.collection
    together = ["layout.together=true", f"{RANDOM}.tgraph.hidden=8"]
    with pytest.raises(UsageError, match=f"{RANDOM}: layout.together trains one model"):
        load_recipe("smoke", together)


def test_a_key_that_all_collections_replace_is_idle() -> None:
    recipe = load_recipe("reference")
    assert recipe.is_idle("tgraph.training.steps")
    assert not recipe.is_idle("tgraph.inference_configs")
    first, second = LAYOUT_COLLECTIONS[:2]
    assert recipe.is_idle("tgraph.configs_per_step", [second])
    assert not recipe.is_idle("tgraph.configs_per_step", [first])
    assert recipe.is_idle(f"collection.{second.name}.tgraph.hidden", [first])


def test_bare_words_make_a_list_of_models() -> None:
    recipe = load_recipe("within_graph", ["layout.models=[cross_config_sage, layout_linear]"])
    assert recipe.layout.models == ("cross_config_sage", "layout_linear")
    with pytest.raises(UsageError, match=r"key 'layout\.models\[0\]' is 'nosuch': ranks no layout"):
        load_recipe("smoke", ["layout.models=[nosuch]"])


def test_tile_networks_are_exact_unless_a_recipe_says_otherwise() -> None:
    recipe = load_recipe("smoke", ["late_fusion_sage.training.precision=float16"])
    assert recipe.cross_config_sage.training.precision == "auto"
    assert recipe.early_fusion_sage.training.precision == "float32"
    assert recipe.late_fusion_sage.training.precision == "float16"
    assert load_recipe("smoke").late_fusion_sage.training.precision == "float32"


HUGE = 2**31


def _numbers(config: type[FrozenConfig], above: str = "") -> Iterator[str]:
    for name, schema in config.model_json_schema()["properties"].items():
        inner = config.model_fields[name].default
        if isinstance(inner, FrozenConfig):
            yield from _numbers(type(inner), f"{above}{name}.")
        elif schema.get("type") == "integer":
            yield above + name


@pytest.mark.parametrize("value", [HUGE, -HUGE, 10**30])
def test_no_whole_number_exceeds_32_bits(value: int) -> None:
    for key in _numbers(Recipe):
        with pytest.raises(UsageError, match=f"key '{key}' is {value}: expected"):
            load_recipe("smoke", [f"{key}={value}"])


def test_huge_seed_of_the_command_is_refused() -> None:
    with pytest.raises(UsageError, match=f"--seed {HUGE - 1}: .* less than or equal to"):
        load_recipe("smoke", ["seeds=[0,1]"], seed=HUGE - 1)


def test_a_seed_moves_all_seeds_and_the_config_of_a_run_is_a_recipe(tmp_path: Path) -> None:
    recipe, path = load_recipe("smoke", ["seeds=[0,1,2]"], seed=7), tmp_path / "config.toml"
    assert recipe.seeds == (7, 8, 9)
    path.write_text('data = "0123"\n' + tomli_w.dumps({"recipe": recipe.model_dump(mode="json")}))
    assert load_recipe(str(path)) == recipe
    path.write_text("recipe = 3\n")
    with pytest.raises(UsageError, match="unknown key 'recipe'"):
        load_recipe(str(path))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run `.venv/bin/python -m models.config.reference`"
    )


NAMED = ["layout.models=[tgraph,wide]", "wide.model=tgraph", "wide.hidden=32"]


def test_a_model_is_used_twice_under_two_names() -> None:
    table = 'collection."layout:xla:random".wide.cross_config=false'
    keys = [*NAMED, "blend.weights.wide=0.5", "wide.seeds=[3]", "wide.fit_on=[train,valid]", table]
    recipe = load_recipe("smoke", keys)
    again = Recipe.from_table(recipe.model_dump(mode="json"), source="again")
    # Jobs send their recipe to another process.
    sender, receiver = Pipe()
    sender.send(recipe)
    for one in (recipe, again, receiver.recv()):
        assert one.models_of("layout") == ("tgraph", "wide")
        assert (one.tgraph.hidden, one.wide.hidden, one.wide.dropout) == (16, 32, 0.2)
        assert (one.seeds_of("tgraph"), one.seeds_of("wide")) == ((0,), (3,))
        fits = [[fit.fit_on for fit in one.fits(model)] for model in ("tgraph", "wide")]
        assert fits == [[("train",)], [("train",), ("train", "valid")]]
        random = one.of(collection_named("layout:xla:random"))
        assert (random.wide.cross_config, random.tgraph.cross_config) == (False, True)
        assert model_entry(one, "wide").network_class == model_entry(one, "tgraph").network_class
        assert one.is_idle("wide.hidden", [collection_named("tile:xla")])
    # The table may stay if the model is not used.
    assert load_recipe("smoke", [*NAMED, "layout.models=[tgraph]"]).models_of("layout") == (
        "tgraph",
    )


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["wide.model=no"], "wide.model: no model 'no'; expected cross_config_sage, "),
        (["tgraph.model=baseline_gcn"], "model 'baseline_gcn': 'tgraph' is taken; give it"),
        ([*NAMED, "wide.hiden=3"], "unknown key 'wide.hiden'; expected one of: blocks, "),
        ([*NAMED[1:], "tile.models=[wide]"], "'tile.models[0]' is 'wide': ranks no tile configs"),
        (["layout.models=[wide]"], "expected cross_config_sage, .* a name whose table has the key"),
    ],
)
def test_a_wrong_name_of_a_model_is_one_line(keys: list[str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_recipe("smoke", keys)
    assert re.search(named if ".*" in named else re.escape(named), str(caught.value))
