"""The committed kernels under NVIDIA's compute-sanitizer, which reports what is amiss:

    compute-sanitizer --tool memcheck python tests/numerics/sanitize.py [NAME ...]
    compute-sanitizer --tool racecheck python tests/numerics/sanitize.py [NAME ...]

Every op (or those named), forward and backward, with chunk states saved and recomputed: as it is, with packed
sequences, one of them empty, and with shared heads; and its step, into new states and in place. Then as with more heads
than a GPU has room for, where states stay on chip, or programs take chunks in turn; where a kernel of their own makes
scores, backwards share operands, and walks are given theirs; in segments; and as with few heads, where sequences are
walked along in pieces. The extents are tiny and odd, for every access is looked at. The results are not: that is what
h200.py does. Exits 1 if a kernel was never launched.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # each tensor on its own: an access past its end is seen
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from glagen.check import check  # noqa: E402
from glagen.derive import derive  # noqa: E402
from glagen.ir.document import Document  # noqa: E402
from glagen.ir.recurrence import Recurrence  # noqa: E402
from glagen.ir.tuned import ALONE_KERNELS  # noqa: E402
from glagen.regimes import Case, Problem, draw  # noqa: E402
from glagen.tolerances import PRECISIONS, Precision  # noqa: E402
from glagen.variants import packed, shared  # noqa: E402
from glagen.verify import MODES, SEGMENTS, op_results, wide  # noqa: E402
from tests.numerics.helpers import (  # noqa: E402
    all_gradients,
    both_sides,
    compiled,
    cut_in_pieces,
    document_of,
    forget_runs,
    generated,
    given_by_halves,
    half_chunks,
    keep_on_chip,
    note_launches,
    operands_shared,
    reads_kept,
    scores_apart,
    spec_text,
    twice_as_long,
    walks_given,
)

CASES = (Case(2, 70, 2, 20, 12), Case(1, 65, 2, 32, 32, state=False), Case(1, 33, 2, 60, 100), Case(1, 20, 2, 11, 13))
STEPS = 2

Call = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of modules in generated/; all unless given")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="these extents alone; racecheck is slow")
    parser.add_argument("--precision", choices=("bf16", "fp32"), help="this one alone")
    options = parser.parse_args()
    device = torch.device(options.device)
    missed = False
    for name in options.names or sorted(path.stem for path in (ROOT / "generated").glob("*.py")):
        count, left = 0, kernels(generated(name))
        cases = CASES if options.case is None else (CASES[options.case],)
        precisions = [options.precision] if options.precision else ["bf16", "fp32"]
        for call in all_calls(name, device, cases, precisions, left):
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            count += 1
        print(f"{name}: {count} calls" + "".join(f", {kernel} never launched" for kernel in sorted(left)), flush=True)
        missed |= bool(left)
    return int(missed)


def kernels(module: ModuleType) -> set[str]:
    return {name for name in vars(module) if name.endswith("_kernel")}


def all_calls(
    name: str, device: torch.device, cases: Sequence[Case], precisions: Sequence[str], left: set[str]
) -> Iterator[Call]:
    """All calls of an op, not yet made; what they launch is no longer `left`."""
    document = document_of(spec_text(name))
    yield from step_calls(document, _noting(generated(name), left), device, cases, precisions)
    yield from calls(document, _noting(generated(name), left), device, cases, precisions, MODES)
    for arrange in (keep_on_chip, take_in_turn):
        module = _noting(generated(name), left)
        arrange(module)
        yield from calls(document, module, device, cases, precisions, ("saved",))
    if isinstance(check(document), Recurrence):
        capability = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
        heads = [(case.K, case.V) for case in cases]
        table = (*scores_apart(document, capability, *heads), *operands_shared(document, capability, *heads))
        walks = (
            *twice_as_long(document, capability, *heads),
            *walks_given(document, capability, *heads),
            *all_gradients(document, capability, *heads),
        )
        both = both_sides(document, capability, *heads)  # in chunks as they are by the rule
        kept = reads_kept(document, capability, *heads)
        as_it_is = (lambda module: None,)
        arranged = [
            (table, (*as_it_is, keep_on_chip)),
            (walks, (have_many_heads,)),
            (both, as_it_is),
            (kept, (keep_on_chip,)),
        ]
        if {f"{name}_{kernel}_kernel" for kernel in ALONE_KERNELS} & kernels(generated(name)):
            arranged.append((half_chunks(document, capability, *heads), (have_many_heads,)))
        if not derive(check(document)).gates:
            arranged.append((given_by_halves(document, capability, *heads), (have_many_heads,)))
        for tuned, arrangements in arranged:
            module = compiled(spec_text(name), tuned=tuned)
            left |= kernels(module) - kernels(generated(name))
            for arrange in arrangements:
                arrange(module)
                yield from calls(document, _noting(module, left), device, cases, precisions, ("saved",))
    module = _noting(generated(name), left)
    cut_in_pieces(module)
    whole = [replace(case, T=4 * module.CHUNK) for case in cases]  # no others are cut
    yield from calls(document, module, device, whole, precisions, ("saved",))


def take_in_turn(module: ModuleType) -> None:
    """Two chunks, in programs that take several of many."""
    for function in [n for n in vars(module) if n.startswith("_in_turn")]:  # one a state
        setattr(module, function, lambda *_: 2)
    forget_runs(module)


def have_many_heads(module: ModuleType) -> None:
    """As beside one multiprocessor, so that walks are given their operands."""
    module._multiprocessors = lambda: 1
    forget_runs(module)


def _noting(module: ModuleType, left: set[str]) -> ModuleType:
    note_launches(module, left.discard)
    return module


def calls(
    document: Document,
    module: ModuleType,
    device: torch.device,
    cases: Sequence[Case],
    precisions: Sequence[str],
    modes: Sequence[str],
) -> Iterator[Call]:
    """Forward and backward."""
    for case in cases:
        problem = draw(document, "reset", case)
        row, _, ends = packed(document, problem, {})
        few = shared(document, problem)
        assert few is not None
        for precision in (PRECISIONS[name] for name in precisions):
            for mode in modes:
                for given, cu_seqlens in ((problem, None), (row, ends), (few.call, None)):
                    arguments = (document, module, given, precision, device, mode)
                    yield functools.partial(op_results, *arguments, cu_seqlens=cu_seqlens)
            if case.T > module.CHUNK:
                yield functools.partial(op_results, document, module, problem, precision, device, segments=SEGMENTS)


def step_calls(
    document: Document, module: ModuleType, device: torch.device, cases: Sequence[Case], precisions: Sequence[str]
) -> Iterator[Call]:
    for case in cases:
        problem = draw(document, "reset", case)
        few = shared(document, problem)
        assert few is not None
        for precision in (PRECISIONS[name] for name in precisions):
            for given in (problem, few.call):
                for inplace in (False, True):
                    yield functools.partial(steps, document, module, given, precision, device, inplace)


@torch.no_grad()
def steps(
    document: Document, module: ModuleType, problem: Problem, precision: Precision, device: torch.device, inplace: bool
) -> None:
    """A few steps from the problem's states, or into new ones if it has none."""
    function = getattr(module, f"{document.name}_step")
    dtypes = {d.name: wide(precision) if d.kind == "parameter" else precision.dtype for d in document.declarations}
    timed = {d.name for d in document.declarations if "t" in d.axes}
    states = tuple(x.to(device, wide(precision)) for x in problem.initial_states)
    state = states if len(states) > 1 else next(iter(states), None)
    for t in range(STEPS):
        given = {
            n: (x[:, t] if n in timed else x).to(device, dtypes[n]) if isinstance(x, Tensor) else x
            for n, x in problem.arguments.items()
        }
        *_, state = function(**given, state=state, inplace=inplace and bool(states))


if __name__ == "__main__":
    sys.exit(main())
