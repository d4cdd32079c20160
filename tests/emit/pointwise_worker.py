"""Values of the Triton dialect's helpers, for test_pointwise.py.

In a process of its own, with TRITON_INTERPRET=1 from the start: Triton reads it when it is imported. Takes a folder
with the arguments of each helper, HELPER_float32.pt and HELPER_float64.pt, and writes the values in their place. In
notes.pt are notes of gates and how many of them count: in their place, what is said of these.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

from tests.numerics.helpers import generated

_expm1 = generated("hgrn2")._expm1
_log1p = generated("gla_sigmoid")._log1p
_softplus = generated("gla_sigmoid")._softplus
_raised, _lowered = generated("gla")._raised, generated("gla")._lowered
_none_met_strong = generated("gla")._none_met_strong


@triton.jit
def _kernel(x_ptr, y_ptr, COUNT: tl.constexpr, HELPER: tl.constexpr):
    n = tl.arange(0, COUNT)
    x = tl.load(x_ptr + n)
    if HELPER == "_expm1":
        y = _expm1(x)
    elif HELPER == "_log1p":
        y = _log1p(x)
    elif HELPER == "_raised":
        y = _raised(x, True)
    elif HELPER == "_lowered":
        y = _lowered(x, True)
    elif HELPER == "limited":  # all of it up to 126 nats, nothing from 127 on
        y = _lowered(x, True, tl.minimum(tl.maximum(x + 127.0, 0.0), 1.0), 127.0)
    else:
        y = -_softplus(-x) if HELPER == "logsigmoid" else _softplus(x)
    tl.store(y_ptr + n, y)


@triton.jit
def _of_notes_kernel(strong_ptr, notes, found_ptr):
    tl.store(found_ptr, _none_met_strong(strong_ptr, notes))


def main(folder: str) -> int:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1")
    notes = Path(folder, "notes.pt")
    found = [torch.tensor([False]) for _ in torch.load(notes)]
    for (strong, count), none in zip(torch.load(notes), found, strict=True):
        _of_notes_kernel[(1,)](strong, count, none)
    for path in sorted({*Path(folder).glob("*.pt")} - {notes}):
        x = torch.load(path)
        y = torch.empty_like(x)
        _kernel[(1,)](x, y, COUNT=len(x), HELPER=path.stem.rsplit("_", 1)[0])
        torch.save(y, path)
    torch.save([bool(none) for none in found], notes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
