"""The kinds of kernel: run a whole recipe, train one collection, rank with trained models."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import UsageError

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

    template: str
    words: str
    values: Mapping[str, str]


def run_kind(max_minutes: float = DEFAULT_MAX_MINUTES) -> Kind:
    """Return the kind that runs a whole recipe, and stops itself after `max_minutes`.

    Raises:
        UsageError: more minutes than a session has.
    """
    return Kind("run", "", _limits(max_minutes))


def infer_kind(max_minutes: float = DEFAULT_MAX_MINUTES) -> Kind:
    """Return the kind that ranks with trained models, and stops itself after `max_minutes`.

    Raises:
        UsageError: more minutes than a session has.
    """
    return Kind("infer", "infer", _limits(max_minutes))


def train_kind(collection: str, max_minutes: float = DEFAULT_MAX_MINUTES) -> Kind:
    """Return the kind that trains one collection, and stops itself after `max_minutes`.

    Args:
        collection: such as "layout:xla:default".

    Raises:
        UsageError: no such collection, or more minutes than a session has.
    """
    from data.tree import collection_named

    wanted = collection_named(collection)
    values = {"@COLLECTION@": wanted.name, **_limits(max_minutes)}
    return Kind("train", f"train {wanted.slug}", values)


def _limits(max_minutes: float) -> dict[str, str]:
    most = _SESSION_MINUTES - _SAVING_MINUTES
    if not 0 < max_minutes <= most:
        raise UsageError(
            f"--max-minutes {max_minutes:g}: expected more than 0 and at most {most:g}: Kaggle "
            f"ends a session after {_SESSION_MINUTES:g} and keeps nothing then"
        )
    return {"@MAX_MINUTES@": f"{max_minutes:g}", "@SAVING_MINUTES@": f"{_SAVING_MINUTES / 2:g}"}


RUN = run_kind()
INFER = infer_kind()


def kind_named(name: str, collection: str | None, max_minutes: float | None) -> Kind:
    """Return the kind that the command line asks for.

    Raises:
        UsageError: no such kind, or an option that it needs or does not have.
    """
    if name not in KINDS:
        raise UsageError(f"--kind {name}: expected one of {', '.join(KINDS)}")
    minutes = DEFAULT_MAX_MINUTES if max_minutes is None else max_minutes
    if name == "train":
        if collection is None:
            raise UsageError("--kind train: trains one collection; pass --collection as well")
        return train_kind(collection, minutes)
    if collection is not None:
        raise UsageError(f"--collection: expected only with --kind train, not with --kind {name}")
    return run_kind(minutes) if name == "run" else infer_kind(minutes)
