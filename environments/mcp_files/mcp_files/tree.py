"""The files of an invented company, made from a seed: settings and logs of services, and who is on call."""

from __future__ import annotations

from dataclasses import dataclass

from wander.seeding import derived_rng

REGIONS = ["coast", "forest", "island", "lake", "valley"]
COLOURS_TEXT = """
    amber azure coral ivory jade ochre russet sable teal umber
"""
COLOURS = COLOURS_TEXT.split()
THINGS_TEXT = """
    anchor beacon cairn delta ember fjord gate harbour
"""
THINGS = THINGS_TEXT.split()
TEAMS_TEXT = """
    badger crane dormouse falcon heron lynx marten otter
"""
TEAMS = TEAMS_TEXT.split()
PEOPLE_TEXT = """
    Abel Britt Caro Dag Elin Frode Gerd Hilde Ivar Jette Knut Liv Magne Nora Orla Per
"""
PEOPLE = PEOPLE_TEXT.split()


@dataclass(frozen=True)
class Service:
    """A service and all that the files say of it."""

    name: str
    region: str
    port: int
    team: str
    on_call: str
    log: tuple[str, ...]


def services(seed: int) -> list[Service]:
    """Return the services of a seed."""
    rng = derived_rng("mcp_files tree", seed)
    on_call = dict(zip(TEAMS, rng.sample(PEOPLE, len(TEAMS)), strict=True))
    made = []
    for name in (f"{colour}-{thing}" for colour in COLOURS for thing in THINGS):
        kinds = rng.choices(("INFO", "WARN", "ERROR"), (6, 2, 3), k=rng.randint(15, 40))
        log = tuple(f"{at:03} {kind} request {rng.randrange(10_000):04}" for at, kind in enumerate(kinds))
        team = rng.choice(TEAMS)
        made.append(Service(name, rng.choice(REGIONS), rng.randint(1024, 65_535), team, on_call[team], log))
    return made


def files(seed: int) -> dict[str, str]:
    """Return the text of every file by its path."""
    texts = {}
    for service in services(seed):
        folder = f"/services/{service.region}/{service.name}"
        texts[f"{folder}/settings.ini"] = f"[service]\nport = {service.port}\nteam = {service.team}\n"
        texts[f"{folder}/today.log"] = "\n".join(service.log) + "\n"
        texts[f"/teams/{service.team}.txt"] = f"team: {service.team}\non call: {service.on_call}\n"
    return texts
