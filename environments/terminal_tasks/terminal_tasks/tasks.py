"""The twelve tasks: how each is drawn, solved with a shell, and checked in a new box."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from wander.boxes import Box

Fields = dict[str, str]
WORDS = (
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "inlet",
    "jetty",
    "knoll",
    "larch",
    "maple",
    "north",
    "ocean",
    "prism",
)
COMMAND_SECONDS = 5.0


@dataclass
class Drawn:
    """One instance of a task."""

    fields: Fields
    """Values for the question."""
    files: dict[str, str]
    """Texts of the files, by their paths below the working folder."""
    links: dict[str, str] = field(default_factory=dict)
    """Targets of symbolic links, by their paths below the working folder."""
    expected: dict[str, str] = field(default_factory=dict)
    """Right results, in a form that the check of the task knows. They never enter the model's box."""


@dataclass(frozen=True)
class Task:
    """A kind of task."""

    question: str
    draw: Callable[[Random], Drawn]
    solve: Callable[[Fields], list[str]]
    """Returns commands that solve an instance, from only what its question says."""
    check: Callable[[Box, Drawn], Awaitable[bool]]
    """Returns whether an instance is solved by the files in a new box."""

    def fields_in(self, question: str) -> Fields | None:
        """Return the values in a question of this task, or None for a question of another task."""
        parts = re.split(r"\{(\w+)\}", self.question)
        pattern = "".join(
            f"(?P<{part}>.+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
        )
        match = re.fullmatch(pattern, question)
        return match.groupdict() if match else None


async def read(box: Box, path: str) -> str | None:
    """Return a text below the working folder, or None if there is no such text."""
    try:
        return (await box.download(f"/work/{path}")).decode()
    except (FileNotFoundError, ValueError):
        return None


async def prints(box: Box, command: str, stdin: str, expected: str) -> bool:
    """Return whether a command prints a text."""
    result = await box.exec(command, stdin=stdin.encode(), seconds=COMMAND_SECONDS)
    return result.exit_status == 0 and result.output.strip() == expected.strip()


async def answers(box: Box, drawn: Drawn) -> bool:
    """Return whether every expected text is in its file, apart from white space at the ends."""
    for path, text in drawn.expected.items():
        given = await read(box, path)
        if given is None or given.strip() != text.strip():
            return False
    return True


async def has_only(box: Box, drawn: Drawn) -> bool:
    """Return whether the folders contain the expected files, byte for byte, and no others."""
    folders = sorted({path.rpartition("/")[0] for path in drawn.expected})
    for folder in folders:
        listed = await box.exec(["find", folder, "-mindepth", "1"], seconds=COMMAND_SECONDS)
        wanted = sorted(path for path in drawn.expected if path.rpartition("/")[0] == folder)
        if sorted(listed.output.splitlines()) != wanted:
            return False
    return all([await read(box, path) == text for path, text in drawn.expected.items()])


def lines(items: list[str]) -> str:
    """Return a text with one item on each line."""
    return "".join(f"{item}\n" for item in items)


def _draw_requests(rng: Random) -> Drawn:
    paths = [f"/{word}" for word in rng.sample(WORDS, 4)]
    entries = [(rng.choice(paths), rng.choice(["200", "301", "404", "500"])) for _ in range(80)]
    log = [
        f"10.0.0.{rng.randint(1, 99)} - - [{rng.randint(1, 28):02}/Mar/2026:10:{rng.randint(0, 59):02}:07] "
        f'"{rng.choice(["GET", "POST"])} {path} HTTP/1.1" {status} {rng.choice([200, 404, 512, 500])}'
        for path, status in entries
    ]
    path, status = rng.choice(entries)
    count = entries.count((path, status))
    return Drawn(
        {"path": path, "status": status}, {"access.log": lines(log)}, expected={"answer.txt": str(count)}
    )


def _solve_requests(fields: Fields) -> list[str]:
    test = f'$6 == "{fields["path"]}" && $8 == {fields["status"]}'
    return ["head -n 3 access.log", f"awk '{test}' access.log | wc -l > answer.txt"]


