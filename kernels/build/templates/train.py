"""A Kaggle kernel that trains a recipe's models on one collection, in as many versions as it takes.

Written by `python -m pipeline kernel build --kind train`; needs no internet.
"""

from kernels.build.templates.common import INPUT, WORKING, note_end, prepared

COLLECTION = "@COLLECTION@"
MODEL_LINE = "model  "  # how the pipeline names each model once all are trained


def main() -> None:
    """Train, or go on with, the collection's models; leave run folders in the working folder."""
    slug = COLLECTION.replace(":", "-")
    models = WORKING / "models"
    with prepared() as here:
        arguments = ["--recipe", here.recipe, "--collection", COLLECTION, "--data", here.data]
        arguments += ["--out", models / slug, "--shared", models / "layout-shared"]
        printed = here.pipeline_in_time("train", *arguments, "--earlier", INPUT)
    finished = any(line.startswith(MODEL_LINE) for line in printed.splitlines())
    note_end({"kind": "train", "collection": COLLECTION}, finished, models / slug)
