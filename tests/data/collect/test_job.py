"""What `collect --plan` measures: the embedded sample's programs, and some of everything early."""

import json

from common.settings import SAMPLE
from data.collect.job import sample_jobs
from data.collect.tiles.catalogue import catalogue
from data.tree import COLLECTIONS

JOBS = sample_jobs()


def test_the_sample_plan_covers_every_collection_and_keeps_families_in_one_split() -> None:
    places = {(job.collection.name, job.split) for job in JOBS}
    assert places == {(c.name, s) for c in COLLECTIONS for s in ("train", "valid", "test")}
    splits: dict[tuple[str, str], set[str]] = {}
    for job in JOBS:
        splits.setdefault((job.collection.kind, job.family), set()).add(job.split)
    assert all(len(found) == 1 for found in splits.values())
    assert len({job.submission_id for job in JOBS}) == len(JOBS)


def test_the_sample_was_measured_by_this_plan() -> None:
    """It was stopped before all programs were done; the kernels all are. The first had 2 rounds."""
    asked = {job.submission_id: job for job in JOBS}
    measured = json.loads((SAMPLE / "manifest.json").read_text())["graphs"]
    keys = ("program", "family", "split", "search", "n_configs_asked", "seed")
    for name, entry in measured.items():
        request = asked[name].request()
        assert {key: entry[key] for key in keys} == {key: request[key] for key in keys}
    tiles = {entry["program"] for entry in measured.values() if entry["search"] == "tiles"}
    assert tiles == set(catalogue())
    assert len(asked) == 504


def test_a_plan_that_is_stopped_early_has_some_of_everything() -> None:
    layouts = [place for place, job in enumerate(JOBS) if job.collection.kind == "layout"]
    half = JOBS[: layouts[len(layouts) // 2] + 1]  # kernels are many, and cheap
    assert len({(job.collection.name, job.split) for job in half}) == 15
