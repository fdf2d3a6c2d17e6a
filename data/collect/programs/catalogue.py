"""The programs that can be measured: the sample's, by name, and a user's own functions.

A family is one architecture; its depths, batch sizes and training steps are siblings, and all of
them lie in one split.

A user's function is given as `package.module:function`; its example arguments come from the
function beside it that is called `FUNCTION_arguments`, or else `example_arguments`. That takes no
argument and returns a tuple of arrays (or lists and dicts of arrays); weights belong among them.
`FAMILY` and `SOURCE` ("xla" or "nlp") in the module name its family and collection; they default
to the module's last name and "xla".
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from common.errors import PipelineError
from data.collect.measuring.session import one_line

Source = Literal["xla", "nlp"]
Build = Callable[[], tuple[Callable[..., object], tuple[object, ...]]]


@dataclass(frozen=True)
class ProgramSource:
    """A JAX program before anything is compiled.

    Attributes:
        name: unique; becomes a file name.
        family: the architecture without its batch size; folds and splits keep families together.
        source: "xla" (no transformer) or "nlp" (transformers).
        build: returns a function of arrays and the tuple of its example arguments. Weights are
            arguments, so that the compiler cannot fold them; equal calls give equal arguments.
    """

    name: str
    family: str
    source: Source
    build: Build


class Siblings(NamedTuple):
    """Programs of one architecture: batch sizes of forward passes, and of training steps."""

    family: str  # the architecture's name in one of the modules beside this one
    source: Source
    split: str
    forward: tuple[int, ...]
    training: tuple[int, ...] = ()
    depth: int | None = None
    n_configs: int = 120  # to measure of each program and search

    def programs(self) -> list[ProgramSource]:
        """Return them, forward programs first."""
        stem = self.family if self.depth is None else f"{self.family}_d{self.depth}"
        batches = {f"{stem}_b{b}": (b, False) for b in self.forward}
        batches |= {f"{stem}_train_b{b}": (b, True) for b in self.training}
        return [
            ProgramSource(
                name, self.family, self.source, partial(_build, self.family, self.depth, *given)
            )
            for name, given in batches.items()
        ]


_FIRST = (
    Siblings("plain", "xla", "train", (2, 4), (2,)),
    Siblings("residual", "xla", "train", (1, 2), (1,)),
    Siblings("depthwise", "xla", "train", (1,)),
    Siblings("unet", "xla", "train", (2, 6), (2,)),
    Siblings("mlp", "xla", "train", (16, 64), (32,)),
    Siblings("mixer", "xla", "train", (1, 4)),
    Siblings("lstm", "xla", "train", (4, 16), (4,)),
    Siblings("dilated", "xla", "train", (1, 4)),
    Siblings("autoencoder", "xla", "valid", (4,), (2,)),
    Siblings("gru", "xla", "valid", (8,)),
    Siblings("volume", "xla", "test", (1, 2)),
    Siblings("dense_block", "xla", "test", (2, 4)),
    Siblings("recommender", "xla", "test", (64,)),
    Siblings("attention", "nlp", "train", (2, 8)),
    Siblings("encoder", "nlp", "train", (4,), (2,), depth=1),
    Siblings("encoder", "nlp", "train", (2,), depth=2),
    Siblings("encoder", "nlp", "train", (1,), depth=4),
    Siblings("encoder", "nlp", "train", (1,), depth=8),
    Siblings("linear_attention", "nlp", "train", (2,), depth=2),
    Siblings("causal", "nlp", "valid", (2,), (1,), depth=2),
    Siblings("shared", "nlp", "test", (2,), depth=3),
    Siblings("decoder", "nlp", "test", (1, 4), depth=2),
)
# Each family here was put into its split by a draw, before any of them was measured.
_DRAWN = (
    Siblings("points", "xla", "train", (16,), (8,)),
    Siblings("conv_lstm", "xla", "train", (2, 6)),
    Siblings("shuffle", "xla", "train", (2, 6)),
    Siblings("squeeze_excite", "xla", "train", (4,), (2,)),
    Siblings("two_tower", "xla", "train", (8,), (4,)),
    Siblings("capsule", "xla", "train", (4, 8)),
    Siblings("graph_conv", "xla", "train", (12,), (6,)),
    Siblings("vae", "xla", "valid", (32,), (16,)),
    Siblings("inception", "xla", "valid", (2,), (1,)),
    Siblings("ode", "xla", "valid", (8, 24)),
    Siblings("pyramid", "xla", "test", (1, 2)),
    Siblings("mixture", "xla", "test", (6,), (3,)),
    Siblings("style", "xla", "test", (4,), (2,)),
    Siblings("gated_mlp", "nlp", "train", (4,), (2,)),
    Siblings("local_attention", "nlp", "train", (1, 4)),
    Siblings("conformer", "nlp", "train", (2,), (1,), depth=2),
    Siblings("seq2seq", "nlp", "train", (2,), (1,), depth=1),
    Siblings("talking_heads", "nlp", "train", (2, 4)),
    Siblings("fourier", "nlp", "valid", (2,), (1,)),
    Siblings("rotary", "nlp", "valid", (4,), (1,), depth=2),
    Siblings("perceiver", "nlp", "test", (1, 4)),
    Siblings("funnel", "nlp", "test", (2,), (1,)),
    # Training steps of deep stacks, of more than 2,000 nodes each.
    Siblings("residual", "xla", "train", (), (1,), depth=20),
    Siblings("encoder", "nlp", "train", (), (1,), depth=6),
    Siblings("rotary", "nlp", "valid", (), (1,), depth=7),
    Siblings("decoder", "nlp", "test", (), (1,), depth=3),
)
CATALOGUE = (*_FIRST, *(siblings._replace(n_configs=80) for siblings in _DRAWN))


def _build(
    architecture: str, depth: int | None, batch: int, is_training: bool
) -> tuple[Callable[..., object], tuple[object, ...]]:
    from data.collect.programs import convolutional, dense, layers, transformers

    modules = (convolutional, dense, transformers)
    make = next(getattr(m, architecture) for m in modules if hasattr(m, architecture))
    network, arguments = layers.drawn(make, batch, *([] if depth is None else [depth]))
    return layers.training_step(network, arguments) if is_training else (network, arguments)


def catalogue() -> list[ProgramSource]:
    """Return the sample's programs, by source and family."""
    return [program for siblings in CATALOGUE for program in siblings.programs()]


