"""One forward and backward of a compiled module on random tensors: what `glagen run` shows."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from glagen.ir.document import Document
from glagen.loader import import_path
from glagen.regimes import Case, draw
from glagen.tolerances import PRECISIONS
from glagen.verify import compare, op_results, reference_results

CUDA = (Case(2, 512, 4, 128, 128), "bf16")
CPU = (Case(2, 256, 4, 64, 64), "fp32")


def trial(document: Document, path: Path, device: str) -> tuple[list[str], bool]:
    """Lines for a person, and whether every result agrees with the float64 recurrence."""
    module = import_path(path.resolve(), f"glagen_trial_{document.name}")
    case, name = CUDA if device.startswith("cuda") else CPU
    precision, place = PRECISIONS[name], torch.device(device)
    problem = draw(document, "mild", case)
    op_results(document, module, problem, precision, place)  # compile kernels, fill caches
    began = time.perf_counter()
    actual = op_results(document, module, problem, precision, place)
    if place.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - began
    expected = reference_results(document, problem, place)
    rows = compare(document, actual, expected, precision, ("mild", str(case), name, "auto"))
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else str(place)
    form = "Triton kernels" if place.type == "cuda" else "PyTorch form"
    lines = [
        f"{document.name} from {path}: {form} on {where}, {name}, {case}",
        f"forward and backward took {elapsed * 1e3:.1f} ms; relative RMS error against the float64 recurrence:",
        *(f"  {row.quantity:<16} {list(actual[row.quantity].shape)!s:<22} {row.error:.1e}" for row in rows),
    ]
    ok = all(row.ok for row in rows)
    lines.append(f"all within {precision.budget:g}" if ok else f"NOT all within {precision.budget:g}")
    return lines, ok
