"""The same bytes for the same spec: on any hash seed, from any path, and as committed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glagen.emit import checksum, is_ours
from glagen.errors import Source
from glagen.parse import read
from glagen.pipeline import compile_spec

ROOT = Path(__file__).parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
# More than the committed specs: two outputs, two reads, two writes, parameters, sums that sympy orders.
EXTRA = """
name: extra
inputs:
  q: [t, i]
  k: [t, i]
  m: [t, i]
  v: [t, j]
  w: [t, j]
  x: {axes: [t, i]}
  p: {axes: [i], kind: parameter, domain: "[-6, 0]"}
  u: {axes: [i], kind: parameter}
state: S[i, j]
equations:
  - S[t,i,j] = sigmoid(x[t,i]) ** (1/16) * exp(p[i]) * S[t-1,i,j] + k[t,i] * v[t,j] + silu(m[t,i]) * w[t,j]
  - o[t,j] = sum(i, q[t,i] * S[t-1,i,j]) + sum(i, q[t,i] * u[i] * k[t,i]) * v[t,j]
  - y[t,j] = sum(i, tanh(m[t,i]) * S[t,i,j])
"""
WORKER = """
import json, sys
from pathlib import Path
from glagen.errors import Source
from glagen.parse import read
from glagen.pipeline import compile_spec
texts = {p: compile_spec(read(Path(p))) for p in sys.argv[2:]}
texts["extra"] = compile_spec(Source("extra.yaml", sys.argv[1]))
print(json.dumps(texts))
"""


@pytest.fixture(scope="module")
def texts() -> list[dict[str, str]]:
    """All specs as compiled under two hash seeds, one process each."""
    found = []
    for seed in ("0", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WORKER, EXTRA, *map(str, SPECS)]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert run.returncode == 0, run.stderr[-2000:]
        found.append(json.loads(run.stdout))
    return found


@pytest.mark.parametrize("spec", [*SPECS, Path("extra")], ids=lambda p: p.stem)
def test_same_bytes_for_every_hash_seed(texts, spec):
    assert texts[0][str(spec)] == texts[1][str(spec)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_committed_modules_are_fresh(texts, spec):
    committed = (ROOT / "generated" / f"{spec.stem}.py").read_text()
    assert committed == texts[0][str(spec)], f"run `glagen compile specs/{spec.name}`"


def test_every_spec_has_a_module_and_every_module_a_spec():
    assert [p.stem for p in SPECS] == sorted(p.stem for p in (ROOT / "generated").glob("*.py"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_committed_modules_know_their_checksum(spec):
    text = (ROOT / "generated" / f"{spec.stem}.py").read_text()
    assert is_ours(text)
    assert not is_ours(text.replace("\nCHUNK = ", "\nCHUNK = 1", 1))
    assert not is_ours(text + "\n")
    assert not is_ours("")


def test_the_digest_is_of_the_text_and_not_of_the_path(tmp_path):
    spec = SPECS[0]
    elsewhere = tmp_path / "another_name.yaml"
    elsewhere.write_text(spec.read_text())
    assert compile_spec(read(elsewhere)) == compile_spec(read(spec))
    assert checksum(spec.read_text()) in compile_spec(read(spec))


def test_another_text_gives_another_digest_alone():
    text = SPECS[0].read_text()
    one, two = (compile_spec(Source("x.yaml", t)) for t in (text, text + "# a comment\n"))
    assert one != two
    assert one.replace(checksum(text), "") == two.replace(checksum(text + "# a comment\n"), "")


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_no_dates_no_paths(spec):
    text = (ROOT / "generated" / f"{spec.stem}.py").read_text()
    assert str(ROOT) not in text and "/home" not in text and ".yaml" not in text
    assert text.endswith("\n") and "\r" not in text and "\t" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
