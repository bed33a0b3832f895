"""Values -> a frozen model, or faults in words that an operator can act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from router.settings.documents import Value
from router.settings.errors import KeyPath
from router.settings.secrets import Surroundings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

Complaint = tuple[KeyPath, str]
"""A path in the document and what is wrong there."""

UNKNOWN_KEY: Final = "unknown key"
_SHOWN_CHARACTERS: Final = 60


def validate_value(
    model: type[Model], value: Value, around: Surroundings | None
) -> Model | list[Complaint]:
    """Return the model, or every complaint about `value`."""
    try:
        return model.model_validate(value, context=around)
    except ValidationError as error:
        details = error.errors(include_url=False)
        return [_explain(model, value, item) for item in details if not _follows(item, details)]


def _follows(detail: ErrorDetails, others: Sequence[ErrorDetails]) -> bool:
    """Whether a list is only too short because pydantic left its faulty elements out."""
    here = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(here) and other["loc"][: len(here)] == here for other in others
    )


def suggest(word: str, known: Sequence[str]) -> str:
    """Return a closing phrase that helps with a misspelt word."""
    others = f"; known: {', '.join(known)}" if known else ""
    return _closest(word, known) or others


def _explain(model: type[BaseModel], root: Value, detail: ErrorDetails) -> Complaint:
    path, section, field = _trace(model, root, detail["loc"])
    context: Mapping[str, Any] = detail.get("ctx") or {}
    kind = detail["type"]
    if kind == "incoherent":
        return (*path, context["field"]), context["said"]
    if kind == "extra_forbidden":
        return path, UNKNOWN_KEY + suggest(str(path[-1]), _keys_of(section))
    if kind == "missing":
        return path, "is required"
    if kind == "union_tag_not_found":
        return (*path, "kind"), "is required"
    if kind == "union_tag_invalid":
        words = str(context["expected_tags"]).replace("'", "")
        hint = _closest(str(context["tag"]), words.split(", "))
        return (*path, "kind"), f"must be one of {words}{hint} (got {context['tag']!r})"
    message = _PHRASES.get(kind, _pydantic_words)(context, detail)
    return path, message + _got(field, kind, detail.get("input"))


def _trace(
    model: type[BaseModel], root: Value, location: Sequence[str | int]
) -> tuple[KeyPath, type[BaseModel] | None, FieldInfo | None]:
    """Follow pydantic's location through the document.

    Returns the path in the document (pydantic adds the tag of a discriminated union, which is no
    key), the innermost section passed, and the field that the location ends in.
    """
    path: list[str | int] = []
    section: type[BaseModel] | None = model
    field: FieldInfo | None = None
    here: Value = root
    for position, part in enumerate(location):
        last = position == len(location) - 1
        if isinstance(here, dict) and part not in here and here.get("kind") == part and not last:
            section = _tagged(field, str(part)) or section
            continue
        path.append(part)
        if isinstance(part, str) and section is not None:
            field = _field_of(section, part)
            inner = _section_in(field.annotation) if field is not None else None
            section = section if last else inner
        here = _step(here, part)
    return tuple(path), section, field


def _step(value: Value, part: str | int) -> Value:
    if isinstance(value, dict) and isinstance(part, str):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _field_of(section: type[BaseModel], key: str) -> FieldInfo | None:
    for name, field in section.model_fields.items():
        if (field.alias or name) == key:
            return field
    return None


def _keys_of(section: type[BaseModel] | None) -> list[str]:
    if section is None:
        return []
    return [field.alias or name for name, field in section.model_fields.items()]


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """Return the sections that a field's type holds, whatever stands around them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for part in getattr(annotation, "__args__", ()):
        found += sections_in(part)
    return found


def _section_in(annotation: object) -> type[BaseModel] | None:
    return next(iter(sections_in(annotation)), None)


def _tagged(field: FieldInfo | None, tag: str) -> type[BaseModel] | None:
    for section in sections_in(field.annotation) if field is not None else ():
        kind = section.model_fields["kind"].annotation
        if tag in getattr(kind, "__args__", ()):
            return section
    return None


def is_secret(field: FieldInfo | None) -> bool:
    """Whether a field's values must never be shown."""
    return field is not None and _mentions_secret(field.annotation)


def _mentions_secret(annotation: object) -> bool:
    return annotation is SecretStr or any(
        _mentions_secret(part) for part in getattr(annotation, "__args__", ())
    )


def _got(field: FieldInfo | None, kind: str, value: object) -> str:
    """Show the offending value where that helps and betrays nothing."""
    if is_secret(field) or kind in {"too_short", "secret"}:
        return ""
    match value:
        case dict():
            return " (got a mapping)"
        case list():
            return " (got a list)"
        case None:
            return " (got nothing)"
        case bool():
            return f" (got {str(value).lower()})"
        case str() if kind in {"address", "path"} and "@" in value:
            return ""  # it may hold a password
        case str() if len(value) > _SHOWN_CHARACTERS:
            return f" (got {value[:_SHOWN_CHARACTERS]!r}…)"
        case _:
            return f" (got {value!r})"


def _pydantic_words(_context: Mapping[str, Any], detail: ErrorDetails) -> str:
    message = detail["msg"]
    if detail["type"] in {"secret", "address", "path", "number", "profile"}:
        return message
    return message.removeprefix("Input should ").removeprefix("Value error, ")


def _one_of(context: Mapping[str, Any], detail: ErrorDetails) -> str:
    expected = str(context["expected"]).replace("'", "").replace(" or ", ", ")
    given = detail.get("input")
    hint = _closest(given, expected.split(", ")) if isinstance(given, str) else ""
    return f"must be one of {expected}{hint}"


def _closest(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


_Phrase = Callable[[Mapping[str, Any], "ErrorDetails"], str]


def _says(text: str) -> _Phrase:
    return lambda context, _detail: text.format(**context)


_PHRASES: Final[Mapping[str, _Phrase]] = {
    "greater_than": _says("must be greater than {gt}"),
    "greater_than_equal": _says("must be at least {ge}"),
    "less_than": _says("must be less than {lt}"),
    "less_than_equal": _says("must be at most {le}"),
    "finite_number": _says("must be a finite number"),
    "int_type": _says("must be a whole number"),
    "int_parsing": _says("must be a whole number"),
    "int_parsing_size": _says("must be a whole number of sane size"),
    "int_from_float": _says("must be a whole number"),
    "float_type": _says("must be a number"),
    "float_parsing": _says("must be a number"),
    "bool_type": _says("must be true or false"),
    "bool_parsing": _says("must be true or false"),
    "string_type": _says("must be text: put it in quotes"),
    "string_too_short": _says("must not be empty"),
    "string_too_long": _says("must have at most {max_length} characters"),
    "string_pattern_mismatch": _says("holds characters that a name may not have"),
    "model_type": _says("must be a mapping"),
    "model_attributes_type": _says("must be a mapping"),
    "dict_type": _says("must be a mapping"),
    "tuple_type": _says("must be a list"),
    "list_type": _says("must be a list"),
    "too_short": _says("must have at least {min_length} element(s)"),
    "enum": _one_of,
    "literal_error": _one_of,
    "date_from_datetime_parsing": _says("must be a date such as 2026-04-16"),
    "date_parsing": _says("must be a date such as 2026-04-16"),
    "date_type": _says("must be a date such as 2026-04-16"),
}
