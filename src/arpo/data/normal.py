r"""A question without what differs between copies of it.

Copies of one problem differ in spacing, in `$x$` against `\(x\)`, in `^n` against `^{n}`, in case, in typographic
quotation marks and in final punctuation. Operators, digits and the marks within numbers stay: "compute 5 - 3" and
"compute 5 + 3", or 1.5 and 15, are different questions.
"""

import re
import unicodedata

_NOISE = re.compile(
    r"\\(?:left|right)(?![a-z])|\\[()\[\],;:! ]|[\s${}~]|(?<!\d)[.,]|[.,](?!\d)|[;:!?'\"`‘’‚“”„«»]|\\?\\q?quad"
)


def normal_question(text: str) -> str:
    """Equal for texts that ask the same in other dress: NFKC, case folded, no spaces, braces, `$` or end marks."""
    return _NOISE.sub("", unicodedata.normalize("NFKC", text).casefold())
