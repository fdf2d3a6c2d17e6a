"""The kinds of kernel: run a whole recipe, train one collection, rank with trained models."""

from dataclasses import dataclass, replace

from common.errors import UsageError
from data.tree import collection_named

DEFAULT_MAX_MINUTES = 690.0
MOST_MINUTES = 705.0  # Kaggle kills a session after 720 and keeps nothing of it


@dataclass(frozen=True)
class Kind:
    """What sets one kernel of a recipe apart from another; `kernels.building.script` works by it.

    `result` is the file of `out` that ends up in the working folder; a kernel with one also copies
    an unfinished `out` of an attached output.
    """

    kind: str  # "run", "train" or "infer"
    words: str  # what the title has after the recipe's name
    command: str  # of the pipeline; {recipe}, {data}, {input}, {out} are filled in on Kaggle
    out: str  # the folder in the working one that the command marks with DONE once it is through
    result: str = ""
    dropped: str = ""  # the folder of `out` that goes once all is done: attached models
    max_minutes: float = DEFAULT_MAX_MINUTES  # from the start until the command stops itself
    saving_minutes: float = 7.5  # a command that hangs is killed so long after that


_RUN = "run --recipe {recipe} --data {data} --out {out} --resume"
_TRAIN = "train --recipe {recipe} --data {data} --collection NAME --out {out} --resume-from {input}"
_INFER = f"{_RUN} --models {{input}}"
KINDS = {
    "run": Kind("run", "", _RUN, "run", result="submission.csv"),
    "train": Kind("train", "train", _TRAIN, "models"),  # of the collection NAME
    "infer": Kind("infer", "infer", _INFER, "run", result="submission.csv", dropped="models"),
}


def kind_named(name: str, collection: str | None = None, max_minutes: float | None = None) -> Kind:
    """Return the kind that the command line asks for.

    Raises:
        UsageError: no such kind or collection, an option that the kind needs or does not have, or
            more minutes than a session has.
    """
    if name not in KINDS:
        raise UsageError(f"--kind {name}: expected one of {', '.join(KINDS)}")
    minutes = DEFAULT_MAX_MINUTES if max_minutes is None else max_minutes
    if not 0 < minutes <= MOST_MINUTES:
        raise UsageError(
            f"--max-minutes {minutes:g}: expected more than 0 and at most {MOST_MINUTES:g}: Kaggle "
            "ends a session after 720 and keeps nothing then"
        )
    if (collection is None) is (name == "train"):
        raise UsageError("--collection: expected with --kind train, and only there")
    kind = replace(KINDS[name], max_minutes=minutes)
    if collection is None:
        return kind
    wanted = collection_named(collection)
    command = kind.command.replace("NAME", wanted.name)
    return replace(kind, words=f"train {wanted.slug}", out=f"models/{wanted.slug}", command=command)
