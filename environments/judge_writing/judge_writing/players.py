"""Scripted players: `expert` states the key points, `random` strays, and `judge` judges."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

from judge_writing.topics import TOPICS

Player = Callable[[ModelRequest], str]


def state_points(topic: str) -> str:
    """Return the key points of a topic as one sentence each."""
    return " ".join(f"{point[0].upper()}{point[1:]}." for point in TOPICS[topic])


def expert(request: ModelRequest) -> str:
    """Return the key points of the topic that is asked for."""
    asked = message_text(request.messages[-1])
    return next(state_points(topic) for topic in TOPICS if f" {topic}." in asked)


def random(request: ModelRequest) -> str:
    """Return the key points of any topic."""
    return state_points(derived_rng("judge_writing player", request.seed).choice(sorted(TOPICS)))


def judge(request: ModelRequest) -> str:
    """Return a verdict: the share of key points whose longer words are in the explanation."""
    asked = message_text(request.messages[-1])
    points = re.findall(r"^- (.+)$", between(asked, "key_points"), re.MULTILINE)
    said = set(re.findall(r"\w+", between(asked, "explanation").lower()))
    stated = 0
    for point in points:
        words = [word for word in re.findall(r"\w+", point.lower()) if len(word) > 3]
        stated += sum(word in said for word in words) > 0.7 * len(words)
    return json.dumps({"reason": "by words", "score": stated / max(1, len(points))})


def between(text: str, tag: str) -> str:
    """Return the text in a tag of the judge's prompt."""
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