def _draw_words(rng: Random) -> Drawn:
    words = [word for word in rng.sample(WORDS, 9) for _ in range(rng.randint(1, 6))]
    rng.shuffle(words)
    count = rng.randint(2, 4)
    ranked = sorted(Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))
    text = "\n".join(" ".join(words[at : at + 7]) for at in range(0, len(words), 7)) + "\n"
    top = lines([word for word, _ in ranked[:count]])
    return Drawn({"count": str(count)}, {"words.txt": text}, expected={"top.txt": top})


def _solve_words(fields: Fields) -> list[str]:
    ranked = "tr -s ' ' '\\n' < words.txt | sort | uniq -c | sort -k1,1nr -k2,2"
    return [f"{ranked} | head -n {fields['count']} | awk '{{print $2}}' > top.txt", "cat top.txt"]


def _draw_dates(rng: Random) -> Drawn:
    folder, files, expected = rng.choice(WORDS), {}, {}
    for word in rng.sample(WORDS, 6):
        day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(2019, 2026)
        text = f"{word} {rng.randint(0, 999)}\n"
        files[f"{folder}/{day}-{month}-{year} {word}.txt"] = text
        expected[f"{folder}/{year}-{month:02}-{day:02} {word}.txt"] = text
    return Drawn({"folder": folder}, files, expected=expected)


def _solve_dates(fields: Fields) -> list[str]:
    rename = 'mv "$f" "$(printf "%04d-%02d-%02d %s" "$year" "$month" "$day" "${f#* }")"'
    split = "date=${f%% *}; day=${date%%-*}; year=${date##*-}; month=${date#*-}; month=${month%-*}"
    return [f"cd {fields['folder']}; ls", f"for f in *.txt; do {split}; {rename}; done; ls"]


def _draw_links(rng: Random) -> Drawn:
    old, new = (f"{rng.randint(1, 4)}.{minor}" for minor in rng.sample(range(10), 2))
    names = rng.sample(WORDS, 4)
    files = {f"releases/{each}/{name}": f"{name} {each}\n" for name in names for each in (old, new)}
    links = {f"current/{name}": f"../releases/{old}/{name}" for name in names}
    expected = {f"current/{name}": f"/work/releases/{new}/{name}" for name in names}
    return Drawn({"old": old, "new": new}, files, links, expected)


def _solve_links(fields: Fields) -> list[str]:
    link = f'ln -sfn "../releases/{fields["new"]}/$(basename "$l")" "$l"'
    return ["ls -1 current", f"for l in current/*; do {link}; done", "readlink current/*"]


async def _check_links(box: Box, drawn: Drawn) -> bool:
    for path, target in drawn.expected.items():
        found = await box.exec(f"[ -L {path} ] && readlink -f {path}", seconds=COMMAND_SECONDS)
        if found.output.strip() != target or await read(box, f"releases/{target[15:]}") is None:
            return False
    return True


def _draw_tables(rng: Random) -> Drawn:
    cities = rng.sample(["Oslo", "Lima", "Rome", "Cairo"], 3)
    people = [(str(number), WORDS[number], rng.choice(cities)) for number in rng.sample(range(16), 8)]
    orders = [(str(100 + number), rng.choice(people)[0], rng.randint(1, 90)) for number in range(20)]
    city = rng.choice(people)[2]
    home = {number: place for number, _, place in people}
    total = sum(amount for _, customer, amount in orders if home[customer] == city)
    files = {
        "customers.csv": lines(["id,name,city", *(",".join(person) for person in people)]),
        "orders.csv": lines(["id,customer,amount", *(f"{n},{customer},{a}" for n, customer, a in orders)]),
    }
    return Drawn({"city": city}, files, expected={"answer.txt": str(total)})


def _solve_tables(fields: Fields) -> list[str]:
    program = "NR == FNR {if ($3 == city) ours[$1]; next} $2 in ours {sum += $3} END {print sum + 0}"
    joined = f"awk -F, -v city={fields['city']} '{program}' customers.csv orders.csv"
    return ["head -n 3 *.csv", f"{joined} > answer.txt"]


