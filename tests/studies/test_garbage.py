"""Garbage collection in commands: off during imports, and nothing to collect at the end."""

from __future__ import annotations

import gc
import subprocess
import sys

from rekindle.studies.garbage import importing


def test_a_program_that_calls_a_command_keeps_its_garbage_collection() -> None:
    frozen = gc.get_freeze_count()
    with importing(own_process=False):
        assert gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_imported_objects_are_never_searched_for_garbage_and_later_ones_are() -> None:
    program = """
import gc, weakref
from rekindle.studies.garbage import importing

class Node: pass

def cycle():
    node = Node()
    node.own = node
    return weakref.ref(node)

with importing(own_process=True):
    assert not gc.isenabled()
    before = cycle()
after = cycle()
assert gc.isenabled() and gc.get_freeze_count() > 1000
gc.collect()
assert before() is not None and after() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_command_leaves_nothing_to_search_at_its_end() -> None:
    program = """
import atexit, gc, sys
atexit.register(lambda: print(len(gc.get_objects())))  # the first to be registered is the last to be called
sys.argv = ["rekindle", "space", "surrogate"]
from rekindle.studies.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert int(done.stdout.split()[-1]) < 1000
