"""READMEs of strangers: rendered, sanitized, and unable to reach out."""

from __future__ import annotations

import re
import sys
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wander_hub.environments import readme
from wander_hub.environments.readme import clean, list_headings, place, render
from wander_hub.web import text


def html(markdown: str) -> str:
    return render(markdown, "text/markdown")


def test_markdown_with_tables_code_and_details():
    table, code = "| a | b |\n|---|--:|\n| 1 | 2 |", "```python\nx < 1\n```"
    page = html(f"# Title\n\n{table}\n\n{code}\n\n<details><summary>s</summary>t</details>")
    assert '<h1 id="readme-title">Title</h1>' in page
    assert '<th align="right">b</th>' in page
    assert "x &lt; 1" in page
    assert "<details><summary>s</summary>t</details>" in page


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        '<a href="javascript:alert(1)">x</a>',
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        '<p onclick="alert(1)" style="position:fixed" class="top" id="main">x</p>',
        "<svg><script>alert(1)</script></svg><math><mtext></mtext></math>",
        '<iframe src="https://evil.example"></iframe>',
        '<form action="https://evil.example"><input name="token"></form>',
        "<style>body { display: none }</style>",
        '<img src="https://evil.example/pixel.png" onerror="alert(1)">',
        "![track](https://evil.example/pixel.png)",
        '<img alt="<script>" src="x">',
        "<<script>script>alert(1)<</script>/script>",
        '<meta http-equiv="refresh" content="0;url=https://evil.example">',
    ],
)
def test_nothing_in_it_can_act(hostile):
    page = html(f"before\n\n{hostile}\n\nafter").lower()
    for forbidden in ("<script", "<iframe", "<form", "<input", "<img", "<svg", "<style", "<meta"):
        assert forbidden not in page
    for forbidden in (
        ' onclick="',
        ' onerror="',
        'href="javascript',
        'href="data',
        ' style="',
        ' id="',
        ' class="top',
    ):
        assert forbidden not in page
    assert "before" in page
    assert "after" in page


def test_task_lists_footnotes_anchors_and_formulas():
    page = html(
        "## Part *one*\n\n- [x] done\n- [ ] open\n\n[up](#part-one) said[^1] $x^2$, $5\n\n[^1]: so.\n\n"
        "$$\\frac{a}{b}$$"
    )
    assert "<li>☑ done</li>\n<li>☐ open</li>" in page
    assert '<a href="#readme-part-one"' in page
    assert '<a href="#readme-1"' in page
    assert '<div id="readme-1">' in page
    assert '<math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>, $5' in page
    assert "<mfrac>" in page
    assert clean(page) == page
    assert list_headings(page) == [(2, "readme-part-one", "Part one")]


@pytest.mark.parametrize(
    "tex", ["{" * 3000, r"\frac{" * 300, "\\begin{matrix}", r"\text{<script>}", r"\href{javascript:x}{y}"]
)
def test_no_formula_breaks_a_page_or_acts(tex):
    page = html(f"before $${tex}$$ after")
    assert "before" in page
    assert "after" in page
    assert "<script" not in page
    assert "href" not in page.replace("\\href", "")


def test_a_readme_of_nothing_but_formulas_stays_small():
    page = render("$x^2$ " * 5000, "text/markdown")
    assert page.count("<math") == 1886, "each counts by its length and what it costs"
    assert page.count("<code>x^2</code>") == 5000 - 1886
    assert page.startswith(render("$x^2$", "text/markdown").strip().removesuffix("</p>"))


def test_images_of_the_package_are_shown_from_the_hub():
    page = html(
        '![a "plot"](./img/a%20b.png) <img src="c.JPG" onerror="x"> ![d](../d.png) ![e](/e.png) ![f](f.svg)'
    )
    assert re.findall(r"<img[^>]*>", page) == [
        '<img src="image?file=img/a%20b.png" alt="a &quot;plot&quot;" loading="lazy">',
        '<img src="image?file=c.JPG" alt="image" loading="lazy">',
    ]
    assert place(page, "/a/b/versions/1/").count('<img src="/a/b/versions/1/image?file=') == 2
    assert clean(page) == page
    assert "<img" not in clean('<img src="https://evil.example/x.png">').replace("<img>", "")


