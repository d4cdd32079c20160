"""What the numerical tests share: parsing, compiling and importing specs, and comparing tensors."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from glagen.check import check
from glagen.derive import derive
from glagen.errors import Source
from glagen.ir.document import Document
from glagen.ir.schedule import Options
from glagen.ir.tuned import (
    ALONE_KERNELS,
    BOTH,
    DTYPES,
    GIVEN,
    GIVEN_KERNELS,
    HALVED,
    IN_HALVES,
    KEPT_BACK,
    KEPT_BY_KEYS,
    KEPT_KERNELS,
    OPERANDS,
    SHARED,
    SHARING,
    STRONG,
    Tuned,
    merged,
    power,
)
from glagen.loader import import_path, load
from glagen.parse import parse
from glagen.reference import output_names
from glagen.regimes import Case, draw
from glagen.schedule.tiles import chunk_of, gated_sides
from glagen.tolerances import Precision
from glagen.verify import op_results

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
CPU = torch.device("cpu")
# Leave the user's cache alone. Hypothesis looks through new modules for constants to draw, unless they lie in such a
# folder: generated ones take it as long as they take us, and what is drawn would go by which were made before.
os.environ.setdefault("GLAGEN_CACHE", os.path.join(tempfile.mkdtemp(prefix="glagen-tests-"), "site-packages"))


def document_of(text: str) -> Document:
    return parse(Source("test.yaml", text))


def spec_text(name: str) -> str:
    return (ROOT / "specs" / f"{name}.yaml").read_text()


def generated(name: str) -> ModuleType:
    """The committed module of a spec."""
    return import_path(ROOT / "generated" / f"{name}.py", f"committed_{name}")


@functools.lru_cache(maxsize=64)
def compiled(text: str, cover: str = "auto", tuned: tuple[Tuned, ...] | None = None) -> ModuleType:
    """The module that a spec compiles to."""
    return load(Source("test.yaml", text), Options(cover, tuned))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-10) -> None:
    """Asserts that all of `actual` is finite and near its like in `expected`, relative to the RMS (at least 1e-9)."""
    for name, x in actual.items():
        assert x.isfinite().all(), f"{name} is not finite"
        scale = expected[name].double().square().mean().sqrt().clamp(min=1e-9)
        error = (x.double() - expected[name].double()).square().mean().sqrt() / scale
        assert error <= tolerance, f"{name}: relative error {float(error):.1e}, allowed {tolerance:.0e}"


def changed_before(
    document: Document,
    module: ModuleType,
    precision: Precision,
    device: torch.device,
    mode: str,
    columns: tuple[int, int] = (20, 24),
) -> list[str]:
    """The outputs of which bits before a step depend on how strong gates are from there on: as in the regimes `unit`,
    for which the first run is made, `strong`, for which beside 16-bit inputs there is one between, and `extreme`, which
    asks for more than that."""
    case, cut, changed = Case(1, 100, 2, *columns), 60, []
    timed = [d.name for d in document.declarations if "t" in d.axes]
    for first, then in (("unit", "strong"), ("unit", "extreme"), ("strong", "extreme")):
        drawn, other = (draw(document, regime, case) for regime in (first, then))
        mixed = {n: torch.cat([drawn.arguments[n][:, :cut], other.arguments[n][:, cut:]], 1) for n in timed}  # type: ignore[index]
        before, after = (
            op_results(document, module, problem, precision, device, mode)
            for problem in (drawn, replace(drawn, arguments=drawn.arguments | mixed))
        )
        names = [n for n in output_names(document) if not torch.equal(before[n][:, :cut], after[n][:, :cut])]
        changed += [f"{n}, {first} then {then}" for n in names]
    return changed


# -- how kernels are arranged, which goes by the room on a GPU ---------------------------------------------------------


def past_reach_later(gates: Tensor, chunk: int, early: Sequence[int] = ()) -> Tensor:
    """Log gates [B, T, H, D] of which every second column passes what a growth reaches in the later half of each chunk,
    in chunks of `early` in the first half already, and in no other."""
    T, columns = gates.shape[1], gates.shape[3]
    step, column = torch.arange(T), torch.arange(columns)
    late = (step % chunk >= chunk // 2) | torch.isin(step // chunk, torch.tensor(early, dtype=step.dtype))
    strong = torch.where(late, -15.0, -1.0)[None, :, None, None]
    return torch.where(column % 2 == 0, strong, gates.double())


def forget_runs(module: ModuleType) -> None:
    """What runs were like before a module was arranged otherwise: calls alike do not repeat them."""
    module._records.clear()


def keep_on_chip(module: ModuleType) -> None:
    """The state and its gradient, whatever becomes of chunk states, as for many heads on a GPU; and where that has TMA,
    it stores them, as if they were large."""
    for function in [n for n in vars(module) if n.startswith("_stays_on_chip")]:  # one a state
        setattr(module, function, lambda *_: True)
    is_by_tma, large = getattr(module, "_is_by_tma", None), {"BLOCK_K": 128, "BLOCK_V": 128}  # beside gates on keys
    module._is_by_tma = lambda config, states, *walk: is_by_tma(config if walk else large, states, *walk)
    forget_runs(module)


def cut_in_pieces(module: ModuleType, chunks: int = 1) -> None:
    """Sequences, in pieces of so many chunks, as if there were room on the GPU for all of them."""
    module.LONG, module.PIECE, module._multiprocessors = 1, chunks, lambda: 10**6
    forget_runs(module)


def cut_in_two(module: ModuleType) -> None:
    """Sequences of more than one chunk, in two pieces, on a GPU so small that walks along them fill it."""

    def pieces(kernel: str, walks: int, K: int, V: int, T: int, dtype: torch.dtype) -> int:
        steps = module._chunk(K, V, dtype) if hasattr(module, "_chunk") else module.CHUNK
        return min(2, -(-T // steps))

    module._pieces, module._multiprocessors = pieces, lambda: 1
    forget_runs(module)


def note_launches(module: ModuleType, note: Callable[[str], object]) -> None:
    """Kernels that the module launches from here on are told of by name; no run is repeated."""
    launch, module._alike_in = module._launch, lambda *_: None

    def noting(kernel: Any, *arguments: Any, **options: Any) -> None:
        note(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    module._launch = noting


def scores_apart(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which a kernel of their own makes the scores of heads of so many columns, of all types: also those of
    strong gates for outputs by chunk states that a walk on chip has stored."""
    return _of_tiles(document, architecture, 1, ("scores", f"scores{STRONG}"), heads)


