"""Compile an edited HLO module and run it, through the compiler client that JAX itself uses.

JAX has no public way to compile an HLO module. This file alone touches the private one; which
releases of jaxlib it was tested with stands here, and others are refused by name.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import first_line
from data.collect.layouts.realise import CompileRefused

TESTED_JAXLIB = ("0.10",)


def why_unavailable() -> str | None:
    """Return why edited modules cannot be compiled here, or None if they can."""
    import jax
    import jaxlib

    version = ".".join(jaxlib.__version__.split(".")[:2])
    if version not in TESTED_JAXLIB:
        tested = ", ".join(f"{v}.x" for v in TESTED_JAXLIB)
        return (
            f"jaxlib {jaxlib.__version__} was not tested with edited HLO modules; tested: {tested}"
        )
    try:
        from jaxlib import _jax
    except ImportError:
        return f"jaxlib {jaxlib.__version__} has no compiler client module"
    client = jax.devices()[0].client
    if not hasattr(_jax.mlir, "hlo_to_stablehlo") or not hasattr(client, "compile_and_load"):
        return f"jaxlib {jaxlib.__version__} cannot compile HLO modules"
    return None


class Executable:
    """A compiled module with its arguments on the device."""

    def __init__(self, name: str, module: Any, arguments: Sequence[Any]) -> None:
        """Compile `module`, an HloModule message, for the first device.

        Raises:
            CompileRefused: the compiler refuses the module.
            PipelineError: this jaxlib was not tested.
        """
        problem = why_unavailable()
        if problem is not None:
            raise PipelineError(f"{name}: {problem}; pip install -r requirements-collect.txt")
        import jax
        from jaxlib import _jax

        device = jax.devices()[0]
        self._arguments = [jax.device_put(argument, device) for argument in arguments]
        jax.block_until_ready(self._arguments)
        try:
            stable = _jax.mlir.hlo_to_stablehlo(module.SerializeToString())
            self._loaded = device.client.compile_and_load(stable, [device], _jax.CompileOptions())
        except Exception as error:
            raise CompileRefused(f"{name}: the compiler refuses: {first_line(error)}") from error

    def run(self) -> None:
        """Run once and wait for the end."""
        for array in self._execute():
            array.block_until_ready()

    def outputs(self) -> list[NDArray[np.generic]]:
        """Run once and return the flat outputs."""
        return [np.asarray(array) for array in self._execute()]

    def _execute(self) -> list[Any]:
        results = self._loaded.execute_sharded(self._arguments)
        return [arrays[0] for arrays in results.disassemble_into_single_device_arrays()]
