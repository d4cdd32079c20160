"""The module of several states: the kernels of each, what is computed between them, and what is made of their reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glagen.emit.combine import Stage, stages
from glagen.emit.interface import (
    argument_lists,
    checks,
    default_lines,
    differentiable,
    head_axis,
    ordered,
    schemas,
    sizes_call,
    state_texts,
    texts,
    width,
    writers,
)
from glagen.emit.link import link
from glagen.emit.module import certificate_line, module_text, render, twin_helpers, with_header
from glagen.emit.words import identifier, prose
from glagen.ir.document import EXTENT, Declaration, StateDeclaration
from glagen.ir.recurrence import Composite, Maximum, Recurrence
from glagen.ir.schedule import Ensemble

ENTRIES = ("_run", "_run_shapes", "_run_backward", "_step_checked")  # of a part: the whole calls them by name and state


def emit_composite(ensemble: Ensemble, digest: str) -> str:
    """The module's text, as `emit` makes that of one recurrence."""
    composite = ensemble.composite
    parts = {p.program.recurrence.states[0].name: p for p in ensemble.parts}
    texts = {state: module_text(part) for state, part in parts.items()}
    body = link(texts, render("composite.py.j2", _context(ensemble)), ENTRIES)
    growths = [f"{state}: {certificate_line(growth)}" for state, part in parts.items() for growth in part.certificate]
    return with_header(body, composite, digest, growths)


def _context(ensemble: Ensemble) -> dict[str, Any]:
    """Everything templates/composite.py.j2 asks for."""
    composite = ensemble.composite
    layouts = [f"{s.name} [{', '.join(_layout(s))}]" for s in composite.states]
    several = len(composite.states) > 1
    steps = _Steps(composite)
    return {
        "name": composite.name,
        "op": composite.name,
        "doc": prose(composite.doc or composite.name),
        "step_sizes": sizes_call(composite, step=True),
        "one": composite.one if any(len(s.axes) == 1 for s in composite.states) else "",
        "states": [
            {"name": s.name, "layout": _layout(s), "called": f"initial_state[{n}]" if several else "initial_state"}
            for n, s in enumerate(composite.states)
        ],
        "narrow": dict.fromkeys((s.name for s in composite.states), "")
        | {p.states[0].name: steps.narrowed(p) for p in composite.parts},
        "widens": any(steps.narrowed(p) for p in composite.parts),
        "maxima": any(isinstance(step, Maximum) for step in composite.steps),
        "widest_fused": ensemble.parts[0].widest_fused,
        "whole_chunks": max(part.chunk for part in ensemble.parts),
        **steps.texts(),
        **_names(composite),
        **checks(composite),
        **texts(composite),
        **state_texts(*layouts),
    }


def _layout(state: StateDeclaration) -> str:
    return "NH" + "".join(EXTENT[axis] for axis in state.axes)


def _names(composite: Composite) -> dict[str, Any]:
    """What templates/autograd.py.j2 asks for: lists of names, and schemas for torch.library."""
    initials = [f"{s.name}_initial" for s in composite.states]
    finals = [f"d{s.name}_final" for s in composite.states]
    befores = [step.before for step in composite.steps if isinstance(step, Maximum)]
    kept = [
        *(identifier(n) for n in (*composite.read_axes, *befores)),
        *(f"{p.states[0].name}_kept" for p in composite.parts),
    ]
    cotangents = _cotangents(composite)
    return argument_lists(composite) | {
        "state_count": len(initials),
        "keeps_reads": True,
        "initials": ", ".join(initials),
        "kept": ", ".join(kept),
        "kept_count": len(kept),
        "cotangents": ", ".join(cotangents),
        "adjoint_finals": ", ".join(finals),
        "outputs": [
            {"name": identifier(o.name), "cotangent": c, "extent": EXTENT[o.axes[-1]]}
            for o, c in zip(composite.outputs, cotangents, strict=True)
        ],
        **schemas(composite, initials, kept, cotangents, finals),
    }


def _cotangents(composite: Composite) -> list[str]:
    """What the gradients of outputs are called: no spec has such a name beside the output's."""
    return [identifier(f"d{output.name}") for output in composite.outputs]


