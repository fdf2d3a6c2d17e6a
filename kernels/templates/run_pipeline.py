"""A Kaggle kernel that runs the whole pipeline: unpack it, find the data, run, hand in.

Written by `python -m pipeline kernel build`; the values in capitals are filled in there. The
packages lie in this file as a zip archive, so the kernel needs no internet. What Kaggle's image
lacks (torch-geometric) comes from an attached dataset whose folder is named `…-wheels` and holds
wheels of it.

PIPELINE_KAGGLE_INPUT and PIPELINE_KAGGLE_WORKING stand in for /kaggle/input and /kaggle/working.
"""

import base64
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RECIPE = "@RECIPE@"  # inside the archive
MOUNTS = ["@MOUNTS@"]  # of the competition's files, below the input folder
REQUIRED = ["@REQUIRED@"]  # module=distribution: what the image may lack
ARCHIVE_SHA256 = "@ARCHIVE_SHA256@"

INPUT = Path(os.environ.get("PIPELINE_KAGGLE_INPUT", "/kaggle/input"))
WORKING = Path(os.environ.get("PIPELINE_KAGGLE_WORKING", "/kaggle/working"))


def log(line: str) -> None:
    """Write a line to the kernel's log at once."""
    sys.stdout.write(f"kernel: {line}\n")
    sys.stdout.flush()


def unpack(folder: Path) -> None:
    """Unpack the embedded archive into `folder`; a member that would lie elsewhere stops it."""
    packed = base64.b64decode(ARCHIVE)
    if hashlib.sha256(packed).hexdigest() != ARCHIVE_SHA256:
        sys.exit("kernel: the embedded archive is damaged; build and push the kernel again")
    root = folder.resolve()
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for member in archive.infolist():
            target = (root / member.filename).resolve()
            if not target.is_relative_to(root):
                sys.exit(f"kernel: archive member {member.filename!r} leaves its folder; refused")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))


def find_data() -> Path:
    """Return the folder that holds npz/: the competition's mount, or npz_all/ within it."""
    for mount in MOUNTS:
        for folder in (INPUT / mount, INPUT / mount / "npz_all"):
            if (folder / "npz").is_dir():
                return folder
    attached = ", ".join(sorted(path.name for path in INPUT.glob("*"))) or "nothing"
    tried = ", ".join(str(INPUT / mount) for mount in MOUNTS)
    sys.exit(f"kernel: no npz folder in {tried}; attached: {attached}; add the competition's data")


def install_missing(site: Path) -> None:
    """Install the required modules that the image lacks, from attached wheels, into `site`."""
    pairs = [pair.split("=") for pair in REQUIRED]
    missing = {module: name for module, name in pairs if importlib.util.find_spec(module) is None}
    if not missing:
        return
    wanted = ", ".join(missing.values())
    # A dataset is mounted at slug/ or, in newer sessions, at datasets/owner/slug/.
    depths = ("*-wheels", "*/*-wheels", "*/*/*-wheels")
    folders = sorted({path for depth in depths for path in INPUT.glob(depth) if path.is_dir()})
    if not folders:
        sys.exit(f"kernel: the image lacks {wanted}; attach a dataset named …-wheels that holds it")
    log(f"installing {wanted} from {', '.join(map(str, folders))}")
    # Without dependencies: pip would put a second torch beside the image's own.
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site)]
    for folder in folders:
        command += ["--find-links", str(folder)]
    if subprocess.run([*command, *missing.values()], check=False).returncode:  # noqa: S603
        sys.exit(f"kernel: {wanted} did not install; the dataset must hold wheels for this Python")


def main() -> None:
    """Run the recipe on the mounted data and leave submission.csv in the working folder."""
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        code, site = Path(scratch, "code"), Path(scratch, "site")
        unpack(code)
        data = find_data()
        install_missing(site)
        out = WORKING / "run"
        log(f"Python {sys.version.split()[0]}; data {data}; recipe {RECIPE}; results {out}")
        command = [sys.executable, "-m", "pipeline", "run", "--recipe", str(code / RECIPE)]
        command += ["--data", str(data), "--out", str(out)]
        paths = [str(code), str(site), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ended = subprocess.run(command, cwd=code, env=environment, check=False)  # noqa: S603
    if ended.returncode:
        sys.exit(
            f"kernel: the pipeline ended with exit code {ended.returncode}; see its line above"
        )
    shutil.copyfile(out / "submission.csv", WORKING / "submission.csv")
    log(f"done: {WORKING / 'submission.csv'}")


ARCHIVE = """
@ARCHIVE@"""

if __name__ == "__main__":
    main()
