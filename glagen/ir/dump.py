"""The IRs as compact, stable text: one line a statement, for goldens and for reading along while debugging.

What `glagen explain` says to a person is in glagen/explain; a dump says what the data structures hold, no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from glagen.errors import InternalError
from glagen.ir.chunk import Carry, ChunkProgram, Contract, Crossing, GateGradient, Map, Statement
from glagen.ir.document import Declaration
from glagen.ir.expr import show
from glagen.ir.kernel import Assign, Blocks, Depth, Dot, Kernel, Line, Load, Loop, RowSum, Scan, Store, written
from glagen.ir.recurrence import Recurrence

INDENT = "  "


def dump_recurrence(recurrence: Recurrence) -> str:
    """Declarations and roles."""
    lines = [f"recurrence {recurrence.name}"]
    lines += [f"  {_declaration(d)}" for d in recurrence.declarations]
    for state in recurrence.states:
        lines.append(f"  state {state.name}")
        lines += [f"    gate {g.side}{_axes(g.axes)} = {show(g.log)} in {g.domain}" for g in state.gates]
        lines += [f"    write {show(w.key, 2)} * {show(w.value, 2)}" for w in state.writes]
    for read in recurrence.reads:
        lines.append(f"  read {read.name} = {read.state}{' before' if read.before else ' after'}: {show(read.query)}")
    lines += [f"  output {o.name}{_axes(o.axes)} = {show(o.value)}" for o in recurrence.outputs]
    return "\n".join(lines) + "\n"


def _declaration(d: Declaration) -> str:
    domain = f" in {d.domain}" if d.domain else ""
    default = f" = {show(d.default)}" if d.default else ""
    return f"{d.kind} {d.name}{_axes(d.axes)}{domain}{default}"


def dump_program(program: ChunkProgram) -> str:
    """Forward, backward, and where each input's gradient comes from."""
    lines = [f"program {program.recurrence.name}"]
    lines += [f"  gate {g.name}{_axes(g.axes)} in {g.domain}" for g in program.gates]
    for name, statements in (("forward", program.forward), ("backward", program.backward)):
        lines.append(f"  {name}")
        lines += [f"    {line}" for s in statements for line in dump_statement(s)]
    lines.append("  gradients")
    lines += [f"    {g.name}: {' + '.join(map(str, g.parts)) or 'none'}" for g in program.gradients]
    return "\n".join(lines) + "\n"


def dump_statement(statement: Statement) -> list[str]:
    """One line; a gate's gradient has one more for each crossing."""
    match statement:
        case Map(out=out, expr=expr, over=over):
            return [f"{out} = {_sum(over)}{show(expr)}"]
        case Contract(out=out, operands=operands, decays=decays, order=order, part=part):
            when = f" for s {order} t" if order else ""
            return [f"{out} = {_sum(statement.over)}{_product((*operands, *decays))}{when}  # {part}"]
        case Carry(out=out, carried=carried, decays=decays, added=added, reverse=reverse):
            terms = [_product((carried, *decays)), *map(str, added)]
            return [f"{out} = {' + '.join(terms)}  # carry{', reverse' if reverse else ''}"]
        case GateGradient(out=out, gate=gate, crossings=crossings):
            return [f"{out} = paths that cross {gate}", *(f"{INDENT}{_crossing(c)}" for c in crossings)]
        case _:
            raise InternalError(f"cannot dump {statement!r}")


def _crossing(crossing: Crossing) -> str:
    parts = [f"{end}: {_product(pair)}" for end in ("upper", "lower") if (pair := getattr(crossing, end))]
    parts += [f"times {_product(crossing.factors)}"] if crossing.factors else []
    return f"{crossing.decay}: {'; '.join(parts)}"