@dataclass(slots=True)
class _Steps:
    """A composite's steps as text: what each is called with, and what the gradients of its results add up to."""

    composite: Composite
    declared: Mapping[str, Declaration] = field(init=False)
    terms: dict[str, list[str]] = field(default_factory=dict)  # of the gradient of each name

    def __post_init__(self) -> None:
        self.declared = {d.name: d for d in self.composite.declarations}

    def texts(self) -> dict[str, Any]:
        """Steps in order, those of the backward in theirs, and the gradients of all tensors."""
        *steps, final = stages(self.composite)
        assert isinstance(final, Stage)
        backward = [self.stage_backward(final, _cotangents(self.composite))]
        for step in reversed(steps):
            match step:
                case Stage():
                    backward.append(self.stage_backward(step, [self.total(name) for name, *_ in step.results]))
                case Maximum():
                    backward.append(self.maximum_backward(step))
                case Recurrence():
                    backward.append(self.part_backward(step))
        between = [step for step in steps if isinstance(step, Stage)]
        functions = [self.function(stage, [f"d{n}" for n, *_ in stage.results]) for stage in between]
        functions.append(self.function(final, _cotangents(self.composite)))
        lines = [line for f in functions for line in (*f["lines"], *f["backward"])]
        return {
            "functions": functions,
            "steps": [self.step(step) for step in steps],
            "final": self.step(final),
            "backward_steps": backward,
            "totals": [(identifier(d.name), self.total(d.name)) for d in differentiable(self.composite)],
            "twin_helpers": twin_helpers([*lines, *default_lines(self.composite)]),
        }

    def function(self, stage: Stage, cotangents: list[str]) -> dict[str, Any]:
        """The text of a stage's functions."""
        return {
            "name": stage.name,
            "final": stage.name == "_combine",
            "arguments": ", ".join(stage.arguments),
            "narrow": stage.narrow,
            "lines": stage.lines(),
            "results": ", ".join(identifier(name) for name, *_ in stage.results),
            "tensors": [(identifier(name), axis) for name, axis in stage.tensors if name in stage.wanted],
            "cotangents": cotangents,
            "backward": stage.backward(cotangents),
            "gradients": ", ".join(f"d{name}_sum" for name in stage.wanted),
        }

    # -- forward -------------------------------------------------------------------------------------------------------

    def step(self, step: Stage | Maximum | Recurrence) -> dict[str, Any]:
        """What templates/run_parts.py.j2 and step_parts.py.j2 ask for of one step."""
        match step:
            case Stage():
                taken = {d.name for part in self.composite.parts for d in part.declarations}
                return {
                    "kind": "stage",
                    "function": step.name,
                    "arguments": ", ".join(step.arguments),
                    "heads": f"{step.heads}, V" if step.narrow else step.heads,
                    "results": ", ".join(identifier(name) for name, *_ in step.results),
                    "shapes": [
                        (identifier(n), step.heads, self.columns(axes)) for n, axes, _ in step.results if n in taken
                    ],
                }
            case Maximum(state=state, rise=rise, floor=floor, before=before):
                return {
                    "kind": "maximum",
                    "state": state,
                    "rise": rise,
                    "floor": floor,
                    "before": identifier(before),
                    "start": f"starts[{self.place(state)}]",
                }
            case Recurrence():
                return self.part(step)

    def columns(self, axes: tuple[str, ...]) -> str:
        return "".join(f", {width(self.composite, axis)}" for axis in axes if axis != "t")

    def place(self, state: str) -> int:
        return [s.name for s in self.composite.states].index(state)

    def part(self, part: Recurrence) -> dict[str, Any]:
        """Its state has keys and values: one column where it lacks them."""
        state = part.states[0].name
        return {
            "kind": "part",
            "state": state,
            "reads": ", ".join(identifier(o.name) for o in part.outputs),
            "single": [identifier(o.name) for o in part.outputs if self.composite.read_axes[o.name] == ("t",)],
            "given": ", ".join(self.argument(part, d, 2) for d in ordered(part)),
            "step_given": ", ".join(self.argument(part, d, 1) for d in ordered(part)),
            "initial": self.widened(part, f"{state}_initial"),
            "start": self.widened(part, f"starts[{self.place(state)}]"),
        }

    def missing(self, part: Recurrence) -> int | None:
        """The axis of the part's state, from the end, that the state of the spec does not have."""
        declared = self.composite.states[self.place(part.states[0].name)]
        return -2 if declared.key is None else -1 if declared.value is None else None

    def widened(self, part: Recurrence, x: str) -> str:
        missing = self.missing(part)
        return x if missing is None else f"_wider({x}, {missing})"

    def narrowed(self, part: Recurrence) -> str:
        missing = self.missing(part)
        return "" if missing is None else f".squeeze({missing})"

    def argument(self, part: Recurrence, d: Declaration, axis: int) -> str:
        """What a part is given for a declared name."""
        name = identifier(d.name)
        return f"_spread({name}, {axis}, H)" if self.is_spread(part, d.name) else name

    def is_spread(self, part: Recurrence, name: str) -> bool:
        """One tensor that a part writes must have all heads of the states, as `one` and values do: else the first."""
        inputs = [n for n in writers(part) if head_axis(next(d for d in part.declarations if d.name == n)) == 2]
        return name == inputs[0] and all(n in self.declared for n in inputs)

    # -- backward ------------------------------------------------------------------------------------------------------

    def total(self, name: str) -> str:
        """The sum of all that has been found of a gradient."""
        return " + ".join(self.terms.get(name, ())) or f"torch.zeros_like({identifier(name)})"

    def add(self, name: str, term: str) -> None:
        self.terms.setdefault(name, []).append(term)

    def stage_backward(self, stage: Stage, cotangents: list[str]) -> dict[str, Any]:
        gradients = [f"d{name}{stage.name}" for name in stage.wanted]
        for name, gradient in zip(stage.wanted, gradients, strict=True):
            self.add(name, gradient)
        return {
            "kind": "stage",
            "function": stage.name,
            "arguments": ", ".join(stage.arguments),
            "heads": stage.heads,
            "gradients": ", ".join(gradients),
            "cotangents": ", ".join(cotangents),
        }

    def maximum_backward(self, step: Maximum) -> dict[str, Any]:
        state, rise, floor = step.state, f"d{step.rise}_max", f"d{step.floor}_max"
        self.add(step.rise, rise)
        self.add(step.floor, floor)
        return {
            "kind": "maximum",
            "arguments": f"{step.rise}, {step.floor}, {identifier(step.before)}",
            "cotangents": f"{self.total(step.before)}, d{state}_final",
            "gradients": f"{rise}, {floor}, d{state}_initial",
        }

    def part_backward(self, part: Recurrence) -> dict[str, Any]:
        """Its reads' gradients, its tensors' gradients, and which of these are wanted."""
        state, gradients, needs = part.states[0].name, [], []
        all_needs = [d.name for d in differentiable(self.composite)]
        cotangents = []
        for o in part.outputs:
            single = self.composite.read_axes[o.name] == ("t",)
            total = self.total(o.name)
            cotangents.append(
                (f"({total})[..., None]" if " + " in total else f"{total}[..., None]") if single else total
            )
        for d in differentiable(part):
            gradient = f"d{d.name}_{state}_part"
            gradients.append(gradient)
            needs.append(f"needs[{all_needs.index(d.name)}]" if d.name in all_needs else "True")
            if d.name in self.declared and self.is_spread(part, d.name):
                axis = head_axis(d)
                gradient = f"_over_heads({gradient}, {axis}, {identifier(d.name)}.shape[{axis}])"
            self.add(d.name, gradient)
        place = len(all_needs) + self.place(state)
        return self.part(part) | {
            "kind": "part",
            "cotangents": ", ".join(cotangents),
            "final_cotangent": self.widened(part, f"d{state}_final"),
            "gradients": ", ".join([*gradients, f"d{state}_initial"]),
            "needs": ", ".join([*needs, f"needs[{place}]"]),
        }
