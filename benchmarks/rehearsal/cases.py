"""The cases of the rehearsal: the largest real shapes, and a small grid around one base."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from data.synthetic import GraphSize

BASE_NODES, BASE_CONFIGS = 6_000, 4_000
NODES_PER_CONFIGURABLE = 14  # of the largest real graph: 43,615 nodes, 3,143 configurable
FEW_STEPS = 6
TILE_ROUNDS = 25
TILE_STEPS = 24  # the first ones also read the kernels
GNNS = ("cross_config_sage", "global_attention_sage")
TREES = ("layout_boosting", "layout_linear")
NETWORKS = (*GNNS, "late_fusion_sage", "early_fusion_sage")
TILE_MODELS = ("tile_linear", "late_fusion_sage", "early_fusion_sage", "tile_boosting")


@dataclass(frozen=True)
class Case:
    """A run of a recipe on a synthetic tree of one collection.

    Attributes:
        train, valid, test: sizes of each split's layout graphs; one that occurs again, in any
            split, is a link to the same content.
        kernels: of a tile collection, how many each split holds: train, valid, test.
        nodes_per_kernel: about so many.
        large_kernel: nodes of one more kernel in each split; 0 = there is none.
        settings: overrides of the recipe `cpu`.
    """

    name: str
    collection: str
    train: tuple[GraphSize, ...] = ()
    valid: tuple[GraphSize, ...] = ()
    test: tuple[GraphSize, ...] = ()
    kernels: tuple[int, int, int] = (0, 0, 0)
    configs_per_kernel: int = 0
    nodes_per_kernel: int = 40
    large_kernel: int = 0
    settings: tuple[str, ...] = ()
    axes: Mapping[str, float] = field(default_factory=dict)


def _sized(n_nodes: int, n_configs: int) -> GraphSize:
    return GraphSize(n_nodes, round(n_nodes / NODES_PER_CONFIGURABLE), n_configs)


def _training(models: Sequence[str], steps: int) -> tuple[str, ...]:
    keys = {"steps": steps, "warmup_steps": 2, "checkpoint_every": 1000, "log_every": 1000}
    return tuple(
        f"{model}.training.{key}={value}" for model in models for key, value in keys.items()
    )


def _common_settings(
    kind: str, models: Sequence[str], keys: Mapping[str, int], steps: int
) -> tuple[str, ...]:
    networks = [model for model in models if model in NETWORKS]
    return (
        "seeds=[0]",
        "threads=1",
        "accelerator=cpu",
        f"{kind}.models=[{', '.join(models)}]",
        *(f"{model}.{key}={value}" for model in networks for key, value in keys.items()),
        *_training(networks, steps),
    )


def layout_settings(
    models: Sequence[str], *, hidden: int, configs_per_step: int, steps: int = FEW_STEPS
) -> tuple[str, ...]:
    """Return the overrides of a layout case."""
    keys = {"hidden": hidden, "configs_per_step": configs_per_step}
    losses = (f"{model}.loss=list_mle" for model in models if model in NETWORKS)
    return (*_common_settings("layout", models, keys, steps), *losses)


def grid_case(
    *,
    n_nodes: int = BASE_NODES,
    n_configs: int = BASE_CONFIGS,
    n_graphs: int = 1,
    hidden: int = 16,
    configs_per_step: int = 32,
    rounds: int = 100,
    configs_per_graph: int = 500,
) -> Case:
    """Return a small case: so many equal train graphs and one to rank."""
    size = _sized(n_nodes, n_configs)
    axes = {
        "nodes": n_nodes,
        "configs": n_configs,
        "graphs": n_graphs,
        "hidden": hidden,
        "configs_per_step": configs_per_step,
        "rounds": rounds,
        "configs_per_graph": configs_per_graph,
    }
    name = "-".join(f"{value}" for value in axes.values())
    settings = layout_settings([*GNNS, *TREES], hidden=hidden, configs_per_step=configs_per_step)
    return Case(
        f"grid-{name}",
        "layout:xla:random",
        train=(size,) * n_graphs,
        valid=(size,),
        settings=(
            *settings,
            f"layout_boosting.num_boost_round={rounds}",
            f"layout_boosting.configs_per_graph={configs_per_graph}",
            f"layout_linear.configs_per_graph={configs_per_graph}",
        ),
        axes=axes,
    )


GRID = (
    grid_case(),
    grid_case(n_nodes=2_000),
    grid_case(n_nodes=20_000),
    grid_case(n_configs=1_000),
    grid_case(n_configs=16_000),
    grid_case(n_graphs=2),
    grid_case(n_graphs=4),
    grid_case(n_configs=1_000, hidden=32),
    grid_case(n_configs=1_000, hidden=128),
    grid_case(n_configs=1_000, configs_per_step=128),
    grid_case(n_configs=1_000, hidden=128, configs_per_step=128),
    grid_case(n_configs=4_000, rounds=400, configs_per_graph=2_000),
)


def trees_case(*, n_graphs: int, configs_per_graph: int) -> Case:
    """Return a case of many rows for boosting, which on few is mostly busy with beginning."""
    case = grid_case(
        n_nodes=2_000, n_configs=16_000, n_graphs=n_graphs, configs_per_graph=configs_per_graph
    )
    models = f"layout.models=[{', '.join(TREES)}]"
    return replace(case, name=f"trees-{case.name}", settings=(*case.settings, models))


TREES_GRID = (
    trees_case(n_graphs=1, configs_per_graph=4_000),
    trees_case(n_graphs=1, configs_per_graph=16_000),
    trees_case(n_graphs=4, configs_per_graph=16_000),
)


def tile_case(
    *,
    n_kernels: int = 64,
    n_configs: int = 500,
    hidden: int = 32,
    kernels_per_step: int = 16,
    large_kernel: int = 0,
    name: str = "",
) -> Case:
    """Return a tile case: so many train kernels, a quarter of them in each other split."""
    axes = {
        "graphs": n_kernels,
        "configs": n_configs,
        "hidden": hidden,
        "kernels_per_step": kernels_per_step,
        "rounds": TILE_ROUNDS,
    }
    keys = {"hidden": hidden, "kernels_per_step": kernels_per_step}
    return Case(
        name or f"tile-{'-'.join(map(str, axes.values()))}",
        "tile:xla",
        kernels=(n_kernels, n_kernels // 4, n_kernels // 4),
        configs_per_kernel=n_configs,
        large_kernel=large_kernel,
        settings=(
            *_common_settings("tile", TILE_MODELS, keys, TILE_STEPS),
            "late_fusion_sage.statistics=all",
            f"tile_boosting.num_boost_round={TILE_ROUNDS}",
        ),
        axes=axes,
    )


TILE_GRID = (
    tile_case(),
    tile_case(n_kernels=16),
    tile_case(n_kernels=128),
    tile_case(n_configs=1_842),
    tile_case(hidden=128),
    tile_case(kernels_per_step=32),
)

# The largest real shapes (dataset paper and files). `configurable` of nlp is that of the real graph
# of 21,918 nodes, 848. What is ranked by networks is reduced to so many configs, see rehearsal.md.
RANKED_CONFIGS = 200
SHAPES = {
    "layout:xla:default": GraphSize(43_615, 3_143, 71_574),
    "layout:nlp:random": GraphSize(21_919, 848, 100_001),
    "layout:nlp:default": GraphSize(21_919, 848, 90_985),
    "layout:xla:random": GraphSize(43_615, 3_143, 99_783),
}


def largest_cases() -> list[Case]:
    """Return two cases for each layout collection, and one of tiles.

    In one, networks learn from the largest graph and rank few of its configs; in the other, trees
    learn from it and rank all of them.
    """
    like = grid_case().axes
    cases = []
    for collection, size in SHAPES.items():
        few = replace(size, n_configs=RANKED_CONFIGS)
        sizes = {"nodes": size.n_nodes, "configs": size.n_configs}
        networks = layout_settings(GNNS, hidden=32, configs_per_step=64, steps=3)
        trees = layout_settings(TREES, hidden=64, configs_per_step=64)
        cases += [
            Case(
                f"largest networks {collection}",
                collection,
                (size,),
                (few,),
                (few,),
                settings=networks,
                axes={**like, **sizes, "hidden": 32, "configs_per_step": 64},
            ),
            Case(
                f"largest trees {collection}",
                collection,
                (size,),
                (size,),
                (few,),
                settings=trees,
                axes={**like, **sizes},
            ),
        ]
    kernels = tile_case(
        n_kernels=128, n_configs=1_842, hidden=64, large_kernel=400, name="largest tile:xla"
    )
    return [*cases[:2], kernels, *cases[2:]]
