"""What a typed Python function says about itself, as a tool has to say it: a JSON schema, and words for the model.

Types come from the annotations, through pydantic, so whatever pydantic can check may stand there; words come from the
docstring, in Google, NumPy or Sphinx style. Nothing is guessed: a parameter without an annotation, a function without a
docstring, a documented parameter that does not exist is an error when the tool is made, with the remedy.

The schema is plain: no titles, no references, and no object takes a property that it does not name, nested ones
included, because an argument that is silently dropped teaches a policy nothing. Arguments are checked against the
schema first and then turned into what the annotation says; a schema that knows types so exactly leaves pydantic no
conversion that loses anything ("5" is no integer, 5.0 is).
"""

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
import jsonschema
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaError

from arpo.errors import ToolSetupError
from arpo.tools.base import ToolContext, ToolError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NESTED = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_DROPPED = ("title", "discriminator", "$defs")


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as a tool sees it. `context`: the name of its ToolContext parameter, if it has one."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    context: str | None
    _adapters: Mapping[str, TypeAdapter[Any]]
    _validator: jsonschema.Draft202012Validator

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Keyword arguments for the function. Raises ToolError, in words for the model, if they do not fit."""
        error = jsonschema.exceptions.best_match(self._validator.iter_errors(dict(arguments)))
        if error is not None:
            raise ToolError(f"Wrong arguments for {self.name} at {error.json_path}: {error.message}")
        bound = {name: self._typed(name, value) for name, value in arguments.items()}
        return bound if self.context is None else {**bound, self.context: context}

    def _typed(self, name: str, value: Any) -> Any:
        try:
            return self._adapters[name].validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (name, *first["loc"]))
            raise ToolError(f"Wrong arguments for {self.name} at ${place}: {first['msg']}") from error


def signature_of(function: Callable[..., Any], name: str | None = None, *, method: bool = False) -> Signature:
    """Read `function`; `method`: its first parameter is the instance. Raises ToolSetupError with the remedy."""
    where = f"tool {name or getattr(function, '__name__', function)!r}"
    name = name or str(getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name):
        raise ToolSetupError(f"{where}: a tool's name is a letter and up to 63 letters, digits, _ or -; give it name=")
    words = _Words(function, where)
    adapters: dict[str, TypeAdapter[Any]] = {}
    defaults: dict[str, Any] = {}
    context = None
    for parameter, annotation in _annotated(function, where, method=method):
        if annotation is ToolContext:
            context = parameter.name
            continue
        adapters[parameter.name] = _adapter(annotation, f"{where}, parameter {parameter.name!r}")
        if parameter.default is not inspect.Parameter.empty:
            defaults[parameter.name] = parameter.default
    words.refuse_unknown(adapters)
    schema = _schema(adapters, defaults, words, where)
    return Signature(name, words.description, schema, context, adapters, jsonschema.Draft202012Validator(schema))


class _Words:
    """The docstring of a function."""

    def __init__(self, function: Callable[..., Any], where: str) -> None:
        self._where = where
        text = inspect.getdoc(function)
        if not text or not text.strip():
            raise ToolSetupError(
                f"{where}: it has no docstring, so a model could not know what it does; write one sentence, and a "
                "line per parameter under `Args:`"
            )
        parsed = docstring_parser.parse(text)
        self.parameters = {one.arg_name: _line(one.description) for one in parsed.params}
        parts = [parsed.short_description, parsed.long_description]
        if parsed.returns is not None and parsed.returns.description:
            parts.append(f"Returns: {_line(parsed.returns.description)}")
        self.description = "\n\n".join(part.strip() for part in parts if part)

    def refuse_unknown(self, known: Mapping[str, Any]) -> None:
        for name in self.parameters:
            if name not in known:
                raise ToolSetupError(
                    f"{self._where}: its docstring describes {name!r}, which is no parameter (there is: "
                    f"{', '.join(known) or 'none'}); rename one or the other"
                )


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _annotated(function: Callable[..., Any], where: str, *, method: bool) -> list[tuple[inspect.Parameter, Any]]:
    """The parameters with what their annotations stand for."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise ToolSetupError(
            f"{where}: its annotations cannot be read ({error}); write a function of your own, and define the types "
            "that it names in the module, outside functions"
        ) from error
    for one in parameters:
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ToolSetupError(f"{where}: {str(one)!r} cannot be given by name; write it out, without * or /")
        if one.name not in hints:
            more = " (methods become tools through arpo.environment)" if one.name == "self" else ""
            raise ToolSetupError(
                f"{where}: parameter {one.name!r} has no annotation, so it has no type{more}; write {one.name}: str, "
                "or whatever it is"
            )
    return [(one, hints[one.name]) for one in parameters]


def _adapter(annotation: Any, where: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, SchemaError, TypeError) as error:
        raise ToolSetupError(_no_schema(where, error)) from error


def _no_schema(where: str, error: Exception) -> str:
    cause = str(error).splitlines()[0]
    return (
        f"{where}: no JSON schema for its type ({cause}); use str, int, float, bool, Literal, list, dict, dataclasses"
    )


def _schema(
    adapters: Mapping[str, TypeAdapter[Any]], defaults: Mapping[str, Any], words: _Words, where: str
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, adapter in adapters.items():
        try:
            schema = adapter.json_schema()
        except PydanticUserError as error:
            raise ToolSetupError(_no_schema(f"{where}, parameter {name!r}", error)) from error
        properties[name] = _plain(schema, schema.get("$defs", {}), (), where)
        if words.parameters.get(name):
            properties[name]["description"] = words.parameters[name]
        if name in defaults:
            properties[name] |= _default(adapter, defaults[name])
    required = [name for name in adapters if name not in defaults]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _default(adapter: TypeAdapter[Any], value: Any) -> dict[str, Any]:
    """What the schema says of a default; nothing of one that JSON cannot write."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"default": adapter.dump_python(value, mode="json")}
    except PydanticSerializationError:
        return {}


def _plain(schema: Any, defs: Mapping[str, Any], inside: tuple[str, ...], where: str) -> Any:
    """`schema` with references written out, without titles, and closed to properties that it does not name."""
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        target = str(schema["$ref"]).rpartition("/")[2]
        if target in inside:
            raise ToolSetupError(f"{where}: the type {target} contains itself, which no plain schema can say; use dict")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**defs[target], **rest}, defs, (*inside, target), where)
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS:
            plain[key] = {name: _plain(one, defs, inside, where) for name, one in value.items()}
        elif key in _LISTS:
            plain[key] = [_plain(one, defs, inside, where) for one in value]
        elif key not in _DROPPED:
            plain[key] = _plain(value, defs, inside, where) if key in _NESTED else value
    if "properties" in plain:
        plain.setdefault("additionalProperties", False)
    return plain
