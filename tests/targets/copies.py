"""Runs code in copies of one process that has imported what builds kernels, without TRITON_INTERPRET: 4 s less a run.

`python -m tests.targets.copies` is that process. Each line it reads is a run, as JSON: the code, its arguments, where
Triton's cache is, and the files that stdout and stderr go to. It answers with the exit status.
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
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
IMPORTED = "triton.compiler.code_generator", "glagen.loader", "glagen.parse", "glagen.targets"


def ran(code: str, cache: Path, *arguments: object) -> str:
    """What this code prints, which has these arguments. Fails if it does."""
    with TemporaryDirectory() as folder:
        said = [Path(folder, stream) for stream in ("stdout", "stderr")]
        server = _server()
        assert server.stdin and server.stdout
        print(json.dumps([code, *map(str, (cache, *said, *arguments))]), file=server.stdin, flush=True)
        status = server.stdout.readline()
        assert status == "0\n", (status, said[1].read_text()[-1500:])
        return said[0].read_text()


@functools.cache
def _server() -> subprocess.Popen[str]:
    """The process that is copied, which ends with this one."""
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what was imported stays, and need not be looked through
    for line in sys.stdin:
        process = multiprocessing.get_context("fork").Process(target=_run, args=json.loads(line))
        process.start()
        process.join()
        print(process.exitcode, flush=True)


def _run(code: str, cache: str, stdout: str, stderr: str, *arguments: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    for number, path in enumerate((stdout, stderr), 1):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    sys.argv[1:] = arguments
    exec(code, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
