"""The first case.toml of an investigation, with what was found as comments, and what to fill in commented out."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lib import ecosystems
from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name, in_depth_order
from eagle3lib.case_fields import CaseSection, case_sections
from eagle3lib.case_text import toml_value
from eagle3lib.findings import quantity
from eagle3lib.investigation import MANY
from eagle3lib.survey import DumpSeen, Survey
from eagle3lib.turn_marks import supposed_marks

WIDTH = 120


@dataclass(frozen=True)
class Line:
    """`name = value  # why`; `out` where it is commented out."""

    name: str
    value: object
    why: str = ""
    out: bool = False


def case_lines(seen: Survey, out: Path) -> str:
    """The text of the case.

    Args:
        out: where the file will lie; paths are written relative to its folder.
    """
    folder = Path(os.path.abspath(out)).parent
    sections = {section.name: section for section in case_sections()}
    parts = [
        "# Commented-out lines are yours to fill in; docs/reference_case.md has every field.",
        *_lines([Line("name", seen.case.name, "the report goes to reports/NAME")]),
        *_draft(seen, folder),
        *_target(seen, folder, sections["target"]),
        *_training(seen, folder, sections["training"]),
        *(line for dump in seen.dumps for line in _dump(seen, dump, folder)),
        *([] if seen.dumps else _left_out(sections["dumps"], ("name", "path"))),
        *_served(seen, folder, sections["served"]),
    ]
    told = {"", "draft", "target", "training", "dumps", "served"}
    parts += [line for name, section in sections.items() if name not in told for line in _left_out(section)]
    return "\n".join(parts) + "\n"


def relative(path: Path, folder: Path) -> str:
    """A path as the case writes it: relative to its folder, unless nothing but the root is shared."""
    if path.anchor != folder.anchor or path.parts[1:2] != folder.parts[1:2]:
        return path.as_posix()
    found = Path(os.path.relpath(path, folder))
    if (folder.resolve() / found).resolve() != path.resolve():  # a link leads to the folder, and `..` elsewhere
        found = Path(os.path.relpath(path.resolve(), folder.resolve()))
    return found.as_posix()


def _draft(seen: Survey, folder: Path) -> list[str]:
    inv = seen.investigation
    checkpoint, config = inv.checkpoint, inv.pass_config
    by = f", told by {', '.join(checkpoint.evidence)}" if checkpoint.evidence else ""
    slots = f"{config.n_slots} slots of {config.target_hidden_size}"
    lines = [Line("path", relative(seen.case.draft.path, folder), f"{checkpoint.dialect}{by}; {slots}")]
    if inv.trainer_is_told:
        why = "guessed: who writes this form; another trainer reads the same layer ids one block apart"
    else:
        known = ", ".join(ecosystems.TRAINERS)
        why = f"no trainer is told by this form, and ids are read as speculators' until one is; one of {known}"
    return ["", "[draft]", *_lines([*lines, Line("trainer", inv.trainer.name, why, out=True)])]


def _target(seen: Survey, folder: Path, section: CaseSection) -> list[str]:
    if seen.case.target is None:
        return _left_out(section)
    shape, target = seen.investigation.shape, seen.investigation.target
    lines = [Line("path", relative(seen.case.target.path, folder), f"{shape.n_layers} blocks of {target.hidden_size}")]
    if shape.architecture is None:
        why = "its files do not say, and engines' rules for layer ids depend on it"
        lines.append(Line("architecture", "LlamaForCausalLM", why, out=True))
    return ["", "[target]", *_lines(lines)]


def _training(seen: Survey, folder: Path, section: CaseSection) -> list[str]:
    record, trained = seen.case.training.record, seen.trained
    lines = [Line("record", relative(record, folder))] if record else []
    if trained is None:
        lines.append(Line("boundaries", [], f"what fed fc: {seen.trained_trouble}; notebook 04 searches", out=True))
    else:
        lines.append(Line("boundaries", list(trained.wiring.slots), f"guessed: {trained.source}", out=True))
    if not record:
        why = "the accuracy by step that the trainer printed; these numbers are an example"
        lines.append(Line("full_acc", [0.75, 0.62, 0.54], why, out=True))
    written = [] if all(line.out for line in lines) else ["[training]"]
    return ["", *(written or ["# [training]"]), *_lines([*lines, *_rest(section, lines)])]


def _dump(seen: Survey, dump: DumpSeen, folder: Path) -> list[str]:
    """A dump's table; commented out as a whole while it cannot be read without what only the user knows."""
    out = not dump.usable
    lines = [
        Line("name", dump.section.name, f"{dump.label}; {_size(dump)}", out),
        Line("path", relative(dump.section.path, folder), out=out),
    ]
    if dump.stored is None:
        lines.append(Line("axes", ["tokens", "states", "hidden"], f"no sample could be read: {dump.trouble}", out=True))
    else:
        lines.append(Line("boundaries", *_boundaries(seen, dump), out=True))
        lines += [] if dump.masked else _turns(seen, dump)
    told = dump.stored.temperature if dump.stored else None
    why = "of the responses; not stored, and taken as greedy until stated" if told is None else "as its files say"
    lines.append(Line("temperature", told or 0.0, why, out=True))
    if dump.n_files > MANY:
        lines.append(Line("limit", MANY, f"of {dump.n_files:,} files about {MANY}, evenly spread, are read", out=True))
    head = ["# To use this dump, complete these lines and uncomment them and the header."] if out else []
    return ["", *head, "# [[dumps]]" if out else "[[dumps]]", *_lines(lines)]