def load_program(name: str) -> ProgramSource:
    """Return the catalogue's program `name`, or the user's own "module:function".

    Raises:
        PipelineError: there is no such program, module or function, or no example arguments.
    """
    if ":" in name:
        return _load_function(name)
    programs = {program.name: program for program in catalogue()}
    if name not in programs:
        raise PipelineError(
            f"program '{name}': not in the catalogue, which `collect --list` prints; "
            "or give your own as package.module:function"
        )
    return programs[name]


def named_object(name: str) -> Any:
    """Import the module before the colon and return what it holds under the name after it.

    Modules in the working folder are found too.

    Raises:
        PipelineError: the module fails to import, or holds no such name; one line.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script
        reason = one_line(f"{type(error).__name__}: {error}")
        expected = "expected package.module:function, found from the working folder or PYTHONPATH"
        raise PipelineError(
            f"--program {name}: cannot be imported: {reason}; {expected}"
        ) from error
    if not hasattr(module, attribute):
        raise PipelineError(f"--program {name}: {module_name} holds no '{attribute}'")
    return getattr(module, attribute)


def _load_function(name: str) -> ProgramSource:
    function = named_object(name)
    module_name, function_name = name.split(":", 1)
    module = sys.modules[module_name]
    beside = (f"{function_name}_arguments", "example_arguments")
    arguments = next((getattr(module, a) for a in beside if hasattr(module, a)), None)
    if not callable(arguments):
        raise PipelineError(
            f"--program {name}: {module_name} has no {beside[0]}() nor {beside[1]}(); "
            "expected one that returns the tuple of example arguments"
        )
    source = getattr(module, "SOURCE", "xla")
    if source not in get_args(Source):
        raise PipelineError(f"--program {name}: SOURCE is {source!r}; expected 'xla' or 'nlp'")

    def build() -> tuple[Callable[..., object], tuple[object, ...]]:
        made = arguments()
        if not isinstance(made, tuple):
            told = f"its example arguments are a {type(made).__name__}; expected a tuple"
            raise PipelineError(f"--program {name}: {told}")
        return function, made

    return ProgramSource(
        name=f"{module_name}.{function_name}",  # dots kept: a.b:c is not a_b:c
        family=str(getattr(module, "FAMILY", module_name.rsplit(".", 1)[-1])),
        source=cast(Source, source),
        build=build,
    )
