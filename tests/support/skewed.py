"""Processes with wrong clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t shift(void) {
    const char *text = getenv("SKEW_SECONDS");
    return text ? (time_t)atoll(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return status;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    int status = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return status;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}
"""

# Without a compiler, only Python's clocks are wrong, but Rekindle reads no others.
WITHOUT_COMPILER = """
import os as _os, time as _time
_shift = int(_os.environ["SKEW_SECONDS"])
_real, _real_ns = _time.time, _time.time_ns
_time.time = lambda: _real() + _shift
_time.time_ns = lambda: _real_ns() + _shift * 10**9
"""


def skewed(directory: Path, seconds: int) -> tuple[dict[str, str], str]:
    """Return environment variables and a prefix of Python code for a process with a wrong clock."""
    environment = {**os.environ, "SKEW_SECONDS": str(seconds)}
    compiler = shutil.which("cc")
    if compiler is None:
        return environment, WITHOUT_COMPILER
    library = directory / "skew.so"
    if not library.exists():
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), "-x", "c", "-", "-ldl"]
        subprocess.run(command, input=SOURCE, text=True, check=True, capture_output=True)
    return {**environment, "LD_PRELOAD": str(library)}, ""