def _size(dump: DumpSeen) -> str:
    files = quantity(dump.n_files, "file")
    if dump.stored is None:
        return files
    widths = sorted({state.shape[1] for state in dump.stored.states})
    states = quantity(len(dump.stored.states), "state")
    return f"{files}; {states} of {' and '.join(map(str, widths))} a token"


def _turns(seen: Survey, dump: DumpSeen) -> list[Line]:
    """The lines that stand for the loss mask which a dump lacks."""
    n_tokens = len(dump.stored.token_ids)
    marks = supposed_marks(dump.stored.token_ids, seen.investigation.target)
    supposed = f"supposed from the first sample: {marks.words!r}" if marks.words else "none was recognised in its texts"
    return [
        Line("prompt_length", 0, f"no loss mask is stored: state the prompt's tokens (of {n_tokens} in the first"
             " sample), if they are as many in every sample", out=True),
        Line("turn_begins", list(marks.begins), f"or the ids after which the target speaks; {supposed}", out=True),
        Line("turn_ends", list(marks.ends), "and those that end its turn", out=True),
    ]  # fmt: skip


def _boundaries(seen: Survey, dump: DumpSeen) -> tuple[list, str]:
    """Boundaries of a dump's states, known or supposed, and what speaks for them."""
    n_states = len(dump.stored.states)
    told = [f"state {place + 1} of {n_states} is {boundary_name(b[0])}" for place, b in sorted(dump.proved.items())]
    proved = f"Proved on the first sample: {', '.join(told)}. " if told else ""
    if dump.boundaries is not None:
        stated = dump.stored.boundaries is not None
        source = "as its files say" if stated else "guessed: by its layout's rule and the draft's ids; 02 proves it"
        against = ", which this contradicts: state them in stored order" if dump.contradicted else ""
        return list(dump.boundaries), f"{proved}{source}{against}"
    fitting = [supposed for supposed in _suppositions(seen, dump) if dump.agrees(supposed)]
    if fitting:
        by = "their number" if fitting[0] == _every(seen, dump) else "the layer ids"
        others = "".join(f", or {other}" for other in fitting[1:])
        return fitting[0], f"{proved}Supposed by {by}{others}; 02 proves or refutes it. {dump.trouble}"
    return [], f"{proved}Of the {quantity(n_states, 'state')}, in stored order. {dump.trouble}"


