"""A stand-in for Kaggle's machine: /kaggle with a read-only input, no network, a fresh process.

Where this machine allows it, the kernel runs in namespaces of its own, in a root folder in which
/kaggle is the test's folder and no network exists. Elsewhere the kernel is told by its two
environment variables where /kaggle is, and sockets raise.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Arguments: an empty folder for the root, the folder that becomes /kaggle, the command.
_ENTER = """
set -e
root=$1; kaggle=$2; shift 2
mount -t tmpfs tmpfs "$root"
for entry in /*; do
  if [ -L "$entry" ]; then cp -P "$entry" "$root$entry"
  elif [ -d "$entry" ] && [ "$entry" != /kaggle ]; then
    mkdir "$root$entry"; mount --rbind "$entry" "$root$entry"
  fi
done
mkdir "$root/kaggle"
mount --bind "$kaggle" "$root/kaggle"
mount --bind "$kaggle/input" "$root/kaggle/input"
mount -o remount,bind,ro "$root/kaggle/input"
exec chroot "$root" "$@"
"""
_NO_SOCKETS = """
import socket
def refuse(*arguments, **options):
    raise OSError("no network in a kernel")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = refuse
"""
# When the pipeline's clock, not the kernel's, jumps ahead: as soon as there is a checkpoint, or at
# the fifth look of a ranking at it, in the middle of its second split of three graphs.
AT_A_CHECKPOINT = """
import os, pathlib
working = pathlib.Path(os.environ.get("PIPELINE_KAGGLE_WORKING", "/kaggle/working"))
def is_late():
    return any(working.rglob("checkpoint.safetensors"))
"""
WITHIN_A_SPLIT = """
import sys
looks = 0
def is_late():
    global looks
    frame, files = sys._getframe(), []
    while frame:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    stack = " ".join(files)
    looks += "/common/progress.py" in stack and "/ensembles/scores.py" in stack
    return looks > 4
"""
_JUMP = """
import sys, time
if "pipeline" in sys.orig_argv:
    real = time.monotonic
    def monotonic():
        return real() + (86400 if is_late() else 0)
    time.monotonic = monotonic
"""


@functools.cache
def has_namespaces() -> bool:
    """Tell whether this machine lets the tests make namespaces, mounts and a root of their own."""
    if shutil.which("unshare") is None:
        return False
    script = 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && exec chroot / true'
    tried = ["unshare", "-rmn", "sh", "-c", script]
    return not subprocess.run(tried, capture_output=True, check=False, timeout=20).returncode


def run_on_kaggle(
    script: Path, kaggle: Path, scratch: Path, *, stops: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a kernel with `kaggle` as /kaggle; its working folder is emptied first, as for a version.

    Args:
        script: the kernel.
        kaggle: holds input/; working/ is made in it.
        scratch: an empty folder for what the run needs besides.
        stops: when the pipeline's time is over: AT_A_CHECKPOINT, WITHIN_A_SPLIT, or "" for never.
    """
    shutil.rmtree(kaggle / "working", ignore_errors=True)
    for folder in (kaggle / "working", kaggle / "input", scratch / "root", scratch / "site"):
        folder.mkdir(parents=True, exist_ok=True)
    customs = stops + _JUMP if stops else ""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "PYTHONPATH": str(scratch / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, str(script)]
    if has_namespaces():
        enter = ["unshare", "-rmn", "sh", "-c", _ENTER, "enter", str(scratch / "root")]
        command = [*enter, str(kaggle), *command]
    else:
        customs = _NO_SOCKETS + customs
        environment["PIPELINE_KAGGLE_INPUT"] = str(kaggle / "input")
        environment["PIPELINE_KAGGLE_WORKING"] = str(kaggle / "working")
    (scratch / "site" / "sitecustomize.py").write_text(customs)
    return subprocess.run(
        command,
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
