"""The country, its encyclopedia, and questions that only reading answers."""

from __future__ import annotations

import pytest
from wander import ScriptedClient
from wiki_search import load_environment
from wiki_search.encyclopedia import Country, Encyclopedia


def test_what_articles_say_is_true_of_the_country():
    country = Country.invent(0)
    articles = country.articles()
    assert len(articles) == 140 + 80 + 80
    for town in country.towns.values():
        assert country.people[town.founder].born < town.founded
        assert f"founded in {town.founded} by {town.founder}" in articles[town.name]
    assert all(person.teacher != person.name for person in country.people.values())
    assert Country.invent(0) == country != Country.invent(1)


def test_search_finds_titles_and_takes_any_text():
    encyclopedia = Encyclopedia(Country.invent(0).articles())
    museum = Country.invent(0).museums[0]
    assert encyclopedia.search(museum.name)[0] == museum.name
    assert len(encyclopedia.search("a town of Velmark")) == 8
    assert encyclopedia.search('" OR * NEAR( zzz') == []
    with pytest.raises(ValueError, match="no word"):
        encyclopedia.search("  ?! ")
    with pytest.raises(KeyError, match="near: "):
        encyclopedia.read(museum.town.lower())


async def test_neither_a_question_nor_a_title_tells_the_answer():
    env = load_environment(num_examples=60)
    titles = set(Country.invent(0).articles())
    for example in env.dataset("eval"):
        assert example.answer not in example.prompt[-1]["content"]
        if example.answer.isdigit():
            assert not any(example.answer in title for title in titles)


async def test_a_list_of_all_years_earns_nothing():
    env = load_environment()
    example = next(each for each in env.dataset("eval") if each.answer.isdigit())
    spam = " ".join(map(str, range(1601, 1900)))
    assert (await env.rollout(ScriptedClient([f"<answer>{spam}</answer>"]), example)).reward == 0.0
    assert (await env.rollout(ScriptedClient([f"<answer>{example.answer}.</answer>"]), example)).reward == 1.0
