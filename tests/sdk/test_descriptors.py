"""Processes with many open files: waiting for descriptors of any number, and the limit of open files."""

from __future__ import annotations

import os
import resource

import pytest
from wander.system.descriptors import raise_file_limit, wait_readable


@pytest.mark.usefixtures("many_open_files")
def test_a_descriptor_with_a_high_number_is_waited_for() -> None:
    reading, writing = os.pipe()
    try:
        assert reading > 1024
        assert not wait_readable(reading, 0)
        os.write(writing, b"1")
        assert wait_readable(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, most))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) in ((most, most), (65_536, most))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
