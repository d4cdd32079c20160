"""The same problem put otherwise: sequences packed one after another, heads that share tensors or read one state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glagen.ir.document import Declaration, Document
from glagen.ir.expr import Ref, refs, walk
from glagen.reference import ONES, evaluate, output_names
from glagen.regimes import Problem

LEFT_OVER = 3  # steps after the last packed sequence

Results = dict[str, Tensor]


def with_constants(document: Document, problem: Problem) -> Problem:
    """The problem with the constants that it leaves to their defaults: [H, ...], float64."""
    case = problem.case
    sizes = {"H": case.H, "K": case.K, "V": case.V}
    known = {n: torch.tensor(float(size), dtype=torch.float64).reshape(ONES) for n, size in sizes.items()}
    known["h"] = torch.arange(case.H, dtype=torch.float64).reshape(1, -1, 1, 1, 1)

    def value_of(reference: Ref) -> Tensor:
        return known[reference.name]

    arguments = dict(problem.arguments)
    for d in document.declarations:
        if d.kind == "constant" and arguments[d.name] is None:
            assert d.default is not None
            value = evaluate(d.default, value_of, sizes, torch.device("cpu")).flatten()
            shape = [case.widths[a] for a in d.axes]
            arguments[d.name] = value.reshape(-1, *(1 for _ in shape)).expand(case.H, *shape)
    return replace(problem, arguments=arguments)


def final_names(document: Document) -> tuple[str, ...]:
    """The final states among the results of a call: `final_state`, or `final_state S` and so on if there are more."""
    return _each_state("final_state", document)


def initial_gradients(document: Document) -> tuple[str, ...]:
    """The gradients of initial states among the results of a call."""
    return _each_state("d initial_state", document)


def _each_state(words: str, document: Document) -> tuple[str, ...]:
    names = [state.name for state in document.states]
    return (words,) if len(names) == 1 else tuple(f"{words} {name}" for name in names)


# -- packed sequences --------------------------------------------------------------------------------------------------


def packed(document: Document, problem: Problem, expected: Results) -> tuple[Problem, Results, Tensor]:
    """The batch as one row of sequences, an empty one after the first and a few steps of none at the end: the problem,
    what is expected of it, and cu_seqlens."""
    case = problem.case
    ends = [0, *(case.T * n for n in (1, *range(1, case.B + 1)))]
    timed = {d.name for d in document.declarations if "t" in d.axes}

    def row(x: Tensor, rest: float) -> Tensor:
        x = x.flatten(0, 1)
        return torch.cat([x, torch.full_like(x[:1], rest).expand(LEFT_OVER, *x.shape[1:])])[None]

    def with_empty(x: Tensor, empty: Tensor) -> Tensor:
        return torch.cat([x[:1], empty[-1:], x[1:]])

    starts, adjoints = ([with_empty(x, x) for x in s] for s in (problem.initial_states, problem.state_cotangents))
    arguments = {n: row(x, -1.0) if n in timed and isinstance(x, Tensor) else x for n, x in problem.arguments.items()}
    cotangents = tuple(row(x, 1.0) for x in problem.output_cotangents)
    put = Problem(case, arguments, tuple(starts), cotangents, tuple(adjoints))
    of_empty = dict(zip(final_names(document), problem.initial_states, strict=False))
    of_empty |= dict(zip(initial_gradients(document), problem.state_cotangents, strict=False))
    results = {}
    for name, x in expected.items():
        if name in (*final_names(document), *initial_gradients(document)):
            results[name] = with_empty(x, of_empty[name].to(x.device) if name in of_empty else torch.zeros_like(x))
        else:
            rows = name in output_names(document) or name.removeprefix("d ") in timed
            results[name] = row(x, 0.0) if rows else x
    return put, results, torch.tensor(ends)


# -- shared heads ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shared:
    """A call with fewer heads of some tensors, and the call it stands for, in which each has all `heads`."""

    call: Problem
    whole: Problem
    heads: int  # of the outputs
    state_heads: int

    def gathered(self, document: Document, results: Results) -> Results:
        """What the call should give, from what the whole gives: gradients are summed over heads that share a tensor."""
        found = {}
        reads = self.heads // self.state_heads
        axes = {f"d {d.name}": _head_axis(d) for d in document.declarations if d.kind != "scalar"}
        for name, x in results.items():
            if name in final_names(document):
                found[name] = x[:, ::reads]
            elif name in initial_gradients(document):
                found[name] = x.unflatten(1, (-1, reads)).sum(2)
            elif name in axes:
                given = self.call.arguments[name.removeprefix("d ")]
                assert isinstance(given, Tensor)
                found[name] = x.unflatten(axes[name], (given.shape[axes[name]], -1)).sum(axes[name] + 1)
            else:
                found[name] = x
        return found


def shared(document: Document, problem: Problem) -> Shared | None:
    """Half the heads (or a third, ...) for all that the state is made of, half of those for the first of it; None where
    there is one head alone."""
    heads = problem.case.H
    if heads == 1:
        return None
    writers = _writers(document)
    inputs = [d.name for d in document.declarations if d.timed]
    state_heads = _part(heads) if any(n not in writers for n in inputs) else heads
    fewest = next(n for n in inputs if n in writers)
    alone = sum(n in writers for n in inputs) == 1  # then the state has no more heads than it
    arguments: dict[str, Tensor | float | None] = {}
    spread: dict[str, Tensor | float | None] = {}
    few = with_constants(document, replace(problem, case=replace(problem.case, H=state_heads)))
    for d in document.declarations:
        x = problem.arguments[d.name]
        arguments[d.name] = x
        known = few.arguments[d.name]
        if not isinstance(known, Tensor):
            spread[d.name] = known
            continue
        count = state_heads if d.name in writers else heads
        count = _part(count) if d.name == fewest and not alone else count
        axis = _head_axis(d)
        if isinstance(x, Tensor):
            arguments[d.name] = known = x.narrow(axis, 0, count)
        spread[d.name] = known.repeat_interleave(heads // known.shape[axis], axis)
    reads = heads // state_heads
    starts, adjoints = (
        tuple(x[:, :state_heads] for x in states) for states in (problem.initial_states, problem.state_cotangents)
    )
    first = torch.arange(heads) % reads == 0
    wide_starts = tuple(x.repeat_interleave(reads, 1) for x in starts)
    wide_adjoints = tuple(
        x.repeat_interleave(reads, 1) * first.reshape(-1, *(1 for _ in x.shape[2:])) for x in adjoints
    )
    call = replace(problem, arguments=arguments, initial_states=starts, state_cotangents=adjoints)
    whole = replace(problem, arguments=spread, initial_states=wide_starts, state_cotangents=wide_adjoints)
    return Shared(call, whole, heads, state_heads)


def _part(n: int) -> int:
    """n by its smallest divisor above 1."""
    return n // next((d for d in range(2, n + 1) if n % d == 0), 1)


def _head_axis(d: Declaration) -> int:
    return 2 if d.timed else 0


def _writers(document: Document) -> set[str]:
    """The declared names that the equations of a state come to, through intermediate names."""
    bodies = {e.target.name: e.body for e in document.equations}
    states = {s.name for s in document.states}
    found: set[str] = set()
    waiting = [n for n in bodies if n in states]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in bodies:
            waiting += [r.name for node in walk(bodies[name]) for r in refs(node)]
    return found
