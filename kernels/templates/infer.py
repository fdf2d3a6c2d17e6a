"""A Kaggle kernel that trains nothing: it ranks with attached models and leaves submission.csv.

Written by `python -m pipeline kernel build --kind infer`; needs no internet. The models are run
folders at any depth below the input folder: outputs of training kernels, or datasets of them.
"""

import shutil

from kernels.templates.common import INPUT, WORKING, log, prepared


def main() -> None:
    """Rank the mounted data with the attached models; the pipeline checks the submission."""
    with prepared() as here:
        out = WORKING / "run"
        places = ("--data", here.data, "--models", INPUT, "--out", out)
        here.pipeline("run", "--recipe", here.recipe, *places)
    shutil.copyfile(out / "submission.csv", WORKING / "submission.csv")
    shutil.rmtree(out / "models")  # attached already; a submission needs no second copy
    log(f"done: {WORKING / 'submission.csv'}")
