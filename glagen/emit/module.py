"""The whole module: what the templates lay out, decided here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2

import glagen
from glagen.emit.interface import interface, lead
from glagen.emit.launch import launches, tile_table
from glagen.emit.pointwise import HELPER_NEEDS, TRITON_HELPERS
from glagen.emit.pytorch import TwinPrinter
from glagen.emit.step import step_body
from glagen.emit.triton import BOUND, EXTENT, ROW_MASKS, KernelPrinter
from glagen.emit.words import identifier
from glagen.ir.chunk import ChunkProgram
from glagen.ir.kernel import Kernel
from glagen.ir.schedule import Schedule
from glagen.schedule.tiles import WIDEST_FUSED

TWIN_HELPERS = {
    "_per_head": '''
def _per_head(x):
    """[H, *] to [1, H, 1, *]."""
    return x[None, :, None]
''',
    "_clamp": '''
def _clamp(x):
    """Log gates, no lower than where their exponential is 0 anyway."""
    floor = -800.0 if x.dtype == torch.float64 else -128.0
    return torch.where(x < floor, floor, x)
''',
    "_unclamped": '''
def _unclamped(x):
    """1 where `_clamp` lets a log gate pass, 0 where it does not."""
    return (x >= (-800.0 if x.dtype == torch.float64 else -128.0)).to(x.dtype)
''',
    "_minimum": '''
def _minimum(x, y):
    """The smaller of two, either of which may be a number."""
    x, y = (torch.as_tensor(z) for z in (x, y))
    return torch.minimum(x, y.to(x)) if x.dim() else torch.minimum(x.to(y), y)
''',
}


def emit(schedule: Schedule, digest: str) -> str:
    """The module's text. Ensures: the same text for the same schedule and digest, on any platform and hash seed."""
    return _environment().get_template("module.py.j2").render(_context(schedule, digest))


def _environment() -> jinja2.Environment:
    package = Path(glagen.__file__).parent
    folders = [package / "templates", package.parent / "templates"]
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([f for f in folders if f.is_dir()]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return env


def _context(schedule: Schedule, digest: str) -> dict[str, Any]:
    program = schedule.program
    rec = program.recurrence
    kernels = [_kernel(schedule, k) for k in schedule.kernels]
    text = "\n".join(line for k in kernels for line in k["body"])
    twin = _twin(schedule)
    context: dict[str, Any] = {
        "name": rec.name,
        "doc": rec.doc or rec.name,
        "version": glagen.__version__,
        "digest": digest,
        "equations": rec.equations,
        "certificate": [f"{g.where}: {g.worst:g} over {g.interval}; {g.reason}" for g in schedule.certificate],
        "chunk": schedule.chunk,
        "helpers": _helpers(text),
        "kernels": kernels,
        "tiles": tile_table(schedule.kernels),
        "launches": launches(program, {k["role"]: k for k in kernels}),
        "step_body": step_body(rec),
        "widest_fused": WIDEST_FUSED,
    }
    return context | twin | interface(program)


def _helpers(text: str) -> list[str]:
    used = {name for name in TRITON_HELPERS if re.search(rf"\b{name}\(", text)}
    used |= {need for name in list(used) for need in HELPER_NEEDS.get(name, ())}
    return [TRITON_HELPERS[name].strip() for name in TRITON_HELPERS if name in used]


def _kernel(schedule: Schedule, kernel: Kernel) -> dict[str, Any]:
    program = schedule.program
    per_head = frozenset(d.name for d in program.recurrence.declarations if d.kind in ("parameter", "constant"))
    float32 = frozenset(n for s in program.states for n in (s.name, s.adjoint_end))
    printer = KernelPrinter(kernel, schedule.chunk, per_head, float32)
    body = printer.print()
    return {
        "role": kernel.name,
        "kernel": kernel,
        "function": f"{program.recurrence.name}_{kernel.name}_kernel",
        "doc": kernel.doc,
        "tensors": [
            {"name": identifier(t.name), "shape": tensor_shape(t.kind, t.axes), "tensor": t}
            for t in printer.tensors.values()
        ],
        "scalars": [identifier(name) for name in printer.scalars],
        "owned": [(a, EXTENT[a]) for a in kernel.owned if a not in kernel.whole],
        "whole": [(a, EXTENT[a]) for a in kernel.whole],
        "scans": kernel.scans,
        "masks": [f"{name} = {ROW_MASKS[name]}" for name in ROW_MASKS if name in printer.masks],
        "uses": {word for word in ("WIDE", "blocks_i", "blocks_j") if re.search(rf"\b{word}\b", "\n".join(body))}
        | {f"blocks_{a}" for a in kernel.owned if a not in kernel.whole},
        "body": body,
    }


def tensor_shape(kind: str, axes: tuple[str, ...]) -> str:
    features = [EXTENT[a] for a in axes if a in EXTENT]
    lead = {
        "rows": ["B", "T", "H"],
        "row_parts": ["B", "T", "H"],
        "head": ["H"],
        "head_parts": ["B", "chunks", "H"],
        "state": ["B", "H"],
        "states": ["B", "H", "chunks"],
    }[kind]
    tail = ["blocks"] if kind.endswith("_parts") else []
    return f"[{', '.join(lead + features + tail)}]"


def _twin(schedule: Schedule) -> dict[str, Any]:
    program = schedule.program
    per_head = frozenset(d.name for d in program.recurrence.declarations if d.kind in ("parameter", "constant"))
    numbers = frozenset(d.name for d in program.recurrence.declarations if d.kind == "scalar")
    result: dict[str, Any] = {}
    everything = []
    for role, lines in (("twin_forward", schedule.twin_forward), ("twin_backward", schedule.twin_backward)):
        first = identifier(lead(program).name)
        printer = TwinPrinter(schedule.chunk, per_head, numbers, first)
        body = printer.print(lines)
        starts = [s.name + "_initial" for s in program.states]
        if role == "twin_backward":
            starts += [s.adjoint_end + "_final" for s in program.states]
        head = [f"{identifier(n)} = _start({identifier(n)}, {first}, B, H, K, V)" for n in starts]
        head.append("row = torch.arange(CHUNK, device=device)")
        head += [f"{name} = {ROW_MASKS[name]}" for name in ROW_MASKS if name in printer.masks]
        if printer.guards:
            head.append(f"{BOUND['t']} = (torch.arange(chunks * CHUNK, device=device) < T).view(chunks, CHUNK)")
        result[role] = [*head, *body]
        everything += body
    text = "\n".join(everything)
    result["twin_helpers"] = [
        source.strip() for name, source in TWIN_HELPERS.items() if re.search(rf"\b{name}\(", text)
    ]
    outs = [f"_unchunked({identifier(o.name)}, T).to(dtype)" for o in program.outputs]
    result["twin_outputs"] = ", ".join(outs)
    result["twin_gradients"] = ", ".join(_twin_gradient(program, g.name) for g in program.gradients)
    return result


def _twin_gradient(program: ChunkProgram, name: str) -> str:
    gradient = next(g for g in program.gradients if g.name == name)
    if not gradient.parts:
        return "None"
    total = " + ".join(identifier(p.name) for p in gradient.parts)
    declaration = next(d for d in program.recurrence.declarations if d.name == name)
    if declaration.kind == "input":
        return f"_unchunked({total}, T)"
    return f"({total}).sum((0, 2))"
