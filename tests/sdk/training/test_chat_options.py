"""Chat templates that show a date, and those without a system role."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from wander import LocalEnvironment, Rubric, SingleTurnEnv
from wander.clients.base import ModelRequest
from wander.clients.openai import ServedClient
from wander.errors import InvalidResponse
from wander.evals.run.runner import EvaluationPlan, evaluate
from wander.evals.store.folder import RunFolder
from wander.models import chat
from wander.models.chat import ChatFormat, ChatOptions, pin_date
from wander.models.client import TransformersClient
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.grpo import policy_client, with_template_date
from wander.train.offline import chat_options
from wander.wire import EnvironmentPin

from .tool_templates import WITHOUT, Family, tokenizer_of

DAY, OTHER = date(2026, 1, 2), date(2025, 12, 31)
DATED = "{{ 'Today is ' + strftime_now('%d %b %Y') + '. ' }}" + WITHOUT
LLAMA = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}'
    "{%- endif %}{%- endif %}{{ 'Today is ' + date_string + '. ' }}" + WITHOUT
)
COMPUTED = "{%- set form = '%d %b %Y' %}{{ 'Today is ' + strftime_now(form) + '. ' }}" + WITHOUT
TEMPLATES = {"literal": DATED, "llama": LLAMA}
ASKED = [{"role": "user", "content": "q"}]
SYSTEM = [{"role": "system", "content": "be brief"}, *ASKED]
RAISES = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}" + WITHOUT
)
DROPS = WITHOUT.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")


def form_of(template: str, options: ChatOptions | None = None) -> ChatFormat:
    tokenizer = tokenizer_of(Family(template, "hermes"))
    return ChatFormat(tokenizer, frozenset([tokenizer.eos_token_id]), options)


class Clock(datetime):
    """A clock that another test day can be set on."""

    today_is = OTHER

    @classmethod
    def now(cls, tz: Any = None) -> Clock:
        return cls(cls.today_is.year, cls.today_is.month, cls.today_is.day, 23, 59)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_shows_the_pinned_date(name: str) -> None:
    first, second = form_of(TEMPLATES[name], ChatOptions(DAY)), form_of(TEMPLATES[name], ChatOptions(OTHER))
    assert first.render(ASKED).startswith("Today is 02 Jan 2026. ")
    assert second.render(ASKED).startswith("Today is 31 Dec 2025. ")
    assert first.digest == second.digest
    assert first.describe() == {"chat_template_sha256": first.digest, "template_date": "2026-01-02"}
    assert first.pins_date


def test_a_date_that_cannot_be_pinned_is_a_warning_in_the_manifest() -> None:
    described = form_of(COMPUTED, ChatOptions(DAY)).describe()
    assert described["template_date"].startswith("warning")


def test_the_date_is_pinned_when_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "datetime", Clock)
    form = form_of(DATED)
    monkeypatch.setattr(Clock, "today_is", DAY)  # midnight passes
    assert form.render(ASKED).startswith("Today is 31 Dec 2025. ")
    assert form.date == OTHER


def test_a_template_without_a_date_is_not_changed() -> None:
    form = form_of(WITHOUT, ChatOptions(DAY))
    assert form.template == WITHOUT
    assert form.describe() == {"chat_template_sha256": form.digest}


def test_pinning_keeps_quotes_and_letters_of_any_language() -> None:
    pinned = pin_date("""{{ strftime_now("%d 'Jänner' %Y") }}""", DAY)
    assert "strftime_now" not in pinned
    assert form_of(pinned + WITHOUT).render(ASKED).startswith("02 'Jänner' 2026")


@pytest.fixture
def dated(tiny: Path) -> Any:
    loaded = load_model(tiny, device="cpu")
    loaded.tokenizer.chat_template = (
        "{{ 'Day ' + strftime_now('%Y-%m-%d') }}" + loaded.tokenizer.chat_template
    )
    return loaded


def environment() -> LocalEnvironment:
    rubric = Rubric([lambda completion: 1.0])
    return LocalEnvironment(SingleTurnEnv(eval_dataset=[{"question": "q"}] * 2, rubric=rubric))


async def test_the_manifest_has_the_date_and_another_day_samples_the_same(dated: Any, tmp_path: Path) -> None:
    said = []
    for number, day in enumerate((DAY, DAY, OTHER)):
        client, played = TransformersClient(dated, chat=ChatOptions(day)), environment()
        pin = EnvironmentPin(name="say", info=played.info)
        folder = tmp_path / str(number)
        result = await evaluate(played, client, EvaluationPlan(), folder, pin)
        await client.close()
        assert result.manifest.model.details["template_date"] == day.isoformat()
        said.append([each.turns[0].tokens for each in RunFolder.open(folder).rollouts_in_order()])
    assert said[0] == said[1] != said[2]


def test_a_training_run_keeps_its_date(dated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wander.train import grpo

    monkeypatch.setattr(grpo, "datetime", Clock)
    settings = GRPOSettings.model_validate({"model": {"path": "any"}})
    begun = with_template_date(settings, dated, None)
    assert begun.model.template_date == OTHER
    run = {"training": begun.model_dump(mode="json")}
    monkeypatch.setattr(Clock, "today_is", DAY)
    (tmp_path / "run.json").write_text("{}")
    opened = type("Opened", (), {"manifest": type("Manifest", (), run)})
    monkeypatch.setattr(grpo.RunFolder, "open", lambda folder: opened)
    assert with_template_date(settings, dated, tmp_path).model.template_date == OTHER
    assert with_template_date(begun, dated, None) == begun
    client = policy_client(
        dated.model, dated, begun, engine=PolicyClient(dated.model, dated.tokenizer).engine
    )
    assert client.describe()["template_date"] == "2025-12-31"
    plain = replace(dated, tokenizer=tokenizer_of(Family(WITHOUT, "hermes")))
    assert with_template_date(settings, plain, None) == settings


def test_a_fine_tuning_run_keeps_its_date(
    dated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "datetime", Clock)
    settings = SFTSettings.model_validate({"model": {"path": "any"}})
    assert chat_options(settings, dated, tmp_path, resume=False).date == OTHER
    monkeypatch.setattr(Clock, "today_is", DAY)
    assert chat_options(settings, dated, tmp_path, resume=True).date == OTHER
    assert chat_options(settings, dated, tmp_path, resume=False).date == DAY


@pytest.mark.parametrize("template", [RAISES, DROPS])
def test_a_system_prompt_becomes_part_of_the_first_question(template: str) -> None:
    form = form_of(template)
    assert form.render(SYSTEM) == form.render([{"role": "user", "content": "be brief\n\nq"}])
    assert form.describe()["requests"] == ["the system prompt is part of the first user message"]
    answered = [*SYSTEM, {"role": "assistant", "content": "a"}]
    (sample,) = form.transcripts(answered)
    assert "be brief" in form.tokenizer.decode(sample.ids)
    conversation = form.start(SYSTEM)
    form.append_completion(conversation, form.encode("a"))
    conversation.said = answered[-1]
    form.append_messages(conversation, [*answered, {"role": "user", "content": "more"}])
    assert conversation.messages == 4


def test_an_option_keeps_the_system_prompt_separate() -> None:
    kept = ChatOptions(merge_system=False)
    with pytest.raises(InvalidResponse):
        form_of(RAISES, kept).render(SYSTEM)
    assert "be brief" not in form_of(DROPS, kept).render(SYSTEM)
    assert "requests" not in form_of(RAISES, kept).describe()
    assert "be brief" in form_of(WITHOUT, kept).render(SYSTEM)
    assert not form_of(WITHOUT).merges_system


async def test_a_served_model_gets_the_system_prompt_in_the_first_question(chat_server: Any) -> None:
    client = ServedClient("m", chat_server.url, {}, turns=lambda: form_of(DROPS))
    await client.complete(ModelRequest(rollout_id="0/0", turn=0, messages=SYSTEM))
    await client.close()
    assert chat_server.requests[0]["messages"] == [{"role": "user", "content": "be brief\n\nq"}]
    assert json.loads(json.dumps(client.describe()))["requests"]
