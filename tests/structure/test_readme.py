"""What the README shows is what glagen does: its specs compile, and the variant that it adds is right. What it and the
other pages link to is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import glagen
from glagen.errors import Source
from glagen.parse import parse
from glagen.regimes import Case
from glagen.schedule.tiles import shipped
from glagen.verify import verify

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SPECS = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


PAGES = sorted(
    p for folder in (".", "glagen", "tests") for p in (ROOT / folder).glob("**/*.md" if folder != "." else "*.md")
)


def source(text: str) -> Source:
    return Source("README.md", text)


def test_the_first_spec_is_the_committed_one():
    committed = (ROOT / "specs" / "gla.yaml").read_text()
    assert SPECS[0] == "".join(line for line in committed.splitlines(keepends=True) if not line.startswith("#"))
    assert len(SPECS[0].splitlines()) <= 17


def test_the_signature_is_the_one_shown():
    module = glagen.load(source(SPECS[0]))
    shown = re.search(r"= gla\((.*?)\)\n", README, re.DOTALL)
    assert shown
    defaults = [str(p.default) for p in inspect.signature(module.gla).parameters.values() if p.default is not p.empty]
    assert [x.split("=")[1].strip('"') for x in shown.group(1).strip().split(", ") if "=" in x] == defaults


def test_the_variant_is_right():
    document = parse(source(SPECS[1]))
    report = verify(
        document,
        glagen.load(source(SPECS[1])),
        regimes=("mild", "reset"),
        cases=(Case(1, 40, 2, 8, 6),),
        precisions=("fp64", "fp32"),
    )
    assert not report.failures


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and (not anchor or anchor in anchors(target)), (path, anchor)


@pytest.mark.parametrize("page", ["CHANGELOG.md", "glagen/schedule/README.md"])
def test_the_table_has_as_many_configurations_as_pages_say(page):
    said = re.findall(r"(\d+)\s+(?:measured\s+)?configurations", (ROOT / page).read_text())
    assert said == [str(len(shipped()))]
