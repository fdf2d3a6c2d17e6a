"""A Kaggle kernel that trains a recipe's models on one collection, in as many versions as it takes.

Written by `python -m pipeline kernel build --kind train`; needs no internet. It stops itself before
Kaggle does, since an ended session keeps its output and a killed one does not. What an earlier
version left, attached as a source, is gone on with. kernel.json tells whether all is trained.
"""

import json
import subprocess
import time

from kernels.templates.common import INPUT, RECIPE, STARTED, WORKING, log, prepared

COLLECTION = "@COLLECTION@"
MAX_MINUTES = float("@MAX_MINUTES@")  # from the kernel's start
SAVING_MINUTES = float("@SAVING_MINUTES@")  # a step that hangs is killed so long after that
MODEL_LINE = "model  "  # how the pipeline names each model once all are trained


def main() -> None:
    """Train, or go on with, the collection's models; leave run folders in the working folder."""
    slug = COLLECTION.replace(":", "-")
    models = WORKING / "models"
    with prepared() as here:
        left_s = 60 * MAX_MINUTES - (time.monotonic() - STARTED)
        arguments = ["--recipe", here.recipe, "--collection", COLLECTION, "--data", here.data]
        arguments += ["--out", models / slug, "--shared", models / "layout-shared"]
        arguments += ["--earlier", INPUT, "--max-minutes", max(left_s, 0) / 60]
        try:
            printed = here.pipeline("train", *arguments, limit_s=left_s + 60 * SAVING_MINUTES)
        except subprocess.TimeoutExpired:
            log("a step went on beyond its time; stopped at the last checkpoint")
            printed = ""
    finished = any(line.startswith(MODEL_LINE) for line in printed.splitlines())
    facts = {"kind": "train", "collection": COLLECTION, "recipe": RECIPE, "finished": finished}
    (WORKING / "kernel.json").write_text(json.dumps(facts, indent=1) + "\n")
    if finished:
        log(f"done: {models / slug}")
    else:
        log("not finished: push the kernel again with its own output attached, and it goes on")
