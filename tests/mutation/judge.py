"""Runs mutants: compiled to a module, executed in float64, and compared to the independent reference."""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from glagen.check import check
from glagen.derive import derive
from glagen.emit import emit
from glagen.errors import InternalError, Source
from glagen.ir.document import Document
from glagen.ir.interval import Interval
from glagen.ir.recurrence import Recurrence
from glagen.ir.schedule import Options, Schedule
from glagen.parse import parse, read
from glagen.regimes import Case, Problem, draw
from glagen.schedule import schedule
from glagen.tolerances import PRECISIONS
from glagen.verify import op_results, reference_results
from tests.mutation.mutants import Mutant
from tests.numerics.helpers import keep_on_chip

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
FULL = os.environ.get("GLAGEN_FULL") == "1"
CHUNK = 16
CASE = Case(1, 40, 2, 3, 2)  # two chunks and a half
SEED = 0
LIMIT = 1e-6
KERNELS_IN = ("fp32", "fp16")  # the types of inputs that kernels are judged in
SURVIVORS = Path(__file__).parent / "survivors.txt"

# The committed specs read after the write; these read before it, where every interval ends a step earlier.
BEFORE = {
    "before_k": ("g: {axes: [t, i], domain: '[-inf, 0]'}", "exp(g[t,i])"),
    "before_v": ("g: {axes: [t, j], domain: '[-inf, 0]'}", "exp(g[t,j])"),
    "before_scalar": ("g: {axes: [t], domain: '[-inf, 0]'}", "exp(g[t])"),
}


def text_of(name: str) -> str:
    if name not in BEFORE:
        return (ROOT / "specs" / f"{name}.yaml").read_text()
    gate, factor = BEFORE[name]
    return (
        f"name: {name}\ninputs:\n  q: [t, i]\n  k: [t, i]\n  v: [t, j]\n  u: {{axes: [i], kind: parameter}}\n  {gate}\n"
        f"state: S[i, j]\nequations:\n  - S[t,i,j] = {factor} * S[t-1,i,j] + k[t,i] * v[t,j]\n"
        "  - o[t,j] = sum(i, q[t,i] * S[t-1,i,j]) + sum(i, q[t,i] * u[i] * k[t,i]) * v[t,j]\n"
    )


def _recurrences() -> list[str]:
    """The committed specs of one state: the kernels of several are those of each."""
    paths = sorted((ROOT / "specs").glob("*.yaml"))
    return [p.stem for p in paths if isinstance(check(parse(read(p))), Recurrence)]


SPECS = (*_recurrences(), *BEFORE)
# Halves down to single rows; and other covers of the same recurrence: sub-chunks with an exact diagonal, halves down to
# anchored leaves, one leaf, one anchor where gates allow it.
COVERS: dict[str, dict[str, Any]] = {
    "": {},
    "subchunk": {"subchunk": 4},
    "leaves": {"low": -5.0},
    "anchored": {"low": -1.0},
    "guarded": {},
}
OPTIONS = {"": Options("bisect"), "leaves": Options("bisect")}  # by cover, if not the default

# Of these the lines of kernels are mutated too, in Triton's interpreter: one in so many when GLAGEN_FULL=1. It is slow,
# and the lines are those of the PyTorch form, which are all mutated.
KERNELS = {("gla", "guarded"): 1, ("gla_kv", ""): 5, ("before_v", "subchunk"): 5}
KERNELS_SAMPLE = 30  # one in so many otherwise; a multiple of those


