"""Judge the policy of GO as an order in which `optimize` could try barriers.

`python -m benchmarks.go --out runs/go` measures missing programs of the catalogue, and then writes
docs/results/go.md. Each program has a table of single edits: the time with a barrier after one
node, over the default's. `--minutes` ends the measurement early, and the page has the programs that
are done.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.measure.journal import Visitor, open_journal
from autotune.measure.program import Description
from autotune.measure.worker import Session
from autotune.optimize.strategies import menu
from autotune.programs.catalogue import rows
from autotune.spaces import open_program
from common.progress import out_of_time
from common.reproducibility import generator

N_ROUNDS = 3
# Larger programs have only this number of random edits.
MAX_EDITS = 48
SPACES = ("options", "fusion")


class EditTable(NamedTuple):
    """The measured edits of a program.

    Attributes:
        nodes: Positions of the nodes with a barrier among the knobs of fusion, (e,).
        edit_ratios: Time with each barrier over the default's, (e,). inf failed.
        menu_ratios: The same of the menu's settings of options, (m,).
    """

    description: Description
    nodes: NDArray[np.int64]
    edit_ratios: NDArray[np.float64]
    menu_ratios: NDArray[np.float64]


def programs() -> list[str]:
    """Return the smallest program of each family of the catalogue, without training steps."""
    by_family: dict[str, str] = {}
    for row in sorted(rows(), key=lambda row: (bool(row["training"]), *_sizes(row))):
        by_family.setdefault(row["family"], row["program"])
    return [*by_family.values()]


def _sizes(row: dict[str, str]) -> tuple[int, ...]:
    return tuple(int(row[key] or 0) for key in ("depth", "batch"))


def measure_edits(program: str, out: Path) -> EditTable | None:
    """Measure the edits of a program in rounds. None if the time is over.

    Args:
        out: Folder of journals. The same call resumes.
    """
    opener = partial(open_program, program, SPACES, "cpu")
    with Session(opener, timeout_s=60, label=program) as session:
        description = session.describe()
        place, n_knobs = description.slices["fusion"], len(description.n_options)
        rng = generator(0, "edits", program)
        nodes = np.sort(rng.permutation(place.stop - place.start)[:MAX_EDITS])
        options = np.minimum(menu(), description.n_options[description.slices["options"]] - 1)
        settings = np.zeros((2 + len(options) + len(nodes), n_knobs), np.int64)
        settings[2 : 2 + len(options), description.slices["options"]] = options
        settings[2 + len(options) + np.arange(len(nodes)), place.start + nodes] = 1
        header = {"program": program, "stage": "edits", **description.facts}
        journal = open_journal(out / f"{program}.jsonl", header)
        visitor = Visitor(session, journal, label=program, total=len(settings), n_visits=N_ROUNDS)
        rounds_ns = np.empty((N_ROUNDS, len(settings)))
        for turn in range(N_ROUNDS):
            for number in rng.permutation(len(settings)).tolist():
                if out_of_time():
                    return None
                rounds_ns[turn, number] = visitor.visit(number, 1 + turn, settings[number])
    # The default is compared with the mean of its two visits in the same round.
    default_ns = rounds_ns[:, :2].mean(axis=1, keepdims=True)
    ratios = np.median(rounds_ns[:, 2:] / default_ns, axis=0)
    return EditTable(description, nodes, ratios[len(options) :], ratios[: len(options)])
