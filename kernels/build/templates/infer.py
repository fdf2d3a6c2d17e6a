"""A Kaggle kernel that trains nothing: it ranks with attached models and leaves submission.csv.

Written by `python -m pipeline kernel build --kind infer`; needs no internet. The models are run
folders at any depth below the input folder: outputs of training kernels, or datasets of them. It
takes as many versions as it needs: graphs that one has ranked, the next one does not rank again.
"""

import shutil

from kernels.build.templates.common import INPUT, WORKING, run_recipe


def main() -> None:
    """Rank the mounted data with the attached models; the pipeline checks the submission."""
    if run_recipe("infer", "--models", INPUT):
        # Attached already. Before the end they stay: the scores so far are those of these models.
        shutil.rmtree(WORKING / "run" / "models")
