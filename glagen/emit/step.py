"""One step of the recurrence as PyTorch text, straight from its roles: what decoding runs."""

from __future__ import annotations

from glagen.emit.interface import default_lines, sized
from glagen.emit.pointwise import TORCH, Writer, tidy
from glagen.emit.words import identifier
from glagen.ir.expr import Expr, Ref, Sum, ref, rewrite
from glagen.ir.recurrence import SIDE_AXES, Recurrence

AT = {"i": "[..., :, None]", "j": "[..., None, :]"}


def step_body(rec: Recurrence) -> list[str]:
    """Requires: one state. Tensors are [B, H, axes], the state [B, H, K, V]."""
    tensors = [(identifier(d.name), int(d.kind == "input")) for d in rec.declarations if d.kind != "scalar"]
    lead = identifier(next(d for d in rec.declarations if d.kind == "input").name)
    lines = [
        f"dtype = torch.promote_types({lead}.dtype, torch.float32)",
        f"B, _, H, M, K, V = _sizes({', '.join(sized(rec, step=True))})",
        *default_lines(rec),
        *(f"{n} = _spread({n}.to(dtype), {axis}, M)" for n, axis in tensors),
        f"state = {lead}.new_zeros(B, M, K, V) if state is None else _spread(state.to(dtype), 1, M)",
    ]
    (state,) = rec.states
    lines += _reads(rec, before=True)
    update = "state"
    for gate in state.gates:
        axes = SIDE_AXES[gate.side]
        decay = f"torch.exp({_write(rec, gate.log, axes)})"
        update += f" * {_as_tile(decay, axes)}"
    for write in state.writes:
        a, b = _write(rec, write.key, ("i",), 2), _write(rec, write.value, ("j",), 2)
        update += tidy(f" + ({a}){AT['i']} * ({b}){AT['j']}")
    lines.append(f"state = {update}")
    lines += _reads(rec, before=False)
    for output in rec.outputs:
        lines.append(f"{identifier(output.name)} = {_write(rec, output.value, ('j',))}")
    lines.append(f"return {', '.join(identifier(o.name) for o in rec.outputs)}, state[:, :: M // H]")
    return lines


def _reads(rec: Recurrence, before: bool) -> list[str]:
    return [
        tidy(f"{identifier(r.name)} = (({_write(rec, r.query, ('i',))}){AT['i']} * state).sum(-2)")
        for r in rec.reads
        if r.before == before
    ]


def _as_tile(text: str, axes: tuple[str, ...]) -> str:
    return text + (AT[axes[0]] if axes else "[..., None, None]")


def _numbers(rec: Recurrence) -> frozenset[str]:
    return frozenset(d.name for d in rec.declarations if d.kind == "scalar") | {"K", "V", "H"}


def _write(rec: Recurrence, expr: Expr, axes: tuple[str, ...], around: int = 0) -> str:
    """An expression of one step: t is dropped from every subscript, local sums become sums of products."""

    def local(node: Expr) -> Expr | None:
        match node:
            case Ref(name=name, indices=indices):
                return ref(name, tuple(x.axis for x in indices if x.axis != "t"))
            case Sum(axis=axis, body=body):
                return ref(f"({_write(rec, body, (axis,))}).sum(-1)")
            case _:
                return None

    return Writer(TORCH, _tile, _numbers(rec)).write(rewrite(expr, local), axes, around)


def _tile(r: Ref) -> str:
    return r.name if "(" in r.name else identifier(r.name)
