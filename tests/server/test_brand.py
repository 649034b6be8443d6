"""The brand of the web pages: written into their HTML and a style sheet, and nothing else of them."""

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.server.conftest import Serve
from tests.server.test_page import HTML, PAGES, loaded
from tests.serving import error_of
from turnwire import Settings
from turnwire.server.brand import Brand
from turnwire.server.pages import POLICY, read_pages

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
NASTY = 'Ann & Bob\'s "Café" </title><script>alert(1)</script>'


@pytest.fixture
def logo(tmp_path: Path) -> Path:
    file = tmp_path / "our logo.SVG"
    file.write_text(SVG)
    return file


def brand_in(page: str) -> dict[str, Any]:
    (content,) = re.findall(r'<meta name="turnwire-brand" content="([^"]*)">', page)
    return json.loads(html.unescape(content))


@pytest.mark.parametrize("path", PAGES)
async def test_branded_page_loads_with_its_policy(serve: Serve, logo: Path, path: str) -> None:
    brand = {"brand_logo": logo, "brand_colour": "#FFCC00", "brand_welcome": NASTY, "brand_starters": [NASTY, "Hi"]}
    async with serve(brand_name=NASTY, **brand) as server:
        answers = await loaded(server.http, path)
        page = answers[path].text
        assert {answer.status_code for answer in answers.values()} == {200}
        assert {answer.headers["content-security-policy"] for answer in answers.values()} == {POLICY}
        assert any(address.startswith("/assets/brand.css?v=") for address in answers)
        assert any(address.startswith("/assets/logo.svg?v=") for address in answers)
        assert "<script>alert" not in page
        if path == "/":
            assert f"<title>{html.escape(NASTY)}</title>" in page
        expected = {"name": NASTY, "logo": "logo.svg", "welcome": NASTY, "starters": [NASTY, "Hi"]}
        assert brand_in(page) == expected


async def test_page_without_a_brand_is_the_built_one(serve: Serve) -> None:
    async with serve() as server:
        page = await server.http.get("/", headers=HTML)
        assert "turnwire-brand" not in page.text
        assert "<title>Turnwire</title>" in page.text
        error_of(await server.http.get("/assets/brand.css"), 404)
        error_of(await server.http.get("/assets/logo.svg"), 404)


async def test_logo_is_shown_as_a_picture_and_cannot_run_scripts(serve: Serve, logo: Path) -> None:
    async with serve(brand_logo=logo) as server:
        answer = await server.http.get("/assets/logo.svg")
        assert (answer.text, answer.headers["content-type"]) == (SVG, "image/svg+xml")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@given(colour=st.binary(min_size=3, max_size=3))
def test_any_accent_colour_is_readable_on_light_and_dark(colour: bytes) -> None:
    style = Brand(colour=f"#{colour.hex()}").style()
    pairs = dict(re.findall(r"--([\w-]+):light-dark\((.*?)\);", style))
    light, dark = (tuple(bytes.fromhex(text[1:])) for text in pairs["accent"].split(","))
    assert contrast(light, (0xFB, 0xFA, 0xF7)) >= 4.5
    assert contrast(dark, (0x16, 0x16, 0x14)) >= 4.5
    for accent, ink in zip((light, dark), pairs["accent-ink"].split(","), strict=True):
        assert contrast(accent, tuple(bytes.fromhex(ink[1:]))) >= 4.5


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the contrast ratio as WCAG 2 defines it."""

    def luminance(colour: tuple[int, ...]) -> float:
        linear = [((v / 255 + 0.055) / 1.055) ** 2.4 if v > 10 else v / 255 / 12.92 for v in colour]
        return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize(
    "setting",
    [
        {"brand_colour": "red"},
        {"brand_colour": "#fff;} body{display:none"},
        {"brand_name": ""},
        {"brand_name": "x" * 61},
        {"brand_logo": "nowhere.svg"},
        {"brand_logo": __file__},
        {"brand_starters": ["x"] * 9},
    ],
)
def test_wrong_brand_setting_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="brand_"):
        Settings(**setting)


def test_pages_of_one_brand_are_read_once() -> None:
    assert read_pages(Brand(name="A"), has_push=False) is read_pages(Brand(name="A"), has_push=False)


async def test_manifest_has_the_brand_and_opens_the_page(serve: Serve, logo: Path) -> None:
    async with serve(brand_name="Acme", brand_logo=logo) as server:
        manifest = (await server.http.get("/assets/app.webmanifest")).json()
        assert (manifest["name"], manifest["icons"][0]["src"]) == ("Acme", "logo.svg")
        assert (manifest["start_url"], manifest["scope"]) == ("../", "../")
