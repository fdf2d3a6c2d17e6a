"""A run's report: how good its rankings are on the valid split, and what they rest on."""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.atomic import write_text
from common.git import revision
from data.audit.rows import AuditRow
from data.tree import COLLECTIONS, Collection, collection_named, missing_parts
from ensembles.choice.in_run import written_mixing
from ensembles.choice.record import choice_file, mixing_record, read_choice
from ensembles.members import Member, members_of
from ensembles.score_files import scores_path
from models.predict import read_scores
from models.trees.boosting import read_importances
from pipeline.run.evidence import add_evidence, noise_ceilings
from pipeline.run.learning_curves import learning_curves
from pipeline.run.revisions import note_revision
from submissions.labels import Labels, read_labels_of
from submissions.report.curves import read_ranks
from submissions.report.page import write_report_page
from submissions.report.sheet import write_overview
from submissions.score import score_submission
from submissions.write import read_submission, submission_rows

if TYPE_CHECKING:
    from pipeline.run.state import RunState

REPORT = "report.json"
REPORT_PAGE = "report.html"
REPORT_PICTURE = "report.png"
RANKS = "valid-ranks.parquet"
SHOWN_IMPORTANCES = 12
REPORTED_PACKAGES = ("torch", "torch-geometric", "lightgbm", "numpy", "polars", "scikit-learn")


def build_report(state: "RunState", data_dir: Path, rows: Sequence[AuditRow]) -> dict[str, Any]:
    """Score the valid split's submission and say what the run did; writes valid-ranks.parquet too.

    Beside the contract's keys, of each collection: `floor` (what a count of copied bytes, or of
    steps, reaches without training), `noise_ceiling`, `slowdown_curve` and `seed_values`, see
    `pipeline.run.evidence`. Of the run: `models` (which members rank each collection, by what
    method and weights, what their trees rest on, any fallback, and under `blend` what was chosen,
    with its nested value), `left_out` (graphs that were not judged, and why),
    `left_out_of_training`, `missing_parts` (of the dataset), `bad_files` (skipped on request),
    `learning_curves`, and `revisions` (all that worked on the run, the first one first).
    The run adds `seconds` and `peak_mib` per stage.

    Args:
        rows: what the audit says of every file.
    """
    bad = [row for row in rows if row.error]
    now = revision()
    read = [*state.files, *(row.file for row in bad)]
    valid = state.out / "submission-valid.csv"
    files = [file for file in state.files if file.split == "valid"]
    labels = {file.submission_id: read_labels_of(file) for file in files}
    rankings = read_submission(valid) if files else {}
    scored = score_submission(rankings, labels, ceilings=noise_ceilings(rows))
    for name, part in scored["collections"].items():
        part["floor"] = _value_of(state, collection_named(name), "floor", labels)
    add_evidence(state, scored["collections"], labels, state.out / RANKS)
    return {
        **scored,
        "recipe": state.recipe.name,
        "seeds": list(state.recipe.seeds),
        "models": _models(state, labels),
        "left_out_of_training": [
            {"graph": item.file.submission_id, "reason": item.reason} for item in state.unusable
        ],
        "missing_parts": missing_parts(read, splits=state.splits),
        "bad_files": [str(row.error) for row in bad],
        "data": str(data_dir),
        "learning_curves": learning_curves(state.out),
        "environment": environment(state.recipe.threads),
        "revision": now,
        "revisions": note_revision(state.out, now),
    }


def write_report(out: Path, report: dict[str, Any]) -> Path:
    """Write report.json, report.html and report.png; return the page's path."""
    write_text(out / REPORT, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return draw_report(out, report)


def draw_report(out: Path, report: dict[str, Any]) -> Path:
    """Write a report's page and its picture; return the page's path.

    Raises:
        PipelineError: valid-ranks.parquet is damaged, or a file cannot be written.
    """
    ranks = read_ranks(out / RANKS)
    write_report_page(report, out / REPORT_PAGE, ranks)
    write_overview(report, ranks, out / REPORT_PICTURE)
    return out / REPORT_PAGE


def _models(state: "RunState", labels: Mapping[str, Labels]) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for collection in COLLECTIONS:
        source = state.sources.get(collection.name)
        if source is None:
            continue
        members = members_of(state.recipe, source.collection or collection, state.out, source)
        own = source.collection == collection
        fallback = source.collection.name if source.collection else "heuristic"
        models[collection.name] = {
            "members": [member.name for member in members],
            "member_values": {
                member.name: _value_of(state, collection, member.name, labels) for member in members
            },
            **_mixing(state, collection, members),
            "importances": importances_of([(m.model, m.folder) for m in members]),
            "fallback_from": None if own else fallback,
            "reason": source.reason,
        }
        choice = read_choice(choice_file(state.out, collection))
        if choice is not None:
            models[collection.name]["blend"] = choice
    return models


def _mixing(state: "RunState", collection: Collection, members: Sequence[Member]) -> dict[str, Any]:
    """Say how the members become one: the method, and each one's share of the weight."""
    names = [member.name for member in members]
    mixing = written_mixing(state.out, state.recipe.blend, collection, names)
    total = sum(mixing.weights[name] for name in names)
    shares = {name: round(mixing.weights[name] / total, 4) for name in names}
    return mixing_record(mixing._replace(weights=shares))


def importances_of(models: Sequence[tuple[str, Path]]) -> dict[str, list[dict[str, Any]]]:
    """Return, by model, the statistics that its trees rest on most; the mean over seeds.

    Args:
        models: name and run folder of each, one per seed.
    """
    importances = {}
    for name in dict.fromkeys(model for model, _ in models):
        table = read_importances([folder for model, folder in models if model == name])
        if table is not None:
            importances[name] = table.head(SHOWN_IMPORTANCES).to_dicts()
    return importances


def _value_of(
    state: "RunState", collection: Collection, scorer: str, labels: Mapping[str, Labels]
) -> float | None:
    """Return what a member, or the floor, would have had on the valid split by itself."""
    path = scores_path(state.out, collection, scorer, "valid")
    if not path.exists():
        return None
    rankings = dict(submission_rows([(collection, read_scores(path))]))
    scored = score_submission(rankings, labels)["collections"][collection.name]["value"]
    return None if scored is None else float(scored)


def environment(threads: int) -> dict[str, Any]:
    """Describe what the figures were made with."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": threads,
        **{name: version(name) for name in REPORTED_PACKAGES},
    }