def twice_as_long(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which the chunks of such heads have twice as many steps, and walks on chip are given what is made of
    each beside scores."""
    return _of_tiles(document, architecture, 2, ("states", "scores", *GIVEN_KERNELS), heads)


def walks_given(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which walks on chip are given what has no value columns, in chunks of as many steps as by the rule."""
    return _of_tiles(document, architecture, 1, GIVEN_KERNELS, heads)


def operands_shared(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which kernels of the backward are given what two others make once for all of them."""
    return _of_tiles(document, architecture, 1, (*SHARED, *SHARING), heads)


def forward_shared(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """The same, and a forward on chip is given those of keys."""
    return _of_tiles(document, architecture, 1, (*SHARED, *SHARING, OPERANDS, GIVEN), heads)


def all_gradients(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which one kernel makes all gradients, or all but those of queries."""
    return _of_tiles(document, architecture, 1, ALONE_KERNELS, heads)


def by_halves(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which a forward takes chunks by halves, which have twice as many steps if there are gates."""
    return _of_tiles(document, architecture, 2 if derive(check(document)).gates else 1, (HALVED,), heads)


def half_chunks(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which one kernel makes all gradients, or all but those of queries, in chunks of twice as many steps,
    and a forward takes these by halves and stores their states."""
    return _of_tiles(document, architecture, 2, (f"fused{IN_HALVES}", *ALONE_KERNELS), heads)


def given_by_halves(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which walks on chip are given scores, in chunks of twice as many steps, which they take by halves."""
    walks = (f"{kernel}{IN_HALVES}" for kernel in ("scores", "fused", *GIVEN_KERNELS))
    return _of_tiles(document, architecture, 2, (*walks, "key_gradients"), heads)


def both_sides(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which one kernel makes a chunk's gradients of keys and of values."""
    return _of_tiles(document, architecture, 1, (BOTH,), heads)


def reads_kept(document: Document, architecture: int, *heads: tuple[int, int]) -> tuple[Tuned, ...]:
    """A table by which others keep what gradients of values read of states."""
    return _of_tiles(document, architecture, 1, KEPT_KERNELS, heads)


def _of_tiles(
    document: Document, architecture: int, chunks: int, kernels: tuple[str, ...], heads: tuple[tuple[int, int], ...]
) -> tuple[Tuned, ...]:
    """A table of 16 by 16 columns in a tile, or of all keys, and values, where it has to have them, for so many of the
    rule's chunks in one, and for all types."""

    def tile(kernel: str, K: int, V: int, dtype: str) -> tuple[int, int]:
        whole = (*GIVEN_KERNELS, HALVED, *ALONE_KERNELS, BOTH)
        keys = kernel.removesuffix(IN_HALVES) in whole or kernel == f"fused{IN_HALVES}"
        keys |= kernel in (KEPT_BACK, KEPT_BY_KEYS)
        # or walks would have other bits: see schedule/scored.py
        keys |= kernel.startswith("scores") and dtype != "bfloat16" and gated_sides(program) == "K"
        values = kernel in (*ALONE_KERNELS, BOTH)
        return (power(K) if keys else 16), (power(V) if values else 16)

    program = derive(check(document))
    kind = architecture, gated_sides(program), chunks * chunk_of(program)
    return merged(
        Tuned(*kind, kernel, dtype, power(K), power(V), *tile(kernel, K, V, dtype), 4, 2, 2, 1.0, 0.5, "", "")
        for kernel in kernels
        for K, V in heads
        for dtype in DTYPES
    )


# -- states one by one, however many an op has -------------------------------------------------------------------------


def state_names(document: Document) -> list[str]:
    """Initial states as errors call them."""
    several = len(document.states) > 1
    return [f"initial_state[{n}]" if several else "initial_state" for n in range(len(document.states))]


def flattened(results: Iterable[Tensor | tuple[Tensor, ...] | None]) -> list[Tensor | None]:
    """What an op returns, in a row."""
    return [x for r in results for x in (r if isinstance(r, tuple) else (r,))]


def one_by_one(document: Document, function: Callable) -> Callable:
    """The op with an argument for each initial state, by `state_names`, and with its results in a row."""
    names = state_names(document)

    def wrapper(**given):
        starts = tuple(given.pop(n, None) for n in names)
        if any(x is not None for x in starts):
            given["initial_state"] = starts if len(starts) > 1 else starts[0]
        return flattened(function(**given))

    return wrapper
