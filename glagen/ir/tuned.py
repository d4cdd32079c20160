"""Configurations that were measured, and tables of them as files.

A configuration belongs to a kind of kernel, not to a spec: to all recurrences that have gates on the same sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from glagen.files import write_text

DTYPES = ("bfloat16", "float16", "float32")
# The kernels that keep a state on chip, or its gradient, and are given what others make (see schedule/given.py).
GIVEN_KERNELS = GIVEN, GIVEN_BACK = "fused_given", "fused_given_value_gradients"
ON_CHIP = "fused", "fused_value_gradients"  # those that make that themselves
# Kernels of the backward that are given what two others make once for all of them: of keys, and of values.
ADJOINT_GIVEN, KEYS_GIVEN = "adjoint_states_given", "key_gradients_given"
SHARING = ADJOINT_GIVEN, KEYS_GIVEN, "value_gradients_given"
SHARED = KEY_OPERANDS, VALUE_OPERANDS = "key_operands", "value_operands"
OPERANDS = "operands"  # that which makes those of keys for a forward on chip, which keeps them for the backward
KEY_GRADIENTS = "key_gradients"  # the kernel of a chunk's gradients on the key side, if nothing is given
# The forward that takes chunks by halves and stores no states (see schedule/halves.py).
HALVED = "fused_halved"
# The kernel that makes all gradients, walking back (see schedule/alone.py); and all but those of queries, if these are
# outputs of other tensors (see schedule/mirrored.py).
ALONE_KERNELS = ALONE, OTHERS = "fused_gradients", "fused_other_gradients"
BOTH = "gradients"  # the kernel that makes all gradients of a chunk (see schedule/both.py)
# The walk back and the gradients of keys that keep what those of values read of states, and these (schedule/kept.py).
KEPT_KERNELS = KEPT_BACK, KEPT_BY_KEYS, OF_KEPT = (
    "fused_adjoint_states",
    "key_gradients_keeping",
    "value_gradients_of_kept",
)
BEYOND = "outputs_beyond"  # that which adds to outputs what a walk on chip leaves out (see schedule/beyond.py)
STRONG = "_strong"  # after the name of a kernel that runs twice: in the run for strong gates
# After that of a forward on chip: if multiprocessors have two programs, and it stores no states, or does so ahead.
CROWDED = "_crowded"
# After that of a walk on chip: if it takes chunks by halves, and stores states of whole ones (schedule/halves.py).
IN_HALVES = "_in_halves"
FORWARD = ("states", "scores", OPERANDS, "outputs", "fused", HALVED, GIVEN, BEYOND)  # make states and outputs
WALKS = ("states", "adjoint_states", ADJOINT_GIVEN, KEPT_BACK)  # those that keep what enters or leaves each chunk
Heads = tuple[int, str, int, int]  # the major compute capability, the type of the inputs; K and V, powers of two


@dataclass(frozen=True, slots=True)
class Tiles:
    """The most columns of keys and of values in a tile, by the type of the tensors (float16 has three terms)."""

    bfloat16: tuple[int, int]
    float16: tuple[int, int]
    float32: tuple[int, int]
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Tuned:
    """Tiles of one kernel that were right, and faster than the rule's, for heads of up to K by V columns.

    K and V are powers of two. `rule` and `measured` are milliseconds on `device`: of the kernel in `workload`, unless
    that says of what else. For a run for strong gates (STRONG) the rule's tiles are those of the other run.
    """

    architecture: int  # the major compute capability
    gates: str  # the sides that have gates: of "K", "V" and "s", a scalar
    chunk: int
    kernel: str
    dtype: str  # of the inputs, as torch calls it
    K: int
    V: int
    block_K: int
    block_V: int
    warps: int
    stages: int
    run: int  # chunks that a program takes in turn, of each of which the next is loaded meanwhile; 1 in the rule
    rule: float
    measured: float
    workload: str
    device: str

    @property
    def key(self) -> tuple[int, str, int, str, str, int, int]:
        """What it is for."""
        return self.architecture, self.gates, self.chunk, self.kernel, self.dtype, self.K, self.V

    @property
    def heads(self) -> Heads:
        """On which GPUs, and for which heads."""
        return self.architecture, self.dtype, self.K, self.V

    @property
    def walk(self) -> str:
        """The kernel, whether it takes chunks by halves or not."""
        return self.kernel.removesuffix(IN_HALVES)

    @property
    def configuration(self) -> str:
        """What was measured, in words."""
        stages = f"{self.stages} stage{'s' * (self.stages > 1)}"
        in_turn = f", {self.run} chunks in turn" if self.run > 1 else ""
        return f"{self.block_K} by {self.block_V}; {self.warps} warps, {stages}{in_turn}"


def place(heads: Heads) -> str:
    """On which GPUs, and for which heads, in words."""
    architecture, dtype, K, V = heads
    return f"compute capability {architecture}, {dtype}, heads of {K} by {V} and a little less"


def power(columns: int) -> int:
    """The K or V that tables have for heads of so many columns."""
    return max(16, 1 << (columns - 1).bit_length())


def merged(*tables: Iterable[Tuned]) -> tuple[Tuned, ...]:
    """All of them, later ones in the place of earlier ones for the same; sorted."""
    found = {entry.key: entry for table in tables for entry in table}
    return tuple(found[key] for key in sorted(found))


def read_table(path: Path) -> tuple[Tuned, ...]:
    """The table in a file. Raises ValueError where it is none, and OSError as the system does."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: not a list of configurations")
    return merged(_entry(path, n, row) for n, row in enumerate(rows))


def _entry(path: Path, number: int, row: Any) -> Tuned:
    types = {f.name: {"int": int, "str": str, "float": (int, float)}[str(f.type)] for f in fields(Tuned)}
    if not isinstance(row, dict) or set(row) != set(types):
        raise ValueError(f"{path}: entry {number} does not have the keys {', '.join(types)}")
    for name, kind in types.items():
        if not isinstance(row[name], kind) or isinstance(row[name], bool):  # type: ignore[arg-type]
            raise ValueError(f"{path}: entry {number}: `{name}` is {row[name]!r}")
    for name in ("K", "V", "block_K", "block_V", "warps", "run"):
        if row[name] < 1 or row[name] & (row[name] - 1):
            raise ValueError(f"{path}: entry {number}: `{name}` is {row[name]}, not a power of two")
    for name, least in (("stages", 1), ("chunk", 1), ("architecture", 0)):
        if row[name] < least:
            raise ValueError(f"{path}: entry {number}: `{name}` is {row[name]}, not {least} or more")
    if row["dtype"] not in DTYPES:
        raise ValueError(f"{path}: entry {number}: `dtype` is {row['dtype']!r}, not one of {', '.join(DTYPES)}")
    return Tuned(**row)


def write_table(path: Path, table: Iterable[Tuned]) -> None:
    """Writes whole or not at all."""
    write_text(path, json.dumps([asdict(entry) for entry in table], indent=1) + "\n")
