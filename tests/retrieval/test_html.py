"""The reader of HTML documents."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.retrieval.paper import block_texts
from turnwire.retrieval.blocks import split_blocks
from turnwire.retrieval.documents.parser import parse_html


def test_menus_scripts_and_forms_are_skipped() -> None:
    page = """<!doctype html><html><head><title>Tea</title><style>p {}</style></head><body>
    <header>Shop</header><nav><ul><li>Home</li></ul></nav>
    <p>It is <b>hot</b>.</p><script>alert("<p>no</p>")</script><form><label>Search</label></form>
    <svg><text>drawn</text></svg><noscript>Enable it</noscript><p>Drink it.</p><footer>2026</footer></body></html>"""
    parsed = parse_html(page)
    assert parsed.text == "It is hot.\n\nDrink it."
    assert parsed.title == "Tea"


def test_only_the_main_part_of_a_page_is_read() -> None:
    parsed = parse_html("<div>Banner</div><main><h1>Tea</h1><p>Hot.</p></main><div>Related</div>")
    assert block_texts(parsed) == ["# Tea", "Hot."]
    parsed = parse_html("<div>Banner</div><article><p>One.</p></article><p>x</p><article>Two.</article>")
    assert block_texts(parsed) == ["One.", "Two."]


def test_header_of_an_article_is_read() -> None:
    parsed = parse_html("<header>Menu</header><article><header><h1>Tea</h1></header><p>Hot.</p></article>")
    assert block_texts(parsed) == ["# Tea", "Hot."]
    assert parsed.blocks[0].level == 1


def test_unclosed_head_ends_at_the_body() -> None:
    parsed = parse_html("<html><head><title>Tea</title><style>p {}</style><body><p>Hot.")
    assert (parsed.title, parsed.text) == ("Tea", "Hot.")


def test_heading_has_its_level_and_no_permalink() -> None:
    parsed = parse_html('<h1>Tea</h1><h3>Green <a href="#green">¶</a></h3><p>Leaves</p>')
    assert [(block.level, block.heading) for block in parsed.blocks] == [(1, "Tea"), (3, "Green"), (0, "")]
    assert parsed.title == "Tea"
    assert parsed.text == "# Tea\n\n### Green\n\nLeaves"


def test_code_block_is_a_fence_and_keeps_its_lines() -> None:
    parsed = parse_html("<p>Run\n   it</p><pre><code>\nif tea:\n    <span>drink</span>()\n</code></pre><p>End</p>")
    assert block_texts(parsed) == ["Run it", "```\nif tea:\n    drink()\n```", "End"]
    assert [block.whole for block in parsed.blocks] == [False, True, False]


def test_fence_is_longer_than_the_backticks_in_it() -> None:
    assert parse_html("<pre>a ``` b</pre>").text == "````\na ``` b\n````"


def test_heading_and_code_of_a_page_are_no_prose() -> None:
    parsed = parse_html("<h2>How is tea brewed?</h2><p>With water.</p><pre>brew(tea)</pre>")
    assert [(block.kind, block.text) for block in split_blocks(parsed.text)] == [
        ("text", "With water."),
        ("code", "With water.\n\n```\nbrew(tea)\n```"),
    ]


def test_list_item_has_a_mark_and_its_other_paragraphs_have_none() -> None:
    page = "<p>Two:</p><ul>\n<li>Green</li><li>\n <p>Black</p><p>Hot.</p></li><li></li></ul><p>End</p>"
    parsed = parse_html(page)
    assert block_texts(parsed) == ["Two:", "- Green", "- Black", "Hot.", "End"]
    (block, *_) = split_blocks(parsed.text)
    assert block.text == "Two:\n\n- Green\n- Black"


def test_table_row_is_one_line() -> None:
    page = "<table><tr><th>Tea</th><th>Time</th></tr><tr><td>Green<br>leaf</td><td>2 min</td></tr></table>"
    assert block_texts(parse_html(page)) == ["Tea | Time", "Green leaf | 2 min"]


def test_character_reference_never_becomes_a_control_character() -> None:
    assert parse_html("<p>&lt;tea&gt; &amp; &eacute;&nbsp;&#29;&#127;&#55296;!</p>").text == "<tea> & é \ufffd!"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("</nav></p><p>Tea", "Tea"),
        ("Tea < coffee", "Tea < coffee"),
        ("<p>Tea<!-- a > comment --> time", "Tea time"),
        ("plain text", "plain text"),
        ("", ""),
    ],
)
def test_malformed_page_is_read(page: str, text: str) -> None:
    assert parse_html(page).text == text


NAMES = ("p", "h2", "pre", "main", "header", "nav", "td", "li", "title", "body")
TAGS = [f"<{end}{tag}>" for tag in NAMES for end in ("", "/")]


@given(st.lists(st.sampled_from([*TAGS, "<tr>", "<br>", "tea", "&amp;", "&#29;", "\n "]) | st.text(max_size=5)))
@example(["<pre>", "\n ", "</pre>"])
def test_blocks_start_at_their_text(parts: list[str]) -> None:
    parsed = parse_html("".join(parts))
    texts = block_texts(parsed)
    assert "\n\n".join(texts) == parsed.text or any(block.whole for block in parsed.blocks)
    assert all(texts)
    for block in parsed.blocks:
        assert not block.level or parsed.text.startswith(f"{'#' * block.level} {block.heading}", block.start)
        assert block.start == 0 or parsed.text[block.start - 2 : block.start] == "\n\n"
