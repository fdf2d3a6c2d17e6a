"""What the stages of one run share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from data.tree import SPLITS, Collection, GraphFile
from ensembles.sources import Source
from models.config.recipe import Recipe
from models.training.dataset import Unusable
from models.training.jobs import Progress
from pipeline.run.costs import COSTS, Costs, write_costs

SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}


@dataclass
class RunState:
    """What the stages of one run share."""

    recipe: Recipe
    out: Path
    files: list[GraphFile]
    progress: Progress | None
    deadline: float | None = None
    splits: tuple[str, ...] = SPLITS
    usable: dict[str, list[GraphFile]] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    costs_name: str = COSTS

    def of(self, collection: Collection, split: str) -> list[GraphFile]:
        """Return a collection's files of one split."""
        return [f for f in self.files if f.collection == collection and f.split == split]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage, and keep what it took."""
        with self.costs.stage(name):
            yield
        write_costs(self.out, self.costs, name=self.costs_name)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Tell the progress that something without steps is done meanwhile."""
        if self.progress:
            self.progress(what, 0, 1)
        yield
        if self.progress:
            self.progress(what, 1, 1)
