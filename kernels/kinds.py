"""The kinds of kernel: run a whole recipe, train one collection, rank with trained models."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from data.errors import UsageError

KINDS = ("run", "train", "infer")
DEFAULT_MAX_MINUTES = 690.0
# Kaggle kills a session after 12 hours and keeps nothing of it.
_SESSION_MINUTES = 720.0
_SAVING_MINUTES = 15.0  # for what cannot stop at once; as long again is left for Kaggle to save


@dataclass(frozen=True)
class Kind:
    """What sets one kernel of a recipe apart from another.

    Attributes:
        template: names the file in kernels/templates.
        words: what the title has after the recipe's name.
        values: fill the template's placeholders.
    """

    template: str = "run"
    words: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


RUN = Kind()
INFER = Kind("infer", "infer")


def train_kind(collection: str, max_minutes: float = DEFAULT_MAX_MINUTES) -> Kind:
    """Return the kind that trains one collection.

    Args:
        collection: such as "layout:xla:default".
        max_minutes: after so many the kernel stops itself.

    Raises:
        UsageError: no such collection, or more minutes than a session has.
    """
    from data.tree import collection_named

    wanted = collection_named(collection)
    most = _SESSION_MINUTES - _SAVING_MINUTES
    if not 0 < max_minutes <= most:
        raise UsageError(
            f"--max-minutes {max_minutes:g}: expected more than 0 and at most {most:g}: Kaggle "
            f"ends a session after {_SESSION_MINUTES:g} and keeps nothing then"
        )
    values = {
        "@COLLECTION@": wanted.name,
        "@MAX_MINUTES@": f"{max_minutes:g}",
        "@SAVING_MINUTES@": f"{_SAVING_MINUTES / 2:g}",
    }
    return Kind("train", f"train {wanted.slug}", values)


def kind_named(name: str, collection: str | None, max_minutes: float | None) -> Kind:
    """Return the kind that the command line asks for.

    Raises:
        UsageError: no such kind, or an option that it needs or does not have.
    """
    if name not in KINDS:
        raise UsageError(f"--kind {name}: expected one of {', '.join(KINDS)}")
    if name == "train":
        if collection is None:
            raise UsageError("--kind train: trains one collection; pass --collection as well")
        return train_kind(collection, DEFAULT_MAX_MINUTES if max_minutes is None else max_minutes)
    for option, value in (("--collection", collection), ("--max-minutes", max_minutes)):
        if value is not None:
            raise UsageError(f"{option}: expected only with --kind train, not with --kind {name}")
    return RUN if name == "run" else INFER
