"""The op's interface: names and texts for signatures, checks, defaults and the autograd wrapper."""

from __future__ import annotations

import math
import re
from typing import Any

from glagen.emit.pointwise import PYTHON, TORCH, Writer, tidy
from glagen.emit.words import identifier, prose
from glagen.errors import InternalError
from glagen.ir.chunk import ChunkProgram
from glagen.ir.document import EXTENT, Declaration
from glagen.ir.expr import show
from glagen.ir.interval import Interval
from glagen.ir.recurrence import Composite, Recurrence

Declarations = list[Declaration]
Spec = Recurrence | Composite
LAYOUT = "B, T, H, M, K, V"  # what `_sizes` gives


def differentiable(rec: Spec) -> Declarations:
    return [d for d in rec.declarations if d.differentiable]


def fixed(rec: Spec) -> Declarations:
    return [d for d in rec.declarations if not d.differentiable]


def lead(rec: Spec) -> Declaration:
    """The input that B, T, H, the type and the device are read from."""
    return next(d for d in rec.declarations if d.timed)


def sized(rec: Spec) -> list[str]:
    """The tensors that B, T, the heads, K and V are read from: all inputs, and what else K or V takes."""
    names = [d.name for d in rec.declarations if d.timed]
    return [identifier(n) for n in dict.fromkeys((*names, *extents(rec)))]


def sizes_call(rec: Spec, step: bool = False) -> str:
    """The call that gives B, T (of a step anything), heads of the state, heads of the outputs, K, V."""
    return f"_sizes({', '.join([*sized(rec), *['axis=1'] * step])})"


def extents(rec: Spec) -> tuple[str, str]:
    """The tensors that K and V are read from: inputs before parameters, and those before constants."""

    def having(axis: str) -> str:
        for kind in ("input", "parameter", "constant"):
            for d in rec.declarations:
                if d.kind == kind and axis in d.axes:
                    return d.name
        raise InternalError(f"no tensor has axis {axis}")

    return having("i"), having("j")


def width(rec: Spec, axis: str) -> str:
    """The extent of a feature axis, as text."""
    if axis in ("i", "j"):
        return EXTENT[axis]
    return f"{identifier(next(d.name for d in rec.declarations if axis in d.axes and d.default is None))}.shape[-1]"


def writers(rec: Spec) -> list[str]:
    """The tensors that gates and writes of the states are made of."""
    return [d.name for d in rec.declarations if d.kind != "scalar" and d.name in rec.written]


def heads_of(d: Declaration) -> str:
    """The number of heads a tensor has, as text."""
    return f"{identifier(d.name)}.shape[{head_axis(d)}]"


def head_axis(d: Declaration) -> int | None:
    return None if d.kind == "scalar" else 2 if d.timed else 0


def ordered(rec: Spec) -> Declarations:
    """The arguments of the module's own functions: scalars and constants, then differentiable tensors."""
    return [*fixed(rec), *differentiable(rec)]


def arguments(program: ChunkProgram) -> list[str]:
    return [identifier(d.name) for d in ordered(program.recurrence)]


def layout(d: Declaration) -> str:
    return ("BTH" if d.timed else "H") + "".join(EXTENT[a] for a in d.axes if a != "t")


def interface(program: ChunkProgram, kept: list[str]) -> dict[str, Any]:
    """Everything the templates from twin.py.j2 on ask for. `kept`: what a forward returns for the backward."""
    rec = program.recurrence
    return _names(program) | checks(rec) | _schemas(program, kept) | texts(rec) | state_texts("[N, H, K, V]")


def _names(program: ChunkProgram) -> dict[str, Any]:
    """Lists of names, as the generated functions pass them around."""
    rec = program.recurrence
    return argument_lists(rec) | {
        "head_axes": ", ".join(str(head_axis(d)) for d in ordered(rec)),
        "differentiable_at": len(fixed(rec)),
        "state_count": len(program.states),
        "keeps_reads": False,
        "whole_chunks": "CHUNK",
        "initials": ", ".join(f"{s.name}_initial" for s in program.states),
        "finals": ", ".join(f"{s.name}_final" for s in program.states),
        "cotangents": ", ".join(identifier(c) for c in program.cotangents),
        "adjoint_finals": ", ".join(f"{s.adjoint_end}_final" for s in program.states),
        "adjoint_initials": ", ".join(f"{s.adjoint}_initial" for s in program.states),
        "outputs": [
            {"name": identifier(o.name), "cotangent": identifier(c), "extent": EXTENT[o.indices[-1]]}
            for o, c in zip(program.outputs, program.cotangents, strict=True)
        ],
    }


