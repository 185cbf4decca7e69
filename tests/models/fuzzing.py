"""Random graphs run as programs: what of their results no rounding explains, and how few nodes do.

    python -m tilewright.tests.models.fuzzing --seeds 0:100 --islands 20 --target cpu --found DIR

writes one graph as text for each failure. Such a text, put into tests/models/graphs, is a test.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright import passes
from tilewright.api.compile_graph import compile_graph
from tilewright.api.machine import open_device, resolve_target
from tilewright.ir.builder import Builder, Rebuilder
from tilewright.ir.errors import DivisionByZero, IndexOutOfRange
from tilewright.ir.graph import Graph, Node
from tilewright.ir.target import get_target
from tilewright.ir.text import print_graph
from tilewright.ir.verify import verify
from tilewright.passes.random_inputs import bindings, random_arguments, random_weights
from tilewright.passes.rewrite import drop_unread_weights, remove_dead
from tilewright.passes.rounding import expected
from tilewright.runtime.executable import Executable

from ..ir.random_graphs import random_graph

SEED = 7
DATA = ((1.0, range(2)), (1e-3, range(-3, 4)))  # scale of floats, what integers are drawn from
ATTEMPT_SECONDS = 300

Program = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
Make = Callable[[Graph, Mapping[str, np.ndarray]], Program]


@dataclass(frozen=True)
class Wrong:
    """A result (outputs come first, then states) that is none the graph may give."""

    result: int
    sizes: Mapping[str, int]
    scale: float
    excess: float  # its distance, as a multiple of what rounding may do

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return (
            f"result {self.result} at {sizes}, scale {self.scale:g}: {self.excess:.3g} bounds off"
        )


def wrong(graph: Graph, make: Make, slack: float = 1.0) -> list[Wrong]:
    """What the program gives that is wrong, at several sizes and for several kinds of data."""
    found = []
    weights = random_weights(graph, SEED)
    program = make(graph, weights)
    for sizes in bindings(graph):
        for scale, whole in DATA:
            arguments = random_arguments(graph, sizes, scale, SEED, whole)
            for state in graph.states:
                arguments[state.name] = np.zeros_like(arguments[state.name])
            try:
                wanted = expected(graph, arguments, weights, runs=0)
            except (IndexOutOfRange, DivisionByZero):
                continue
            got = program(arguments)
            pairs = enumerate(zip(wanted, got))
            doubtful = [i for i, (one, x) in pairs if one.excess(x) > slack]
            wanted = expected(_part(graph, doubtful), arguments, weights) if doubtful else []
            for number, one in zip(doubtful, wanted):
                excess = one.excess(got[number]) / slack
                if excess > 1:
                    found.append(Wrong(number, sizes, scale, excess))
    return found


def _part(graph: Graph, results: Sequence[int]) -> Graph:
    """What gives these of the graph's results, as outputs."""
    values = [*graph.outputs, *(graph.updates.get(v.name or "", v) for v in graph.states)]
    return remove_dead(graph.replace(outputs=tuple(values[i] for i in results), updates={}))


# ---- ways to run -----------------------------------------------------------------------------


