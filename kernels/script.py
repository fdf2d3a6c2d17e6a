"""A Kaggle kernel that works by a recipe of the project it carries; it needs no internet.

`python -m pipeline kernel build` fills in SETTINGS and ARCHIVE; nothing but Python's own library is
used before the project runs. What Kaggle's image lacks (torch-geometric) comes from an attached
dataset whose folder is named `…-wheels`.

A kernel stops itself before Kaggle does, since an ended session keeps its output and a killed one
does not. kernel.json, in the output, tells whether all is done. Where it is not, the output is
attached as a source of the next version, which goes on with it. SIGTERM and Ctrl-C are passed on to
the project; the same script goes on with what lies in the working folder.

PIPELINE_KAGGLE_INPUT and PIPELINE_KAGGLE_WORKING stand in for /kaggle/input and /kaggle/working.
"""

import base64
import importlib.util
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

# What `kernels.build.Kind` describes, and: recipe, its file inside the archive; mounts, of
# the competition's files below the input folder; required, module to distribution of what the image
# may lack.
SETTINGS = {}  # type: ignore[var-annotated]
ARCHIVE = ""  # the project: a zip archive, xz, base64

NOTE = "kernel.json"
STARTED = time.monotonic()
INPUT = Path(os.environ.get("PIPELINE_KAGGLE_INPUT", "/kaggle/input")).resolve()
WORKING = Path(os.environ.get("PIPELINE_KAGGLE_WORKING", "/kaggle/working")).resolve()


def main() -> None:
    """Work by the recipe, or go on with it; leave the result and kernel.json."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        kernel()
    except KeyboardInterrupt:
        log(f"stopped; run it again, and it goes on with what lies in {WORKING}")
        sys.exit(130)


def kernel() -> None:
    out = WORKING / SETTINGS["out"]
    with tempfile.TemporaryDirectory() as scratch:
        code, site = Path(scratch, "code"), Path(scratch, "site")
        unpack(code)
        data = find_data()
        install_missing(site)
        log(f"Python {sys.version.split()[0]}; data {data}; recipe {SETTINGS['recipe']}")
        if SETTINGS["result"] and not out.exists():
            take_over(out)
        places = {"data": data, "recipe": code / SETTINGS["recipe"], "input": INPUT, "out": out}
        command = [word.format(**places) for word in SETTINGS["command"].split()]
        work(command, code, site)
    end(out)


def log(line: str) -> None:
    sys.stdout.write(f"kernel: {line}\n")
    sys.stdout.flush()


def work(command: list[str], code: Path, site: Path) -> None:
    """Run a command of the project for as long as there is time; stop if it fails."""
    paths = [str(code), str(site), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    left_s = max(60 * SETTINGS["max_minutes"] - (time.monotonic() - STARTED), 0)
    command = [sys.executable, "-m", "pipeline", *command, "--max-minutes", str(left_s / 60)]
    limit_s = left_s + 60 * SETTINGS["saving_minutes"]
    # In a session of its own it does not get the terminal's Ctrl-C, but one signal from here.
    with subprocess.Popen(command, cwd=code, env=environment, start_new_session=True) as process:  # noqa: S603
        try:
            ended = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            log("a step went on beyond its time; stopped at what it has kept")
            return
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if ended:
        told = "see its line above; its --out lies in the working folder"
        sys.exit(f"kernel: the pipeline ended with code {ended}; {told}, {WORKING}")


def end(out: Path) -> None:
    """Put the result into its place, write kernel.json, and tell the log how the kernel ended."""
    finished = (out / "DONE").exists()
    noted = {name: SETTINGS[name] for name in ("kind", "recipe", "out")}
    if finished:
        if SETTINGS["result"]:
            shutil.copyfile(out / SETTINGS["result"], WORKING / SETTINGS["result"])
        if SETTINGS["dropped"]:
            shutil.rmtree(out / SETTINGS["dropped"])
    text = json.dumps({**noted, "finished": finished}, indent=1) + "\n"
    (WORKING / NOTE).write_text(text, "utf-8")
    if finished:
        log(f"done: {WORKING / (SETTINGS['result'] or SETTINGS['out'])}")
    else:
        log("not finished: push the kernel again with its own output attached, and it goes on")


def take_over(out: Path) -> None:
    """Copy the attached folder that a kernel of this kind has left unfinished, if there is one."""
    notes = filter(is_unfinished, mounted(f"/{NOTE}"))
    earlier = [note.parent / SETTINGS["out"] for note in notes]
    found = [folder for folder in earlier if (folder / "config.toml").is_file()]
    if len(found) > 1:
        named = ", ".join(str(earlier.parent) for earlier in found)
        sys.exit(f"kernel: more than one unfinished output is attached: {named}; detach others")
    for earlier in found:
        log(f"goes on with {earlier}; to begin anew, detach it")
        hidden = shutil.ignore_patterns(".*")
        shutil.copytree(earlier, out, ignore=hidden, copy_function=shutil.copyfile)
        for path in (out, *out.rglob("*")):
            path.chmod(0o755)  # what is attached cannot be written to


def is_unfinished(note: Path) -> bool:
    """Tell whether a kernel of this kind says of its output that it is not finished."""
    try:
        facts = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    is_ours = isinstance(facts, dict) and facts.get("kind") == SETTINGS["kind"]
    return is_ours and facts.get("finished") is False


def mounted(ending: str) -> list[Path]:
    """Find attached sources: they lie at slug/ or, in newer sessions, at datasets/owner/slug/."""
    return sorted(path for depth in ("*", "*/*", "*/*/*") for path in INPUT.glob(depth + ending))


def unpack(folder: Path) -> None:
    content = lzma.decompress(base64.b64decode(ARCHIVE))  # which checks it
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)


def find_data() -> Path:
    """Return the folder that holds npz/: the competition's mount, or npz_all/ within it."""
    mounts = [INPUT / mount for mount in SETTINGS["mounts"]]
    for mount in mounts:
        for folder in (mount, mount / "npz_all"):
            if (folder / "npz").is_dir():
                return folder
    attached = ", ".join(sorted(path.name for path in INPUT.glob("*"))) or "nothing"
    sys.exit(
        f"kernel: no npz folder in {', '.join(map(str, mounts))}; attached: {attached}; add the "
        "competition's data"
    )


def install_missing(site: Path) -> None:
    """Install the required modules that the image lacks, from attached wheels, into `site`."""
    required = SETTINGS["required"].items()
    missing = [name for module, name in required if importlib.util.find_spec(module) is None]
    if not missing:
        return
    wanted = ", ".join(missing)
    folders = [path for path in mounted("-wheels") if path.is_dir()]
    if not folders:
        sys.exit(f"kernel: the image lacks {wanted}; attach a dataset named …-wheels that holds it")
    log(f"installing {wanted} from {', '.join(map(str, folders))}")
    # Without dependencies: pip would put a second torch beside the image's own.
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site)]
    for folder in folders:
        command += ["--find-links", str(folder)]
    if subprocess.run([*command, *missing], check=False).returncode:  # noqa: S603
        sys.exit(f"kernel: {wanted} did not install; the dataset must hold wheels for this Python")


if __name__ == "__main__":
    main()