def argument_lists(rec: Spec) -> dict[str, Any]:
    """The arguments of the module's own functions, all of them and by kind."""
    scalars = [identifier(d.name) for d in rec.declarations if d.kind == "scalar"]
    return {
        "sizes": sizes_call(rec),
        "arguments": ", ".join(identifier(d.name) for d in ordered(rec)),
        "tensor_arguments": ", ".join(identifier(d.name) for d in ordered(rec) if d.kind != "scalar"),
        "number_arguments": ", ".join(scalars) + ("," if len(scalars) == 1 else ""),
        "timed": tuple(d.timed for d in ordered(rec)),
        "differentiable": ", ".join(identifier(d.name) for d in differentiable(rec)),
        "first_needed": len(fixed(rec)),
        "nones": "None, " * len(fixed(rec)),
        "apply_arguments": [
            identifier(d.name) if d.kind == "scalar" else f"{identifier(d.name)}.contiguous()" for d in ordered(rec)
        ],
    }


def checks(rec: Spec) -> dict[str, Any]:
    """What arguments are compared to: everything that templates/checks.py.j2 asks for."""
    key, value = map(identifier, extents(rec))
    tensors = [d for d in rec.declarations if d.kind != "scalar"]
    inputs = [d for d in tensors if d.timed]
    written = [d for d in inputs if d.name in writers(rec)]
    heads = {d.name: f"{identifier(d.name)}.shape[axis]" for d in inputs}
    return {
        "first": identifier(lead(rec).name),
        "first_name": lead(rec).name,
        "sized": ", ".join(sized(rec)),
        "key": key,
        "value": value,
        "scalars": [d.name for d in rec.declarations if d.kind == "scalar"],
        "tensors": [{"name": d.name, "layout": layout(d)} for d in sorted(tensors, key=lambda d: d is not inputs[0])],
        "optional": tuple(d.name for d in tensors if d.default is not None),
        "writers": tuple(writers(rec)),
        "state_heads": _most([heads[d.name] for d in written]),
        "output_heads": _most(["H", *(heads[d.name] for d in inputs if d not in written)]),
        "domains": "{" + ", ".join(f'"{d.name}": {_bounds(d.domain)}' for d in rec.declarations if d.domain) + "}",
    }


def _most(counts: list[str]) -> str:
    return f"max({', '.join(counts)})" if len(counts) > 1 else counts[0]


def _bounds(domain: Interval) -> str:
    """Least and greatest number, and the words for both; open ends count as reached."""
    low, high = (f'float("{x}")' if math.isinf(x) else repr(x) for x in (domain.low, domain.high))
    return f'({low}, {high}, " in {domain}")'


def _schemas(program: ChunkProgram, kept: list[str]) -> dict[str, Any]:
    """What torch.library is told of the op, of its backward, and of its step, which may overwrite the state."""
    outputs = len(program.recurrence.outputs)
    return {
        "step_schema": _schema([*_typed(program.recurrence), "Tensor? state"], outputs + 1),
        "step_into_schema": _schema([*_typed(program.recurrence), "Tensor(a!) state"], outputs),
    } | schemas(
        program.recurrence,
        initials=[f"{s.name}_initial" for s in program.states],
        kept=kept,
        cotangents=[identifier(c) for c in program.cotangents],
        adjoint_finals=[f"{s.adjoint_end}_final" for s in program.states],
    )


def schemas(
    rec: Spec, initials: list[str], kept: list[str], cotangents: list[str], adjoint_finals: list[str]
) -> dict[str, str]:
    """The schemas of an op that returns outputs, final states and what it keeps, and of its backward, which is given
    that and cotangents of the others."""
    given = [*_typed(rec), *(f"Tensor? {n}" for n in initials), "Tensor? cu_seqlens"]
    back = [*given, *(f"Tensor {n}" for n in (*kept, *cotangents)), *(f"Tensor? {n}" for n in adjoint_finals)]
    returned = len(cotangents) + len(adjoint_finals) + len(kept)
    return {
        "run_schema": _schema([*given, "str states"], returned),
        "backward_schema": _schema([*back, "bool[] needs"], len(differentiable(rec)) + len(initials)),
    }


def _typed(rec: Spec) -> list[str]:
    """The arguments of an op as schemas have them."""
    return [f"{'float' if d.kind == 'scalar' else 'Tensor'} {identifier(d.name)}" for d in ordered(rec)]


