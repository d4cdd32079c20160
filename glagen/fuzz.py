"""Random specs against the recurrence, by the thousand: what `glagen fuzz` runs.

Number n of a seed is always the same spec, extents and gates. A log holds a line for each that has been tried, so that
a run goes on where the last one stopped. Workers are processes: one that crashes or hangs costs one number.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from glagen.errors import InternalError, Source, SpecError
from glagen.loader import load
from glagen.parse import parse
from glagen.regimes import REGIMES, draw
from glagen.samples import Dice, any_spec, case
from glagen.tolerances import PRECISIONS
from glagen.verify import MODES, compare, op_results, reference_results

BATCH = 50  # numbers a worker tries before another takes over: modules are never unloaded
PATIENCE = 60.0  # seconds a number may take
CPU = torch.device("cpu")
# A parameter's gradient is one number, a sum in which the steps of an unlucky draw cancel: it has fewer digits.
PRECISION = replace(PRECISIONS["fp64"], budget=1e-8)

Entry = dict[str, Any]  # number, spec, case, regime, and a fault that is empty where all went well


def sample(seed: int, number: int) -> Entry:
    """What a number stands for."""
    dice = Dice(Random(f"{seed} {number}"))
    text, extents, regime = any_spec(dice), case(dice), dice.one(REGIMES)
    return {"number": number, "spec": text, "case": extents, "regime": regime}


def attempt(seed: int, number: int) -> Entry:
    """Compile one spec and compare the PyTorch form's outputs, states and gradients to the recurrence in float64."""
    entry = sample(seed, number)
    fault = ""
    try:
        source = Source("fuzz.yaml", entry["spec"])
        document, module = parse(source), load(source)
        problem = draw(document, entry["regime"], entry["case"], number)
        expected = reference_results(document, problem, CPU)
        # what overflows there says nothing, as a derivative of sigmoid(x) ** (1/16) may at -744
        silent = {name: x.isinf() for name, x in expected.items()}
        expected = {name: x.masked_fill(silent[name], 0) for name, x in expected.items()}
        for mode in MODES:
            actual = op_results(document, module, problem, PRECISION, CPU, mode)
            actual = {name: x.masked_fill(silent[name], 0) for name, x in actual.items()}
            labels = (entry["regime"], str(entry["case"]), PRECISION.name, mode)
            bad = [row for row in compare(document, actual, expected, PRECISION, labels) if not row.ok]
            fault = fault or "; ".join(f"{row.quantity} errs {row.error:.1e}" for row in bad)
    except (SpecError, InternalError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        fault = f"{type(error).__name__}: {error}"
    return {**entry, "case": str(entry["case"]), "fault": fault}


def fuzz(seed: int, count: int, log: Path, say: Callable[[int, int], None]) -> list[Entry]:
    """Try the first `count` numbers that `log` has no line for; the entries with a fault, earlier ones included.

    `say` is told how many are done and how many have a fault. Raises ValueError where `log` is something else.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if text.strip() and not _entries(text) and not text.startswith('{"seed"'):  # the first line may have been cut off
        raise ValueError(f"{log}: not a log of `glagen fuzz`; name another file")
    log.open("a", encoding="utf-8").close()  # where nothing can be written, that is told first
    entries = {entry["number"]: entry for entry in _entries(text) if entry.get("seed") == seed}
    unfinished = text[-1:] not in ("", "\n")
    for batch in _batches([n for n in range(count) if n not in entries]):
        while batch:
            found = _run(seed, batch)
            with log.open("a", encoding="utf-8") as file:
                file.write("\n" if unfinished else "")
                unfinished = False
                for entry in found:
                    kept = entry if entry["fault"] else {"number": entry["number"], "fault": ""}
                    file.write(json.dumps({"seed": seed, **kept}) + "\n")
            entries |= {entry["number"]: entry for entry in found}
            batch = batch[len(found) :]
            say(len(entries), sum(bool(e["fault"]) for e in entries.values()))
    return [entry for entry in entries.values() if entry["fault"]]


def _entries(text: str) -> list[Entry]:
    """What whole lines say; one that was cut off is as good as not there."""
    entries = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            entry = json.loads(line)
            entries += [entry] if isinstance(entry, dict) and {"number", "fault"} <= set(entry) else []
    return entries


def _batches(numbers: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(numbers), BATCH):
        yield numbers[first : first + BATCH]


def _run(seed: int, numbers: list[int]) -> list[Entry]:
    """The entries of a worker; the last has a fault if neither it nor one for that number alone could report it."""
    command = [sys.executable, "-m", "glagen.fuzz", str(seed), *map(str, numbers)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE + 2 * len(numbers))
        out, trouble = run.stdout, run.stderr.strip()[-300:]
    except subprocess.TimeoutExpired as expired:
        out, trouble = (expired.stdout or b"").decode(), "no answer in time"
    entries = _entries(out)
    if len(entries) < len(numbers) > 1:
        entries += _run(seed, [numbers[len(entries)]])
    elif len(entries) < len(numbers):
        lost = sample(seed, numbers[len(entries)])
        entries.append({**lost, "case": str(lost["case"]), "fault": f"the worker ended: {trouble}"})
    return entries


def _work(seed: int, numbers: list[int]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GLAGEN_CACHE"] = folder
        for number in numbers:
            print(json.dumps(attempt(seed, number)), flush=True)


if __name__ == "__main__":
    _work(int(sys.argv[1]), [int(n) for n in sys.argv[2:]])
