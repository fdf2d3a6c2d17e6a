"""What a training took, and the weights it had on the way."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from common.errors import PipelineError
from models.training.loop import CHECKPOINT
from models.training.weights import load_tensors


@dataclass
class Clock:
    """Seconds of this process since the start, less what was spent while stopped."""

    wall_s: float = field(default_factory=lambda: -time.perf_counter())
    cpu_s: float = field(default_factory=lambda: -time.process_time())

    def read(self) -> dict[str, float]:
        """Return the seconds so far."""
        return {
            "wall_s": self.wall_s + time.perf_counter(),
            "cpu_s": self.cpu_s + time.process_time(),
        }

    def set_back(self, to: dict[str, float]) -> None:
        """Go on from an earlier reading, as if nothing had happened since."""
        self.wall_s, self.cpu_s = (
            to["wall_s"] - time.perf_counter(),
            to["cpu_s"] - time.process_time(),
        )


@dataclass
class Snapshots:
    """Keeps the weights of each checkpoint and the seconds until then; told of every step."""

    run_dir: Path
    every: int
    clock: Clock = field(default_factory=Clock)
    taken: list[tuple[dict[str, float], dict[str, Tensor]]] = field(default_factory=list)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take one where a checkpoint was just written; the last step's is the model itself."""
        if not done or done % self.every or done == total:
            return
        now = self.clock.read()
        tensors, facts = load_tensors(self.run_dir / CHECKPOINT)
        if int(str(facts["step"])) != done:
            raise PipelineError(f"{self.run_dir}: no checkpoint of step {done}; no learning curve")
        weights = {k: v for k, v in tensors.items() if k.startswith("model.")}
        self.taken.append(({"step": done, **now}, weights))
        self.clock.set_back(now)
