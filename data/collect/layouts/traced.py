"""Layout constraints by JAX's public means, for a jaxlib that cannot compile edited modules.

The traced program is run through an interpreter that constrains the operands and results of its
dots, convolutions and reshapes. Each of those is traced under a name of its own, which the
compiler keeps with the instruction that it becomes; only nodes for which that is one instruction
of the same operation and shapes can be chosen. Loop bodies are left as they are.

The program's own outputs are never constrained: jax 0.10 on CPU then reads them wrongly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import (
    ConfigurableNode,
    configurable_nodes,
    dump_module,
    first_line,
)
from data.collect.layouts.module_program import ModuleProgram
from data.collect.layouts.options import Order, read_row
from data.collect.layouts.realise import MAX_RANK, CompileRefused, LayoutProgram, ProgramSource

OPCODE_OF_PRIMITIVE = {
    "dot_general": "dot",
    "conv_general_dilated": "convolution",
    "reshape": "reshape",
}
# Primitives whose inner program is evaluated in their place, under old and new names.
CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
        *("custom_jvp_call", "custom_vjp_call"),
    }
)


@dataclass
class _Interpreter:
    """Evaluates a jaxpr with constraints.

    Attributes:
        orders: of result and operands, by the equation's number.
        n_seen: how many dots, convolutions and reshapes came by; each takes the next number.
        shapes: operation and shapes of result and operands, by number.
        are_outputs: numbers of equations whose result is an output of the program.
    """

    orders: Mapping[int, Sequence[Order]]
    n_seen: int = 0
    shapes: dict[int, tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=dict)
    are_outputs: set[int] = field(default_factory=set)
    _results: dict[int, Any] = field(default_factory=dict)

    def run(self, traced: Any, arguments: Sequence[Any]) -> list[Any]:
        """Return the outputs of a whole traced program."""
        outputs = self.evaluate(traced.jaxpr, traced.consts, arguments)
        for number, result in self._results.items():
            if any(result is output for output in outputs):
                self.are_outputs.add(number)
        self._results.clear()
        return outputs

    def evaluate(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Return the outputs of a jaxpr."""
        from jax.extend.core import Literal

        values = dict(zip(jaxpr.constvars, constants, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Any:
            return variable.val if isinstance(variable, Literal) else values[variable]

        for equation in jaxpr.eqns:
            results = self._apply(jaxpr, equation, [read(variable) for variable in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _apply(self, jaxpr: Any, equation: Any, inputs: list[Any]) -> list[Any]:
        import jax

        name = equation.primitive.name
        if name in CALLS:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            constants = getattr(inner, "consts", ())
            return self.evaluate(getattr(inner, "jaxpr", inner), constants, inputs)
        if name not in OPCODE_OF_PRIMITIVE:
            return _evaluate_alone(jaxpr, equation, inputs)
        number, self.n_seen = self.n_seen, self.n_seen + 1
        of_result, *of_operands = self.orders.get(number, ((), (), ()))
        with jax.named_scope(scope(number)):
            held = list(map(_constrained, inputs, of_operands[: len(inputs)]))
            (result,) = _evaluate_alone(jaxpr, equation, held)
        tensors = (result, *inputs)
        self.shapes[number] = (OPCODE_OF_PRIMITIVE[name], tuple(map(np.shape, tensors)))
        self._results[number] = result
        return [_constrained(result, of_result)]


def _evaluate_alone(jaxpr: Any, equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate one equation of a jaxpr, as a program of its own.

    Releases of JAX bind primitives differently; all of them evaluate programs.
    """
    from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

    given = {
        variable: value
        for variable, value in zip(equation.invars, inputs, strict=True)
        if not isinstance(variable, Literal)
    }
    alone = jaxpr.replace(
        constvars=[],
        invars=list(given),
        outvars=list(equation.outvars),
        eqns=[equation],
        effects=equation.effects,
    )
    return list(jaxpr_as_fun(ClosedJaxpr(alone, ()))(*given.values()))


def scope(number: int) -> str:
    """Return the name under which an equation is traced."""
    return f"layout_node_{number}_"


def load_traced(source: ProgramSource) -> LayoutProgram:
    """Trace a program and open the layouts of the nodes that can be told apart.

    Raises:
        PipelineError: it cannot be compiled, or no node can be told apart.
    """
    interpreter = _Interpreter({})
    dumped = dump_module(replace(source, build=partial(_build, source, interpreter)))
    found = dict(_matched(configurable_nodes(dumped.message), interpreter))
    if not found:
        raise PipelineError(
            f"{source.name}: none of its nodes can be constrained with JAX's public means; "
            "pip install -r requirements-collect.txt brings a jaxlib whose modules can be edited"
        )
    realise = partial(_realise, source, list(found))
    program = ModuleProgram(source, dumped, list(found.values()), realise)
    program.options = [
        rows[(rows[:, :MAX_RANK] < 0).all(axis=1)] if number in interpreter.are_outputs else rows
        for number, rows in zip(found, program.options, strict=True)
    ]
    return program


def _build(
    source: ProgramSource, interpreter: _Interpreter
) -> tuple[Callable[..., object], tuple[object, ...]]:
    """Build the program as its interpretation."""
    import jax

    function, arguments = source.build()
    traced = jax.make_jaxpr(function)(*arguments)

    def interpreted(*arguments: object) -> list[Any]:
        return interpreter.run(traced, jax.tree.leaves(arguments))

    return interpreted, arguments


def _matched(
    nodes: Sequence[ConfigurableNode], interpreter: _Interpreter
) -> Iterator[tuple[int, ConfigurableNode]]:
    """Yield the equations that became exactly one instruction of their operation and shapes."""
    for number, (opcode, shapes) in interpreter.shapes.items():
        named = [n for n in nodes if scope(number) in n.instruction.metadata.op_name]
        if len(named) == 1 and (named[0].instruction.opcode, named[0].shapes) == (opcode, shapes):
            yield number, named[0]


@dataclass(frozen=True)
class _Compiled:
    """A program compiled by JAX, with its arguments."""

    function: Callable[..., list[Any]]
    arguments: tuple[object, ...]

    def run(self) -> None:
        """Run once and wait for the end."""
        import jax

        jax.block_until_ready(self.function(*self.arguments))

    def outputs(self) -> list[NDArray[np.generic]]:
        """Run once and return the flat outputs."""
        return [np.asarray(array) for array in self.function(*self.arguments)]


def _realise(source: ProgramSource, numbers: Sequence[int], config: NDArray[np.int8]) -> _Compiled:
    """Compile under a config (k, 18) whose nodes are the equations `numbers`."""
    import jax

    orders = {number: read_row(row) for number, row in zip(numbers, config, strict=True)}
    function, arguments = _build(source, _Interpreter(orders))
    placed = jax.device_put(arguments)
    try:
        compiled = jax.jit(function, keep_unused=True).lower(*placed).compile()
    except Exception as error:
        raise CompileRefused(f"{source.name}: the compiler refuses: {first_line(error)}") from error
    return _Compiled(compiled, placed)


def _constrained(value: Any, order: Order) -> Any:
    """Constrain a value's layout to `order` (major to minor), if there is one."""
    from jax.experimental.layout import Layout, with_layout_constraint

    return with_layout_constraint(value, Layout(major_to_minor=order)) if order else value
