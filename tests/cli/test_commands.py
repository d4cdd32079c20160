"""What commands do with files that are not theirs, and with what goes wrong: a line on what to do, an exit code, and
nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from glagen import loader
from glagen.cli import main
from glagen.cli import options as shared
from glagen.cli.options import each, progress
from glagen.errors import Source
from glagen.jobs import KILLED
from glagen.pipeline import compile_spec
from tests.numerics.helpers import ROOT, spec_text

GLA = str(ROOT / "specs" / "gla.yaml")


def run(*command: str):
    return CliRunner().invoke(main, [str(x) for x in command])


@pytest.mark.parametrize("content", [b"\xff\xfe not text", b"# mine\n"])
def test_files_that_are_not_ours_stay(content, tmp_path):
    place = tmp_path / "gla.py"
    place.write_bytes(content)
    for options in ([], ["--check"]):
        result = run("compile", GLA, "-o", tmp_path, *options)
        assert result.exit_code == 1 and ("not as glagen wrote it" in result.output or "stale" in result.output)
    result = run("run", GLA, "-o", tmp_path, "--device", "cpu")
    assert result.exit_code == 1 and "not compiled from" in result.output and "glagen compile" in result.output
    assert place.read_bytes() == content


def test_edits_above_the_code_stay(tmp_path):
    run("compile", GLA, "-o", tmp_path)
    place = tmp_path / "gla.py"
    for text in ("import mine\n" + place.read_text(), place.read_text().replace("Equations\n", "Equations!\n", 1)):
        place.write_text(text)
        assert run("compile", GLA, "-o", tmp_path).exit_code == 1 and place.read_text() == text
    assert run("compile", GLA, "-o", tmp_path, "--force").exit_code == 0


def test_two_specs_of_one_name_do_not_take_turns(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(spec_text("retnet").replace("name: retnet", "name: gla"))
    result = run("compile", GLA, other, "-o", tmp_path)
    assert result.exit_code == 1 and "like that of" in result.output
    assert (tmp_path / "gla.py").read_text() == compile_spec(Source(GLA, Path(GLA).read_text()))
    assert run("compile", GLA, GLA, "-o", tmp_path).exit_code == 0


def test_a_module_of_an_earlier_spec_is_not_run(tmp_path):
    spec = tmp_path / "gla.yaml"
    spec.write_text(spec_text("gla"))
    run("compile", spec, "-o", tmp_path)
    spec.write_text(spec_text("gla").replace("g: {axes: [t, i]", "g: {axes: [t]").replace("exp(g[t,i])", "exp(g[t])"))
    result = run("run", spec, "-o", tmp_path, "--device", "cpu")
    assert result.exit_code == 1 and "as it is now" in result.output and result.exception.__class__ is SystemExit


def test_results_of_others_are_not_overwritten(tmp_path):
    place = tmp_path / "gla.json"
    for text in ("MY DATA", "[1]"):
        place.write_text(text)
        result = run("bench", GLA, "-o", tmp_path, "--device", "cpu", "--workload", "small")
        assert result.exit_code == 1 and "not written by `glagen bench`" in result.output and place.read_text() == text


@pytest.mark.parametrize(
    ("log", "content", "said"),
    [
        ("no/such/folder/x.jsonl", None, "No such file or directory"),
        ("notes.txt", b"my notes\n", "not a log of `glagen fuzz`"),
        ("binary", b"\xff\xfe\n", "not a log of `glagen fuzz`"),
        ("list.json", b"12\n", "not a log of `glagen fuzz`"),
    ],
)
def test_logs_of_others_are_not_written_to(log, content, said, tmp_path):
    place = tmp_path / log
    if content is not None:
        place.write_bytes(content)
    result = run("fuzz", "--count", "1", "--log", place)
    assert result.exit_code == 2 and said in result.output
    assert content is None or place.read_bytes() == content


def test_devices_without_data_are_refused():
    result = run("check", GLA, "--device", "meta")
    assert result.exit_code == 2 and "'meta' is not to be had" in result.output


def test_a_cold_start_that_fails_is_told(tmp_path, monkeypatch):
    from glagen import bench

    def fails(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(bench, "cold_start", fails)
    monkeypatch.setattr(bench, "bench", lambda *_: iter([]))
    result = run("bench", GLA, "-o", tmp_path, "--device", "cpu", "--cold")
    assert result.exit_code == 1 and "failed: out of memory" in result.output and not list(tmp_path.iterdir())


def test_kernels_that_do_not_fit_are_told(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from glagen import targets

    row = {"kernel": "states", "dtype": "bf16", "K": 128, "V": 128, "shared": 2, "registers": 3, "spills": 0, "mma": ()}
    for limit in (1, 2):
        built = SimpleNamespace(**row, shared_limit=limit, fits=limit > 1)
        monkeypatch.setattr(targets, "build", lambda *_, built=built: iter([built]))
        result = run("compile", GLA, "-o", tmp_path, "--target", "sm_90")
        assert (result.exit_code, "DOES NOT FIT" in result.output) == ((0, False) if limit > 1 else (1, True))


def test_a_process_that_was_killed_is_a_check_that_failed(capsys):
    def work(path):
        raise ChildProcessError(KILLED)

    with pytest.raises(SystemExit) as caught:
        each((Path("a.yaml"),), work)
    assert caught.value.code == 1 and "a.yaml: a process was killed" in capsys.readouterr().err


def test_a_subchunk_longer_than_the_chunk_is_refused(tmp_path):
    spec = tmp_path / "gla.yaml"
    spec.write_text(spec_text("gla").replace("subchunk: auto", "subchunk: 64"))
    result = run("compile", spec, "-o", tmp_path)
    assert result.exit_code == 2 and "subchunk 64 does not divide 32, the chunk that `auto` chooses" in result.output


def test_threads_get_whole_modules(tmp_path, monkeypatch):
    monkeypatch.setenv("GLAGEN_CACHE", str(tmp_path))
    text = spec_text("gla").replace("name: gla", "name: of_threads")
    start, found = threading.Barrier(4), []

    def loads():
        start.wait()
        found.append(loader.load(Source("a.yaml", text)).of_threads)

    threads = [threading.Thread(target=loads) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_an_empty_cache_folder_is_the_usual_one(tmp_path, monkeypatch):
    monkeypatch.setenv("GLAGEN_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loader.cache_folder() == tmp_path / "glagen"


def test_options_are_json_where_they_say_so():
    result = run("check", GLA, "--device", "cpu", "--regime", "zero", "--json")
    assert result.exit_code == 0 and json.loads(result.output)["rows"]


def test_python_runs_the_package():
    command = [sys.executable, "-m", "glagen", "compile", "--check", GLA]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0 and "fresh" in result.stdout


@pytest.mark.parametrize(("quiet", "told"), [(False, ["30 s", "60 s"]), (True, [])])
def test_a_log_is_told_of_progress_now_and_then(quiet, told, monkeypatch, capsys):
    """On stderr: what a command prints may be read by others."""
    now = 0.0
    monkeypatch.setattr(shared.time, "monotonic", lambda: now)
    with progress(quiet) as say:
        for second in range(70):
            now = float(second)
            say(f"{second} s")
    assert capsys.readouterr() == ("", "".join(f"{line}\n" for line in told))
