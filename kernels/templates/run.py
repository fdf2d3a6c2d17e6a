"""A Kaggle kernel that runs a whole recipe: trains, predicts, blends, leaves submission.csv.

Written by `python -m pipeline kernel build --kind run`; needs no internet.
"""

import shutil

from kernels.templates.common import WORKING, log, prepared


def main() -> None:
    """Run the recipe on the mounted data and leave submission.csv in the working folder."""
    with prepared() as here:
        out = WORKING / "run"
        here.pipeline("run", "--recipe", here.recipe, "--data", here.data, "--out", out)
    shutil.copyfile(out / "submission.csv", WORKING / "submission.csv")
    log(f"done: {WORKING / 'submission.csv'}")
