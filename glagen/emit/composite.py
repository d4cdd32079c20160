"""The module of several states: the kernels of each, and what is made of all that is read of them."""

from __future__ import annotations

from typing import Any

from glagen.emit.combine import Combination, combination
from glagen.emit.interface import (
    argument_lists,
    checks,
    differentiable,
    head_axis,
    ordered,
    schemas,
    sized,
    state_texts,
    texts,
    writers,
)
from glagen.emit.link import link
from glagen.emit.memory import EXTENT
from glagen.emit.module import certificate_line, module_text, render, twin_helpers, with_header
from glagen.emit.words import identifier
from glagen.ir.document import Declaration, StateDeclaration
from glagen.ir.recurrence import Composite, Recurrence
from glagen.ir.schedule import Ensemble

ENTRIES = ("_run", "_run_shapes", "_run_backward", "_step_checked")  # of a part: the whole calls them by name and state


def emit_composite(ensemble: Ensemble, digest: str) -> str:
    """The module's text, as `emit` makes that of one recurrence."""
    composite = ensemble.composite
    parts = {s.name: module_text(p) for s, p in zip(composite.states, ensemble.parts, strict=True)}
    body = link(parts, render("composite.py.j2", _context(ensemble)), ENTRIES)
    growths = [
        f"{state.name}: {certificate_line(growth)}"
        for state, part in zip(composite.states, ensemble.parts, strict=True)
        for growth in part.certificate
    ]
    return with_header(body, composite, digest, growths)


def _context(ensemble: Ensemble) -> dict[str, Any]:
    """Everything templates/composite.py.j2 asks for."""
    composite = ensemble.composite
    rec = _as_one(composite)
    combined = combination(composite, rec)
    layouts = [f"{s.name} [{', '.join(_layout(s))}]" for s in composite.states]
    parts = [_part(composite, part, state) for part, state in zip(composite.parts, composite.states, strict=True)]
    return {
        "name": composite.name,
        "op": composite.name,
        "doc": composite.doc or composite.name,
        "step_sizes": f"_sizes({', '.join(sized(rec, step=True))})",
        "one": composite.one if any(len(s.axes) == 1 for s in composite.states) else "",
        "states": [
            {
                "name": s.name,
                "layout": _layout(s),
                "called": f"initial_state[{n}]" if len(parts) > 1 else "initial_state",
            }
            for n, s in enumerate(composite.states)
        ],
        "parts": parts,
        "widest_fused": ensemble.parts[0].widest_fused,
        **_combined(composite, rec, combined),
        **_names(composite, rec, combined),
        **checks(rec),
        **texts(rec),
        **state_texts(*layouts),
    }


def _as_one(composite: Composite) -> Recurrence:
    """The interface's view: all states at once."""
    return Recurrence(
        name=composite.name,
        doc=composite.doc,
        equations=composite.equations,
        declarations=composite.declarations,
        states=tuple(s for part in composite.parts for s in part.states),
        reads=(),
        outputs=composite.outputs,
        chunk=None,
        subchunk=None,
    )


def _layout(state: StateDeclaration) -> str:
    return "NH" + "".join(EXTENT[axis] for axis in state.axes)


def _names(composite: Composite, rec: Recurrence, combined: Combination) -> dict[str, Any]:
    """What templates/autograd.py.j2 asks for: lists of names, and schemas for torch.library."""
    initials = [f"{s.name}_initial" for s in composite.states]
    finals = [f"d{s.name}_final" for s in composite.states]
    kept = [*(identifier(n) for n, _ in combined.reads), *(f"{s.name}_kept" for s in composite.states)]
    cotangents = [_cotangent(composite, o.name) for o in composite.outputs]
    return argument_lists(rec) | {
        "initials": ", ".join(initials),
        "kept": ", ".join(kept),
        "kept_count": len(kept),
        "cotangents": ", ".join(cotangents),
        "adjoint_finals": ", ".join(finals),
        **schemas(rec, initials, kept, cotangents, finals),
    }


def _cotangent(composite: Composite, output: str) -> str:
    """The gradient of an output: `do`, unless the spec has that name."""
    name = f"d{output}"
    while any(name == d.name for d in composite.declarations):
        name += "_"
    return identifier(name)


