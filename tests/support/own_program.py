"""A program that trains, with the faults that its words name; it needs only Python and `rekindle.report`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rekindle.tasks.adapters.reporting import report

lr, epochs, seed, folder, *faults = sys.argv[1:]
place = Path(folder) / "state.json"
generator = random.Random(int(seed))
value, first = 10.0, 1
if place.exists():
    saved = json.loads(place.read_text())
    value, first = saved["value"], saved["epoch"] + 1
    version, numbers, gauss = saved["random"]
    if "forget" not in faults:
        generator.setstate((version, tuple(numbers), gauss))
if "ignore" in faults:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "binary" in faults:
    os.write(1, b"\xff\x00\x1b[31m" * 2000 + b"\n")
if "child" in faults:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
if "fork" in faults and os.fork():
    sys.exit(0)
if "fork" in faults:
    os.setsid()
    time.sleep(1000)
if "crash" in faults:
    sys.exit("no such file: data.csv")
if "killed" in faults:
    os.kill(os.getpid(), signal.SIGKILL)
for epoch in range(first, int(epochs) + (2 if "beyond" in faults else 1)):
    value = value - float(lr) * value + 0.01 * generator.gauss()
    if "slow" in faults:
        time.sleep(0.05)
    if "hang" in faults and epoch == 2:
        time.sleep(1000)
    if "outside" in faults:
        Path("model.bin").write_text(str(value))
    state = {"value": value, "epoch": epoch, "random": generator.getstate()}
    temporary = place.with_suffix(".tmp")
    temporary.write_text(json.dumps(state)[:20])
    if "half" in faults and epoch == 2 and not Path(faults[-1]).exists():
        Path(faults[-1]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    temporary.write_text(json.dumps(state))
    temporary.rename(place)
    objective = float("nan") if "nan" in faults else -abs(value)
    label = json.loads(faults[-1]) if "label" in faults else epoch - ("from 0" in faults)
    if "skip" in faults and epoch == int(epochs):
        break
    if "lines" in faults:
        with (Path(folder) / "log.jsonl").open("a") as file:
            file.write(json.dumps({"epoch": label, "return": objective, "note": "text"}) + "\n")
    elif "pattern" in faults:
        print(f"epoch {label}: return={objective!r}", flush=True)
    elif "other" in faults:
        report(epoch, accuracy=1.0)
    elif "silent" not in faults:
        report(label, return_=objective)