def dump_kernel(kernel: Kernel) -> str:
    """How it walks, then its lines in order."""
    walk = [f"owns {','.join(kernel.owned)}"]
    walk += [f"loops {kernel.looped}"] if kernel.looped else []
    walk += [f"whole {','.join(kernel.whole)}"] if kernel.whole else []
    walk += [f"walks {kernel.direction}"] if kernel.direction else []
    lines = [f"kernel {kernel.name}: {'; '.join(walk)}"]
    without = ", ".join(sorted({name for line in kernel.spared for name in written(line)}))
    lines += [f"given {x.tensor}: {x.tile}{_axes(x.axes)} = load, without {without}" for x in kernel.ready]
    lines += [f"zero {name}{_axes(axes)}" for name, axes in kernel.zeros.items()]
    for item in kernel.body:
        if isinstance(item, Loop):
            lines.append(f"for block of {item.axis}")
            lines += [INDENT + text for line in item.body for text in dump_line(line)]
        else:
            lines += dump_line(item)
    lines += [_scan(scan) for scan in kernel.scans]
    lines += [_store(store) for store in kernel.stores]
    return lines[0] + "\n" + "".join(f"{INDENT}{line}\n" for line in lines[1:])


def dump_line(line: Line) -> list[str]:
    """One line; a loop over blocks has its body indented below it."""
    match line:
        case Load(name=name, axes=axes):
            return [f"{name}{_axes(axes)} = load"]
        case Assign(name=name, axes=axes, expr=expr, over=over):
            value = f"{_sum(over, line.least)}{show(expr)}"
            strong = [f"{INDENT}if strong, beside 16 bits: {show(line.strong)}"] if line.strong is not None else []
            return [f"{name}{_axes(axes)} {_equals(line)} {value}{_note(_marks(line))}", *_if_mild(line), *strong]
        case Dot(name=name, axes=axes, x=x, y=y):
            where = f" where {line.mask}" if line.mask else ""
            return [f"{name}{_axes(axes)} {_equals(line)} {x} @ {y}{where}{_note(_marks(line))}"]
        case RowSum(name=name, axes=axes, source=source, select=select):
            value = f"sum({select}{', after s' * line.apart}) {source}"
            return [f"{name}{_axes(axes)} {_equals(line)} {value}{_note(_marks(line))}"]
        case Depth(name=name, source=source, limit=limit, since=since):
            value = f"halves until {source}{f' (in sum {since})' if since else ''} stays within {limit}"
            notes = _note([word for word in ("bounded", "always") if getattr(line, word)])
            return [f"{name}{_axes(line.axes)} {_equals(line)} {value}{notes}"]
        case Blocks(kind=kind, leaf=leaf, body=body, depth=depth, by_row=by_row):
            deep = f", {depth} deep{' by row' * by_row}" if depth else ""
            return [f"for blocks {kind} {leaf}{deep}", *(INDENT + text for x in body for text in dump_line(x))]
        case _:
            raise InternalError(f"cannot dump {line!r}")


def _scan(scan: Scan) -> str:
    saved = f", saved in {scan.saved}" if scan.saved else ""
    total = " + ".join([show(scan.update), *(f"{dot.x} @ {dot.y}" for dot in scan.added)])
    return f"next {scan.tile} = {total}  # from {scan.first} to {scan.last}{saved}"


def _store(store: Store) -> str:
    return f"store {store.target}{_axes(store.axes)} {'+=' if store.adds else '='} {store.tile}"


def _axes(axes: tuple[str, ...]) -> str:
    return f"[{','.join(axes)}]" if axes else ""


def _sum(over: tuple[str, ...], least: bool = False) -> str:
    return f"{'least' if least else 'sum'}({','.join(over)}) " if over else ""


def _product(factors: Iterable[object]) -> str:
    return " * ".join(map(str, factors))


def _marks(line: Assign | Dot | RowSum) -> list[str]:
    """What a line says beside its value."""
    words = [word for word in ("guarded", "wide", "exponent", "spared") if getattr(line, word, False)]
    return [f"rounded {line.rounded}", *words] if isinstance(line, Assign) and line.rounded else words


def _if_mild(line: Assign) -> list[str]:
    """What it is instead in runs for mild gates, and in other runs where gates were mild up to there."""
    if line.mild is None:
        return []
    value = f"{_sum(line.over, least=True)}{show(line.mild)}"
    if line.still_mild:
        sums, low = line.still_mild
        value += f", still so from {show(low)} of {show(sums)}"
    return [f"{INDENT}if mild{' and near' * line.near}: {value}"]


def _equals(line: Assign | Dot | RowSum | Depth) -> str:
    return "+=" if line.accumulate else "="


def _note(words: list[str]) -> str:
    return f"  # {', '.join(words)}" if words else ""
