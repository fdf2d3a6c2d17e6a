"""Search layout configs of a program: at random, or genetically from the compiler's default.

A config is kept as a *genome*: for each group of tied nodes and each of its three tensors, which
option is taken. Option 0 is "unset" (-1); the others are a pair of most minor dimensions in either
order for convolutions and dots, and whole minor-to-major orders for reshapes.

The real files are like that: a column takes at most 2 · 2 · 2 vectors and one that leaves tensors
unset, and few columns are distinct: 15 of 56 configurable nodes, 26 of 848.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.synthetic.hlo import OPCODES, tensor_shapes
from data.synthetic.layout_cost import ProgramArrays

MAX_OPTIONS = 3  # unset, and a pair of dimensions in either order
LOOSE_SHARE, MOST_LOOSE = 0.15, 12  # how many configurable nodes are tied to no other, on average
CLOSED_TENSORS = 0.08  # share of tensors that no config of the graph sets
UNSET_CHOICES = 0.11  # how often a random config leaves a node's tensors to the compiler
REPEATED_RANDOM = 0.06  # share of random configs that are measured again
MUTATIONS = 1.6  # groups of tied nodes that change in a child, on average
ELITE = 0.25
ROWS_AT_ONCE = 1024  # so that the random numbers take little memory beside the genomes

Order = tuple[int, ...]
Measure = Callable[[NDArray[np.int8]], NDArray[np.float64]]


@dataclass(frozen=True)
class SearchSpace:
    """Which configs a program can have: k configurable nodes in g tied groups.

    Attributes:
        group_of: (k,) int64 group of each configurable node.
        options: (g, 3, 3, 6) int8 layouts by group, tensor and option; unused options repeat -1.
        n_options: (g, 3) int64 number of options, 1 where only "unset" is possible.
    """

    group_of: NDArray[np.int64]
    options: NDArray[np.int8]
    n_options: NDArray[np.int64]

    @property
    def genome_length(self) -> int:
        """Return 3 g."""
        return 3 * len(self.options)

    def configs(self, genomes: NDArray[np.int8]) -> NDArray[np.int8]:
        """Spell genomes (c, 3 g) out as configs (c, k, 18)."""
        c, g = len(genomes), len(self.options)
        groups, tensors = np.ogrid[:g, :3]
        values = self.options[groups, tensors, genomes.reshape(c, g, 3)]
        return values.reshape(c, g, 18)[:, self.group_of]


def search_space(program: ProgramArrays, rng: np.random.Generator) -> SearchSpace:
    """Tie configurable nodes of equal operation and shapes together and draw their options."""
    shapes = tensor_shapes(program.node_feat)
    operands: dict[int, list[int]] = defaultdict(list)
    for consumer, producer in program.edge_index.tolist():
        operands[consumer].append(producer)
    groups: dict[tuple[object, ...], int] = {}
    group_of, options = [], []
    loose_share = min(LOOSE_SHARE, MOST_LOOSE / len(program.node_config_ids))
    for node in program.node_config_ids.tolist():
        opcode = int(program.node_opcode[node])
        tensors = [shapes[node], *[shapes[v] for v in operands[node] if shapes[v]]][:3]
        loose = node if rng.random() < loose_share else None
        signature = (opcode, *tensors, loose)
        if signature not in groups:
            groups[signature] = len(groups)
            options.append([_draw_options(opcode, shape, rng) for shape in tensors])
        group_of.append(groups[signature])
    table = np.full((len(options), 3, MAX_OPTIONS, 6), -1, np.int8)
    n_options = np.ones((len(options), 3), np.int64)
    for group, of_tensors in enumerate(options):
        for tensor, orders in enumerate(of_tensors):
            n_options[group, tensor] = 1 + len(orders)
            for option, order in enumerate(orders, start=1):
                table[group, tensor, option, : len(order)] = order
    return SearchSpace(np.array(group_of, np.int64), table, n_options)


def _draw_options(opcode: int, shape: Order, rng: np.random.Generator) -> list[Order]:
    """Draw the layouts that a tensor may be given; none if it stays closed."""
    rank = len(shape)
    if rank == 0 or rng.random() < CLOSED_TENSORS:
        return []
    if opcode == OPCODES["reshape"] or rank == 1:
        orders = [tuple(reversed(range(rank)))]
        orders += [tuple(rng.permutation(rank).tolist())]
    else:
        last = rank - 1
        pairs = [(last, last - 1), (last, 0), tuple(rng.permutation(rank)[:2].tolist())]
        pair = pairs[rng.integers(len(pairs))]
        orders = [pair, pair[::-1]]
    return list(dict.fromkeys(orders))


def random_genomes(
    space: SearchSpace, n_configs: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Draw genomes (c, 3 g) at random; a few appear twice."""
    genomes = _random_choices(space, n_configs, rng)
    repeated = np.flatnonzero(rng.random(n_configs) < REPEATED_RANDOM)
    genomes[repeated] = genomes[rng.integers(0, n_configs, len(repeated))]
    return genomes


def _random_choices(
    space: SearchSpace, n_configs: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Draw each gene at random; a node's tensors are now and then left unset together."""
    limits = space.n_options.ravel()
    shape = (n_configs, space.genome_length)
    drawn = rng.integers(0, np.maximum(limits - 1, 1), shape, dtype=np.int8)
    for start in range(0, n_configs, ROWS_AT_ONCE):
        rows = drawn[start : start + ROWS_AT_ONCE]
        rows += 1
        rows[_by_group(rng, rows.shape) < UNSET_CHOICES] = 0
        rows[:, limits == 1] = 0
    return drawn


def _by_group(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float32]:
    """Draw numbers in [0, 1) for genes (c, 3 g), the same one for the three of a group."""
    return np.repeat(rng.random((shape[0], shape[1] // 3), dtype=np.float32), 3, axis=1)


def genetic_genomes(
    space: SearchSpace, n_configs: int, measure: Measure, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Evolve genomes from the all-default one and return all that were measured (c, 3 g).

    Each generation crosses pairs of the fastest so far and mutates the children; a child that
    equals an earlier config is measured again, as the real search does. Row 0 is the default.

    Args:
        measure: returns the (c,) runtimes of genomes (c, 3 g).
    """
    size = int(min(max(16, n_configs // 25), 512))
    measured = np.zeros((n_configs, space.genome_length), np.int8)
    pool = measured[:1]
    pool_ns = measure(pool)
    done = 1
    while done < n_configs:
        n_children = min(size, n_configs - done)
        children = _offspring(space, pool, n_children, rng)
        measured[done : done + n_children] = children
        done += n_children
        pool = np.concatenate([pool, children])
        pool_ns = np.concatenate([pool_ns, measure(children)])
        fastest = np.argsort(pool_ns, kind="stable")[: max(4, int(ELITE * size))]
        pool, pool_ns = pool[fastest], pool_ns[fastest]
    return measured


def _offspring(
    space: SearchSpace, pool: NDArray[np.int8], n_children: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Cross random pairs of `pool` group by group and mutate; (n_children, 3 g)."""
    parents = rng.integers(0, len(pool), (2, n_children))
    shape = (n_children, space.genome_length)
    from_first = _by_group(rng, shape) < 0.5
    children = np.where(from_first, pool[parents[0]], pool[parents[1]])
    mutate = _by_group(rng, shape) < MUTATIONS / len(space.options)
    fresh = _random_choices(space, n_children, rng)
    return np.where(mutate, fresh, children)
