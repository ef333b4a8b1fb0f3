"""Control characters that a lost backslash made: which are put back, which are taken out, which are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.data.escapes import broken, excerpt, mended, stray, visible, without_stray


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("is \x08oxed{x}", "is \\boxed{x}"),
        ("\x0crac{m}{n}", "\\frac{m}{n}"),
        ("$\x07lpha + \x08eta_1$", "$\\alpha + \\beta_1$"),
        ("of $\triangle DEF$", "of $\\triangle DEF$"),
        ("3 \times 4", "3 \\times 4"),
        ("\text{cm}", "\\text{cm}"),
        ("\\left( x \right)", "\\left( x \\right)"),
        ("\x0bec{v}", "\\vec{v}"),
    ],
)
def test_broken_commands_are_put_back(text: str, after: str) -> None:
    assert mended(text) == (after, len(after) - len(text))
    assert broken(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "name\tan example",
        "one\tangle",
        "a\r\nright",
        "di\x0bfference",
        "\x0cinds",
        "tel.\text. 5",
        "\\boxed{x}",
        "\x00",
    ],
)
def test_what_is_no_command_is_left(text: str) -> None:
    assert mended(text) == (text, 0)
    assert broken(text) is None


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("di\x0bfference", "difference"),
        ("a\x00b\x7f\x9b", "ab"),
        ("\u202eabc\u2069", "abc"),
        ("x\ud800y", "x\ufffdy"),
    ],
)
def test_strays_are_taken_out(text: str, after: str) -> None:
    assert stray(text)
    assert without_stray(text)[0] == after


@pytest.mark.parametrize("text", ["a\tb\nc\r\n", "naïve 北京 🇵🇰", "e\u0301", "\u200d"])
def test_ordinary_text_has_no_strays(text: str) -> None:
    assert stray(text) is None
    assert without_stray(text) == (text, 0)


def test_excerpts_show_what_cannot_be_seen() -> None:
    text = "x" * 200 + "\x08oxed{}\u202e\n" + "y" * 200
    shown = excerpt(text, 200, length=60)
    assert "\\x08oxed{}\\u202e\\n" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert excerpt("short") == "short"


@given(st.text(alphabet=st.characters(codec=None)))
def test_any_text_is_printable_once_visible_and_clean_once_repaired(text: str) -> None:
    assert "\n" not in visible(text)
    assert "\x1b" not in visible(text)
    whole, _ = without_stray(mended(text)[0])
    assert stray(whole) is None
    assert broken(whole) is None or "\t" in whole or "\r" in whole
    whole.encode()