def test_remote_images_become_links():
    page = html("![curve](https://plots.example/a.png) ![local](plot.png)")
    assert '<a href="https://plots.example/a.png" rel="nofollow noopener noreferrer">[curve]</a>' in page
    assert '<img src="image?file=plot.png" alt="local"' in page


def test_plain_text_is_shown_as_written():
    assert render("Title\n=====\n<b>", "text/plain") == "<pre>Title\n=====\n&lt;b&gt;</pre>"
    assert render("  ", "text/plain") == ""


def rst(text: str) -> str:
    return render(text, "text/x-rst")


def test_restructuredtext_is_rendered():
    page = rst(
        "reverse-text\n============\n\nSee `the code <src/a.py>`_ and Part_. [1]_\n\n.. [1] So.\n\n"
        "Part\n----\n\n.. image:: img/a.png\n\n.. code:: python\n\n   x = 1\n\n"
        "=== ===\n a   b\n=== ===\n 1   2\n=== ===\n\n:math:`x^2`\n"
    )
    assert '<h1 id="readme-reverse-text">reverse-text</h1>' in page
    assert list_headings(page) == [(2, "readme-part", "Part")]
    for part in ('<a href="src/a.py"', '<a href="#readme-part"', '<img src="image?file=img/a.png"', "<msup>"):
        assert part in page
    assert '<pre><code class="language-python">x = 1</code></pre>' in page
    assert (page.count("<th>"), page.count("<td>")) == (2, 2)
    assert clean(page) == page


@pytest.mark.parametrize(
    "hostile",
    [
        ".. raw:: html\n\n   <script>alert(1)</script>",
        ".. role:: raw-html(raw)\n   :format: html\n\n:raw-html:`<script>alert(1)</script>`",
        ".. include:: /etc/passwd",
        ".. literalinclude:: /etc/passwd",
        ".. csv-table::\n   :file: /etc/passwd",
        ".. csv-table::\n   :url: http://127.0.0.1:1/x",
        ".. image:: /etc/passwd\n   :scale: 50",
        "`x <javascript:alert(1)>`_",
        ".. image:: https://evil.example/pixel.png\n   :target: javascript:alert(1)",
        ".. meta::\n   :http-equiv=refresh: 0;url=https://evil.example",
        ".. class:: top\n\n.. container:: x\n   :name: main\n\n   x",
        "`x",
    ],
)
def test_nothing_in_restructuredtext_acts_or_reads_a_file(hostile):
    page = rst(f"before\n\n{hostile}\n\nafter").lower()
    for forbidden in ("<script", "<img", "<meta", 'href="javascript', "root:x:0", ' class="top', ' id="main'):
        assert forbidden not in page
    assert "before" in page
    assert "after" in page


def test_slow_restructuredtext_is_shown_as_plain_text(monkeypatch):
    text = "- a\n" * 300
    assert "<li>" in rst(text)
    monkeypatch.setattr(readme, "_RST_SECONDS", 0.0)
    assert rst(text) == f"<pre>{text}</pre>"
    assert rst("x\n" * 40_000).startswith("<pre>"), "too long"
    assert sys.getprofile() is None


def test_roles_of_one_readme_do_not_affect_the_next():
    assert "<em>x</em>" in rst(".. role:: shout(emphasis)\n\n:shout:`x`")
    assert rst(":shout:`x`").startswith("<pre>")
    assert "<em>x</em>" in rst(".. role:: strong(emphasis)\n\n:strong:`x`")
    assert "<strong>x</strong>" in rst(":strong:`x`")


