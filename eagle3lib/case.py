"""What is investigated: `case.toml`, its fields validated and its paths resolved against its folder."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from eagle3lib.boundaries import Boundary, Wiring, parse_boundary
from eagle3lib.errors import InputError

BoundaryField = Annotated[Boundary, BeforeValidator(parse_boundary)]


class Section(BaseModel):
    """A table of case.toml: an unknown key is an error, since a misspelt field would be silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DraftSection(Section):
    """The draft as trained."""

    path: Path  # its folder, or its one file
    trainer: str | None = None  # whose rule reads the ids in its config.json, where its form does not tell


class TargetSection(Section):
    """Where the target's embedding, final norm and head are."""

    path: Path  # a GGUF file or a Hugging Face folder
    architecture: str | None = None  # Hugging Face's name; read from the target where it says so
    n_layers: int | None = Field(default=None, ge=1)  # its blocks, where its files do not say


#: The flags of a wiring, where the pass was another than the draft's config says.
Flags = create_model(
    "Flags",
    __base__=Section,
    **{name: (hint, None) for name, hint in get_type_hints(Wiring).items() if name != "slots"},
)


class TrainingSection(Section):
    """What the trainer did and claimed. Fields that are stated here win over what files imply."""

    record: Path | None = None  # the trainer's counts, as in data/smollm2/training.json
    boundaries: tuple[BoundaryField, ...] | None = None  # what fed fc, slot by slot
    flags: Flags = Flags()  # of the pass in training, such as norm_output = true
    teacher: BoundaryField | None = None  # what the labels came from
    full_acc: tuple[float, ...] | None = None  # the claimed accuracy by step


class DumpSection(Section):
    """One folder of recorded tokens and hidden states."""

    name: str  # as tables and findings name it
    path: Path  # its folder
    boundaries: tuple[BoundaryField, ...] | None = None  # of the stored states, in stored order
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # of the recorded responses; 0 is greedy
    top_k: int | None = Field(default=None, ge=1)  # of the recorded responses, where they were cut so
    top_p: float = Field(default=1.0, gt=0, le=1)  # likewise
    side_table: Path | None = None  # CSV, JSON lines or Parquet, a row a sample: its columns are slices
    axes: tuple[Literal["tokens", "states", "hidden"], ...] | None = None  # of a stored tensor, where sizes do not tell
    prompt_length: int | None = Field(default=None, ge=0)  # tokens before the response, where no loss mask is stored
    turn_begins: tuple[int, ...] = ()  # or: the token ids after which the target's tokens begin
    turn_ends: tuple[int, ...] = ()  # and those that end them, the first of which is the target's
    limit: int | None = Field(default=None, ge=1)  # at most this many samples
    stride: int = Field(default=1, ge=1)  # every stride-th file
    seed: int | None = None  # `limit` files drawn by it instead of the first
    same_tokens_as: str | None = None  # the dump that this one repeats in another stack; it is compared, never replayed
    longest: int = Field(default=8192, ge=64)  # tokens; longer sequences are given in windows of this many


class ContenderSection(Section):
    """Another draft, or a training checkpoint, that is replayed on the same tokens."""

    name: str  # as tables name it
    path: Path  # its folder, or its one file
    step: int | None = None  # of training
    loss: float | None = None  # as the trainer reported it for this step


class ServedSection(Section):
    """What the engine was given."""

    engine: str  # a name that eagle3lib.ecosystems knows, such as sglang
    version: str | None = None  # such as 0.5.23; the newest that was read unless stated
    launch: str | None = None  # what it was started with, as text: a command line, its JSON or YAML, or the log's line
    config: Path | None = None  # the draft's config.json as served, if it is another than the draft's own
    boundaries: tuple[BoundaryField, ...] | None = None  # what it captured, where that was seen in a log
    flags: Flags = Flags()  # of the pass in serving
    steps: int | None = Field(default=None, ge=1)  # draft length K
    acceptance_length: float | None = Field(default=None, ge=1)  # as the engine printed it, bonus included
    recorded: Path | None = None  # rounds of a real engine beside their replay, as data/smollm2/served.json
    repairs: Path | None = None  # repairs measured before, as data/smollm2/repair.json
    url: str | None = None  # of the running server; asked only where notebook 05 is told how many prompts to send
    logs: tuple[Path, ...] = ()  # what the server said: logs, metrics, replies' metadata, benchmarks' results


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CostPoint(Section):
    """One speed that a server was measured at."""

    steps: int | None = Field(default=None, ge=0)  # draft length; 0: without a draft
    topk: int | None = Field(default=None, ge=1)  # children of each node of the beam; 1 is a chain
    draft_tokens: int | None = Field(default=None, ge=1)  # verified nodes, the root included
    tokens_per_second: Positive  # of all sequences together
    acceptance_length: float | None = Field(default=None, ge=1, allow_inf_nan=False)  # bonus included; with a draft
    batch: int = Field(default=1, ge=1)  # sequences served at once
    draft_ms: Positive | None = None  # drafting of one profiled round
    verify_ms: Positive | None = None  # its verification


