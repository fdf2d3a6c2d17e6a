"""Every key of every model's configuration is explained where it stands."""

import inspect
import re

import pytest

from common.settings import FrozenConfig
from models.config import networks as model_configs
from models.config import rankers as statistics_configs
from models.config.recipe import Recipe

CLASSES = {
    cls
    for module in (model_configs, statistics_configs)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, FrozenConfig) and cls is not FrozenConfig
}
ENTRY = re.compile(r"^ {4}([a-z_0-9]+(?:, [a-z_0-9]+)*): \S", re.MULTILINE)


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__))
def test_every_key_is_explained(cls: type[FrozenConfig]) -> None:
    """A class explains the keys that it adds or gives another default; its bases the others."""
    attributes = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    explained = {name for names in ENTRY.findall(attributes) for name in names.split(", ")}
    own = set(cls.model_fields) & set(inspect.get_annotations(cls))
    assert explained == own


def test_no_model_of_a_recipe_is_left_out() -> None:
    tables = {type(getattr(Recipe(), name)) for name in Recipe.model_fields}
    elsewhere = "models.config.recipe"
    configs = {t for t in tables if issubclass(t, FrozenConfig) and t.__module__ != elsewhere}
    assert configs <= CLASSES
    assert len(configs) >= 9
