"""A run's trainings dealt to several calls, which may be on several machines.

A call trains its share into the folders that the whole run would use; the run itself then finds
everything trained. Calls on several disks need their folders copied together.
"""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError
from common.locks import LOCK
from data.tree import GraphFile
from models.config.recipe import Recipe
from models.training.jobs import pretrain_steps
from pipeline.run.state import Training


@dataclass(frozen=True)
class Shard:
    """Share `number` of `of`, counted from 1."""

    number: int
    of: int


def parse_shard(text: str) -> Shard:
    """Read "2/4".

    Raises:
        UsageError: anything else.
    """
    number, _, of = text.partition("/")
    is_pair = text.isascii() and number.isdecimal() and of.isdecimal()
    if is_pair and 1 <= int(number) <= int(of):
        return Shard(int(number), int(of))
    raise UsageError(f"--shard {text!r}: expected I/N with 1 <= I <= N, such as 1/2")


def dealt(
    trainings: Sequence[Training],
    shard: Shard,
    *,
    recipe: Recipe,
    usable: Mapping[str, Sequence[GraphFile]],
) -> list[Training]:
    """Return a shard's trainings: they are dealt like cards, so that each gets some of each model.

    They are sorted by model, then by how many bytes the collection's train graphs have, largest
    first, since those of one model on one collection take about the same time. Trainings that begin
    from one shared model stay together. Every call deals alike.
    """
    sizes = {name: sum(f.path.stat().st_size for f in files) for name, files in usable.items()}
    models = recipe.all_models

    def order(training: Training) -> tuple[int, int, str, int]:
        collection, member = training
        return models.index(member.model), -sizes[collection.name], collection.name, member.seed

    hands: dict[tuple[str, ...], list[Training]] = {}
    for training in sorted(trainings, key=order):
        collection, member = training
        place = () if pretrain_steps(recipe, member.model) else (collection.name,)
        hands.setdefault((member.name, *place), []).append(training)
    mine = list(hands.values())[shard.number - 1 :: shard.of]
    return [training for hand in mine for training in hand]


@contextmanager
def working_as(shard: Shard, out: Path) -> Iterator[None]:
    """Keep whole runs, and the very same shard, out of a run's folder; other shards may come.

    Raises:
        UsageError: one of them works in it.
    """
    own = out / f".shard-{shard.number}-of-{shard.of}{LOCK}"
    with (out / LOCK).open("a") as whole, own.open("a") as mine:
        try:
            fcntl.flock(whole, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{out}: another process works in it; wait for it to end") from None
        yield
