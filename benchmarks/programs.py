"""What a program's epoch costs as a task beside the program alone, and how little of its checkpoint is written.

    python benchmarks/programs.py [--megabytes 0 10 100] [--epochs 20] [--folder DIR]

The program writes a checkpoint of random bytes in each epoch, anew or a hundredth of it in one place, and reports, as a
task with an SQLite database. By hand a report does nothing, so what it takes is what an epoch costs more. Beside it,
in turns with the epochs: the time of copying such a checkpoint twice in the same folder. Most epochs are only copied;
the means have those that are also stored, at most a fiftieth of the time of a long training, as with any task. The last
line is a checkpoint of 1 GB of which a hundredth changes: bytes written to the copy, and bytes of new blobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import psutil
from rekindle import Store
from rekindle.tasks import load
from rekindle.tasks.adapters.folders import Folder
from rekindle.tasks.adapters.program_commands import ProgramCommand
from rekindle.tasks.adapters.reporting import __file__ as reporting
from rekindle.tasks.checkpoint.state import pack

PROGRAM = f"""
import importlib.util, os, shutil, sys, time
from pathlib import Path
specification = importlib.util.spec_from_file_location("reporting", {reporting!r})
reporting = importlib.util.module_from_spec(specification)
specification.loader.exec_module(reporting)
epochs, folder, size, changed = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
path, count = folder / "weights", folder / "epoch"
for epoch in range(int(count.read_text()) + 1 if count.exists() else 1, epochs + 1):
    if epoch == 1 or changed == size:
        path.write_bytes(os.urandom(size))
    else:
        with path.open("r+b") as file:
            file.seek((size - changed) * (epoch % 7) // 7)
            file.write(os.urandom(changed))
    count.write_text(str(epoch))
    start = time.perf_counter()
    reporting.report(epoch, return_=epoch)
    took = time.perf_counter() - start
    start = time.perf_counter()
    for number in range(2):
        shutil.copyfile(path, folder.parent / ("copy", "other")[number])
    with open(sys.argv[5], "a") as file:
        print(took, time.perf_counter() - start, file=file)
"""


def measure(epochs: int, size: int, changed: int, place: Path) -> list[float]:
    """Return milliseconds: mean and median of reports, then of two copies."""
    database, log = place / "programs.db", place / "times"
    words = [sys.executable, "-c", PROGRAM, "{epochs}", "{checkpoint}", str(size), str(changed), str(log)]
    with Store(f"sqlite:///{database}") as store:
        task = load(ProgramCommand.of(words, {"space": {}}).name)(seed=1, storage=store).init()
        task.fit(epochs)
        task.close()
    database.unlink()
    times = [[float(text) * 1e3 for text in line.split()] for line in log.read_text().splitlines()]
    log.unlink()
    reports, copies = zip(*times[:-1], strict=True)  # in the last one, the program is told to end
    return [average(column) for column in (reports, copies) for average in (statistics.fmean, statistics.median)]


def written(size: int) -> tuple[int, int]:
    """Return the bytes that a change of a hundredth writes to the copy of a folder, and to the storage."""
    folder = Folder()
    path = folder.work / "weights"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(size // 100))
    folder.keep()
    stored = pack(folder.member_state(0)).blobs.keys()
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(size // 100))
    before = psutil.Process().io_counters().write_chars
    folder.keep()
    copied = psutil.Process().io_counters().write_chars - before
    blobs = pack(folder.member_state(0)).blobs
    return copied, sum(len(blobs[name]) for name in blobs.keys() - stored)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[0, 10, 100])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where all files are written (default: the temporary folder)")
    arguments = parser.parse_args()
    print("MB      changed   report ms: mean, median   copied twice: mean, median")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        tempfile.tempdir = folder
        for size, share in [(n * 1_000_000 or 1000, share) for n in arguments.megabytes for share in (1.0, 0.01)]:
            row = measure(arguments.epochs, size, int(size * share), Path(folder))
            print(f"{size / 1e6:<7g} {share:>7.0%}" + "".join(f"{value:>14.1f}" for value in row), flush=True)
        copied, stored = written(10**9)
        print(f"of 1 GB, a hundredth changed: {copied / 1e9:.2%} copied, {stored / 1e9:.2%} stored")


if __name__ == "__main__":
    main()
