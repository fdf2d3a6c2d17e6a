"""What a report's figures say only to those who compare them: told beside them, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

FEW_GRAPHS = 20
FIRST_PICKS = (1, 5, 10)


def remarks_on(report: Mapping[str, Any]) -> list[str]:
    """List where a blend is behind its own member or the floor, and intervals that are too narrow.

    Args:
        report: what report.json holds, or what `submissions.score.score_submission` returns, which
            knows neither members nor floors.

    Returns:
        A line each, without a full stop.
    """
    models = report.get("models", {})
    remarks, few = [], []
    for name, part in report.get("collections", {}).items():
        if part["value"] is None:
            continue
        values = models.get(name, {}).get("member_values", {})
        remarks += [f"{name}: {line}" for line in _behind(part, values)]
        if part["ci95"] is not None and part["n_graphs"] < FEW_GRAPHS:
            few.append(f"{name} ({part['n_graphs']})")
    if few:
        remarks.append(
            f"few graphs in {', '.join(few)}: these intervals are over the graphs alone and too "
            "narrow; `compare` draws families and widens its own"
        )
    return remarks


def _behind(part: Mapping[str, Any], values: Mapping[str, float | None]) -> Iterator[str]:
    known = {member: value for member, value in values.items() if value is not None}
    best = max(known, key=lambda member: known[member], default=None)
    if best is not None and known[best] > part["value"]:
        yield (
            f"{best} alone has {known[best]:.4f}, more than the blend with it, {part['value']:.4f}"
        )
    floor = part.get("floor")
    if floor is not None and floor > part["value"]:
        yield f"the floor, without training, has {floor:.4f}, more than this run"
    curve = part.get("slowdown_curve")
    if not curve or not curve["model"] or not curve["floor"]:
        return
    picks = [place for place, k in enumerate(curve["k"]) if k in FIRST_PICKS]
    ahead = [place for place in picks if curve["floor"][place] < curve["model"][place]]
    if ahead:
        told = ", ".join(
            f"{100 * (curve['floor'][place] - 1):.1f} % slower than the best after "
            f"{curve['k'][place]}, this run {100 * (curve['model'][place] - 1):.1f} %"
            for place in ahead
        )
        yield f"the floor is ahead at the first picks: {told}"
