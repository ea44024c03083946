"""Writes the reference pages and the tutorial from the code, the models' comments and a run's results.

    python docs/generate.py                                     the references
    python docs/generate.py --results reports/smollm2/results   the tutorial too, of a run of the bundled case

A reference is never edited by hand: a finding's words stand in `docs/findings/STAGE.toml`, a field's behind it in
`eagle3lib/case.py`, a parameter's in its notebook, a metric's in `eagle3lib/ecosystems/`; the rest of a page in
`docs/templates/`. The tests say when a page is stale.
"""

from __future__ import annotations

import json
import sys
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jinja2
import papermill
import typer

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from finding_calls import findings_made  # noqa: E402

from eagle3lib import ecosystems  # noqa: E402
from eagle3lib.boundaries import boundary_name  # noqa: E402
from eagle3lib.case_fields import CaseField, case_sections, flag_fields  # noqa: E402
from eagle3lib.findings import STAGES, Severity  # noqa: E402
from eagle3lib.notebooks import APPENDIX, Notebook, find_notebooks  # noqa: E402
from eagle3lib.verdict import STAGE_WORDS  # noqa: E402

DOCS = ROOT / "docs"
ENTRY = {"means", "confirm", "fix"}


def entries(folder: Path = DOCS / "findings") -> dict[str, dict[str, str]]:
    """What is written of each finding, by code.

    Raises:
        ValueError: if an entry has another key than `ENTRY` or lacks a meaning or how to confirm it.
    """
    found = {}
    for path in sorted(folder.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if not {"means", "confirm"} <= set(entry) <= ENTRY:
                raise ValueError(f"{path}: [{name}] must have means and confirm, and may have fix; found {list(entry)}")
            found[f"{path.stem}.{name}"] = entry
    return found


def findings_page() -> str:
    """docs/findings.md."""
    made, told = findings_made(), entries()
    rows = [
        {
            "code": code,
            "made": one,
            "severities": [s.value for s in Severity if s in one.severities],
            **told.get(code, {}),
        }
        for code, one in made.items()
    ]
    stages = [(stage, STAGE_WORDS[stage], [r for r in rows if r["code"].startswith(stage + ".")]) for stage in STAGES]
    return _render("findings.md.j2", stages=stages, count=len(rows))


def case_page() -> str:
    """docs/reference_case.md."""
    top, *sections = case_sections()
    top = replace(top, fields=tuple(replace(field, required=False) for field in top.fields))  # each has a default
    return _render(
        "reference_case.md.j2",
        sections=[top, *sections],
        flags=flag_fields(),
        default=_default,
        trainers=[(t.name, t.label) for t in ecosystems.TRAINERS.values()],
        engines=[(e.name, e.label, e.verified) for e in ecosystems.ENGINES.values()],
        layouts=[layout.label for layout in ecosystems.LAYOUTS],
        bundled=(ROOT / "data" / "smollm2" / "case.toml").read_text(encoding="utf-8").strip(),
    )


def _default(field: CaseField) -> str:
    if field.required:
        return "required"
    empty = field.default in (None, "", ()) or field.kind.startswith("table")
    return "" if empty else f"`{json.dumps(field.default)}`"


def parameters_page() -> str:
    """docs/reference_parameters.md."""
    found = sorted(find_notebooks(ROOT / "notebooks"), key=lambda notebook: notebook.number == APPENDIX)  # it last
    return _render("reference_parameters.md.j2", notebooks=found, parameters=_parameters)


def _parameters(notebook: Notebook) -> list[tuple[str, str, str, str]]:
    """A notebook's parameters: name, kind, default, comment."""
    declared = papermill.inspect_notebook(str(notebook.path)).values()
    return [(p["name"], p["inferred_type_name"], p["default"], p["help"]) for p in declared]


def metrics_page() -> str:
    """docs/metrics.md."""
    bonus = {True: "counted", False: "not counted", None: ""}
    rows = [(m.system, m.name, m.definition, m.over, bonus[m.bonus]) for m in ecosystems.METRICS]
    return _render("metrics.md.j2", rows=rows, systems=sorted({m.system for m in ecosystems.METRICS}))


def tutorial_page(results: Path) -> str:
    """docs/tutorial.md, its numbers those of a run of the bundled case: what is not in its results is an error.

    Args:
        results: OUT/results of that run.
    """
    pages = {path.name[:2]: _json(path) for path in sorted(results.glob("[0-9][0-9]_*.json"))}

    def finding(page: str, code: str) -> dict:
        return next(f for f in pages[page]["findings"] if f["code"] == code)

    data = ROOT / "data" / "smollm2"
    case = tomllib.loads((data / "case.toml").read_text(encoding="utf-8"))
    engine = ecosystems.engine(case["served"]["engine"])
    differs = finding("04", "wiring.served_differs")["evidence"]
    return _render(
        "tutorial.md.j2",
        pages=pages,
        finding=finding,
        verdict=_json(results / "verdict.json"),
        record=_json(data / "training.json"),
        engine=f"{engine.label} {case['served']['version']}",
        served_ids=list(engine.read_ids(_json(data / case["served"]["config"])).ids),
        lost=[b for b in differs["trained"] if b not in differs["served"]],
        kept=[b for b in differs["trained"] if b in differs["served"]],
    )


def _json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


#: Pages made of the code alone.
REFERENCES = {
    "findings.md": findings_page,
    "reference_case.md": case_page,
    "reference_parameters.md": parameters_page,
    "metrics.md": metrics_page,
}


def _render(template: str, **values: object) -> str:
    environment = jinja2.Environment(  # noqa: S701 Markdown, from our own sources
        loader=jinja2.FileSystemLoader(DOCS / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "paragraph": _paragraph, "boundary": boundary_name, "wiring": _wiring}
    return environment.get_template(template).render(**values)


def _cell(text: object) -> str:
    """Text in a table of Markdown."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _paragraph(text: str) -> str:
    """Text folded as the rest of a page."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _wiring(boundaries: list) -> str:
    names = [boundary_name(b) for b in boundaries]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def main(
    results: Annotated[Path | None, typer.Option(help="OUT/results of a run of the bundled case.")] = None,
) -> None:
    """Write the references, and with --results the tutorial."""
    pages = {name: make() for name, make in REFERENCES.items()}
    if results is not None:
        pages["tutorial.md"] = tutorial_page(results)
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    typer.run(main)
