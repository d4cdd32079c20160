"""Judges mutants of Triton kernels in Triton's interpreter: python -m tests.mutation.kernel_worker NAME COVER EVERY

In a process of its own, with TRITON_INTERPRET=1 from the start: Triton reads it when it is imported. Prints fates and
survivors as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import torch

from glagen.regimes import Case
from tests.interpreter import spare_the_interpreter
from tests.mutation.judge import Judge, chosen, judge_all, label_of, survivors_of
from tests.mutation.mutants import kernel_mutants

KERNEL_CASE = Case(1, 20, 1, 7, 5)
# Runs for mild gates do some things beside 16-bit inputs alone: wrong ones are so by far.
LIMITS = {"fp32": 1e-4, "fp16": 5e-2}


def main(name: str, cover: str, every: str) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1")
    spare_the_interpreter()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        exact, narrow = (
            Judge(name, cover, KERNEL_CASE, precision, limit, load=lambda text: _from_file(text, Path(folder)))
            for precision, limit in LIMITS.items()
        )
        base = [judge.error(judge.results(judge.text)) / judge.limit for judge in (exact, narrow)]
        mutants, where = kernel_mutants(exact.schedule), label_of(name, cover, "kernels")
        fates, survivors = judge_all(exact, chosen(mutants, where, int(every)))
        unknown = [x for x in mutants if x.label in set(survivors) - survivors_of(where)]
        again, left = judge_all(narrow, unknown)
        survivors = [x for x in survivors if x in survivors_of(where) or x in left]
        fates = fates - Counter(survived=len(unknown)) + again
    print(json.dumps({"error": max(base), "count": len(mutants), "fates": fates, "survivors": survivors}))


def _from_file(text: str, folder: Path) -> ModuleType:
    """Triton reads the source of its kernels from a file."""
    _from_file.count = getattr(_from_file, "count", 0) + 1
    path = folder / f"mutant_{_from_file.count}.py"
    path.write_text(text)
    description = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])
