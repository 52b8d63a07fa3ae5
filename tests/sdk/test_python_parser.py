"""Parsing of Python in a process with threads."""

from __future__ import annotations

import ast
import threading

import pytest
from wander.system.python_parser import parse_alone


def test_a_parse_disturbed_by_another_thread_is_repeated() -> None:
    failures = iter([SystemError("AST constructor recursion depth mismatch (before=90, after=30)")] * 3)

    def parse() -> ast.Module:
        for failure in failures:
            raise failure
        return ast.parse("a = 1")

    assert len(parse_alone(parse).body) == 1


def test_errors_of_the_source_are_raised() -> None:
    with pytest.raises(SyntaxError):
        parse_alone(lambda: ast.parse("a ="))


def test_a_parser_that_always_fails_is_not_tried_forever() -> None:
    def parse() -> None:
        raise SystemError("bad argument to internal function")

    with pytest.raises(SystemError, match="bad argument"):
        parse_alone(parse)


def test_threads_parse_one_after_the_other() -> None:
    inside, most = set[int](), list[int]()

    def parse() -> None:
        inside.add(threading.get_ident())
        most.append(len(inside))
        ast.parse("a = [1, 2, 3]\n" * 200)
        inside.remove(threading.get_ident())

    threads = [threading.Thread(target=lambda: [parse_alone(parse) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 80
    assert max(most) == 1
