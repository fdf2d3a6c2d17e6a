"""Which device is measured, and what the manifest says of the machine; called in the worker."""

import os
import platform
import sys
from pathlib import Path

import numpy as np

from common.errors import PipelineError, UsageError

DEVICES = ("cpu", "gpu", "tpu")


def check_device(device: str | None) -> None:
    """Refuse a kind of device that does not exist.

    Raises:
        UsageError: names the known ones.
    """
    if device is not None and device not in DEVICES:
        raise UsageError(f"--device {device}: no such device; known: {', '.join(DEVICES)}")


def open_device(device: str | None) -> dict[str, str]:
    """Make JAX use `device`, or what it chooses itself for None; return facts for the manifest.

    To be called before anything else imports jax.

    Raises:
        UsageError: there is no such kind of device.
        PipelineError: jax is not installed, or finds no such device here.
    """
    check_device(device)
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        import jax
        import jaxlib
    except ImportError as error:
        raise PipelineError(
            f"jax cannot be imported ({error}); pip install -r requirements-collect.txt"
        ) from error
    try:
        first = jax.devices()[0]
    except (RuntimeError, AssertionError, IndexError) as error:
        raise PipelineError(f"jax finds no device to measure on: {error}") from error
    if device is not None and first.platform != device:
        raise PipelineError(
            f"--device {device}: jax finds none here, only {first.platform} ({first.device_kind}); "
            "expected the device and the jaxlib that drives it"
        )
    return {
        "platform": first.platform,
        "device": first.device_kind,
        "cpu": cpu_model(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": sys.platform,
    }


def cpu_model() -> str:
    """Return the processor's name as the system tells it, with the number of its cores."""
    information = Path("/proc/cpuinfo")
    names = []
    if information.is_file():
        lines = information.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"
