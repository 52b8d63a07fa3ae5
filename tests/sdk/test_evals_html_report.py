"""Reports of several runs, as text, as Markdown, and as a page that stands alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

import pytest
from wander.errors import MissingExtra
from wander.evals.report.contents import RunReport, report_of
from wander.evals.report.document import report_lines, report_markdown
from wander.evals.report.page import LONGEST, html_report
from wander.evals.store.manifest import new_manifest
from wander.types import EnvironmentInfo, Example, Failure, Rollout, Turn
from wander.wire import EnvironmentPin, ModelPin, RunManifest

HOSTILE = "</script><img src=x onerror=alert(1)>{{ 777 * 777 }}<!--"


class Recorded:
    """A run in memory."""

    def __init__(self, manifest: RunManifest, rollouts: Sequence[Rollout]) -> None:
        self.manifest = manifest
        self._rollouts = rollouts

    def rollouts(self) -> Iterator[Rollout]:
        return iter(self._rollouts)


def run(model: str, rewards: Sequence[float], said: str = "yes", environment: str = "echo") -> Recorded:
    pin = EnvironmentPin(
        owner="alice", name=environment, version="1", info=EnvironmentInfo(name=environment, kind="tool")
    )
    examples = [
        Example(example_id=str(i), index=i, seed=i, prompt=[], stratum=i % 2) for i in range(len(rewards))
    ]
    call = {"function": {"name": said, "arguments": said}}
    message = {"role": "assistant", "content": said, "reasoning_content": said, "tool_calls": [call]}
    rollouts = [
        Rollout(
            example_id=str(i),
            index=index,
            seed=i,
            prompt=[{"role": "user", "content": said}],
            completion=[message],
            turns=[Turn(message=message, context_messages=1)],
            reward=reward,
            metrics={said[:20]: reward},
            answer=said,
            stop_reason=said,
        )
        for i, reward in enumerate(rewards)
        for index in range(2)
    ]
    failure = Failure(boundary="model", type="X", message=said)
    rollouts[-1] = rollouts[-1].model_copy(update={"failure": failure, "reward": None})
    manifest = new_manifest(
        environment=pin, model=ModelPin(name=model, kind="k"), examples=examples, rollouts_per_example=2
    )
    return Recorded(manifest, rollouts)


def two() -> RunReport:
    return report_of([run("before", [0.0, 1.0, 0.0, 0.0]), run("after", [1.0, 1.0, 0.0, 1.0])])


def test_the_text_of_several_runs_ends_with_the_comparison() -> None:
    text = "\n".join(report_lines(two()))
    assert text.index("before on alice/echo 1") < text.index("after on alice/echo 1")
    assert re.search(r"pass@k +95% interval +pass\^k", text)
    assert re.search(r"stratum +reward", text)
    assert re.search(r"(?m)^after +\+0\.5000 .* within chance$", text)
    assert "compared with" not in "\n".join(report_lines(report_of([run("one", [1.0, 0.0])])))


def test_runs_that_cannot_be_compared_stand_side_by_side_all_the_same() -> None:
    report = report_of([run("m", [1.0, 0.0]), run("m", [1.0, 0.0], environment="other")])
    assert len({one.label for one in report.runs}) == 2
    assert report.contrasts[0].comparison is None
    assert "the runs have different environments" in report_markdown(report)
    assert "the runs have different environments" in html_report(report)


def test_each_run_is_compared_with_the_first_of_its_environment() -> None:
    runs = [run("a", [1.0, 0.0]), run("a", [1.0, 1.0], environment="other"), run("b", [1.0, 1.0])]
    report = report_of([*runs, run("b", [0.0, 0.0], environment="other")])
    labels = [one.label for one in report.runs]
    assert len(set(labels)) == 4
    assert [(each.label, each.base) for each in report.contrasts] == [
        (labels[2], labels[0]),
        (labels[3], labels[1]),
    ]
    assert all(each.comparison is not None for each in report.contrasts)
    assert re.search("compared with the first run of the same environment", "\n".join(report_lines(report)))


def test_a_page_has_no_row_without_a_value() -> None:
    text = html_report(report_of([run("one", [1.0, 0.0]), run("two", [0.5, 0.0])]))
    for row in re.findall(r"<tr><th>[^<]*</th>((?:<td>[^<]*</td>)+)</tr>", text):
        assert re.search(r"<td>[^<]", row), text
    assert "<th>refused</th>" not in text
    assert "<th>failed</th>" in text


def test_equal_values_are_a_number_and_no_chart() -> None:
    equal, differing = (report_of([run("one", rewards)]) for rewards in ([0.25, 0.25], [1.0, 0.0]))
    pages = [json.loads(chart_data(html_report(each))) for each in (equal, differing)]
    assert [any("rewards" in name for name in charts) for charts in pages] == [False, True]
    assert not any("turns" in name for charts in pages for name in charts)  # one in each of both
    assert "0.25 in every rollout" in html_report(equal)
    assert "every reward is 0.25" in "\n".join(report_lines(equal))
    assert "#####" not in report_markdown(equal)


def chart_data(page: str) -> str:
    (found,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    return str(found)


def test_markdown_tables_are_whole() -> None:
    for block in report_markdown(two()).split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1, block


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.words).append(data)


def test_the_page_stands_alone_and_what_a_model_said_is_text() -> None:
    page = Page(html_report(report_of([run(HOSTILE, [0.0, 0.5, 1.0], said=HOSTILE), run("b", [0.1, 0, 1])])))
    names = {name for name, _ in page.tags}
    assert not names & {"img", "iframe", "link", "b" * 2}
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert not [one for _, one in page.tags if "src" in one or "href" in one or "onerror" in one]
    assert HOSTILE in "".join(page.words)
    assert "603729" not in "".join(page.words)
    specs = json.loads(page.scripts[0])
    drawn = {one["id"] for tag, one in page.tags if one.get("class") == "chart"}
    assert drawn == set(specs)
    assert {"shared-scores", "shared-strata", "run0-rewards", "run1-rewards"} <= drawn


def test_the_policy_names_the_scripts_of_the_page() -> None:
    page = Page(html_report(two()))
    policy = next(str(one["content"]) for _, one in page.tags if one.get("http-equiv"))
    assert policy.count("'sha256-") == 2
    assert "unsafe-eval" not in policy
    assert "default-src 'none'" in policy


def test_long_messages_are_cut_and_it_is_said() -> None:
    page = html_report(report_of([run("m", [0.0, 1.0], said="y" * (LONGEST + 1234))]))
    assert "1,234 more characters" in page
    assert max(len(one) for one in re.findall("y+", page)) == LONGEST


def test_without_the_extra_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtra, match="HTML report") as caught:
        html_report(two())
    assert "wander-sdk[plots]" in str(caught.value.hint)
