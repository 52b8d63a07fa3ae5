"""The prices that both sides calculate, and scripted players: `expert` waits, `random` moves at random."""

from __future__ import annotations

import re
from collections.abc import Callable

from wander.clients import ModelRequest
from wander.parsers import message_text
from wander.seeding import derived_rng

Player = Callable[[ModelRequest], str]

SIDES = ("seller", "buyer")
HIGHEST = 250
MOVE = re.compile(r"<move>\s*(?:(offer)\s+(\d{1,3})|(accept)|(leave))\s*</move>")


def other(side: str) -> str:
    """Return the other side."""
    return "buyer" if side == "seller" else "seller"


def gain_of(side: str, limit: int, price: int) -> int:
    """Return how far a price is above a seller's limit, or below a buyer's."""
    return price - limit if side == "seller" else limit - price


def read_move(text: str) -> tuple[str, int]:
    """Return the one move of an answer and its price; empty if there is not exactly one."""
    found = MOVE.findall(text)
    offer, price, accept, leave = found[0] if len(found) == 1 else ("", "", "", "")
    if offer and not 1 <= int(price) <= HIGHEST:
        offer = ""
    return offer or accept or leave, int(price or 0)


def asked_price(side: str, limit: int, reach: int, bend: float, time: float) -> int:
    """Return what a side asks for at a time from 0 to 1: from `reach` beyond its limit down to it."""
    beyond = round(reach * (1 - time**bend))
    return min(HIGHEST, limit + beyond) if side == "seller" else max(1, limit - beyond)


def position(request: ModelRequest) -> tuple[str, int, list[int], int]:
    """Return the side, its limit, what it was offered so far, and how many moves are left."""
    heard = "\n".join(message_text(each) for each in request.own_messages if each["role"] != "assistant")
    limit = re.search(r"It cost you (\d+)|It is worth (\d+)", heard)
    rounds = re.search(r"You have (\d+) moves", message_text(request.messages[0]))
    assert limit is not None
    assert rounds is not None
    made = sum(each["role"] == "assistant" for each in request.own_messages)
    offers = [int(price) for price in re.findall(r"offers (\d+)\.", heard)]
    return ("seller" if limit[1] else "buyer"), int(limit[1] or limit[2]), offers, int(rounds[1]) - made


def expert(request: ModelRequest) -> str:
    """Ask for much, and accept when the next concession would not pay for the time, or the time is over."""
    side, limit, offers, left = position(request)
    gains = [gain_of(side, limit, offer) for offer in offers]
    conceding = gains[-1] - gains[-2] if len(gains) > 1 else HIGHEST
    if gains and gains[-1] > 0 and (left == 1 or conceding < 0.02 * gains[-1]):
        return "<move>accept</move>"
    # With the last move, any gain is better than nothing.
    demand = max(1, 12 * (left - 1), *(gain + 12 * (left - 1) for gain in gains))
    price = limit + demand if side == "seller" else limit - demand
    return f"<move>offer {min(max(price, 1), HIGHEST)}</move>"


def random(request: ModelRequest) -> str:
    """Accept, leave, or offer a price without a loss."""
    side, limit, offers, _ = position(request)
    rng = derived_rng("negotiation player", request.seed)
    price = rng.randint(limit, HIGHEST) if side == "seller" else rng.randint(1, limit)
    moves = [f"offer {price}", f"offer {price}", "leave", *(["accept"] if offers else [])]
    return f"<move>{rng.choice(moves)}</move>"
