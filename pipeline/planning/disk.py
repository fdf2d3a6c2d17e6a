"""How much disk a recipe takes: the files as fetched, the store, and the run."""

from collections.abc import Sequence

from data.official.sizes import PartSize
from models.config.recipe import Recipe
from pipeline.planning.laws import Laws
from pipeline.planning.stage_costs import axes_of

# The largest published file. Synthetic ones, which the law was fitted to, compress ten times worse.
MOST_RAW_BYTES = 25e6
SCORE_TABLES = 2  # beside those of the members: the blend's, and the floor's


def disk_bytes(recipe: Recipe, parts: Sequence[PartSize], laws: Laws) -> dict[str, float]:
    """Return the bytes of one collection's files: "raw" and "store" at most, "run" about."""
    kind = parts[0].collection.split(":", 1)[0]
    n_tables = len(recipe.models_of(kind)) * len(recipe.seeds) + SCORE_TABLES
    ranked = [part for part in parts if part.split != "train"]
    per_row = laws.mib[f"{kind} scores of a config"]() * 2**20
    return {
        "raw": sum(
            part.graphs * min(MOST_RAW_BYTES, _bytes(f"{kind} raw", part, laws)) for part in parts
        ),
        "store": sum(part.graphs * _bytes(f"{kind} store", part, laws) for part in parts),
        "run": n_tables * per_row * sum(part.graphs * part.configs for part in ranked),
    }


def _bytes(name: str, part: PartSize, laws: Laws) -> float:
    return laws.mib[name](**axes_of(part)) * 2**20