def places() -> list[tuple[str, str]]:
    """(spec, cover) wherever the cover makes a difference."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for name, cover in itertools.product(SPECS, COVERS):
        chosen = plan_of(name, cover).covers
        found.setdefault((name, str(chosen)), (name, cover))
    return list(found.values())


def document_of(name: str, subchunk: int | None = None, low: float | None = None) -> Document:
    """A spec with small chunks; `low` bounds the range of its log gates."""
    document = parse(Source(f"{name}.yaml", text_of(name)))
    declarations = document.declarations
    if low is not None:
        bounded = Interval(low, 0.0)
        declarations = tuple(
            replace(d, domain=bounded) if d.domain == Interval(-math.inf, 0.0) else d for d in declarations
        )
    return replace(document, chunk=CHUNK, subchunk=subchunk, declarations=declarations)


def plan_of(name: str, cover: str) -> Schedule:
    return schedule(derive(check(document_of(name, **COVERS[cover]))), OPTIONS.get(cover, Options()))


@dataclass
class Judge:
    """Tells right modules from wrong ones, for one spec and one case."""

    name: str
    cover: str = ""
    case: Case = CASE
    precision: str = "fp64"
    limit: float = LIMIT
    load: Callable[[str], ModuleType] = field(default=lambda text: twin_only(text))

    def __post_init__(self) -> None:
        self.document = document_of(self.name, **COVERS[self.cover])
        self.options = OPTIONS.get(self.cover, Options())
        self.schedule = plan_of(self.name, self.cover)
        self.program = self.schedule.program
        # Stronger gates than mild ones hide what crosses a chunk, but what a guard leaves over is for them alone.
        guarded = any("guard " in text for _, text in self.schedule.covers)
        regimes = ("mild", "extreme", "strong") if guarded else ("mild",)
        self.problems = [draw(self.document, regime, self.case, SEED) for regime in regimes]
        if guarded:
            times = 4.0 if self.precision == "fp16" else 1.5  # one anchor reaches further there
            self.problems[-1] = _stronger(self.problems[-1], self.problems[0], times)
        if guarded and self.precision in KERNELS_IN:  # steps that fit into a chunk: kernels make the diagonal apart
            few = replace(self.case, T=self.schedule.chunk)
            self.problems.append(draw(self.document, "mild", few, SEED))
        self.expected = [reference_results(self.document, problem, CPU) for problem in self.problems]
        self.text = emit(self.schedule, "0" * 16)
        self.seen: dict[str, str] = {}

    def verdict(self, mutant: Mutant) -> str:
        """`killed`, `refused` (an invariant of a later stage broke) or `survived`."""
        try:
            value = mutant.value if isinstance(mutant.value, Schedule) else schedule(mutant.value, self.options)
            text = emit(value, "0" * 16)
        except InternalError:
            return "refused"
        except (AssertionError, LookupError, TypeError, ValueError, StopIteration, AttributeError, RecursionError):
            return "crashed"
        if text not in self.seen:
            self.seen[text] = "survived" if text == self.text else self._run(text)
        return self.seen[text]

    def _run(self, text: str) -> str:
        try:
            results = self.results(text)
        except Exception:
            return "killed"
        return "survived" if self.error(results) <= self.limit else "killed"

    def results(self, text: str) -> list[tuple[int, str, Tensor]]:
        """Of each problem, by number: every result, by name; of kernels in memory, on chip, and on chip both ways."""
        both = f"{self.name}_fused_value_gradients_kernel" in text
        modes = [("saved", False), ("recomputed", False), ("saved", True)][
            : 2 + both if self.precision in KERNELS_IN else 1
        ]
        found = []
        for mode, on_chip in modes:
            module = self.load(text)
            if on_chip:
                keep_on_chip(module)
            precision = PRECISIONS[self.precision]
            for n, problem in enumerate(self.problems):
                actual = op_results(self.document, module, problem, precision, CPU, mode)
                found += [(n, name, x) for name, x in actual.items()]
        return found

    def error(self, results: list[tuple[int, str, Tensor]]) -> float:
        """The worst error of any result, relative to its largest number; infinite for what is not a number."""
        worst = 0.0
        for n, name, actual in results:
            expected = self.expected[n][name]
            if actual.shape != expected.shape or not bool(actual.isfinite().all()):
                return float("inf")
            off = (actual.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-9)
            worst = max(worst, float(off))
        return worst


def _stronger(strong: Problem, mild: Problem, times: float) -> Problem:
    """Gates for which eight rows of these small chunks are mild, and not the whole: `times` those of -5 to 0, in every
    other column. What crosses halves of a chunk does so in the others."""
    gates = {
        name: torch.where(torch.arange(x.shape[-1]) % 2 == 0, times * x, mild.arguments[name])  # type: ignore[call-overload]
        for name, x in strong.arguments.items()
        if isinstance(x, Tensor) and not torch.equal(x, mild.arguments[name])  # type: ignore[arg-type]
    }
    assert gates
    return replace(strong, arguments=strong.arguments | gates)


def twin_only(text: str) -> ModuleType:
    """The module from its text, as where there is no Triton: the PyTorch form serves everything."""

    def without_triton(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "triton":
            raise ImportError(name)
        return builtins.__import__(name, *args, **kwargs)

    module = ModuleType("mutant")
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": without_triton}
    exec(compile(text, "mutant", "exec"), module.__dict__)
    return module


def judge_all(judge: Judge, mutants: Iterable[Mutant]) -> tuple[Counter[str], list[str]]:
    """How many mutants met which fate, and who survived."""
    fates: Counter[str] = Counter()
    survivors = []
    for mutant in mutants:
        fate = judge.verdict(mutant)
        fates[fate] += 1
        if fate == "survived":
            survivors.append(mutant.label)
    return fates, survivors


def label_of(name: str, cover: str, what: str) -> str:
    return " ".join(x for x in (name, cover, what) if x)


def chosen(mutants: list[Mutant], where: str, every: int) -> list[Mutant]:
    """One in `every`, and always those that are known to survive."""
    known = survivors_of(where)
    return [m for n, m in enumerate(mutants) if n % every == 0 or m.label in known]


@functools.cache
def listed() -> dict[str, dict[str, str]]:
    """survivors.txt: by where they are, the labels of mutants that change nothing, and why."""
    found: dict[str, dict[str, str]] = {}
    reason = label = ""
    for line in SURVIVORS.read_text().splitlines():
        if line.startswith("        "):
            for where in line.strip().split(", "):
                found.setdefault(where, {})[label] = reason
        elif line.startswith("    "):
            label = line.strip()
        elif line:
            reason = line
    return found


def survivors_of(where: str) -> set[str]:
    return set(listed().get(where, {}))
