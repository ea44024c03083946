"""The fields of a case.toml as its models declare them: kind, default, and the comment behind each in the source."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from dataclasses import dataclass, replace
from typing import Annotated, get_args, get_origin

from pydantic_core import PydanticUndefined

import eagle3lib.case
from eagle3lib.boundaries import Wiring
from eagle3lib.case import Case, Flags, Section
from eagle3lib.config import DraftConfig, Rope

#: Annotations in the source → words for them.
KINDS = {"Path": "path", "str": "text", "int": "whole number", "float": "number", "bool": "true or false",
         "BoundaryField": "boundary", "Boundary": "boundary", "Flags": "table of flags"}  # fmt: skip

PLURALS = {"boundary": "boundaries", "whole number": "whole numbers", "number": "numbers", "path": "paths"}


@dataclass(frozen=True)
class CaseField:
    """One field.

    Attributes:
        kind: what it takes, in words.
        default: None where it must be given or stands for nothing.
        meaning: the comment behind it in the source.
    """

    name: str
    kind: str
    required: bool
    default: object
    meaning: str

    @property
    def placeholder(self) -> str:
        """Its default, or a value of its kind, for a line that is to be filled in."""
        if isinstance(self.default, int | float):
            return json.dumps(self.default)
        if self.kind.startswith("list"):
            return "[]"
        if self.kind.startswith("table"):
            return "{}"
        return {"whole number": "1", "number": "1.0", "true or false": "true"}.get(self.kind, '""')


@dataclass(frozen=True)
class CaseSection:
    """A table of case.toml: its header, what its model says of it, its fields."""

    name: str
    header: str
    purpose: str
    fields: tuple[CaseField, ...]


def case_sections() -> tuple[CaseSection, ...]:
    """Every table of a case in the order of the model, first the fields that stand outside any."""
    top, *tables = _sections(Case, "")
    return (replace(top, fields=tuple(field for field in top.fields if field.name != "path")), *tables)


def _sections(model: type[Section], name: str, repeats: bool = False) -> list[CaseSection]:
    """A table, and behind it the tables in it."""
    inner = {field: found for field in model.model_fields if (found := _table_of(model, field))}
    own = tuple(field for field in model_fields(model) if field.name not in inner)
    header = f"[[{name}]]" if repeats else f"[{name}]" * bool(name)
    found = [CaseSection(name, header, (inspect.getdoc(model) or "").split("\n")[0], own)]
    for field, table in inner.items():
        several = str(model.model_fields[field].annotation).startswith("tuple")
        found += _sections(table, f"{name}.{field}".lstrip("."), several)
    return found


def flag_fields() -> tuple[CaseField, ...]:
    """The flags of a wiring, as `[training]` and `[served]` take them; most stand for an entry of the config's."""
    declared, config, rope = _declared(Wiring), _declared(DraftConfig), _declared(Rope)
    found = []
    for name in Flags.model_fields:
        annotation, meaning = declared[name]
        _, same = rope[name.removeprefix("rope_")] if name.startswith("rope_") else config.get(name, ("", ""))
        found.append(CaseField(name, _kind(annotation), False, None, meaning or same))
    return tuple(found)


def model_fields(model: type[Section]) -> tuple[CaseField, ...]:
    """The fields of one table."""
    declared = _declared(model)
    found = []
    for name, info in model.model_fields.items():
        default = None if info.default is PydanticUndefined else info.default
        annotation, meaning = declared[name]
        found.append(CaseField(name, _kind(annotation), info.is_required(), default, meaning))
    return tuple(found)


def _table_of(model: type[Section], field: str) -> type[Section] | None:
    """The model of a field that is a table of its own, None for any other; flags are written in their line."""
    annotation = model.model_fields[field].annotation
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section) and c is not Flags), None)


def _declared(model: type) -> dict[str, tuple[str, str]]:
    """Field → its annotation and the comment at the end of its line."""
    source = inspect.getsource(model)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    (body,) = ast.parse(source).body
    return {
        node.target.id: (ast.unparse(node.annotation), comments.get(node.end_lineno, ""))
        for node in body.body
        if isinstance(node, ast.AnnAssign)
    }


def _kind(annotation: str) -> str:
    """An annotation of the source in words."""
    text = annotation.removesuffix(" | None")
    if several := re.fullmatch(r"tuple\[(.+), \.\.\.\]", text):
        kind = _kind(several[1])
        return f"list of {PLURALS.get(kind, kind.removeprefix('one of '))}"
    if choice := re.fullmatch(r"Literal\[(.+)\]", text):
        return "one of " + ", ".join(f"`{word}`" for word in ast.literal_eval(f"[{choice[1]}]"))
    if " | " in text:
        return " or ".join(map(_kind, text.split(" | ")))
    alias = getattr(eagle3lib.case, text, None)
    if text not in KINDS and get_origin(alias) is Annotated:
        text = get_args(alias)[0].__name__
    return KINDS.get(text, text)
