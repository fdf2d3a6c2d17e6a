"""Run a recipe on Kaggle with the project in this script, without internet.

`python -m pipeline kernel build` fills in SETTINGS and ARCHIVE. The script itself needs only the
standard library. Packages that the image of Kaggle lacks, or has in an older version, come from an
attached dataset whose name ends in `-wheels` (`kernels.packages`).

A kernel stops itself before Kaggle kills it, because the output of a killed session is lost.
kernel.json in the output has the key `finished`. To resume an unfinished kernel, attach its output
to the next version. SIGTERM and Ctrl-C stop the project, and the same script resumes from the
working folder.

PIPELINE_KAGGLE_INPUT and PIPELINE_KAGGLE_WORKING replace /kaggle/input and /kaggle/working.
"""

import base64
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

# The fields of `kernels.build.Kind`, and two more. `recipe` is a file in the archive. `mounts` are
# folders of the competition below the input folder.
SETTINGS = {}  # type: ignore[var-annotated]
# The project as a zip archive, compressed by xz, in base64.
ARCHIVE = ""

NOTE = "kernel.json"
STARTED = time.monotonic()
INPUT = Path(os.environ.get("PIPELINE_KAGGLE_INPUT", "/kaggle/input")).resolve()
WORKING = Path(os.environ.get("PIPELINE_KAGGLE_WORKING", "/kaggle/working")).resolve()


def main() -> None:
    """Run or resume the recipe, and write the result and kernel.json."""
    # SIGTERM has the same effect as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        kernel()
    except KeyboardInterrupt:
        log(f"stopped; run it again to resume from {WORKING}")
        sys.exit(130)


def kernel() -> None:
    out = WORKING / SETTINGS["out"]
    with tempfile.TemporaryDirectory() as scratch:
        code, site = Path(scratch, "code"), Path(scratch, "site")
        unpack(code)
        data = find_data()
        wheels = [str(folder) for folder in attached_paths("-wheels") if folder.is_dir()]
        environment = environment_of(code, site)
        check = [sys.executable, "-m", "kernels.packages", str(site), *wheels]
        if subprocess.run(check, cwd=code, env=environment, check=False).returncode:  # noqa: S603
            sys.exit(1)
        log(f"Python {sys.version.split()[0]}; data {data}; recipe {SETTINGS['recipe']}")
        if SETTINGS["result"] and not out.exists():
            take_over(out)
        places = {"data": data, "recipe": code / SETTINGS["recipe"], "input": INPUT, "out": out}
        command = [word.format(**places) for word in SETTINGS["command"].split()]
        work(command, code, environment)
    end(out)


def environment_of(*folders: Path) -> dict[str, str]:
    """Return the environment of this process with further folders on Python's path."""
    paths = [*map(str, folders), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def log(line: str) -> None:
    sys.stdout.write(f"kernel: {line}\n")
    sys.stdout.flush()


def work(command: list[str], code: Path, environment: dict[str, str]) -> None:
    """Run a command of the project until it ends or its time is over."""
    left_s = max(60 * SETTINGS["max_minutes"] - (time.monotonic() - STARTED), 0)
    command = [sys.executable, "-m", "pipeline", *command, "--max-minutes", str(left_s / 60)]
    limit_s = left_s + 60 * SETTINGS["saving_minutes"]
    # In a new session the command gets Ctrl-C only from here, and not a second time.
    with subprocess.Popen(command, cwd=code, env=environment, start_new_session=True) as process:  # noqa: S603
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            log("the command did not stop in time; killed it, and its saved state stays")
            return
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if status:
        advice = f"see its error above; its --out is in {WORKING}"
        sys.exit(f"kernel: the pipeline ended with code {status}; {advice}")


def end(out: Path) -> None:
    """Copy the result to the working folder, and write kernel.json and the last log line."""
    is_finished = (out / "DONE").exists()
    note = {name: SETTINGS[name] for name in ("kind", "recipe", "out")}
    if is_finished:
        if SETTINGS["result"]:
            shutil.copyfile(out / SETTINGS["result"], WORKING / SETTINGS["result"])
        if SETTINGS["dropped"]:
            shutil.rmtree(out / SETTINGS["dropped"])
    text = json.dumps({**note, "finished": is_finished}, indent=1) + "\n"
    (WORKING / NOTE).write_text(text, "utf-8")
    if is_finished:
        log(f"done: {WORKING / (SETTINGS['result'] or SETTINGS['out'])}")
    else:
        log("not finished; attach this output and push the kernel again to resume")


def take_over(out: Path) -> None:
    """Copy the unfinished folder of an attached output, if there is one of this kind of kernel."""
    notes = filter(is_unfinished, attached_paths(f"/{NOTE}"))
    earlier = [note.parent / SETTINGS["out"] for note in notes]
    runs = [folder for folder in earlier if (folder / "config.toml").is_file()]
    if len(runs) > 1:
        names = ", ".join(str(run.parent) for run in runs)
        sys.exit(f"kernel: more than one unfinished output is attached: {names}; detach others")
    for run in runs:
        log(f"resumes {run}; detach it to restart")
        hidden = shutil.ignore_patterns(".*")
        shutil.copytree(run, out, ignore=hidden, copy_function=shutil.copyfile)
        # Attached folders are read-only.
        for path in (out, *out.rglob("*")):
            path.chmod(0o755)


def is_unfinished(note: Path) -> bool:
    """Return whether an output is from an unfinished kernel of this kind."""
    try:
        facts = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    is_ours = isinstance(facts, dict) and facts.get("kind") == SETTINGS["kind"]
    return is_ours and facts.get("finished") is False


def attached_paths(ending: str) -> list[Path]:
    """List attached files, which are in slug/ or, in newer sessions, in datasets/owner/slug/."""
    return sorted(path for depth in ("*", "*/*", "*/*/*") for path in INPUT.glob(depth + ending))


def unpack(folder: Path) -> None:
    content = lzma.decompress(base64.b64decode(ARCHIVE))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)


def find_data() -> Path:
    """Return the folder of npz/, which is the competition's mount, or npz_all/ in it."""
    mounts = [INPUT / mount for mount in SETTINGS["mounts"]]
    for mount in mounts:
        for folder in (mount, mount / "npz_all"):
            if (folder / "npz").is_dir():
                return folder
    names = ", ".join(sorted(path.name for path in INPUT.glob("*"))) or "nothing"
    sys.exit(
        f"kernel: no npz folder in {', '.join(map(str, mounts))}; attached: {names}; add the "
        "data of the competition"
    )


if __name__ == "__main__":
    main()