def _draw_config(rng: Random) -> Drawn:
    sections, keys = rng.sample(WORDS[:8], 3), rng.sample(WORDS[8:], 4)
    values = {(section, key): str(rng.randint(1, 500)) for section in sections for key in keys}
    section, key, value = rng.choice(sections), rng.choice(keys), str(rng.randint(501, 999))

    def text(given: dict[tuple[str, str], str]) -> str:
        return "\n".join(
            f"[{part}]\n" + lines([f"{name} = {given[part, name]}" for name in keys]) for part in sections
        )

    changed = text({**values, (section, key): value})
    fields = {"section": section, "key": key, "value": value}
    return Drawn(fields, {"service.ini": text(values)}, expected={"service.ini": changed})


def _solve_config(fields: Fields) -> list[str]:
    section, key, value = fields["section"], fields["key"], fields["value"]
    return [
        "cat service.ini",
        f"sed -i '/^\\[{section}\\]/,/^$/ s/^{key} = .*/{key} = {value}/' service.ini",
    ]


def _draw_digests(rng: Random) -> Drawn:
    folder, files, sums, expected = rng.choice(WORDS), {}, [], {}
    names = rng.sample(WORDS, 7)
    broken = set(rng.sample(names, rng.randint(1, 3)))
    for name in names:
        text = f"{name} {rng.getrandbits(64)}\n"
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()}  {folder}/{name}")
        stored = text.replace(" ", "  ") if name in broken else text
        files[f"{folder}/{name}"] = stored
        expected[f"{'bad' if name in broken else folder}/{name}"] = stored
    return Drawn({"folder": folder}, {**files, "SHA256SUMS": lines(sums)}, expected=expected)


def _solve_digests(fields: Fields) -> list[str]:
    wrong = "sha256sum -c SHA256SUMS 2>/dev/null | awk -F': ' '$2 != \"OK\" {print $1}'"
    return [f'mkdir bad; {wrong} | while read -r f; do mv "$f" bad/; done; ls bad']


def _draw_search(rng: Random) -> Drawn:
    folder, token = rng.choice(WORDS), f"{rng.getrandbits(32):08x}"
    places = [f"{folder}/{'/'.join(rng.sample(WORDS, rng.randint(1, 3)))}.conf" for _ in range(12)]
    places = sorted(set(places))
    right = rng.choice(places)
    files = {}
    for place in places:
        decoy = rng.choice([f"token={token}0", f"# token={token}", f"token={token[1:]}", f"Token={token}"])
        found = f"token={token}" if place == right else decoy
        files[place] = lines([f"name={rng.choice(WORDS)}", found, f"port={rng.randint(1, 9999)}"])
    return Drawn({"folder": folder, "token": token}, files, expected={"answer.txt": right})


def _solve_search(fields: Fields) -> list[str]:
    return [f"grep -rlx 'token={fields['token']}' {fields['folder']} > answer.txt", "cat answer.txt"]


async def _check_search(box: Box, drawn: Drawn) -> bool:
    return (await read(box, "answer.txt") or "").strip().removeprefix("./") == drawn.expected["answer.txt"]


STATS = """count=0
sum=0
max=
while read -r n || [ -n "$n" ]; do
  count=$((count + 1))
  sum=$((sum + n))
  if [ -z "$max" ] || [ "$n" -gt "$max" ]; then
    max=$n
  fi
done
echo "$count $sum $max"
"""
FAULTS = (
    ("max=\n", "max=0\n"),
    (' || [ -n "$n" ]', ""),
    ("count=0", "count=1"),
    ("sum + n", "sum + count"),
    ("-gt", "-lt"),
    ('echo "$count $sum', 'echo "$sum $count'),
)


