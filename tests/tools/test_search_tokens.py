"""What counts as a word, in queries and in documents."""

import pytest

from arpo.tools.search.tokens import document_words, has_words, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N'Djamena: 1,234 km", ["n", "djamena", "1", "234", "km"]),
        ("Ｃａｆé ﬁne ①", ["café", "fine", "1"]),
        ("snake_case", ["snake", "case"]),
        ("東京都", ["東京", "京都"]),
        ("東", ["東"]),
        ("iPhone手机15号", ["iphone", "手机", "15", "号"]),
        ("カラオケ ｶﾗｵｹ", ["カラ", "ラオ", "オケ", "カラ", "ラオ", "オケ"]),
        ("한국어 문서", ["한국", "국어", "문서"]),
        ("中，国", ["中", "国"]),
        ("𠮷野家", ["𠮷野", "野家"]),
        ("Straße İ", ["straße", "i"]),
        ("?! --", []),
    ],
)
def test_words_of_a_query(text, expected):
    assert words(text) == expected


def test_a_document_is_found_by_single_characters_too():
    assert document_words("東京都 tower") == ["東京", "京都", "東", "京", "都", "tower"]
    assert document_words("東") == ["東"]
    assert set(words("京")) <= set(document_words("東京都"))


@pytest.mark.parametrize("query", ["京都", "東京都", "京都大", "大学"])
def test_a_query_that_a_text_contains_asks_for_nothing_that_it_lacks(query):
    assert set(words(query)) <= set(document_words("東京都大学"))


@pytest.mark.parametrize(("text", "expected"), [("...", False), ("", False), ("①", True), ("語", True), ("a", True)])
def test_has_words(text, expected):
    assert has_words(text) is expected
    assert bool(words(text)) is expected
