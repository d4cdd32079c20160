"""The committed kernels under NVIDIA's compute-sanitizer, which reports what is amiss:

    compute-sanitizer --tool memcheck python tests/numerics/sanitize.py [NAME ...]
    compute-sanitizer --tool racecheck python tests/numerics/sanitize.py [NAME ...]

Every op (or those named), forward and backward, with chunk states saved and recomputed: as it is, with packed
sequences, one of them empty, and with shared heads; and its step, into new states and in place. The extents are tiny
and odd, for every access is looked at. The results are not: that is what h200.py does.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # each tensor on its own: an access past its end is seen
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from glagen.ir.document import Document  # noqa: E402
from glagen.regimes import Case, Problem, draw  # noqa: E402
from glagen.tolerances import PRECISIONS, Precision  # noqa: E402
from glagen.variants import packed, shared  # noqa: E402
from glagen.verify import MODES, op_results, wide  # noqa: E402
from tests.numerics.helpers import document_of, generated, spec_text  # noqa: E402

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
    for name in options.names or sorted(path.stem for path in (ROOT / "generated").glob("*.py")):
        count = 0
        cases = CASES if options.case is None else (CASES[options.case],)
        precisions = [options.precision] if options.precision else ["bf16", "fp32"]
        for call in calls(document_of(spec_text(name)), generated(name), device, cases, precisions):
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            count += 1
        print(f"{name}: {count} calls", flush=True)
    return 0


def calls(
    document: Document, module: ModuleType, device: torch.device, cases: Sequence[Case], precisions: Sequence[str]
) -> Iterator[Call]:
    """All calls of an op, not yet made."""
    for case in cases:
        problem = draw(document, "reset", case)
        row, _, ends = packed(document, problem, {})
        few = shared(document, problem)
        assert few is not None
        for precision in (PRECISIONS[name] for name in precisions):
            for mode in MODES:
                for given, cu_seqlens in ((problem, None), (row, ends), (few.call, None)):
                    arguments = (document, module, given, precision, device, mode)
                    yield functools.partial(op_results, *arguments, cu_seqlens=cu_seqlens)
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
