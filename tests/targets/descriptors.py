"""Whether Hopper's wgmma reads in machine code what PTX says.

An operand in shared memory is a descriptor of 64 bits, an address and how rows lie, which machine code has in uniform
registers. The assembler of CUDA 12.8 took a wrong one where it had few left (see TOOLCHAIN.md). Here what moves and
adds descriptors is computed with random numbers for all that is not known; then descriptors that PTX makes of one
number, which constants are added to, must come of one number as well.
"""

from __future__ import annotations

import random
import re

WORD = 2**32 - 1
MOVES = ("MOV", "IMAD.MOV.U32", "IMAD.U32", "R2UR")
Sum = tuple[str, int]  # a register of PTX, and what is added to it


def faults(ptx: str, sass: str) -> list[str]:
    """What is not as PTX says, by the number of the wgmma; of those whose results are used."""
    asked, found = _asked(ptx), _found(sass)
    if len(asked) != len(found):
        return [f"{len(found)} of {len(asked)}"]
    bases: dict[str, int] = {}
    wrong = []
    for number, (sums, values) in enumerate(zip(asked, found, strict=True)):
        for side, (base, more), value in zip("AB", sums, values, strict=True):
            rest = (value - more) % 2**64
            if rest >> 32 or bases.setdefault(base, rest) != rest:
                wrong.append(f"operand {side} of number {number} lies elsewhere")
    return wrong


def _asked(ptx: str) -> list[tuple[Sum, Sum]]:
    """Both descriptors of each wgmma."""
    sums: dict[str, Sum] = {}

    def resolved(name: str) -> Sum:
        if name not in sums:
            return name, 0
        base, more = resolved(sums[name][0])
        return base, more + sums[name][1]

    asked = []
    for line in map(str.strip, ptx.splitlines()):
        if added := re.match(r"(?:add\.s64|or\.b64)\s+(%rd\d+), (%rd\d+), (-?\d+);", line):
            sums[added[1]] = added[2], int(added[3])
        elif product := re.match(r"wgmma\.mma_async\S*\s+\{[^}]*\}, (%rd\d+), (%rd\d+),", line):
            asked.append((resolved(product[1]), resolved(product[2])))
    return asked


def _found(sass: str) -> list[tuple[int, int]]:
    """The same in machine code, one instruction after the other."""
    machine = _Machine()
    for line in sass.splitlines():
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?(U?P\w+)\s+)?(\S+) (.*?) ;", line):
            machine.step(found[2], [x.strip().removesuffix(".reuse") for x in found[3].split(",")], bool(found[1]))
    return machine.descriptors


