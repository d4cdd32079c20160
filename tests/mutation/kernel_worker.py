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
from pathlib import Path
from types import ModuleType

import torch

from glagen.regimes import Case
from tests.interpreter import spare_the_interpreter
from tests.mutation.judge import Judge, chosen, judge_all, label_of
from tests.mutation.mutants import kernel_mutants

KERNEL_CASE = Case(1, 20, 1, 7, 5)


def main(name: str, cover: str, every: str) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1")
    spare_the_interpreter()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(name, cover, KERNEL_CASE, "fp32", 1e-4, load=lambda text: _from_file(text, Path(folder)))
        base = judge.error(judge.results(judge.text))
        mutants = kernel_mutants(judge.schedule)
        fates, survivors = judge_all(judge, chosen(mutants, label_of(name, cover, "kernels"), int(every)))
    print(json.dumps({"error": base, "count": len(mutants), "fates": fates, "survivors": survivors}))


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
