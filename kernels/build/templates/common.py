"""What every kernel does first: unpack the project, find the data, install what the image lacks.

`kernel build` puts this text into each kernel, in place of the kernel's import of it, and adds the
archive at the end. The values in capitals are filled in there. Nothing but Python's own library is
used. What Kaggle's image lacks (torch-geometric) comes from an attached dataset whose folder is
named `…-wheels`.

A kernel stops itself before Kaggle does, since an ended session keeps its output and a killed one
does not. kernel.json, in the output, tells whether all is done. Where it is not, the output is
attached as a source of the next version, which goes on with it.

PIPELINE_KAGGLE_INPUT and PIPELINE_KAGGLE_WORKING stand in for /kaggle/input and /kaggle/working.
"""

import base64
import hashlib
import importlib.util
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RECIPE = "@RECIPE@"  # inside the archive
MOUNTS = ["@MOUNTS@"]  # of the competition's files, below the input folder
REQUIRED = ["@REQUIRED@"]  # module=distribution: what the image may lack
MAX_MINUTES = float("@MAX_MINUTES@")  # from the kernel's start
SAVING_MINUTES = float("@SAVING_MINUTES@")  # a step that hangs is killed so long after that
ARCHIVE_SHA256 = "@ARCHIVE_SHA256@"
ARCHIVE = ""  # the project: a zip archive, xz, base64: set at the end of the script

NOTE = "kernel.json"
STARTED = time.monotonic()
INPUT = Path(os.environ.get("PIPELINE_KAGGLE_INPUT", "/kaggle/input"))
WORKING = Path(os.environ.get("PIPELINE_KAGGLE_WORKING", "/kaggle/working"))


@dataclass(frozen=True)
class Prepared:
    """The unpacked project and the competition's data.

    Attributes:
        code: holds pipeline/__main__.py; cleared away when the kernel ends.
        data: holds npz/.
        recipe: the recipe's file.
        environment: of the processes that run the project.
    """

    code: Path
    data: Path
    recipe: Path
    environment: dict[str, str]

    def pipeline(self, *arguments: object, limit_s: float | None = None) -> str:
        """Run a command of the project; return what it printed on standard output.

        Raises:
            subprocess.TimeoutExpired: it ran longer than `limit_s` seconds and was killed.
            SystemExit: it failed; its own line about it is in the log above.
        """
        command = [sys.executable, "-m", "pipeline", *map(str, arguments)]
        ended = subprocess.run(  # noqa: S603
            command,
            cwd=self.code,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=limit_s,
            check=False,
        )
        sys.stdout.write(ended.stdout)
        if ended.returncode:
            sys.exit(
                f"kernel: the pipeline ended with exit code {ended.returncode}; see its line above"
            )
        return ended.stdout

    def pipeline_in_time(self, *arguments: object) -> str:
        """Run a command with --max-minutes, as many as are left; as `pipeline`.

        Of a command that goes on beyond its time, nothing is returned.
        """
        left_s = max(60 * MAX_MINUTES - (time.monotonic() - STARTED), 0)
        limit_s = left_s + 60 * SAVING_MINUTES
        try:
            return self.pipeline(*arguments, "--max-minutes", left_s / 60, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            log("a step went on beyond its time; stopped at what it has kept")
            return ""


@contextmanager
def prepared() -> Iterator[Prepared]:
    """Unpack the project and find the data; the unpacked code is cleared away in the end."""
    with tempfile.TemporaryDirectory(prefix="pipeline-") as scratch:
        code, site = Path(scratch, "code"), Path(scratch, "site")
        unpack(code)
        data = find_data()
        install_missing(site)
        paths = [str(code), str(site), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        log(f"Python {sys.version.split()[0]}; data {data}; recipe {RECIPE}")
        yield Prepared(code, data, code / RECIPE, environment)


def log(line: str) -> None:
    """Write a line to the kernel's log at once."""
    sys.stdout.write(f"kernel: {line}\n")
    sys.stdout.flush()


def run_recipe(kind: str, *options: object) -> bool:
    """Run the recipe as far as time allows, and leave submission.csv; tell whether it is there."""
    out = WORKING / "run"
    with prepared() as here:
        earlier = earlier_run(kind)
        if earlier:
            log(f"goes on with {earlier}; to begin anew, detach it")
            copy_folder(earlier, out)
        places = ("--data", here.data, "--out", out, "--resume")
        here.pipeline_in_time("run", "--recipe", here.recipe, *places, *options)
    finished = (out / "DONE").exists()
    if finished:
        shutil.copyfile(out / "submission.csv", WORKING / "submission.csv")
    note_end({"kind": kind}, finished, WORKING / "submission.csv")
    return finished


def note_end(facts: dict[str, str], finished: bool, result: Path) -> None:
    """Write kernel.json, and tell the log how the kernel has ended."""
    noted = {**facts, "recipe": RECIPE, "finished": finished}
    (WORKING / NOTE).write_text(json.dumps(noted, indent=1) + "\n")
    if finished:
        log(f"done: {result}")
    else:
        log("not finished: push the kernel again with its own output attached, and it goes on")


def earlier_run(kind: str) -> Path | None:
    """Return the attached run folder that a kernel of this kind has left unfinished."""
    found = []
    for folder, below, files in os.walk(INPUT):
        below[:] = sorted(name for name in below if name != "npz")  # thousands of graphs
        run = Path(folder, "run")
        if NOTE in files and (run / "config.toml").is_file() and unfinished(run.parent, kind):
            found.append(run)
    if len(found) > 1:
        named = ", ".join(str(run.parent) for run in found)
        sys.exit(
            f"kernel: more than one unfinished output is attached: {named}; detach all but one"
        )
    return found[0] if found else None


def unfinished(output: Path, kind: str) -> bool:
    """Tell whether a kernel of this kind says of its output that it is not finished."""
    try:
        facts = json.loads((output / NOTE).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and facts.get("kind") == kind and facts.get("finished") is False


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files below `source`, but for hidden ones; the copies can be written to."""
    for folder, _, files in os.walk(source):
        made = target / Path(folder).relative_to(source)
        made.mkdir(parents=True)
        for name in files:
            if not name.startswith("."):
                shutil.copyfile(Path(folder, name), made / name)


def unpack(folder: Path) -> None:
    """Unpack the embedded archive into `folder`; a member that would lie elsewhere stops it."""
    squeezed = base64.b64decode(ARCHIVE)
    if hashlib.sha256(squeezed).hexdigest() != ARCHIVE_SHA256:
        sys.exit("kernel: the embedded archive is damaged; build and push the kernel again")
    root = folder.resolve()
    with zipfile.ZipFile(io.BytesIO(lzma.decompress(squeezed))) as archive:
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
    tried = ", ".join(str(INPUT / mount) for mount in MOUNTS)
    sys.exit(
        f"kernel: no npz folder in {tried}; attached: {attached()}; add the competition's data"
    )


def attached() -> str:
    """Name what lies in the input folder."""
    return ", ".join(sorted(path.name for path in INPUT.glob("*"))) or "nothing"


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
