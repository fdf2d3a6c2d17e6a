"""What is imported for the default recipe: nothing slow that it does not need, nothing is set."""

import subprocess
import sys

PROGRAM = """
import os, sys
before = dict(os.environ)
from ensembles import load_graph, load_ranker, rank
from models.config.own_models import imported
from models.config.recipe import Recipe
from models.registry import NETWORKS, model_entry
recipe = Recipe()
for name in recipe.all_models:
    model_entry(recipe, name)
    if name in NETWORKS:
        kind, place = NETWORKS[name]
        imported(place)
        imported(f"models.{kind}.task:train")
print(*(name for name in ("torch_geometric", "scipy.stats", "lightgbm") if name in sys.modules))
assert not {key for key in os.environ.items() - before.items() if "OMP" in key[0]}
"""


def test_the_default_recipe_needs_no_slow_library_to_be_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.strip() == ""
