"""Dependencies point one way, each foreign library has one home, modules stay short, templates hold no formula."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "glagen").rglob("*.py"))
STAGES = ("parse", "check", "derive", "schedule", "emit")
# What may import what: a part of glagen may import itself and the parts before it, stages not each other.
LAYERS = (("errors", "files", ""), ("ir",), ("algebra",), STAGES, ("explain",), ("pipeline",))
HOMES = {
    "yaml": ("parse",),
    "lark": ("parse",),
    "sympy": ("algebra",),
    "jinja2": ("emit",),
    "click": ("cli",),
    "rich": ("cli", "report", "bench"),
    "torch": (
        "candidates",
        "compat",
        "configurations",
        "fuzz",
        "jobs",
        "reference",
        "regimes",
        "tolerances",
        "variants",
        "verify",
        "targets",
        "trial",
        "tune",
        "cli",
        "bench",
    ),
    "triton": ("candidates", "configurations", "targets", "cli", "bench", "tune"),
    "matplotlib": ("bench",),
}
REFERENCE = {"glagen.errors", "glagen.ir.document", "glagen.ir.expr", "glagen.ir.interval"}
BUDGET = 350  # lines


def part_of(path: Path) -> str:
    """`emit` of glagen/emit/triton.py, `loader` of glagen/loader.py, "" of glagen/__init__.py."""
    name = path.relative_to(ROOT / "glagen").parts[0]
    return "" if name == "__init__.py" else name.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """The modules a file imports, anywhere in it; relative imports are not used here and would show as "."."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [f"{module}.{a.name}" for a in node.names] if module == "glagen" else [module]
    return found


def rank(part: str) -> int:
    return next((n for n, layer in enumerate(LAYERS) if part in layer), len(LAYERS))


def own(path: Path) -> list[str]:
    """The parts of glagen that a file imports; a name of glagen/__init__.py belongs to "" there."""
    parts = [name.split(".")[1] for name in imports(path) if name.startswith("glagen.")]
    return [p if (ROOT / "glagen" / p).is_dir() or (ROOT / "glagen" / f"{p}.py").is_file() else "" for p in parts]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_dependencies_point_one_way(path):
    part = part_of(path)
    if part == "":  # the package's front door offers what lies behind it, lazily
        return
    for other in own(path):
        later = rank(other) > rank(part) or (part in STAGES and other in STAGES and other != part)
        assert not later, f"{path.relative_to(ROOT)} imports glagen.{other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_foreign_libraries_have_one_home(path):
    for name in imports(path):
        top = name.split(".")[0]
        if top in ("glagen", "", *sys.stdlib_module_names):
            assert not name.startswith("."), f"{path}: relative import"
            continue
        assert top in HOMES, f"{path.relative_to(ROOT)} imports {top}, which has no home"
        assert part_of(path) in HOMES[top], f"{path.relative_to(ROOT)} imports {top}, whose home is {HOMES[top]}"


def test_the_reference_knows_nothing_of_the_compiler():
    found = imports(ROOT / "glagen" / "reference.py")
    assert {name for name in found if name.startswith("glagen")} <= REFERENCE
    assert {name.split(".")[0] for name in found} - {"glagen", *sys.stdlib_module_names} == {"torch"}


def test_no_imports_in_a_circle_within_a_part():
    """Within a stage too, modules import each other one way."""
    names = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in MODULES}
    uses = {name: [x for x in imports(path) if x in names and x != name] for name, path in names.items()}
    done: set[str] = set()
    while ready := [name for name in uses if name not in done and set(uses[name]) <= done]:
        done |= set(ready)
    assert done == set(uses), f"a circle among {sorted(set(uses) - done)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_short(path):
    lines = len(path.read_text().splitlines())
    assert lines <= BUDGET, f"{path.relative_to(ROOT)} has {lines} lines"