def _draw_bug(rng: Random) -> Drawn:
    name = f"{rng.choice(WORDS)}.sh"
    right, wrong = rng.choice(FAULTS)
    example = "printf '%s\\n%s\\n%s' -5 -3 -9"
    test = f'[ "$({example} | sh {name})" = "3 -17 -3" ] && echo passed || {{ echo failed; exit 1; }}\n'
    expected = {}
    for size in (1, 3, 7, 4):
        numbers = [rng.randint(-50, 50) for _ in range(size)]
        expected["\n".join(map(str, numbers))] = f"{size} {sum(numbers)} {max(numbers)}"
    low = [rng.randint(-90, -1) for _ in range(4)]
    expected[lines(list(map(str, low)))] = f"4 {sum(low)} {max(low)}"
    return Drawn({"script": name}, {name: STATS.replace(right, wrong), "tests.sh": test}, expected=expected)


def _solve_bug(fields: Fields) -> list[str]:
    return ["sh tests.sh", f"cat > {fields['script']} <<'END'\n{STATS}END", "sh tests.sh"]


async def runs_right(box: Box, drawn: Drawn) -> bool:
    """Return whether the script prints the expected text for every input."""
    command = f"sh {drawn.fields['script']}"
    return all([await prints(box, command, numbers, text) for numbers, text in drawn.expected.items()])


def _draw_build(rng: Random) -> Drawn:
    word, mark = rng.choice(["Hello", "Welcome", "Goodbye"]), rng.choice("!.;")
    files = {
        "build.sh": 'set -e\n: > app.sh\nwhile read -r part; do\n  cat "src/$part" >> app.sh\n'
        "done < parts.txt\nsh -n app.sh\n",
        "parts.txt": "check.sh\ngreet.sh\n",
        "src/check.sh": 'if [ -z "$1" ]; then\n  echo "a name is missing" >&2\n  exit 2\nfi\n',
        "src/greet.sh": f'printf "{word}, %s{mark}\\n" "$1"\n',
    }
    path, right, wrong = rng.choice(
        [
            ("parts.txt", "greet.sh", "great.sh"),
            ("src/check.sh", "fi\n", ""),
            ("build.sh", "src/$part", "source/$part"),
            ("build.sh", "< parts.txt", "< part.txt"),
        ]
    )
    files[path] = files[path].replace(right, wrong)
    expected = {name: f"{word}, {name}{mark}" for name in (*rng.sample(WORDS, 3), "two words")}
    return Drawn({"word": word, "mark": mark}, files, expected=expected)


def _solve_build(fields: Fields) -> list[str]:
    program = f'printf "{fields["word"]}, %s{fields["mark"]}\\n" "$1"'
    return [
        "sh build.sh",
        f"cat > build.sh <<'END'\ncat > app.sh <<'APP'\n{program}\nAPP\nEND",
        "sh build.sh",
    ]


async def _check_build(box: Box, drawn: Drawn) -> bool:
    built = await box.exec("rm -f app.sh; sh build.sh", seconds=COMMAND_SECONDS)
    if built.exit_status:
        return False
    return all([await prints(box, f"sh app.sh '{name}'", "", text) for name, text in drawn.expected.items()])


SCRIPTS = {
    "prints each line only where it occurs for the first time": (
        "awk '!seen[$0]++'",
        lambda rows: list(dict.fromkeys(rows)),
    ),
    "prints the lines in reverse order": ("tac", lambda rows: rows[::-1]),
    "prints the number of characters of each line": (
        "while IFS= read -r line; do echo ${#line}; done",
        lambda rows: [str(len(row)) for row in rows],
    ),
    "prints only the last word of each line": (
        "awk '{print $NF}'",
        lambda rows: [row.split()[-1] for row in rows],
    ),
    "prints only the lines that have more than two words": (
        "awk 'NF > 2'",
        lambda rows: [row for row in rows if len(row.split()) > 2],
    ),
}