class _Machine:
    """Registers, uniform or not, carries and local memory, as far as instructions that make addresses are known."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.words: dict[str, int] = {}
        self.descriptors: list[tuple[int, int]] = []

    def step(self, opcode: str, operands: list[str], conditional: bool) -> None:
        """One instruction; what a condition may leave undone, or is not known here, gives any number."""
        if opcode.startswith("HGMMA"):
            if at := re.search(r"gdesc\[UR(\d+)\]", ",".join(operands)):
                self.descriptors.append((self.wide(f"UR{at[1]}"), self.wide(f"UR{int(at[1]) + 2}")))
            return
        names = [x for x in operands[:2] if re.fullmatch(r"U?R\d+", x)]
        stores = opcode.startswith("STL") and operands[0].startswith("[R1")
        if stores or not names or opcode.startswith(("ST", "RED", "ATOM", "LDGSTS", "BAR", "SYNC", "CCTL")):
            if stores:
                self.keep(operands[0].split(" ")[0], operands[1], _width(opcode))
            return
        target = names[0] if operands[0] == names[0] or opcode.endswith("LOP3.LUT") else ""
        if not target:
            return
        plain = opcode.removeprefix("U") if target.startswith("U") else opcode
        value = None if conditional else self.value(plain, operands)
        if value is None and opcode.startswith("LDL") and not conditional:
            self.keep(target, operands[1].split(" ")[0], _width(opcode))
        elif value is None:
            for n in range(4 if opcode.startswith(("LDSM", "HMMA")) else _width(opcode)):
                self.words[_after(target, n)] = self.random.getrandbits(32)
        else:
            for n in range(_width(opcode)):
                self.words[_after(target, n)] = value >> 32 * n & WORD

    def value(self, opcode: str, operands: list[str]) -> int | None:
        """What the instruction gives, if that is known here."""
        if opcode in MOVES:
            source = operands[-1]
            known = opcode in ("MOV", "R2UR") or operands[1:3] == ["RZ", "RZ"]
            return self.word(source) if known else None
        if opcode == "IMAD.X" and operands[1:3] == ["RZ", "RZ"]:
            return self.word(operands[3]) + self.words.get(operands[4], 0) & WORD
        if opcode == "CS2R" and operands[1] == "SRZ":
            return 0
        if opcode == "VIADD":
            return self.word(operands[1]) + self.word(operands[2]) & WORD
        if opcode == "IADD3.64":
            return sum(map(self.wide, operands[1:])) % 2**64
        if opcode in ("IADD3", "IADD3.X"):
            carries = [x for x in operands[1:] if re.fullmatch(r"!?U?P\w+", x)]
            total = sum(self.word(x) for x in operands[1:] if x not in carries)
            if opcode == "IADD3.X":
                return total + sum(self.words.get(x, 0) for x in carries) & WORD
            self.words |= dict.fromkeys(carries[:1], total >> 32)
            return total & WORD
        if opcode == "LOP3.LUT":
            start = 1 if re.fullmatch(r"U?R\d+", operands[0]) else 2
            inputs, table = [self.word(x) for x in operands[start : start + 3]], int(operands[start + 3], 16)
            bits = [sum((x >> n & 1) << 2 - k for k, x in enumerate(inputs)) for n in range(32)]
            return sum((table >> bit & 1) << n for n, bit in enumerate(bits))
        if opcode == "LEA.HI" and len(operands) == 5:
            low, more, high, shift = map(self.word, operands[1:])
            return ((high << 32 | low) << shift >> 32) + more & WORD
        if opcode in ("SHF.R.U32.HI", "SHF.R.U32", "SHF.L.U32") and len(operands) == 4:
            low, shift, high = map(self.word, operands[1:])
            source = high if opcode.endswith("HI") else low
            return source << shift & WORD if ".L." in opcode else source >> shift
        if opcode == "SGXT.U32":
            return self.word(operands[1]) & (1 << self.word(operands[2])) - 1
        return None

    def keep(self, to: str, source: str, width: int) -> None:
        """Words from registers to local memory, or back."""
        for n in range(width):
            self.words[_after(to, n)] = self.word(_after(source, n))

    def word(self, name: str) -> int:
        """What is there: any number, if nothing known was put there."""
        if name in ("RZ", "URZ"):
            return 0
        if re.fullmatch(r"-?0x[0-9a-f]+", name):
            return int(name, 16) & WORD
        if name.startswith(("-", "~")):
            value = self.word(name[1:])
            return (-value if name[0] == "-" else ~value) & WORD
        return self.words.setdefault(name, self.random.getrandbits(32))

    def wide(self, name: str) -> int:
        """The same of 64 bits, in two registers."""
        if name.endswith("RZ") or "0x" in name:
            return 0 if name.endswith("RZ") else int(name, 16)
        return self.word(name) | self.word(_after(name, 1)) << 32


def _width(opcode: str) -> int:
    return 4 if ".128" in opcode else 2 if ".64" in opcode or ".WIDE" in opcode or opcode == "CS2R" else 1


def _after(place: str, n: int) -> str:
    """The n-th register after one, or word of local memory."""
    if place.endswith("RZ"):
        return place
    if place.startswith("["):
        at = re.fullmatch(r"\[R1(?:\+(0x[0-9a-f]+))?\]", place)
        return f"[R1+{int(at[1] or '0', 16) + 4 * n:#x}]" if at else f"{place}+{n}"
    letters = place.rstrip("0123456789")
    return f"{letters}{int(place.removeprefix(letters)) + n}"
