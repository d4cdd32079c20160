"""Writes survivors.txt anew: GLAGEN_FULL=1 python -m tests.mutation.survivors [--kernels]

Runs every mutant (minutes; --kernels: those of kernels too, which takes longer) and lists those that survive under the
reason that REASONS knows for such a mutant. A survivor without one is listed as unexplained, which fails the tests:
find out why it is equivalent, or what the check does not see.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import torch

from tests.mutation.judge import (
    FULL,
    KERNELS,
    ROOT,
    SPECS,
    SURVIVORS,
    Judge,
    judge_all,
    label_of,
    listed,
    places,
)
from tests.mutation.mutants import program_mutants, twin_mutants

UNEXPLAINED = "UNEXPLAINED"
# (what was mutated, why nothing changes); the first that fits.
REASONS = (
    (
        r"unclamped|`\(1/16\) \* logsigmoid|(^|, )d(A|dt_)(\[t\])?: `(-\()?dt\[t\] \* A",
        "A gate below the clamp has a gradient of 0 already: every path that crosses its step has a factor exp(-800), "
        "which is 0. The factor `unclamped` keeps rounding noise out, and infinite slopes.",
    ),
    (
        r"twin_backward, scores: (negated|mask %\w+, not %diagonal)",
        "With vector gates on both sides the backward reads this matrix in the blocks of a cover alone, to make what a "
        "gate's gradient takes from them: its diagonal goes nowhere.",
    ),
    (
        r"d?scores_diagonal(_T)?: mask",
        "The matrix is zero on the other side of the diagonal, so its row sums over the half with the diagonal are the "
        "diagonal.",
    ),
    (
        r"(^|, )d?scores(_T)?: (without mask|mask) %?(causal|earlier|diagonal)",
        "The entries that the mask removes are never read: the cover masks its blocks and its diagonal itself, and a "
        "product of two matrices with the same mask needs it once.",
    ),
    (
        r"_fade(_before)?: negated",
        "Of halves of halves both halves of a decay are in this tile, or what it fades, and results have one of each: "
        "their signs cancel.",
    ),
    (
        r"without mask %(same|upper|lower|inside)",
        "Another mask implies this one: one leaf, or two halves, are a single block, whose triangle the matrix or its "
        "consumer has masked; strips have `upper` and `lower` in `same`, offsets `inside` in `on_offset` and `shift`.",
    ),
)


def reason_of(label: str) -> str:
    return next((reason for pattern, reason in REASONS if re.search(pattern, label)), UNEXPLAINED)


def collect(kernels: bool) -> dict[str, list[str]]:
    """The survivors of every place. Prints the numbers."""
    found: dict[str, list[str]] = {}
    totals: dict[str, dict[str, int]] = {}

    def note(where: str, fates: dict[str, int], survivors: list[str]) -> None:
        found[where] = survivors
        total = totals.setdefault(where.split()[-1], {})
        for fate, count in fates.items():
            total[fate] = total.get(fate, 0) + count
        print(where, dict(fates), flush=True)

    for name in SPECS:
        judge = Judge(name)
        note(label_of(name, "", "statements"), *judge_all(judge, program_mutants(judge.program)))
    for name, cover in places():
        judge = Judge(name, cover)
        note(label_of(name, cover, "twin"), *judge_all(judge, twin_mutants(judge.schedule)))
    for (name, cover), every in KERNELS.items() if kernels else ():
        result = run_worker(name, cover, every)
        note(label_of(name, cover, "kernels"), result["fates"], result["survivors"])
    if not kernels:
        found |= {where: list(labels) for where, labels in listed().items() if where.endswith("kernels")}
    print(totals)
    return found


def run_worker(name: str, cover: str, every: int) -> dict:
    """One mutant of kernels in `every`, in a process of their own."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.mutation.kernel_worker", name, cover, str(every)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    if run.returncode:
        raise RuntimeError(run.stderr[-1000:])
    return json.loads(run.stdout.splitlines()[-1])


def text_of(found: dict[str, list[str]]) -> str:
    """Reasons, under each the mutants, under each where they are."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for where, labels in found.items():
        for label in labels:
            reasons.setdefault(reason_of(label), {}).setdefault(label, []).append(where)
    lines = []
    for reason, labels in sorted(reasons.items()):
        lines.append(reason)
        for label, wheres in sorted(labels.items()):
            lines += [f"    {label}", f"        {', '.join(wheres)}"]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if not FULL:
        raise SystemExit("set GLAGEN_FULL=1")
    torch.set_num_threads(1)
    SURVIVORS.write_text(text_of(collect("--kernels" in sys.argv)))