def _part(composite: Composite, part: Recurrence, state: StateDeclaration) -> dict[str, Any]:
    """What a part is called with and what it returns. Its state has keys and values: one column where it lacks them."""
    wider = None if len(state.axes) == 2 else -1 if "i" in state.axes else -2
    all_needs = [d.name for d in composite.declarations if d.kind in ("input", "parameter")]
    grads = differentiable(part)
    needs = [f"needs[{all_needs.index(d.name)}]" if d.name in all_needs else "False" for d in grads]
    place = [s.name for s in composite.states].index(state.name)

    def widened(x: str) -> str:
        return x if wider is None else f"_wider({x}, {wider})"

    return {
        "state": state.name,
        "reads": ", ".join(identifier(o.name) for o in part.outputs),
        "given": ", ".join(_argument(composite, part, d, 2) for d in ordered(part)),
        "step_given": ", ".join(_argument(composite, part, d, 1) for d in ordered(part)),
        "initial": widened(f"{state.name}_initial"),
        "start": widened(f"starts[{place}]"),
        "narrow": "" if wider is None else f".squeeze({wider})",
        "cotangents": ", ".join(f"d{o.name}_sum" for o in part.outputs),
        "final_cotangent": widened(f"d{state.name}_final"),
        "gradients": ", ".join([*(_gradient(d.name, part) for d in grads), f"d{state.name}_initial"]),
        "needs": ", ".join([*needs, f"needs[{len(all_needs) + place}]"]),
    }


def _argument(composite: Composite, part: Recurrence, d: Declaration, axis: int) -> str:
    """What a part is given for a declared name."""
    name = identifier(d.name)
    return f"_spread({name}, {axis}, H)" if _is_spread(composite, part, d) else name


def _is_spread(composite: Composite, part: Recurrence, d: Declaration) -> bool:
    """One tensor that a part writes must have all heads of the states: `one`, or the first."""
    inputs = {x.name for x in part.declarations if x.kind == "input"}
    written = [n for n in writers(part) if n in inputs]
    return d.name == written[0] and composite.one not in written


def _gradient(name: str, part: Recurrence) -> str:
    return f"d{name}_{part.states[0].name}_part"


def _combined(composite: Composite, rec: Recurrence, combined: Combination) -> dict[str, Any]:
    """The function that makes outputs of reads, its gradient, and what the gradients of all tensors add up to."""
    cotangents = [_cotangent(composite, o.name) for o in composite.outputs]
    grads = [d.name for d in differentiable(rec)]
    direct = [n for n, _ in combined.tensors if n in grads]
    reads = [n for n, _ in combined.reads]
    totals = []
    for d in differentiable(rec):
        terms = [_over(d, f"d{d.name}_sum")] if d.name in direct else []
        for part in composite.parts:
            if any(x.name == d.name for x in part.declarations):
                term = _gradient(d.name, part)
                terms.append(_over(d, term) if _is_spread(composite, part, d) else term)
        totals.append((identifier(d.name), " + ".join(terms)))
    backward = combined.backward(cotangents, [*direct, *reads])
    backward += [
        f"d{n}_sum = _over_heads(d{n}_sum{'' if 'j' in axes else '[..., None]'}, 2, {identifier(n)}_own).contiguous()"
        for n, axes in combined.reads
    ]
    return {
        "combine_arguments": ", ".join(combined.arguments),
        "combine_lines": combined.lines(),
        "combine_prepared": combined.prepared(),
        "combine_backward": backward,
        "combine_gradients": ", ".join(f"d{n}_sum" for n in [*direct, *reads]),
        "twin_helpers": twin_helpers([*combined.lines(), *backward]),
        "read_names": [identifier(n) for n in reads],
        "totals": totals,
        "narrow": combined.narrow,
        "outputs": [
            {"name": identifier(o.name), "cotangent": c, "extent": EXTENT[o.axes[-1]]}
            for o, c in zip(composite.outputs, cotangents, strict=True)
        ],
    }


def _over(d: Declaration, gradient: str) -> str:
    """A gradient of all heads, summed over those that share one of the tensor's."""
    axis = head_axis(d)
    return f"_over_heads({gradient}, {axis}, {identifier(d.name)}.shape[{axis}])"
