r"""A question without what differs between copies of it.

Copies of one problem differ in spacing, in `$x$` against `\(x\)`, in `^n` against `^{n}`, in case, in typographic
quotation marks, in final punctuation and in the accidents of escapes. Operators, digits and the marks within numbers
stay: "compute 5 - 3" and "compute 5 + 3", or 1.5 and 15, are different questions.
"""

import re
import unicodedata

from arpo.data.escapes import mended, without_stray

_NOISE = re.compile(
    r"\\(?:left|right)(?![a-z])|\\[()\[\],;:! ]|[\s${}~]|(?<!\d)[.,]|[.,](?!\d)|[;:!?'\"`‘’‚“”„«»]|\\?\\q?quad"
)


def normal_question(text: str) -> str:
    """Equal for texts that ask the same in other dress: NFKC, case folded, no spaces, braces, `$` or end marks."""
    whole, _ = without_stray(mended(text)[0])
    return _NOISE.sub("", unicodedata.normalize("NFKC", whole).casefold())
