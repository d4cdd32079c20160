"""Kernels that run along the later halves of chunks first, and along whole chunks where that is not all.

A gate's sum since a chunk's start passes what a growth reaches late in a chunk, if at all: in its first half only where
gates close within half as many steps. So what another kernel adds (see schedule/beyond.py) goes to later halves, in
tiles of half as many rows, which leave room for three programs where there were two; chunks whose gates go over in the
first half are noted, and made whole by a second run. Where a walk has seen that in the first chunk of a sequence, it is
not tried. (H200, Triton 3.6.0, bf16, gates of -4 softplus of normal numbers, both runs for one along whole chunks, ms:
B4 T4096 H64 K=V=128, gla_v 0.26 for 0.52, gla_kv, which is given scores, 0.21 for 0.45; B32 T2048 H16 K=V=64, 0.14 for
0.26 and 0.11 for 0.22.)
"""

from __future__ import annotations

import re

from glagen.emit.memory import Tensor
from glagen.emit.notes import reaching
from glagen.emit.triton import KernelPrinter
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Blocks, Kernel, Line, RowSum, read, written

BEFORE = "_before"  # ends the names of tiles of the half before
ROW, IN_T = f"row{BEFORE}", f"in_T{BEFORE}"
LEAST = 32  # steps of a chunk whose halves are rows enough for a dot
# Chunks a multiprocessor, below which there is no launch more, for where no gate is strong it is there as well. (H200,
# gla_v forward, B1 T4096 H8 K=V=128, mild gates: 0.058 ms for 0.056.)
FEWEST = 16


def later_first(kernel: Kernel, chunk: int) -> bool:
    """Does a kernel run along later halves of chunks before it does along whole ones?"""
    return chunk >= LEAST and any(store.adds for store in kernel.stores)


class LaterPrinter(KernelPrinter):
    """Prints the body of such a kernel: its rows are the last of a chunk, half of them if LATER."""

    def __init__(self, kernel: Kernel, program: ChunkProgram, chunk: int, by_tma: bool = False) -> None:
        super().__init__(kernel, program, chunk, by_tma)
        self.rows = "ROWS"

    def _row_sum(self, line: RowSum) -> None:
        super()._row_sum(line)
        if line.name == reaching(self.kernel):
            self._add_half_before(line)

    def _add_half_before(self, line: RowSum) -> None:
        """To sums since the chunk's start those of its first half; are these too much for a growth?"""
        since, half = identifier(line.name), f"{identifier(line.name)}{BEFORE}"
        lines = [
            f"{ROW} = row - ROWS",
            f"{IN_T} = {ROW} < left",
            *self._before(line.source.name),
            "every = row[:, None] + row[None, :] >= 0",
            f"{half} = _sum_rows(every, {identifier(line.source.name)}{BEFORE}, TERMS)",
            f"{since} += {half}",
            f"early = (tl.min({half}) < 1.0 - LIMIT).to(tl.int32)  # a nat sooner, for sums may differ",
            "tl.store(early_ptr + note, early.to(tl.int8))",
        ]
        self._line("if LATER:  # with the half before")
        for text in lines:
            self._line(f"    {text}")

    def _before(self, tile: str) -> list[str]:
        """The lines that make a tile, of the rows before."""
        needed, makes = {tile}, list[Line]()
        for x in reversed(self.kernel.lines):
            if needed & {*written(x)}:
                needed |= {*read(x)}
                makes.insert(0, x)
        here = self.text, self.scopes, self.indent
        self.text, self.scopes, self.indent = [], [{n for scope in self.scopes for n in scope if n[:3] == "of_"}], 0
        for x in makes:
            self._any(x)
        found, (self.text, self.scopes, self.indent) = self.text, here
        names = "|".join(["row", "in_T", *(text.split(" = ")[0] for text in found)])  # what differs from row to row
        return [re.sub(rf"\b({names})\b", rf"\1{BEFORE}", text) for text in found]

    def _opening(self, line: Blocks) -> tuple[list[str], list[str]]:
        headers, definitions = super()._opening(line)
        first = "tl.static_range(1 if LATER else 0, "
        return [header.replace("tl.static_range(", first) for header in headers], definitions

    def _store(self, tensor: Tensor, value: str) -> None:
        address, mask = self._address(tensor)
        self._line(f"tl.store({address}, {value}, mask={mask} & (early == 0) if LATER else {mask})")
