"""One step of the recurrence, for decoding: straight from its roles, as PyTorch text and as one Triton kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glagen.emit.interface import head_axis, lead, sizes_call
from glagen.emit.memory import BOUND, EXTENT, READS
from glagen.emit.pointwise import TORCH, TRITON, Writer, spread_triton, tidy
from glagen.emit.triton import counted
from glagen.emit.words import identifier
from glagen.ir.document import Declaration
from glagen.ir.expr import Expr, Ref, Sum, apply, free_axes, ref, refs, rewrite, walk
from glagen.ir.recurrence import SIDE_AXES, Composite, Read, Recurrence

AT = {"i": "[..., :, None]", "j": "[..., None, :]"}


def step(rec: Recurrence) -> dict[str, Any]:
    """Everything templates/step.py.j2 asks for. Requires: one state."""
    outputs = [identifier(o.name) for o in rec.outputs]
    return {
        "step_lines": _torch_lines(rec),
        "step_results": ", ".join(o if rec.part_of else f"{o}.to(dtype)" for o in outputs),
        "step_outputs": [{"name": o, "extent": EXTENT[x.axes[-1]]} for o, x in zip(outputs, rec.outputs, strict=True)],
        "step_sizes": sizes_call(rec, step=True),
        "step_kernel": _StepKernel(rec).print(),
        "step_state": identifier(rec.states[0].name),
    }


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def _torch_lines(rec: Recurrence) -> list[str]:
    """Tensors are [B, H, axes], the state [B, H, K, V]."""
    (state,) = rec.states
    name, first = identifier(state.name), identifier(lead(rec).name)
    tensors = [(identifier(d.name), int(d.timed)) for d in rec.declarations if d.kind != "scalar"]
    lines = [
        *([] if rec.part_of else [f"dtype = {first}.dtype"]),
        f"wide = torch.promote_types({first}.dtype, torch.float32)",
        *(f"{n} = _spread({n}.to(wide), {axis}, M)" for n, axis in tensors),
        f"{name} = {first}.new_zeros(B, M, K, V) if state is None else _spread(state.to(wide), 1, M)",
    ]
    lines += _torch_reads(rec, before=True)
    update = name
    for gate in state.gates:
        axes = SIDE_AXES[gate.side]
        decay = torch_value(rec, apply("exp", gate.log), axes)
        update += f" * {decay}" + (AT[axes[0]] if axes else _spread(rec, gate.log))
    for write in state.writes:
        update += tidy(f" + {_torch_tile(rec, write.key, 'i')} * {_torch_tile(rec, write.value, 'j')}")
    lines.append(f"{name} = {update}")
    lines += _torch_reads(rec, before=False)
    for output in rec.outputs:
        lines.append(f"{identifier(output.name)} = {torch_value(rec, output.value, ('j',))}")
    return lines


def _torch_reads(rec: Recurrence, before: bool) -> list[str]:
    return [
        tidy(f"{identifier(r.name)} = ({_torch_tile(rec, r.query, 'i')} * {identifier(r.state)}).sum(-2)")
        for r in rec.reads
        if r.before == before
    ]


def _torch_tile(rec: Recurrence, expr: Expr, axis: str) -> str:
    """A row or a column of the state, or one number for all of it."""
    if axis in free_axes(expr):
        return f"({torch_value(rec, expr, (axis,), 2)}){AT[axis]}"
    return f"({torch_value(rec, expr, (), 2)}){_spread(rec, expr)}"


def _spread(rec: Recurrence, expr: Expr) -> str:
    """What spreads one number of each head over its state; nothing does what all of them share."""
    tensors = {d.name for d in rec.declarations if d.kind != "scalar"}
    return "[..., None, None]" if any(r.name in tensors for r in refs(expr)) else ""


def torch_value(rec: Recurrence | Composite, expr: Expr, axes: tuple[str, ...], around: int = 0) -> str:
    """An expression of one step: t is dropped from every subscript, local sums become sums of products."""

    def local(node: Expr) -> Expr | None:
        match node:
            case Ref():
                return _untimed(node)
            case Sum(axis=axis, body=body):
                return ref(f"({torch_value(rec, body, (axis,))}).sum(-1)")
            case _:
                return None

    numbers = frozenset(d.name for d in rec.declarations if d.kind == "scalar") | {"K", "V", "H"}
    tile = Writer(TORCH, lambda r: r.name if "(" in r.name else identifier(r.name), numbers)
    return tile.write(rewrite(expr, local), axes, around)


def _untimed(r: Ref) -> Ref:
    return ref(r.name, tuple(x.axis for x in r.indices if x.axis != "t"))


# -- Triton ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _StepKernel:
    """Prints the kernel of one step: a program holds all keys of a block of values, a block of keys at a time."""

    rec: Recurrence
    text: list[str] = field(default_factory=list)
    sums: dict[Sum, str] = field(default_factory=dict)  # local sums and what they are called

    def print(self) -> dict[str, Any]:
        rec = self.rec
        for expr in (o.value for o in rec.outputs):
            for node in walk(expr):
                if isinstance(node, Sum):
                    self.sums.setdefault(node, f"local_{len(self.sums)}")
        self._line(1, counted("member", READS))
        self._line(2, f"h = of_state * {READS} + member")
        for d in self._tensors(with_key=False):
            self._load(2, d)
        for read in rec.reads:
            self._line(2, f"{identifier(read.name)} = tl.zeros([BLOCK_V], dtype=tl.float32)")
        for sum_, name in self.sums.items():
            whole = self._guarded(sum_.body, "j") if sum_.axis == "j" else "0.0"
            self._line(2, f"{name} = {whole}")
        self._blocks_of_keys()
        for output in rec.outputs:
            name = identifier(output.name)
            self._line(2, f"{name} = {self._write(output.value, ('j',))}")
            self._line(2, f"tl.store({name}_out_ptr + (b * H * {READS} + h) * V + j, {name}, mask=in_V)")
        used = {r.name for e in self._expressions() for r in refs(e)}
        return {
            "tensors": [identifier(d.name) for d in rec.declarations if d.kind != "scalar"],
            "scalars": [identifier(d.name) for d in rec.declarations if d.kind == "scalar" and d.name in used],
            "groups": [
                (f"GROUP_{d.name}", f"M // {identifier(d.name)}.shape[{1 if d.timed else 0}]")
                for d in rec.declarations
                if d.kind != "scalar"
            ],
            "whole_value": any(s.axis == "j" for s in self.sums),
            "body": self.text,
        }

    def _blocks_of_keys(self) -> None:
        (state,) = self.rec.states
        name = identifier(state.name)
        self._line(2, counted("block_i", "blocks_i"))
        self._line(3, "i = block_i * BLOCK_K + tl.arange(0, BLOCK_K)")
        self._line(3, "in_K = i < K")
        for d in self._tensors(with_key=True):
            self._load(3, d)
        self._line(3, f"at_{name} = ((b * H + of_state) * K + i[:, None]) * V + j[None, :]")
        self._line(3, "in_ij = in_K[:, None] & in_V[None, :]")
        self._line(3, f"{name} = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)")
        self._line(3, f"if {name}_ptr is not None:")
        self._line(4, f"{name} = tl.load({name}_ptr + at_{name}, mask=in_ij, other=0.0)")
        self._reads([r for r in self.rec.reads if r.before])
        update = name
        for gate in state.gates:
            axes = SIDE_AXES[gate.side]
            decay = self._write(apply("exp", gate.log), axes)
            update += f" * {spread_triton(decay, axes, ('i', 'j'))}"
        for write in state.writes:
            update += tidy(f" + {self._tile(write.key, 'i')} * {self._tile(write.value, 'j')}")
        self._line(3, f"{name} = {update}")
        self._line(3, f"if member == {READS} - 1:  # the others have read it")
        self._line(4, f"tl.store({name}_next_ptr + at_{name}, {name}, mask=in_ij)")
        self._reads([r for r in self.rec.reads if not r.before])
        for sum_, name in self.sums.items():
            if sum_.axis == "i":
                self._line(3, f"{name} += {self._guarded(sum_.body, 'i')}")

    def _reads(self, reads: list[Read]) -> None:
        for r in reads:
            product = f"{self._tile(r.query, 'i')} * {identifier(r.state)}"
            self._line(3, f"{identifier(r.name)} += tl.sum(tl.where(in_ij, {product}, 0.0), axis=0)")

    def _tile(self, expr: Expr, axis: str) -> str:
        """A row or a column of the state, or one number for all of it."""
        if axis in free_axes(expr):
            return f"({self._write(expr, (axis,), 2)}){'[:, None]' if axis == 'i' else '[None, :]'}"
        return f"({self._write(expr, (), 2)})"

    def _guarded(self, body: Expr, axis: str) -> str:
        return f"tl.sum(tl.where({BOUND[axis]}, {self._write(body, (axis,))}, 0.0), axis=0)"

    def _tensors(self, with_key: bool) -> list[Declaration]:
        return [d for d in self.rec.declarations if d.kind != "scalar" and ("i" in d.axes) == with_key]

    def _load(self, indent: int, d: Declaration) -> None:
        name = identifier(d.name)
        head = f"(h // GROUP_{d.name})"
        if head_axis(d) == 2:
            head = f"(b * (H * {READS} // GROUP_{d.name}) + h // GROUP_{d.name})"
        axes = [a for a in d.axes if a in EXTENT]
        at = f"{head} * {EXTENT[axes[0]]} + {axes[0]}, mask={BOUND[axes[0]]}, other=0.0" if axes else head
        self._line(indent, f"{name} = tl.load({name}_ptr + {at}).to(tl.float32)")

    def _write(self, expr: Expr, axes: tuple[str, ...], around: int = 0) -> str:
        def local(node: Expr) -> Expr | None:
            if isinstance(node, Sum):
                return ref(self.sums[node])
            return _untimed(node) if isinstance(node, Ref) else None

        return Writer(TRITON, lambda r: identifier(r.name)).write(rewrite(expr, local), axes, around)

    def _expressions(self) -> list[Expr]:
        (state,) = self.rec.states
        queries, outputs = (r.query for r in self.rec.reads), (o.value for o in self.rec.outputs)
        return [*state.expressions, *queries, *outputs]

    def _line(self, indent: int, text: str) -> None:
        self.text.append("    " * (indent - 1) + tidy(text))
