"""Where the runtimes come from that rankings are judged by: the files, or what was withheld."""

from collections.abc import Mapping
from pathlib import Path

from data.withheld import read_withheld, read_withheld_normalizers
from submissions.labels import Labels, read_labels


def labels_of(data_dir: Path, *, split: str, private: bool) -> Mapping[str, Labels]:
    """Read the labels of a split by submission ID.

    Args:
        data_dir: the folder that holds npz/.
        split: "train", "valid" or "test".
        private: take the withheld test runtimes instead, whatever the split.

    Raises:
        PipelineError: no such split, a damaged file, or nothing was withheld.
    """
    if not private:
        return read_labels(data_dir, split)
    normalizers = read_withheld_normalizers(data_dir)
    return {
        name: Labels(runtime_ns, normalizers.get(name))
        for name, runtime_ns in read_withheld(data_dir).items()
    }
