r"""Is an answer a formula, or words? What decides whether it is compared by meaning, by characters or by F1.

A formula holds digits, operators or LaTeX and no words but names of functions. Only a formula may be given to a
computer algebra system: to it, words are products of variables, and "even" is "neve".
"""

import re

from arpo.reward.folding import undelimited, unwrapped

_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?|\\(?:mathbb|mathcal)\s*\{[^{}]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_OPERATOR = re.compile(r"[\d\\=<>^+*/|('-√π∞±≤≥≠×÷]")
_NO_SUM = re.compile(r"\d\s*:\s*\d|\d\.\d+\.\d")
"""Times, ratios and versions, which a parser of formulas takes for quotients and products."""
_NAMES = (
    "sin cos tan sec csc cot arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt max min gcd lcm mod det or and pi"
)
_FUNCTIONS = frozenset(_NAMES.split())
_LETTER = re.compile(r"[a-zA-Zα-ωΑ-Ω]+")
_NAME = re.compile(r"\s*\\?[A-Za-zα-ωΑ-Ω]+'*\s*(?:_\{?\w{1,9}\}?)?\s*(?:\([^()]{0,20}\))?\s*")
_SPELLED = {
    "π": r"\pi ",
    "∞": r"\infty ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "°": r"^{\circ}",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "β": r"\beta ",
    "γ": r"\gamma ",
    "λ": r"\lambda ",
    "φ": r"\varphi ",
    "⩽": r"\le ",
    "⩾": r"\ge ",
}
_PLAIN_NAME = re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|ln|log|exp)(?![A-Za-z])")
_SPELLING = str.maketrans(_SPELLED)
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")


def words_of(text: str) -> list[str]:
    """Words of two letters and more, without commands of LaTeX and names of functions."""
    text = _COMMAND.sub(" ", unwrapped(_ENVIRONMENT.sub(" ", text)))
    return [word for word in _WORD.findall(text) if word.lower() not in _FUNCTIONS]


def is_formula(text: str, *, latex: bool = False) -> bool:
    """Whether `text` has signs of mathematics and no words. `latex`: a command of LaTeX at the least."""
    signs = "\\" in text if latex else _OPERATOR.search(text) is not None
    return signs and not words_of(text)


def names_value(text: str) -> bool:
    """Whether an equation says what something is (`x = 5`, `f(x) = 2x`, `2 + 3 = 5`); true for what is no equation.

    An equation in variables has no value: `x + y = 5` is not 5.
    """
    left, equals, _ = text.partition("=")
    return not equals or left[-1:] in ("<", ">", "!") or _NAME.fullmatch(left) is not None or not _LETTER.search(left)


def is_computable(text: str) -> bool:
    """Whether a computer algebra system should see this: balanced, no time or version, few letters in a row.

    `AB` and `4ab` may be products of variables; three letters in a row that are no function are a word.
    """
    text = undelimited(text)
    if _NO_SUM.search(text) or not _balanced(text) or not re.search(r"[^\W_]", text):
        return False
    return all(len(word) < 3 and _LETTER.fullmatch(word) for word in words_of(text))


def latex(text: str) -> str:
    """`text` as LaTeX that a parser of formulas reads: mathematical characters and plain names as commands."""
    text = _PLAIN_NAME.sub(r"\\\1 ", undelimited(text).replace("**", "^"))
    if text.isascii():
        return text
    return _ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text).translate(_SPELLING)


def _balanced(text: str) -> bool:
    """Braces that group open and close in order."""
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", text):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0