@given(st.text(st.sampled_from("a` *|_:.-=+\n[]<>#"), max_size=300))
def test_no_text_breaks_the_renderer_of_restructuredtext(written):
    page = rst(written)
    assert "<script" not in page
    assert clean(page) == page or page.startswith("<pre>")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("src/a.py", "source?file=src/a.py"),
        ("./src/../LICENSE", "source?file=LICENSE"),
        ("/docs/a%20b.md#part-1", "source?file=docs/a%20b.md#part-1"),
        ("docs/", "source?file=docs"),
        ("a.py?raw=1#L3", "source?file=a.py#L3"),
        (".", "source"),
        ("a&b.py", "source?file=a%26b.py"),
        ("../other", None),
        ("%2e%2e/other", None),
        ("#part", "#readme-part"),
        ("https://example.org/a", "https://example.org/a"),
        ("//example.org/a", "//example.org/a"),
        ("mailto:a@example.org", "mailto:a@example.org"),
    ],
)
def test_relative_links_lead_into_the_source(link, target):
    for page in (html(f"[x]({link})"), html(f'<a title="t" href="{link}">x</a>'), rst(f"`x <{link}>`__")):
        placed = place(page, "/alice/reverse-text/versions/1.0+a/")
        found = re.findall(r'href="([^"]*)"', placed)
        at = "/alice/reverse-text/versions/1.0+a/" if target and target.startswith("source") else ""
        assert found == ([at + target] if target else []), page
        assert 'href="source' not in place(page, None)


@pytest.mark.parametrize(
    ("written", "addresses"),
    [
        ("See https://example.org/a?b=1&c=2#d.", ["https://example.org/a?b=1&amp;c=2#d"]),
        ("(https://example.org/x_(y))", ["https://example.org/x_(y)"]),
        ("<b>http://a.example</b>, https://b.example!", ["http://a.example", "https://b.example"]),
        ("[https://a.example](https://b.example)", ["https://b.example"]),
        ("[`a` https://a.example](https://b.example)", ["https://b.example"]),
        ("`https://a.example` xhttps://a.example https:// javascript:https", []),
        ("    https://a.example/in/code", []),
        ("| a |\n|---|\n| https://a.example |", ["https://a.example"]),
        ('https://a.example/"onclick="x', ["https://a.example/"]),
        ("<https://a.example>", ["https://a.example"]),
    ],
)
def test_bare_addresses_become_links(written, addresses):
    page = html(written)
    assert re.findall(r'<a href="([^"]*)" rel="nofollow noopener noreferrer">', page) == addresses
    assert page.count("<a ") == len(addresses)
    assert clean(page) == page


@given(st.text(max_size=300))
def test_no_text_breaks_the_renderer(markdown):
    page = html(markdown)
    assert "<script" not in page.lower()
    assert "\x00" not in page


@given(st.text(max_size=200))
def test_visible_text_keeps_everything_but_hidden_characters(given_text):
    shown = str(text.visible(given_text))
    for hidden in ("\x00", "\x1b", "\u202e", "\u2066"):
        assert hidden not in shown
    assert shown.count('<span class="hidden-character">') == shown.count("<span")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (float("nan"), "–"), (0.5, "0.500"), (-0.5, "−0.500"), (-0.0001, "0.000"), (12, "12.000")],
)
def test_numbers(value, shown):
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("low", "high", "digits"),
    [(None, 1, 3), (0.5, 0.5, 3), (0.4, 0.6, 2), (0.49, 0.51, 3), (0, 10, 1), (-1e308, 1e308, 3)],
)
def test_a_score_has_the_decimals_its_interval_supports(low, high, digits):
    assert text.score_digits(low, high) == digits


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_no_date_breaks_a_page(moment):
    assert moment[:10] in text.moment(datetime.fromisoformat(moment))


def test_spans_and_sizes():
    assert [text.duration(value) for value in (None, 0.25, 5, 90, 7200, 200_000)] == [
        "–", "250 ms", "5.0 s", "1.5 min", "2.0 h", "2.3 d",
    ]  # fmt: skip
    assert [text.size(value) for value in (12, 1500, 2_500_000, 3_000_000_000)] == [
        "12 B", "1.5 kB", "2.5 MB", "3.0 GB",
    ]  # fmt: skip
    assert text.shorten("abcdefghij", 5) == "ab…ij"
    assert text.compact(0.0003) == "0.0003"