def on_device(name: str) -> Make:
    """Compiled for this machine."""
    target = resolve_target(name)

    def make(graph: Graph, weights: Mapping[str, np.ndarray]) -> Program:
        made = compile_graph(graph, weights, passes.PIPELINES["dense"](), target)
        executable = Executable(made.program, made.weights, open_device(target))
        names = [v.name for v in graph.inputs]

        def run(arguments: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            for state in executable.states.values():
                zeros = np.zeros(state.shape, state.dtype.numpy)
                executable.device.upload(state, zeros)
            outputs = [each.numpy() for each in executable(*(arguments[n] for n in names))]
            states = executable.states
            return [*outputs, *(states[v.name].numpy().copy() for v in graph.states)]

        return run

    return make


def by_interpreter(interpreter) -> Make:
    """Compiled for a GPU and run by Triton's interpreter: outputs only. See ops/interpreted.py."""

    def make(graph: Graph, weights: Mapping[str, np.ndarray]) -> Program:
        pipeline = passes.PIPELINES["dense"]()
        made = compile_graph(graph, weights, pipeline, get_target("sm_90"))
        names = [v.name for v in graph.inputs]
        return lambda arguments: interpreter.run(
            made.program, made.weights, [arguments[n] for n in names]
        )

    return make


# ---- fewer nodes -----------------------------------------------------------------------------


def reduced(graph: Graph, run: Callable[[Graph], str], seconds: float = 240) -> Graph:
    """A part of the graph that fails as it does: one result, and nodes cut off where it still does.

    `run` says what is wrong with a graph, "" where nothing is; each is run in a process of its own.
    """
    kind, deadline = kind_of(outcome(lambda: run(graph))), time.monotonic() + seconds

    def fails(part: Graph) -> bool:
        said = outcome(lambda: run(part)) if time.monotonic() < deadline else ""
        return bool(said) and kind_of(said) == kind

    graph = _halved(graph, fails)
    for name in graph.updates:
        kept = {other: value for other, value in graph.updates.items() if other != name}
        if fails(part := _tidy(graph.replace(updates=kept), keep=False)):
            graph = part
    count = None
    while count != len(graph.nodes):
        count, place = len(graph.nodes), 1  # from the end: what is cut there is most
        while place <= len(graph.nodes):
            for keep in (False, True):
                less = _tidy(_without(graph, graph.nodes[-place]), keep)
                if len(less.nodes) < len(graph.nodes) and fails(less):
                    graph = less
                    break
            else:
                place += 1
    return graph


def _halved(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """A part with as few outputs as halving finds, and without states where it fails so too."""
    if graph.updates and fails(part := _tidy(graph.replace(updates={}), keep=False)):
        graph = part
    while (half := len(graph.outputs) // 2) > 0:
        for outputs in (graph.outputs[:half], graph.outputs[half:]):
            if fails(part := _tidy(graph.replace(outputs=outputs), keep=False)):
                graph = part
                break
        else:
            break
    return graph


def _without(graph: Graph, node: Node) -> Graph:
    """The graph with inputs in place of what the node gives."""
    b = Rebuilder(graph)
    taken = {v.name for v in graph.arguments()}
    free = (name for i in itertools.count() if (name := f"cut{i}") not in taken)
    for each in graph.nodes:
        if each is not node:
            b.copy(each)
            continue
        for result in node.results:
            b[result] = b.input(next(free), result.shape, result.dtype)
    return b.finish()


def _tidy(graph: Graph, keep: bool) -> Graph:
    """Without what nothing reads; `keep` spares inputs."""
    graph = drop_unread_weights(remove_dead(graph))
    if keep:
        return graph
    read = {v for node in graph.nodes for v in node.operands} | graph.results
    used = {name for node in graph.nodes for r in node.results for name in r.type.symbols}
    used |= {name for v in read for name in v.type.symbols}
    kept = [v for v in graph.inputs if v in read]
    for v in reversed(graph.inputs):  # last come those that say what the dims are
        if used.difference(*(each.type.symbols for each in kept)) & v.type.symbols:
            kept.append(v)
    return graph.replace(
        inputs=tuple(v for v in graph.inputs if v in kept),
        states=tuple(v for v in graph.states if v in read or v.name in graph.updates),
        symbols={n: s for n, s in graph.symbols.items() if n in used},
    )


# ---- long runs -------------------------------------------------------------------------------


def outcome(work: Callable[[], str]) -> str:
    """What `work` says, in a process of its own: how it ended, where it ended otherwise."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.alarm(ATTEMPT_SECONDS)
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is what is looked for
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__} {Path(place.filename).name}: {str(error)[:300]}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return said


def kind_of(said: str) -> str:
    """What two failures have in common."""
    return said.split(":")[0].split(" at ")[0] if not said.startswith("result") else "wrong"


def hunt(seed: int, islands: int, nodes: int, run: Callable[[Graph], str], found: Path) -> str:
    """One program of random graphs; its failure, cut down, is written to a file."""
    graph = random_graph(random.Random(seed), islands=islands, max_nodes=nodes)
    said = outcome(lambda: run(graph))
    if not said:
        return ""
    small = reduced(graph, run)
    found.mkdir(parents=True, exist_ok=True)
    said = outcome(lambda: run(small)) or said
    comment = "".join(f"# {line}\n" for line in said.splitlines())
    (found / f"{seed}.ir").write_text(comment + print_graph(small))
    return said


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--islands", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--target", default="cpu", help="cpu, auto, ..., or interpreter")
    parser.add_argument("--found", type=Path, default=Path("build/found"))
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if given.target == "cpu":
        _compile_nothing()
    first, last = map(int, given.seeds.split(":"))
    for seed in range(first, last):
        start = time.perf_counter()
        said = hunt(seed, given.islands, given.nodes, runner(given.target), given.found)
        took = time.perf_counter() - start
        print(f"{seed}: {said.splitlines()[0] if said else 'right'} ({took:.1f} s)", flush=True)


def _compile_nothing() -> None:
    """What is imported and compiled for any graph is there, in the processes that begin here."""
    b = Builder("nothing")
    graph = b.graph([b.neg(b.input("x", (1,)))])
    compile_graph(graph, {}, passes.PIPELINES["dense"](), resolve_target("cpu"))


def runner(target: str) -> Callable[[Graph], str]:
    """Verify, compile, run and compare a graph. -> what is wrong, "" where nothing is."""

    def run(graph: Graph) -> str:
        verify(graph)
        if target == "interpreter":
            found = wrong(graph, by_interpreter(_interpreter()), slack=4.0)
        else:
            found = wrong(graph, on_device(target), slack=1.0 if target == "cpu" else 4.0)
        return "\n".join(map(str, found))

    return run


def _interpreter():
    import pytest

    from ..ops.interpreted import Interpreter, make_interpretable
    from ..ops.test_lowering import SMALL

    make_interpretable(pytest.MonkeyPatch(), SMALL)
    return Interpreter()


if __name__ == "__main__":
    main(sys.argv[1:])
