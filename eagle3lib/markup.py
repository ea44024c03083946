"""Findings and tables as HTML, numbers and foreign text as words: how a page shows what the package found."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from eagle3lib.findings import Finding, Severity

ABSENT = "–"


def escape_markdown(text: str) -> str:
    """Text from a file, so that Markdown shows it as it is: no emphasis, links, formulas or HTML."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|$~])", r"\\\1", escape(text, quote=False))


def format_value(value: Any, digits: int = 4) -> str:
    """A value for the eye: so many significant digits, thousands apart, lists in brackets."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item, digits)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_value(item, digits) for item in value)}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ") if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return _format_float(value, digits)
    return ABSENT if value is None or value is pd.NA or value is pd.NaT else str(value)


def _format_float(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return ABSENT
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits - 2}e}"
    exponent = max(-1, math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def table_html(df: pd.DataFrame, caption: str) -> str:
    """An accessible table: a caption, header cells with their scope, numbers aligned, everything escaped.

    The index is shown, as row headers, unless it is a plain count.
    """
    keep_index = not isinstance(df.index, pd.RangeIndex)
    numeric = [pd.api.types.is_numeric_dtype(dtype) for dtype in df.dtypes]
    heads = [(df.index.name or "", False)] if keep_index else []
    heads += zip(df.columns, numeric, strict=True)
    rows = []
    for label, *cells in df.itertuples(name=None):
        head = f'<th scope="row">{escape(format_value(label))}</th>' if keep_index else ""
        rows.append(f"<tr>{head}{''.join(map(_cell, cells, numeric))}</tr>")
    header = "".join(f'<th scope="col"{_align(right)}>{escape(str(head))}</th>' for head, right in heads)
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption><span>{escape(caption)}</span></caption>"
        f"<thead><tr>{header}</tr></thead>\n<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _align(right: bool) -> str:
    return ' class="number"' if right else ""


#: Characters of a text that a table does not fold: a wiring's name, a version.
SHORT = 24


def _cell(value: Any, right: bool) -> str:
    text = format_value(value)
    short = ' class="short"' if not right and len(text) <= SHORT else ""
    return f"<td{_align(right)}{short}>{escape(text)}</td>"


def finding_html(finding: Finding) -> str:
    """One finding as a block: severity as a word, title, meaning, remedy, and the numbers behind it.

    What was found right is folded to its title.
    """
    evidence = "".join(
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(format_value(value))}</dd></div>"
        for name, value in finding.evidence.items()
    )
    severity = finding.severity.value
    return (
        f'<details class="finding {severity}"{"" if finding.severity is Severity.OK else " open"}>'
        f'<summary><span class="severity">{severity}</span> <strong>{escape(finding.title)}</strong>'
        f" <code>{escape(finding.code)}</code></summary>"
        f"<p>{escape(finding.meaning)}</p>"
        + (f"<p><strong>Remedy.</strong> {escape(finding.remedy)}</p>" if finding.remedy else "")
        + (f"<dl>{evidence}</dl>" if evidence else "")
        + "</details>"
    )
