"""The attributes that factbook questions ask for: where each stands in the source and how people call it."""

from dataclasses import dataclass
from typing import Literal

NEIGHBOURS = "neighbours"
LONGEST_BORDER = "longest border"
CAPITAL = "capital"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute. `path`: keys into the source's JSON (None = derived here); `phrases`: wordings in questions."""

    key: str
    path: tuple[str, ...] | None
    phrases: tuple[str, ...]
    unit: str = ""
    kind: Literal["number", "name"] = "number"


def _number(key: str, path: str, phrases: str, unit: str = "") -> Attribute:
    return Attribute(key, tuple(path.split("/")), tuple(phrases.split("/")), unit)


_PEOPLE = "People and Society"
_YEARLY = "Economy/{0}/{0} 2024"

ATTRIBUTES: tuple[Attribute, ...] = (
    _number("coastline", "Geography/Coastline", "coastline/coast length", "km"),
    _number("land boundaries", "Geography/Land boundaries/total", "land boundaries/total land border length", "km"),
    # The trailing blank is the source's own key.
    _number("total area", "Geography/Area/total ", "total area/overall area", "sq km"),
    _number("land area", "Geography/Area/land", "land area/area of land", "sq km"),
    _number("water area", "Geography/Area/water", "water area/area of water", "sq km"),
    _number("population", f"{_PEOPLE}/Population/total", "population/number of inhabitants", "people"),
    _number("male population", f"{_PEOPLE}/Population/male", "male population/number of males", "people"),
    _number("female population", f"{_PEOPLE}/Population/female", "female population/number of females", "people"),
    _number("median age", f"{_PEOPLE}/Median age/total", "median age/middle age", "years"),
    _number("birth rate", f"{_PEOPLE}/Birth rate", "birth rate/births per 1,000 people", "per 1,000"),
    _number("death rate", f"{_PEOPLE}/Death rate", "death rate/deaths per 1,000 people", "per 1,000"),
    _number("airports", "Transportation/Airports", "number of airports/airport count"),
    _number("heliports", "Transportation/Heliports", "number of heliports/heliport count"),
    _number("railways", "Transportation/Railways/total", "railway length/total railways", "km"),
    _number("ports", "Transportation/Ports/total ports", "number of ports/port count"),
    _number("merchant ships", "Transportation/Merchant marine/total", "merchant marine ships/size of merchant marine"),
    _number("fertility rate", f"{_PEOPLE}/Total fertility rate", "fertility rate/children born per woman"),
    _number("infant mortality", f"{_PEOPLE}/Infant mortality rate/total", "infant mortality/rate of infant deaths"),
    _number(
        "life expectancy", f"{_PEOPLE}/Life expectancy at birth/total population", "life expectancy/lifespan", "years"
    ),
    _number("forest land", "Geography/Land use/forest", "forest share/share of forest", "percent"),
    _number(
        "agricultural land",
        "Geography/Land use/agricultural land",
        "agricultural land share/share of farm land",
        "percent",
    ),
    _number(
        "urban population",
        f"{_PEOPLE}/Urbanization/urban population",
        "urban population share/urbanization",
        "percent",
    ),
    _number(
        "internet users",
        "Communications/Internet users/percent of population",
        "share of internet users/internet use",
        "percent",
    ),
    _number("obesity", f"{_PEOPLE}/Obesity - adult prevalence rate", "adult obesity rate/obesity", "percent"),
    _number(
        "unemployment 2024",
        _YEARLY.format("Unemployment rate"),
        "2024 unemployment rate/unemployment in 2024",
        "percent",
    ),
    _number(
        "inflation 2024", _YEARLY.format("Inflation rate (consumer prices)"), "2024 inflation rate/inflation", "percent"
    ),
    _number(
        "gdp per capita 2024",
        _YEARLY.format("Real GDP per capita"),
        "2024 real gdp per capita/gdp per capita",
        "dollars",
    ),
    _number("exchange rate 2024", _YEARLY.format("Exchange rates"), "2024 exchange rate/exchange rate"),
    Attribute(CAPITAL, ("Government", "Capital", "name"), ("capital", "capital city"), kind="name"),
    Attribute(
        "internet code",
        ("Communications", "Internet country code"),
        ("internet country code", "web domain"),
        kind="name",
    ),
    Attribute(LONGEST_BORDER, None, ("neighbour with the longest shared border",), kind="name"),
    Attribute(NEIGHBOURS, None, ("neighbours",), kind="name"),
)

BY_KEY: dict[str, Attribute] = {attribute.key: attribute for attribute in ATTRIBUTES}
NUMERIC: tuple[str, ...] = tuple(a.key for a in ATTRIBUTES if a.kind == "number")
ASKED: tuple[str, ...] = tuple(a.key for a in ATTRIBUTES if a.path is not None)
"""Attributes that a question asks for directly; the derived ones serve chains and superlatives."""
