"""The problems: functions of an input and a number, whose docstrings are the tasks."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable
from typing import Any

Problem = Callable[[Any, int], Any]

LETTERS = "aabcdeeilnorstu"


def sum_multiples(numbers: list[int], k: int) -> int:
    """Return the sum of the numbers that are divisible by {k}; 0 when there are none."""
    return sum(number for number in numbers if number % k == 0)


def shift_letters(text: str, k: int) -> str:
    """Return the text with every letter a to z moved {k} places on in the alphabet; z is followed by a."""
    return "".join(chr((ord(c) - 97 + k) % 26 + 97) if "a" <= c <= "z" else c for c in text)


def count_long_words(text: str, k: int) -> dict[str, int]:
    """Return how often each word with more than {k} mod 4 letters occurs; words are separated by blanks."""
    words = [word for word in text.split() if len(word) > k % 4]
    return {word: words.count(word) for word in dict.fromkeys(words)}


def rotate_left(numbers: list[int], k: int) -> list[int]:
    """Return the list rotated to the left by {k} places."""
    return numbers[k % len(numbers) :] + numbers[: k % len(numbers)] if numbers else []


def largest_below(numbers: list[int], k: int) -> int | None:
    """Return the largest number that is below {k}, or None when there is none."""
    return max((number for number in numbers if number < k), default=None)


def chunk_sums(numbers: list[int], k: int) -> list[int]:
    """Return the sums of consecutive pieces of 2 + {k} mod 3 numbers; the last piece may be shorter."""
    size = 2 + k % 3
    return [sum(numbers[start : start + size]) for start in range(0, len(numbers), size)]


def pairs_with_sum(numbers: list[int], k: int) -> int:
    """Return how many pairs of places i < j have numbers whose sum is {k}."""
    return sum(a + b == k for i, a in enumerate(numbers) for b in numbers[i + 1 :])


def run_lengths(text: str, k: int) -> list[list[Any]]:
    """Return the runs of equal characters as lists of character and length times {k}, from left to right."""
    runs: list[list[Any]] = []
    for c in text:
        if runs and runs[-1][0] == c:
            runs[-1][1] += k
        else:
            runs.append([c, k])
    return runs


def collatz_steps(number: int, k: int) -> int:
    """Return how many steps lead from the number to 1, at most ten times {k}.

    A step halves an even number, and triples an odd one and adds 1.
    """
    steps = 0
    while number != 1 and steps < 10 * k:
        number, steps = (number // 2 if number % 2 == 0 else 3 * number + 1), steps + 1
    return steps


def digits_in_base(number: int, k: int) -> list[int]:
    """Return the digits of the number in base {k}, the highest first; 0 has one digit."""
    digits = []
    while number:
        number, digit = divmod(number, k)
        digits.append(digit)
    return digits[::-1] or [0]


def drop_repeats(numbers: list[int], k: int) -> list[int]:
    """Return the numbers in their order, leaving out each whose remainder by {k} occurred before."""
    seen: dict[int, int] = {}
    for number in numbers:
        seen.setdefault(number % k, number)
    return list(seen.values())


def every_nth_word(text: str, k: int) -> str:
    """Return the words at places 0, n, 2n and so on, joined by one blank, where n is 2 + {k} mod 3."""
    return " ".join(text.split()[:: 2 + k % 3])


PROBLEMS: dict[str, Problem] = {
    problem.__name__: problem
    for problem in (
        *(sum_multiples, shift_letters, count_long_words, rotate_left, largest_below, chunk_sums),
        *(pairs_with_sum, run_lengths, collatz_steps, digits_in_base, drop_repeats, every_nth_word),
    )
}


def argument(problem: Problem) -> str:
    """Return the name of a problem's input."""
    return next(iter(inspect.signature(problem).parameters))


def task(problem: Problem, number: int) -> str:
    """Return what the model is asked."""
    said = inspect.cleandoc(problem.__doc__ or "").format(k=number)
    return f"Write `solve({argument(problem)})`. {said}"


def draw_inputs(problem: Problem, number: int, rng: random.Random, count: int) -> list[Any]:
    """Return inputs that have at least two different results, so that no constant passes them all."""
    while True:
        inputs = [draw_input(problem, rng) for _ in range(count)]
        if len({json.dumps(problem(each, number)) for each in inputs}) > 1:
            return inputs


def draw_input(problem: Problem, rng: random.Random) -> Any:
    """Return an input of the right type."""
    match argument(problem):
        case "numbers":
            return [rng.randint(0, 40) for _ in range(rng.randint(0, 12))]
        case "number":
            return rng.randint(1, 3000)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(1, 6))) for _ in range(rng.randint(2, 12))]
    return " ".join(rng.choice(words) for _ in words)
