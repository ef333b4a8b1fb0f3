r"""Units after a number, by one name each; nothing is converted.

`km`, `kilometres` and `\mathrm{km}` are one unit, `m` is another: 5 km is never 5 m, nor 5000 m. What follows a number
and is no unit may still be what was counted ("11 children").
"""

import re
from dataclasses import dataclass

_NAMES = {
    "km": "km kilometer kilometre kilometers kilometres kms",
    "m": "m meter metre meters metres",
    "cm": "cm centimeter centimetre centimeters centimetres",
    "mm": "mm millimeter millimetre millimeters millimetres",
    "nm": "nm nanometer nanometre nanometers nanometres",
    "mi": "mi mile miles",
    "ft": "ft foot feet",
    "in": "inch inches",
    "yd": "yd yard yards",
    "ha": "ha hectare hectares",
    "acre": "acre acres",
    "l": "l liter litre liters litres",
    "ml": "ml milliliter millilitre milliliters millilitres",
    "kg": "kg kilogram kilograms kilo kilos",
    "g": "g gram grams",
    "mg": "mg milligram milligrams",
    "lb": "lb lbs pound pounds",
    "t": "tonne tonnes",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "n": "newton newtons",
    "j": "j joule joules",
    "kj": "kj kilojoule kilojoules",
    "w": "watt watts",
    "kw": "kw kilowatt kilowatts",
    "kwh": "kwh",
    "v": "volt volts",
    "hz": "hz hertz",
    "ev": "ev",
    "mol": "mol mole moles",
    "degree": "° degree degrees deg",
    "degree c": "°c celsius",
    "degree f": "°f fahrenheit",
    "$": "$ usd dollar dollars",
    "€": "€ eur euro euros",
    "£": "£ gbp",
    "¥": "¥ yen jpy",
    "cent": "¢ cent cents",
    "mi/h": "mph",
    "km/h": "kph kmh",
}
_UNITS = {name: unit for unit, names in _NAMES.items() for name in names.split()}
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_AFTER = {"squared": "^2", "cubed": "^3"}
_TOKEN = re.compile(r"\^?[23]|[^\W\d_]+|[°$€£¥¢/]")
_ALLOWED = re.compile(r"(?:[^\W\d_]|[°$€£¥¢/.\s-]|(?<=[^\W\d_])\^?[23])*")
_AT_END = re.compile(
    r"(?:\\[,;: ]|~|\s)*(?:\\(?:text|mathrm|mbox|textrm)\s*\{(?P<word>[^{}]*)\}|\^\s*(?:\{\s*\\circ\s*\}|\\circ)"
    r"|(?<=[\s\d}),])(?P<plain>[A-Za-z]+(?:/[A-Za-z]+)?))(?P<power>\^(?:[23]|\{[23]\}))?\s*$"
)
_LONGEST = 60
"""Characters at the end of a formula in which a unit is looked for."""
_JOINING = "and or to but not is than plus minus times over under per from with versus"
_FUNCTIONS = "sin cos tan sec csc cot log exp sqrt arcsin arccos arctan mod gcd lcm max min inf"
_NOT_COUNTED = frozenset(f"{_JOINING} {_FUNCTIONS}".split())
"""Words that make a number and what follows a sentence, a range or a formula."""


@dataclass(frozen=True, slots=True)
class Unit:
    """`name`: of the unit, "" if there is none; `counted`: the words that are no unit, lower case."""

    name: str = ""
    counted: tuple[str, ...] = ()

    def fits(self, other: "Unit") -> bool:
        """The same unit, or one of them does not say."""
        return not self.name or not other.name or self.name == other.name

    def counts_like(self, other: "Unit") -> bool:
        """The same things are counted, or one of them does not say."""
        return not self.counted or not other.counted or self.counted == other.counted


NO_UNIT = Unit()


def parse_unit(text: str) -> Unit | None:
    """The unit that `text` is, with or without what is counted; None if it cannot follow a number as either."""
    text = re.sub(r"\^\s*\{\s*([23])\s*\}", r"^\1", text.strip().lower())
    if not _ALLOWED.fullmatch(text):
        return None
    tokens = _TOKEN.findall(text)
    name, rest = _unit(tokens)
    if name and len(rest) >= 2 and rest[0] in ("/", "per"):
        over, after = _unit(rest[1:])
        name, rest = (f"{name}/{over}", after) if over else ("", tokens)
    counted = tuple(rest)
    return Unit(name, counted) if all(len(word) >= 3 and word not in _NOT_COUNTED for word in counted) else None


def without_unit(text: str) -> tuple[str, Unit]:
    """A formula and the unit at its end, if there is one that can be no variable: set as a word, or `cm`."""
    match = _AT_END.search(text, max(len(text) - _LONGEST, 0))
    unit = parse_unit((match["word"] or match["plain"] or "°") + (match["power"] or "")) if match else None
    if match is None or unit is None or unit.counted or not unit.name or (match["plain"] and len(unit.name) == 1):
        return text, NO_UNIT
    return text[: match.start()].strip(), unit


def _unit(tokens: list[str]) -> tuple[str, list[str]]:
    """The name of the unit in front, with its power, and what follows; "" if there is none."""
    power = _POWERS.get(tokens[0], "") if tokens else ""
    rest = tokens[1:] if power else tokens
    if not rest:
        return "", tokens
    if rest[0] == "°" and rest[1:2] in (["c"], ["f"]):
        rest = ["".join(rest[:2]), *rest[2:]]
    elif rest[0] in ("degree", "degrees") and rest[1:2] in (["celsius"], ["fahrenheit"], ["c"], ["f"]):
        rest = [f"°{rest[1][0]}", *rest[2:]]
    name = _UNITS.get(rest[0])
    if name is None:
        return "", tokens
    rest = rest[1:]
    if not power and rest and (rest[0].lstrip("^") in ("2", "3") or rest[0] in _AFTER):
        power, rest = _AFTER.get(rest[0]) or f"^{rest[0].lstrip('^')}", rest[1:]
    return name + power, rest