def _schema(given: list[str], returned: int) -> str:
    results = ", ".join(["Tensor"] * returned)
    return f"({', '.join(given)}) -> {results if returned == 1 else f'({results})'}"


def state_texts(*layouts: str) -> dict[str, Any]:
    """How docstrings speak of the state, or of several, given the layouts that they have in a call."""
    steps = [x.replace("[N", "[B") for x in layouts]
    several = len(layouts) > 1
    return {
        "initial_state_doc": f"a tuple ({', '.join(layouts)})" if several else layouts[0],
        "final_state_doc": f"final states ({', '.join(layouts)})" if several else f"final state {layouts[0]}",
        "step_state_doc": f"({', '.join(steps)})" if several else steps[0],
        "step_kernels_doc": "a kernel for each state" if several else "one kernel",
    }


def texts(rec: Spec) -> dict[str, Any]:
    """Signatures, docstrings, defaults."""
    required = [d for d in rec.declarations if d.default is None]
    optional = [d for d in rec.declarations if d.default is not None]
    options = [f"{d.name}=None" for d in optional]
    public = [*(d.name for d in required), *options, "initial_state=None", "output_final_state=False"]
    outs = [f"{o.name} [B, T, H, {EXTENT[o.axes[-1]]}]" for o in rec.outputs]
    inputs = [d.name for d in rec.declarations if d.timed]
    readers = [n for n in inputs if n not in writers(rec)]
    return {
        "public_signature": ", ".join([*public, "cu_seqlens=None", 'states="auto"', "segment=None"]),
        "step_signature": ", ".join([*(d.name for d in required), "state=None", *options, "inplace=False"]),
        "step_defaults": defaults(rec, step=True),
        "argument_docs": [_argument_doc(d) for d in rec.declarations],
        "returned": ", ".join(outs),
        "step_return_doc": ", ".join(f"{o.name} [B, H, {EXTENT[o.axes[-1]]}]" for o in rec.outputs),
        "writer_names": ", ".join(n for n in inputs if n in writers(rec)),
        "reader_doc": f"If {' or '.join(readers)} has more, a group of its heads reads each, and outputs have as many."
        if readers
        else "",
        "given": "{" + ", ".join(f'"{d.name}": {d.name}' for d in rec.declarations) + "}",
        "unpacked": ", ".join(identifier(d.name) for d in rec.declarations)
        + ("," if len(rec.declarations) == 1 else ""),
        "defaults": defaults(rec),
    }


def _argument_doc(d: Declaration) -> str:
    domain = f", in {d.domain}" if d.domain else ""
    note = f": {prose(d.doc)}" if d.doc else ""
    default = f"; default {show(d.default)}" if d.default else ""
    if d.kind == "scalar":
        return f"{d.name}: a number{domain}{note}{default}."
    per_head = " for head h of H" if d.default else ""
    gradient = " (no gradient)" if d.kind == "constant" else ""
    return f"{d.name}: [{', '.join(layout(d))}]{gradient}{domain}{note}{default}{per_head}."


def defaults(rec: Spec, step: bool = False) -> list[str]:
    """What `default_lines` gives, after the sizes that it takes."""
    lines = default_lines(rec)
    taken = set(re.findall(r"\w+", "\n".join(lines)))
    if "H" in taken:
        return [f"{LAYOUT.replace('T', '_') if step else LAYOUT} = {sizes_call(rec, step)}", *lines]
    columns = zip(("K", "V"), extents(rec), strict=True)
    return [*(f"{size} = {identifier(name)}.shape[-1]" for size, name in columns if size in taken), *lines]


def default_lines(rec: Spec) -> list[str]:
    """Lines that fill in what a call left out, from H, K and V, and that check scalars."""
    x = identifier(lead(rec).name)
    lines = []
    for d in rec.declarations:
        name = identifier(d.name)
        if d.default is not None:
            dialect = PYTHON if d.kind == "scalar" else TORCH
            value = tidy(Writer(dialect, lambda r: r.name, frozenset("KVH")).write(d.default, ()))
            lines.append(f"if {name} is None:")
            if d.kind == "scalar":
                lines.append(f"    {name} = {value}")
            else:
                spread = f"[:, None].expand(H, {width(rec, d.axes[0])})" if d.axes else ""
                lines.append(f"    h = torch.arange(H, device={x}.device, dtype=torch.float64)")
                lines.append(
                    f"    {name} = (0.0 * h + {value}){spread}.to(torch.promote_types({x}.dtype, torch.float32))"
                )
        if d.kind == "scalar":
            lines.append(f'{name} = _number("{d.name}", {name})')
    return lines
