"""The forms a recurrence is compiled to, and the kernels of each."""

from __future__ import annotations

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, ChunkProgram, inputs_of
from glagen.ir.kernel import Kernel, Line, Scan
from glagen.ir.schedule import Options, Schedule
from glagen.schedule.certificate import certificate
from glagen.schedule.covers import Cover, choose_cover
from glagen.schedule.kernels import Goal, Shape, build, gradient_goals, needed, order_twin, scan_of
from glagen.schedule.lower import Lowering

DEFAULT_CHUNK = 64


def schedule(program: ChunkProgram, options: Options) -> Schedule:
    """Requires: a program with its adjoint. Ensures: a cover with a certificate for every vector gate."""
    chunk = program.recurrence.chunk or DEFAULT_CHUNK
    covers = _covers(program, chunk, options)
    return Schedule(
        program,
        chunk,
        tuple((gate, f"{c.name} ({', '.join(f'{kind} {leaf}' for kind, leaf in c.parts)})") for gate, c in covers.items()),
        _kernels(program, covers),
        _twin(program, covers, [o.name for o in program.outputs] + [s.end for s in program.states]),
        _twin(program, covers, [p.name for g in program.gradients for p in g.parts] + [s.adjoint for s in program.states]),
        certificate(program, covers),
    )  # fmt: skip


def _covers(program: ChunkProgram, chunk: int, options: Options) -> dict[str, Cover]:
    covers = {}
    for gate in program.gates:
        if not gate.axes:
            continue
        cover = choose_cover(gate.domain, chunk, program.recurrence.subchunk, options.cover)
        if cover is None:
            raise CoverError(gate.name, str(gate.domain), chunk, options.cover)
        covers[gate.name] = cover
    return covers


class CoverError(InternalError):
    """The cover a user asked for has no certificate for this gate."""

    def __init__(self, gate: str, domain: str, chunk: int, cover: str) -> None:
        super().__init__(f"cover `{cover}` cannot be proved stable for {gate} in {domain} over a chunk of {chunk}")
        self.gate, self.domain, self.chunk, self.cover = gate, domain, chunk, cover


def _kernels(program: ChunkProgram, covers: dict[str, Cover]) -> tuple[Kernel, ...]:
    ends = tuple(s.end for s in program.states)
    adjoints = tuple(s.adjoint for s in program.states)
    outputs = tuple(Goal(o.name, (o,)) for o in program.outputs)
    kernels = [
        build(
            program,
            covers,
            Shape("states", "Walk over the chunks and keep the state that enters each.", ("i", "j"), None, "forward",
                  save_states=True),
            (),
            ends,
        ),
        build(
            program,
            covers,
            Shape("outputs", "The outputs of one chunk, from the state that enters it.", ("j",), "i"),
            outputs,
            (),
        ),
        build(
            program,
            covers,
            Shape("fused", "Outputs of the whole sequence; the state never leaves the chip.", ("j",), None, "forward",
                  whole=("i",)),
            outputs,
            ends,
        ),
        build(
            program,
            covers,
            Shape("adjoint_states", "Walk back over the chunks and keep the state's gradient that enters each from the right.",
                  ("i", "j"), None, "reverse", save_states=True),
            (),
            adjoints,
        ),
    ]  # fmt: skip
    for axis, other, name in (("i", "j", "key_gradients"), ("j", "i", "value_gradients")):
        goals = gradient_goals(program, axis)
        if goals:
            doc = f"One chunk's gradients that have axis {axis}, from the states at both its ends."
            kernels.append(build(program, covers, Shape(name, doc, (axis,), other), goals, ()))
    return tuple(kernels)


def _twin(program: ChunkProgram, covers: dict[str, Cover], names: list[str]) -> tuple[Line | Scan, ...]:
    """All lines of the PyTorch form in one order; carried states are loops over chunks of their own."""
    wanted = list(names)
    statements = needed(program, wanted, set())
    carried = {s.carried.name for s in statements if isinstance(s, Carry)}
    for info in program.states:  # a state that is read must be carried
        for tile, end in ((info.name, info.end), (info.adjoint_end, info.adjoint)):
            if tile not in carried and any(tile in inputs_of(s) for s in statements):
                wanted.append(end)
    statements = needed(program, wanted, set())
    lowering = Lowering(program, covers, None, statements)
    lines = lowering.run()
    scans = [scan_of(program, s, lowering.updates[s.out.name], None) for s in statements if isinstance(s, Carry)]
    return order_twin(program, lines, scans)
