"""The brand of the web pages: name, logo, accent colour, welcome text and starters, from the settings.

It is written into the pages' HTML, escaped, and into a style sheet of our own, so the Content-Security-Policy stays as
it is.
"""

import html
import json
from pathlib import Path

from msgspec import Struct

from turnwire.core.log.codec import ascii_json
from turnwire.settings import Settings

DEFAULT_NAME = "Turnwire"
# The backgrounds of the pages, light and dark, and the smallest contrast of text on them: WCAG asks for 4.5.
_LIGHT, _DARK = (0xFB, 0xFA, 0xF7), (0x16, 0x16, 0x14)
_CONTRAST = 4.6
_STEPS = 40

Colour = tuple[int, ...]


class Brand(Struct, frozen=True):
    name: str = DEFAULT_NAME
    logo: Path | None = None
    colour: str | None = None
    welcome: str | None = None
    starters: tuple[str, ...] = ()

    @property
    def logo_name(self) -> str:
        """Return the name of the logo among the assets; empty if there is none."""
        return f"logo{self.logo.suffix.lower()}" if self.logo else ""

    def head(self) -> str:
        """Return the HTML for the head of a page. Its addresses of assets are completed as those of the page are."""
        values: dict[str, object] = {"name": self.name}
        if self.logo:
            values["logo"] = self.logo_name
        if self.welcome:
            values["welcome"] = self.welcome
        if self.starters:
            values["starters"] = self.starters
        meta = f'<meta name="turnwire-brand" content="{html.escape(ascii_json(values).decode("ascii"))}">\n'
        return meta + ('<link rel="stylesheet" href="/assets/brand.css">\n' if self.colour else "")

    def manifest(self, built: bytes) -> bytes:
        """Return the web app manifest with the name and the logo."""
        values = json.loads(built)
        values |= {"name": self.name, "short_name": self.name}
        if self.logo:
            values["icons"] = [{"src": self.logo_name, "sizes": "any"}]
        return json.dumps(values).encode()

    def style(self) -> str:
        """Return the style sheet, with the accent colour made readable on light and on dark."""
        colour = _parsed(self.colour or "#000000")
        light, dark = _readable(colour, _LIGHT, (0, 0, 0)), _readable(colour, _DARK, (255, 255, 255))
        pairs = {
            "accent": (light, dark),
            "accent-ink": (_ink(light), _ink(dark)),
            "accent-wash": (_mixed(light, _LIGHT, 0.9), _mixed(dark, _DARK, 0.85)),
        }
        rules = "".join(f"--{name}:light-dark({_text(a)},{_text(b)});" for name, (a, b) in pairs.items())
        # `:root` is doubled, so that this rule wins over the page's own, whichever comes first.
        return f":root:root{{{rules}}}\n"


def brand_of(settings: Settings) -> Brand:
    return Brand(
        name=settings.brand_name,
        logo=settings.brand_logo,
        colour=settings.brand_colour,
        welcome=settings.brand_welcome,
        starters=tuple(settings.brand_starters),
    )


def _parsed(text: str) -> Colour:
    return tuple(bytes.fromhex(text.removeprefix("#")))


def _text(colour: Colour) -> str:
    return f"#{bytes(colour).hex()}"


def _mixed(colour: Colour, other: Colour, share: float) -> Colour:
    return tuple(round(a + (b - a) * share) for a, b in zip(colour, other, strict=True))


def _readable(colour: Colour, background: Colour, towards: Colour) -> Colour:
    """Return the colour nearest to this one, on the way to black or white, that can be read on a background."""
    candidates = (_mixed(colour, towards, step / _STEPS) for step in range(_STEPS + 1))
    return next(candidate for candidate in candidates if _contrast(candidate, background) >= _CONTRAST)


def _ink(colour: Colour) -> Colour:
    """Return black or white, whichever is easier to read on a colour."""
    return max((0, 0, 0), (255, 255, 255), key=lambda ink: _contrast(ink, colour))


def _contrast(first: Colour, second: Colour) -> float:
    """Return the contrast ratio of WCAG 2."""
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Colour) -> float:
    channels = [value / 255 for value in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
