"""Runs code in copies of a process that has imported what takes long to import: 4 s less a run.

`python -m tests.copies MODULE ...` is that process. Each line it reads is a run, as JSON: the code, variables of its
environment, the files that stdout and stderr go to, its arguments. It answers with the exit status.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
SECONDS = 600  # that a run may take


def copied(
    imported: tuple[str, ...], interpret: bool, code: str, environment: Mapping[str, str], *arguments: object
) -> subprocess.CompletedProcess[str]:
    """This code, with these arguments, in a copy of a process that has imported these modules, for Triton's interpreter
    or for its compiler: Triton reads which when it is imported."""
    with TemporaryDirectory() as folder:
        said = [Path(folder, stream) for stream in ("stdout", "stderr")]
        server = _server(imported, interpret)
        assert server.stdin and server.stdout
        run = [code, environment, *map(str, (*said, *arguments))]
        print(json.dumps(run), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(code, status, *(path.read_text() for path in said))


@functools.cache
def _server(imported: tuple[str, ...], interpret: bool) -> subprocess.Popen[str]:
    """The process that is copied, which ends with this one."""
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    environment |= {"TRITON_INTERPRET": "1"} if interpret else {}
    command, pipe = [sys.executable, "-m", __name__, *imported], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)


def main(*imported: str) -> None:
    for name in imported:
        importlib.import_module(name)
    gc.freeze()  # what was imported stays, and need not be looked through
    for line in sys.stdin:
        process = multiprocessing.get_context("fork").Process(target=_run, args=json.loads(line))
        process.start()
        process.join(SECONDS)
        process.kill()
        process.join()
        print(process.exitcode, flush=True)


def _run(code: str, environment: dict[str, str], stdout: str, stderr: str, *arguments: str) -> None:
    os.environ.update(environment)
    for number, path in enumerate((stdout, stderr), 1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    sys.argv[1:] = arguments
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main(*sys.argv[1:])
