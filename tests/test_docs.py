"""The documentation agrees with the code: generated pages are fresh, commands parse, cases are cases, links lead on."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from bundled import ROOT
from pages import PAGES, anchors, blocks, commands, findings_made, generate, parsed

from eagle3lib.case import Case
from eagle3lib.case_fields import case_sections, flag_fields
from eagle3lib.ecosystems import LAYOUTS, METRICS
from eagle3lib.findings import STAGES, Severity

FINDINGS = "docs/findings/{}.toml"
MADE = findings_made()


@pytest.mark.parametrize("name", generate.REFERENCES)
def test_a_generated_page_is_fresh(name):
    made = generate.REFERENCES[name]()
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made, "run: python docs/generate.py"


def test_every_finding_is_told_of_and_none_that_is_not_made():
    told = generate.entries()
    for code in sorted(set(MADE) - set(told)):
        stage, name = code.split(".")
        pytest.fail(f"{code} is made by the code; add [{name}] with means, confirm and fix to {FINDINGS.format(stage)}")
    superfluous = sorted(set(told) - set(MADE))
    assert not superfluous, f"no code makes {superfluous}; remove them from docs/findings"


def test_what_may_be_a_fault_says_how_to_fix_it():
    told = generate.entries()
    for code, made in MADE.items():
        assert made.severities, code
        if made.severities & {Severity.FAULT, Severity.RISK}:
            assert told[code].get("fix"), f"{code} can be a fault or a risk; say how to fix it"
        for words in told[code].values():
            assert not words[0].islower() or re.match(r"[\w.]*[_0-9.]", words), (code, words)  # a name may begin it
            assert words.endswith("."), (code, words)


def test_findings_are_read_from_the_source_as_they_are():
    """A choice between two codes, one made of a word and a stage, severities, titles and pages."""
    assert MADE["training.teacher_last"].titles == MADE["training.teacher_ambiguous"].titles
    assert {"wiring.better_otherwise", "recurrence.better_otherwise"} <= set(MADE)
    assert MADE["wiring.better_otherwise"].severities == {Severity.FAULT, Severity.RISK}
    assert MADE["dump.embedding_proved"].pages == {"02"}
    assert MADE["checkpoint.finite"].pages == {"01", "check"}
    assert MADE["checkpoint.captures_differ"].pages == {"check"}
    assert MADE["wiring.served_differs"].titles == [
        "Serving feeds fc …, training fed …: … tokens a round are lost"
    ]  # fmt: skip
    assert [code.split(".")[0] for code in MADE] == sorted((c.split(".")[0] for c in MADE), key=STAGES.index)


def test_a_plain_search_finds_no_code_that_was_missed():
    """Codes written out in the source, fields of a case left aside, which are written alike."""
    fields = {f"{section.name}.{field.name}" for section in case_sections() for field in section.fields}
    plain = set()
    for path in (ROOT / "eagle3lib").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        plain |= set(re.findall(rf'"((?:{"|".join(STAGES)})\.[a-z_0-9]+)"', text))
    assert plain - fields <= set(MADE)
    assert len(plain) > 100


def test_every_field_of_a_case_has_a_meaning_and_a_kind():
    for section in case_sections():
        assert section.purpose, section.header
        for field in section.fields:
            assert field.meaning, f"{section.header} {field.name}: write a comment behind it in eagle3lib/case.py"
            assert not re.search(r"[\[\]]|None|Field", field.kind), (field.name, field.kind)
    names = {section.name.split(".")[0] for section in case_sections()} | {
        field.name for field in case_sections()[0].fields
    }
    assert names - {""} == set(Case.model_fields) - {"path"}
    assert all(field.meaning for field in flag_fields())


def test_every_layout_and_metric_stands_in_its_page():
    page = (ROOT / "docs" / "reference_case.md").read_text(encoding="utf-8")
    assert all(layout.label in page for layout in LAYOUTS)
    (table,) = re.findall(r"^\| layout \|.*?\n\n", page, flags=re.DOTALL | re.MULTILINE)
    assert table.count("\n| ") >= len(LAYOUTS)
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert all(f"`{metric.name}`" in metrics for metric in METRICS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    """Each option of each command line exists; scripts that are called are there."""
    for words in commands(page.read_text(encoding="utf-8")):
        if parsed(words) is None and words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), words
        if words[:2] == ["conda", "env"]:
            assert (ROOT / words[words.index("-f") + 1]).is_file(), words


def test_a_command_that_does_not_exist_is_seen():
    with pytest.raises(Exception, match="No such option"):
        parsed(["./run_all.sh", "--nonsense"])
    with pytest.raises(Exception, match="Missing (option|parameter)"):
        parsed(["python", "-m", "eagle3lib", "new"])
    with pytest.raises(KeyError):
        parsed(["python", "-m", "eagle3lib", "nonsense"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cases_that_are_shown_have_fields_that_exist(page):
    known = {section.name: {field.name for field in section.fields} for section in case_sections()}
    for block in blocks(page.read_text(encoding="utf-8"), "toml"):
        for name, value in tomllib.loads(block).items():
            for table in value if isinstance(value, list) else [value]:
                if isinstance(table, dict):
                    within = {field for field in table if f"{name}.{field}" in known}
                    assert set(table) - within <= known[name], (page.name, name, set(table) - known[name])
                    for field in within:
                        assert all(set(row) <= known[f"{name}.{field}"] for row in table[field]), (page.name, field)
                else:
                    assert name in known[""], (page.name, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), (page.name, target)
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), (page.name, target)


def test_codes_named_in_the_pages_are_made():
    known = {f"{section.name}.{field.name}" for section in case_sections() for field in section.fields}
    for page in PAGES:
        for code in re.findall(rf"`((?:{'|'.join(STAGES)})\.[a-z_]+)`", page.read_text(encoding="utf-8")):
            assert code in MADE or code in known, (page.name, code)


def test_annotated_tree_names_what_is_there():
    text = (ROOT / "docs" / "what_is_where.md").read_text(encoding="utf-8")
    (tree,) = [block for block in blocks(text, "") if "eagle3lib/" in block]
    for name in re.findall(r"\b([a-z0-9_]+\.py)\b", tree):
        assert (ROOT / "eagle3lib" / name).is_file() or (ROOT / "docs" / name).is_file(), name


def test_an_entry_without_a_meaning_is_refused(tmp_path: Path):
    (tmp_path / "dump.toml").write_text('[empty]\nmeans = "Nothing."\n')
    with pytest.raises(ValueError, match="must have means and confirm"):
        generate.entries(tmp_path)