class CostSection(Section):
    """What serving costs: measured speeds, and the target's shape and device for what was not measured."""

    baseline: Positive | None = None  # tokens a second without speculation, at `batch`
    speeds: Path | None = None  # a real engine's speeds at several draft lengths, as data/smollm2/speeds.json
    points: tuple[CostPoint, ...] = ()
    batch: int = Field(default=1, ge=1)  # sequences served at once
    context: int = Field(default=0, ge=0)  # tokens of each whose keys and values a step reads
    model: Path | None = None  # the target's config.json
    weight_bits: Positive | None = None  # of its weights, where config.json does not tell
    kv_bits: Positive = 16.0  # of its keys and values
    device: str | None = None  # a name that eagle3lib.roofline knows, such as H100
    devices: int = Field(default=1, ge=1)  # that the target is spread over
    bandwidth: Positive | None = None  # GB/s of one device, where it is none of those
    tflops: Positive | None = None  # of one device, dense, in the format that it multiplies in


class Case(Section):
    """An investigation's inputs. Every field but the draft is optional; paths are absolute once loaded."""

    name: str  # of the report's folder; without it that of the case's
    title: str = ""  # of the report
    draft: DraftSection
    target: TargetSection | None = None
    training: TrainingSection = TrainingSection()
    dumps: tuple[DumpSection, ...] = ()
    drafts: tuple[ContenderSection, ...] = ()
    served: ServedSection | None = None
    cost: CostSection | None = None
    path: Path = Field(default=Path(), exclude=True)


def load_case(path: Path | str) -> Case:
    """Read and check a case.

    Raises:
        InputError: if the file is missing or not TOML, a field is unknown, missing or of the wrong type, two
            dumps share a name, or a path in it leads nowhere.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise InputError(f"Expected a case file at {path}, found {'a folder' if path.is_dir() else 'none'}.")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}.") from None
    data.setdefault("name", path.parent.name)
    if "path" in data:
        raise InputError(f"{path} holds the field path, which is no field of a case; paths stand in their sections.")
    _resolve_paths(data, path)
    try:
        case = Case(**data, path=path)
    except ValidationError as error:
        raise InputError(f"{path}: {_first_problem(error)}") from None
    names = [dump.name for dump in case.dumps]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path} names two dumps {name!r}; give each a name of its own.")
    drafts = [case.draft.path.name, *(contender.name for contender in case.drafts)]  # as tables name them
    if len(set(drafts)) != len(drafts):
        raise InputError(f"{path} names two drafts alike among {', '.join(drafts)}; give each a name of its own.")
    repeats = {dump.name for dump in case.dumps if dump.same_tokens_as is not None}
    for dump in case.dumps:
        if dump.same_tokens_as in repeats - {dump.name}:
            raise InputError(
                f"{path} says that the dump {dump.name!r} has the same tokens as {dump.same_tokens_as!r}, which itself"
                " repeats another; name the one that is replayed."
            )
        if dump.same_tokens_as is not None and dump.same_tokens_as not in set(names) - {dump.name}:
            raise InputError(
                f"{path} says that the dump {dump.name!r} has the same tokens as {dump.same_tokens_as!r}; expected the"
                f" name of another dump, of {', '.join(names)}."
            )
    return case


def _resolve_paths(data: dict, path: Path) -> None:
    """Make the path fields absolute, relative to the case's folder, and see that each exists."""
    fields = [
        ("draft", "path"),
        ("target", "path"),
        ("training", "record"),
        ("served", "config"),
        ("served", "recorded"),
        ("served", "repairs"),
        ("cost", "speeds"),
        ("cost", "model"),
    ]
    sections = [(data.get(section), section, field) for section, field in fields]
    sections += [
        (item, f"{table}[{i}]", field)
        for table, field in (("dumps", "path"), ("dumps", "side_table"), ("drafts", "path"))
        for i, item in enumerate(_list(data.get(table)))
    ]
    for section, label, field in sections:
        if isinstance(section, dict) and isinstance(section.get(field), str):
            section[field] = _resolved(section[field], f"{label}.{field}", path)
    served = data.get("served")
    if isinstance(served, dict) and isinstance(served.get("logs"), list):
        served["logs"] = [
            _resolved(log, f"served.logs[{i}]", path) if isinstance(log, str) else log
            for i, log in enumerate(served["logs"])
        ]


def _resolved(text: str, field: str, path: Path) -> Path:
    resolved = (path.parent / Path(text).expanduser()).resolve()
    if not resolved.exists():
        hint = "; ./run_all.sh fetches the bundled target" if field == "target.path" else ""
        raise InputError(f"{path} says {field} = {text!r}, and {resolved} does not exist{hint}.")
    return resolved


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _first_problem(error: ValidationError) -> str:
    """The first of pydantic's problems in one sentence."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{field} is no field of a case; check its spelling against docs/reference_case.md."
    if problem["type"] == "missing":
        return f"the field {field} is missing."
    return f"{field}: {problem['msg']}, found {problem['input']!r}."