def _suppositions(seen: Survey, dump: DumpSeen) -> list[list]:
    """What dumps usually hold: what feeds `fc` in training, in serving too, the embedding, the last state; first
    those with a last state where one is proved, and those without where none is."""
    every = _every(seen, dump)
    if every or seen.trained is None:
        return [every] if every else []
    slots = seen.trained.wiring.slots
    both = list(in_depth_order({*slots, *(seen.served.wiring.slots if seen.served else ())}))
    last = _proved_last(dump)
    usual = last or [_usual_last(seen, dump)]
    found = []
    for tail in (usual, []) if last else ([], usual):
        for held in (list(slots), both):
            found += [[*held, *tail], [*[0] * (0 not in held), *held, *tail]]
    return [supposed for i, supposed in enumerate(found) if supposed not in found[:i]]


def _every(seen: Survey, dump: DumpSeen) -> list:
    """Every boundary, where a dump holds as many states; else none."""
    shape = seen.investigation.shape
    if shape is None or len(dump.stored.states) != shape.n_layers + 1:
        return []
    return [*range(shape.n_layers), *(_proved_last(dump) or [_usual_last(seen, dump)])]


def _proved_last(dump: DumpSeen) -> list[Boundary]:
    return [possible[0] for possible in dump.proved.values() if possible != (0,)]


def _usual_last(seen: Survey, dump: DumpSeen) -> Boundary:
    return FINAL_NORMED if dump.stored.last_normed else seen.investigation.shape.n_layers


def _served(seen: Survey, folder: Path, section: CaseSection) -> list[str]:
    served = seen.case.served
    if served is None:
        return _left_out(section, ("engine", "version", "steps", "acceptance_length"))
    inv = seen.investigation
    lines = [Line("engine", inv.engine.name)]
    if served.version is None:
        lines.append(Line("version", inv.engine.default_version, "guessed: the newest that was read", out=True))
    for name in ("version", "config", "launch", "logs"):
        if value := getattr(served, name):
            paths = [relative(path, folder) for path in value] if isinstance(value, tuple) else value
            lines.append(Line(name, relative(value, folder) if isinstance(value, Path) else paths))
    if seen.served is not None:
        why = f"guessed: {seen.served.source}"
        lines.append(Line("boundaries", list(seen.served.wiring.slots), why, out=True))
    elif inv.served_trouble:
        lines.append(Line("boundaries", [], inv.served_trouble, out=True))
    return ["", "[served]", *_lines([*lines, *_rest(section, lines)])]


def _rest(section: CaseSection, lines: Sequence[Line]) -> Iterator[Line]:
    """The fields of a section that no line names, to be filled in."""
    named = {line.name for line in lines}
    return (Line(f.name, Raw(f.placeholder), f.meaning, True) for f in section.fields if f.name not in named)


def _left_out(section: CaseSection, names: Sequence[str] = ()) -> list[str]:
    """A section of which nothing was given: its fields, or some of them, commented out."""
    fields = [field for field in section.fields if not names or field.name in names]
    lines = [Line(field.name, Raw(field.placeholder), field.meaning, True) for field in fields]
    return ["", f"# {section.header}   # {section.purpose}", *_lines(lines)]


class Raw(str):
    """Text that is TOML already."""


def _lines(lines: Iterable[Line]) -> list[str]:
    """Lines of TOML with their comments, behind them where they fit and above them where not."""
    written = []
    for line in lines:
        mark, why = "# " if line.out else "", _printable(line.why)
        value = line.value if isinstance(line.value, Raw) else toml_value(line.value, None)
        text = f"{mark}{line.name} = {value}"
        if why and len(text) + len(why) + 5 > WIDTH:
            indent = {"initial_indent": "#   ", "subsequent_indent": "#   "}
            written += textwrap.wrap(why, WIDTH, break_long_words=False, **indent)
            written.append(text)
        else:
            written.append(f"{text}   # {why}" if why else text)
    return written


def _printable(text: str) -> str:
    """Text from files on one line, without what a comment of TOML may not hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
