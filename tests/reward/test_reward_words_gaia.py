"""F1 over Chinese, Japanese and Korean characters, and GAIA's own comparison."""

import pytest

from arpo.reward import score_answer


@pytest.mark.parametrize(
    ("prediction", "gold", "value"),
    [
        ("北京", "北京市", 0.8),  # 19
        ("北京市", "北京市", 1),
        ("上海", "北京市", 0),
        ("２０２４年", "2024年", 1),
        ("答案是：北京。", "北京", 4 / 7),
        ("《红楼梦》", "红楼梦", 1),
        ("東京タワー", "東京タワ", 8 / 9),
        ("서울시", "서울", 0.8),
        ("Apple公司", "Apple 公司", 1),
        ("the Apple Inc", "Apple Inc.", 1),
        ("yes", "no", 0),
        ("𠮷野家", "吉野家", 2 / 3),
    ],
)
def test_f1_over_characters(prediction, gold, value):
    assert score_answer(prediction, gold, mode="f1_cjk") == pytest.approx(value)


@pytest.mark.parametrize(
    ("prediction", "gold", "value"),
    [
        ("$1,234.50", "1234.5", 1),  # 48
        ("97%", "97", 1),
        ("17", "17.0", 1),
        ("17 thousand", "17", 0),
        ("seventeen", "17", 0),
        ("", "17", 0),
        ("sea gull", "Seagull", 1),  # 50
        ("St. Petersburg", "saint petersburg", 0),
        ("St. Petersburg", "st petersburg", 1),
        ("a, b", "a,b", 1),
        ("b, a", "a, b", 0),
        ("a; b; c", "a, b, c", 1),
        ("a, b", "a, b, c", 0),
        ("1,2.0", "1, 2", 1),
        ("$3, b", "3, B", 1),
        ("a.b, c", "ab, c", 0),  # punctuation counts inside lists
        ("\\boxed{Seagull}", "seagull", 1),
    ],
)
def test_gaia(prediction, gold, value):
    assert score_answer(prediction, gold, mode="gaia") == value
