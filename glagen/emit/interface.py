"""The op's interface: names and texts for signatures, checks, defaults and the autograd wrapper."""

from __future__ import annotations

from typing import Any

from glagen.emit.pointwise import TORCH, Writer, tidy
from glagen.emit.triton import EXTENT
from glagen.emit.words import identifier
from glagen.errors import InternalError
from glagen.ir.chunk import ChunkProgram
from glagen.ir.document import Declaration
from glagen.ir.expr import show
from glagen.ir.recurrence import Recurrence

Declarations = list[Declaration]


def differentiable(program: ChunkProgram) -> Declarations:
    return [d for d in program.recurrence.declarations if d.kind in ("input", "parameter")]


def fixed(program: ChunkProgram) -> Declarations:
    return [d for d in program.recurrence.declarations if d.kind in ("constant", "scalar")]


def lead(program: ChunkProgram) -> Declaration:
    """The input that B, T, H, the type and the device are read from."""
    return next(d for d in program.recurrence.declarations if d.kind == "input")


def sizes_call(program: ChunkProgram) -> str:
    """The call that gives B, T, H, K, V."""
    names = [lead(program).name, *extents(program.recurrence)]
    return f"_sizes({', '.join(map(identifier, names))})"


def extents(rec: Recurrence) -> tuple[str, str]:
    """The tensors that K and V are read from."""

    def having(axis: str) -> str:
        for d in rec.declarations:
            if axis in d.axes:
                return d.name
        raise InternalError(f"no tensor has axis {axis}")

    return having("i"), having("j")


def arguments(program: ChunkProgram) -> list[str]:
    """All arguments of the module's own functions: scalars and constants, then differentiable tensors."""
    return [identifier(d.name) for d in [*fixed(program), *differentiable(program)]]


def layout(d: Declaration) -> str:
    return ("BTH" if d.kind == "input" else "H") + "".join(EXTENT[a] for a in d.axes if a in EXTENT)


def interface(program: ChunkProgram) -> dict[str, Any]:
    """Everything templates/interface.py.j2 and templates/twin.py.j2 ask for."""
    rec = program.recurrence
    grads, fixed_ = differentiable(program), fixed(program)
    scalars = [d.name for d in rec.declarations if d.kind == "scalar"]
    tensors = [d for d in rec.declarations if d.kind != "scalar"]
    required = [d for d in rec.declarations if d.default is None]
    optional = [d for d in rec.declarations if d.default is not None]
    public = [d.name for d in required] + [f"{d.name}=None" for d in optional]
    steps = [d.name for d in required] + ["state=None"] + [f"{d.name}=None" for d in optional]
    outs = [f"{o.name} [B, T, H, {EXTENT[o.indices[-1]]}]" for o in program.outputs]
    return {
        "first": identifier(lead(program).name),
        "first_name": lead(program).name,
        "sizes": sizes_call(program),
        "arguments": ", ".join(arguments(program)),
        "initials": ", ".join(f"{s.name}_initial" for s in program.states),
        "finals": ", ".join(f"{s.name}_final" for s in program.states),
        "cotangents": ", ".join(identifier(c) for c in program.cotangents),
        "adjoint_finals": ", ".join(f"{s.adjoint_end}_final" for s in program.states),
        "adjoint_initials": ", ".join(f"{s.adjoint}_initial" for s in program.states),
        "scalars": scalars,
        "may_lack": (*(d.name for d in tensors if d.default is not None), "initial_state"),
        "tensors": [
            {"name": d.name, "layout": layout(d)} for d in sorted(tensors, key=lambda d: d is not lead(program))
        ],
        "outputs": [
            {"name": identifier(o.name), "cotangent": identifier(c), "extent": EXTENT[o.indices[-1]]}
            for o, c in zip(program.outputs, program.cotangents, strict=True)
        ],
        "differentiable": ", ".join(identifier(d.name) for d in grads),
        "fixed": ", ".join(f"{identifier(d.name)}" for d in fixed_) + ("," if len(fixed_) == 1 else ""),
        "apply_arguments": [
            *(identifier(d.name) if d.kind == "scalar" else f"{identifier(d.name)}.contiguous()" for d in fixed_),
            *(f"{identifier(d.name)}.contiguous()" for d in grads),
            "initial_state if initial_state is None else initial_state.contiguous()",
        ],
        "first_needed": 1 + len(fixed_),
        "nones": ", ".join(["None"] * (1 + len(fixed_))),
        "public_signature": ", ".join([*public, "initial_state=None", "output_final_state=False", 'states="auto"']),
        "step_signature": ", ".join(steps),
        "argument_docs": [_argument_doc(d) for d in rec.declarations],
        "return_doc": "(" + ", ".join([*outs, "final state [B, H, K, V]"]) + ")",
        "step_return_doc": ", ".join(f"{o.name} [B, H, {EXTENT[o.axes[-1]]}]" for o in rec.outputs),
        "given": "{" + ", ".join(f'"{d.name}": {d.name}' for d in rec.declarations) + "}",
        "unpacked": ", ".join(identifier(d.name) for d in rec.declarations)
        + ("," if len(rec.declarations) == 1 else ""),
        "defaults": [f"B, T, H, K, V = {sizes_call(program)}", *default_lines(rec)] if optional or scalars else [],
    }


def _argument_doc(d: Declaration) -> str:
    domain = f", in {d.domain}" if d.domain else ""
    note = f": {d.doc}" if d.doc else ""
    default = f"; default {show(d.default)}" if d.default else ""
    if d.kind == "scalar":
        return f"{d.name}: a number{domain}{note}{default}."
    per_head = " for head h of H" if d.default else ""
    gradient = " (no gradient)" if d.kind == "constant" else ""
    return f"{d.name}: [{', '.join(layout(d))}]{gradient}{domain}{note}{default}{per_head}."


def default_lines(rec: Recurrence) -> list[str]:
    """Lines that fill in what a call left out, from H, K and V, and that check scalars."""
    x = identifier(next(d for d in rec.declarations if d.kind == "input").name)
    lines = []
    for d in rec.declarations:
        name = identifier(d.name)
        if d.default is not None:
            value = tidy(Writer(TORCH, lambda r: r.name).write(d.default, ()))
            lines.append(f"if {name} is None:")
            if d.kind == "scalar":
                lines.append(f"    {name} = {value}")
            else:
                spread = f"[:, None].expand(H, {EXTENT[d.axes[0]]})" if d.axes else ""
                lines.append(f"    h = torch.arange(H, device={x}.device, dtype=torch.float64)")
                lines.append(
                    f"    {name} = (0.0 * h + {value}){spread}.to(torch.promote_types({x}.dtype, torch.float32))"
                )
        if d.kind == "scalar":
            lines.append(f'{name} = _number("{d.name}", {name})')
    return lines
