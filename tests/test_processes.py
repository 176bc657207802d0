"""Processes end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ranloom.processes import process_cpu_s

SCRIPT = """
import sys
from ranloom.processes import die_with_parent

die_with_parent(int(sys.argv[1]))
print("lives")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells children of a parent's death")
def test_a_process_whose_parent_has_ended_before_it_could_ask_ends():
    def words(parent):
        command = [sys.executable, "-c", SCRIPT, str(parent)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert words(os.getpid()) == "lives\n"
    # Adopted by somebody else by the time it asked.
    assert words(os.getpid() + 1) == ""


def test_processor_time_of_another_process_is_that_of_its_own_clock():
    before_s = time.process_time()
    assert before_s <= process_cpu_s(os.getpid()) <= time.process_time()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_cpu_s(ended.pid) == 0.0