def _draw_script(rng: Random) -> Drawn:
    job = rng.choice(sorted(SCRIPTS))
    expected = {}
    for _ in range(4):
        rows = [" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(rng.randint(3, 9))]
        rows += [rows[0], rows[-1], "one two three"]
        expected[lines(rows)] = lines(SCRIPTS[job][1](rows))
    return Drawn({"script": f"{rng.choice(WORDS)}.sh", "job": job}, {}, expected=expected)


def _solve_script(fields: Fields) -> list[str]:
    return [f"cat > {fields['script']} <<'END'\n{SCRIPTS[fields['job']][0]}\nEND"]


def _draw_events(rng: Random) -> Drawn:
    folder, users = rng.choice(WORDS[:8]), rng.sample(WORDS[8:], 3)
    events = [(rng.choice(users), rng.choice(["login", "read", "write", "logout"])) for _ in range(24)]
    rows = [f"{minute},{user},{event}" for minute, (user, event) in enumerate(events, 100)]
    expected = {
        f"{folder}/{user}.txt": lines([event for name, event in events if name == user])
        for user in users
        if user in dict(events)
    }
    return Drawn({"folder": folder}, {"events.csv": lines(["minute,user,event", *rows])}, expected=expected)


def _solve_events(fields: Fields) -> list[str]:
    folder = fields["folder"]
    program = f'NR > 1 {{print $3 >> ("{folder}/" $2 ".txt")}}'
    return [f"mkdir {folder}; awk -F, '{program}' events.csv; ls {folder}"]


LEVELS: tuple[dict[str, Task], ...] = (
    {
        "count_requests": Task(
            "access.log is the log of a web server. Write the number of requests for {path} that were "
            "answered with status {status} into answer.txt.",
            _draw_requests,
            _solve_requests,
            answers,
        ),
        "top_words": Task(
            "Write the {count} most frequent words of words.txt into top.txt, one on each line, the most "
            "frequent first. Words that are equally frequent are in alphabetical order.",
            _draw_words,
            _solve_words,
            answers,
        ),
        "find_token": Task(
            "Exactly one file below {folder} has a line that is nothing but token={token}. Write the path of "
            "this file into answer.txt, beginning with the folder.",
            _draw_search,
            _solve_search,
            _check_search,
        ),
        "repoint_links": Task(
            "The links in the folder current lead to files of release {old}. Make each of them lead to the "
            "file of the same name of release {new}.",
            _draw_links,
            _solve_links,
            _check_links,
        ),
    },
    {
        "rename_dates": Task(
            "The names of the files in the folder {folder} begin with a date: day-month-year. Rename the "
            "files so that each date is year-month-day, with two digits for month and day.",
            _draw_dates,
            _solve_dates,
            has_only,
        ),
        "join_tables": Task(
            "Write the sum of the amounts in orders.csv over all customers from {city} into answer.txt. "
            "customers.csv has the city of each customer.",
            _draw_tables,
            _solve_tables,
            answers,
        ),
        "edit_config": Task(
            "In service.ini, set {key} in the section {section} to {value}. Change nothing else.",
            _draw_config,
            _solve_config,
            answers,
        ),
        "sort_out_damage": Task(
            "SHA256SUMS lists the digests of the files in the folder {folder}. Move the files whose digest "
            "is wrong into a new folder bad.",
            _draw_digests,
            _solve_digests,
            has_only,
        ),
    },
    {
        "split_events": Task(
            "events.csv has a minute, a user and an event in each row. Write a file USER.txt for each user "
            "into a new folder {folder}, with the user's events in their order, one on each line.",
            _draw_events,
            _solve_events,
            has_only,
        ),
        "write_script": Task(
            "Write a shell script {script} that reads lines from standard input and {job}.",
            _draw_script,
            _solve_script,
            runs_right,
        ),
        "repair_build": Task(
            "sh build.sh should write app.sh from the parts in src, so that sh app.sh NAME prints "
            '"{word}, NAME{mark}". But the build fails. Repair it.',
            _draw_build,
            _solve_build,
            _check_build,
        ),
        "fix_bug": Task(
            "{script} should read whole numbers, one on each line, and print their count, their sum and the "
            "largest of them. But sh tests.sh fails. Find the mistake and correct it.",
            _draw_bug,
            _solve_bug,
            runs_right,
        ),
    },
)
"""Tasks by name, from easy to hard."""
TASKS: dict[str, Task] = {name: task for level in LEVELS for name, task in level.items()}
