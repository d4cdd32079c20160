"""Domains: where every name's values lie, and that no logarithm, root or constant leaves its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from glagen import algebra
from glagen.check.constants import MAX_EXPONENT
from glagen.check.intervals import along_interval, apply_interval, point
from glagen.check.names import Scope
from glagen.check.report import Report, shown
from glagen.errors import InternalError
from glagen.ir.document import Declaration
from glagen.ir.expr import Along, Apply, Expr, Number, Ref, walk
from glagen.ir.interval import REALS, Interval

_SMALLEST, _LARGEST = 1e-30, 1e30  # well within float32
_EXAMPLES = tuple({"K": 64, "V": 64, "H": 8, "h": h} for h in (0, 1, 7))

Domains = Mapping[str, Interval]


def interval_of(expr: Expr, domains: Domains) -> Interval:
    """An interval that holds all values of an expression; names without a domain are any finite numbers."""
    match expr:
        case Number(value=value):
            return point(float(value))
        case Ref(name=name):
            return domains.get(name, REALS)
        case Along(body=body):
            return along_interval(type(expr), interval_of(body, domains))
        case Apply(function=function, args=args):
            return apply_interval(function, tuple(interval_of(arg, domains) for arg in args))
        case _:
            raise InternalError(f"unknown expression {expr!r}")


def check_domains(scope: Scope, report: Report) -> dict[str, Interval]:
    """Finds the domain of every name.

    Requires: names resolved. Ensures: in equations not broken, logarithms are of positive numbers, roots of numbers
    that are not negative, and constants are of moderate size, so that sympy can be given them.
    """
    domains = {name: d.domain or REALS for name, d in scope.declarations.items()}
    for declaration in scope.declarations.values():
        _default(declaration, report)
    known = set(domains)
    for name in scope.order:
        body = scope.equations[name].body
        found = _visit(body, domains, _fault(report, name, known))
        if _mentions_only(body, known) and name not in report.broken and name not in scope.states:
            known.add(name)
            domains[name] = found
    return domains


def check_values(expr: Expr, target: str, domains: Domains, report: Report) -> None:
    """Reports where an expression leaves the domain of a function, all its names known; states are any numbers."""
    _visit(expr, domains, lambda message, node, helped: report.fault(message, node.span, helped, target))


_Fault = Callable[[str, Expr, str], None]


def _fault(report: Report, target: str | None, known: set[str]) -> _Fault:
    """Reports faults, but not of what has unknown names or the state: that is wrong for another reason."""

    def fault(message: str, expr: Expr, helped: str) -> None:
        if _mentions_only(expr, known):
            report.fault(message, expr.span, helped, target)

    return fault


def _visit(expr: Expr, domains: Domains, fault: _Fault) -> Interval:
    """The interval of an expression, each of its nodes checked."""
    match expr:
        case Number(value=value):
            found = point(float(value))
        case Ref(name=name):
            return domains.get(name, REALS)
        case Along(body=body):
            return along_interval(type(expr), _visit(body, domains, fault))
        case Apply(function=function, args=args):
            inside = tuple(_visit(arg, domains, fault) for arg in args)
            if _apply_fault(expr, inside, fault):
                return REALS
            found = apply_interval(function, inside)
        case _:
            raise InternalError(f"unknown expression {expr!r}")
    if _is_constant(expr) and found.low != 0 and not _SMALLEST <= abs(found.low) <= _LARGEST:
        fault(f"constant `{shown(expr)}` is out of range", expr, "constants lie between 1e-30 and 1e30 in size")
        return point(1.0)
    return found


def _apply_fault(expr: Apply, inside: tuple[Interval, ...], fault: _Fault) -> bool:
    """Whether a function is given what it is not defined for; says so."""
    match expr.function, expr.args, inside:
        case "log", (x,), (domain,) if domain.low < 0 or 0 in domain:
            if isinstance(x, Apply) and x.function == "exp":
                return False
            fault(f"log of `{shown(x)}`, which can be {_worst(domain)}", expr, _domain_help(x, "(0, inf)"))
        case "sqrt", (x,), (domain,) if domain.low < 0:
            fault(f"sqrt of `{shown(x)}`, which can be negative", expr, _domain_help(x, "[0, inf)"))
        case "div", (_, y), (_, domain) if domain == point(0.0) or algebra.cancels(y):
            fault("division by 0", y, "divide by something else")
        case "pow", (x, y), (base, exponent):
            return _pow_fault(expr, x, y, base, exponent, fault)
        case _:
            return False
    return True


def _pow_fault(expr: Apply, x: Expr, y: Expr, base: Interval, exponent: Interval, fault: _Fault) -> bool:
    whole = exponent.low == exponent.high and exponent.low.is_integer()
    if _is_constant(y) and abs(exponent.low) > MAX_EXPONENT:
        fault(f"exponent `{shown(y)}` is too large", y, f"exponents lie within -{MAX_EXPONENT} and {MAX_EXPONENT}")
    elif not whole and base.low < 0:
        fault(f"`{shown(x)}` can be negative: its power is not real", expr, _domain_help(x, "(0, inf)"))
    elif exponent.low < 0 and base == point(0.0):
        fault("division by 0", expr, "divide by something else")
    else:
        return False
    return True


def _worst(domain: Interval) -> str:
    return "negative" if domain.low < 0 else "0"


def _domain_help(x: Expr, wanted: str) -> str:
    if isinstance(x, Ref):
        return f'declare `{x.name}` with domain: "{wanted}", or use `softplus`, `sigmoid` or `exp` of it'
    return "make it positive, as `softplus`, `sigmoid` and `exp` do, or declare the domains of its names"


def _mentions_only(expr: Expr, names: set[str]) -> bool:
    return all(node.name in names for node in walk(expr) if isinstance(node, Ref))


def _is_constant(expr: Expr) -> bool:
    return not any(isinstance(node, Ref | Along) for node in walk(expr))


def _default(declaration: Declaration, report: Report) -> None:
    """A default must be a finite number within the declared domain, at some extents and heads taken as examples."""
    expr, domain = declaration.default, declaration.domain or REALS
    if expr is None or any(isinstance(node, Ref) and node.name not in _EXAMPLES[0] for node in walk(expr)):
        return
    before = len(report.diagnostics)
    for extents in _EXAMPLES:
        values = {name: point(float(value)) for name, value in extents.items()}
        found = _visit(expr, values, _fault(report, None, set(values)))
        if len(report.diagnostics) > before:
            return
        if found.low != found.high or math.isinf(found.low):
            report.fault(f"`{declaration.name}` defaults to no finite number", expr.span, "check the expression")
            return
        if found.low not in domain:
            where = ", ".join(f"{name} = {extents[name]}" for name in extents if _mentions(expr, name))
            value = f"{found.low:g} at {where}" if where else f"{found.low:g}"
            message = f"`{declaration.name}` defaults to {value}, outside {domain}"
            report.fault(message, expr.span, "change the default or the domain")
            return


def _mentions(expr: Expr, name: str) -> bool:
    return any(isinstance(node, Ref) and node.name == name for node in walk(expr))
