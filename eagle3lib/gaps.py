"""What a case lacks, and which question of which notebook each missing thing would answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3lib.boundaries import FINAL_NORMED, Boundary, boundary_name
from eagle3lib.survey import DumpSeen, Survey


@dataclass(frozen=True)
class Gap:
    """One missing thing.

    Attributes:
        what: is missing, in words.
        give: how it is given: an option of the command, or a field of the case.
        allows: the notebooks and questions that it would allow.
    """

    what: str
    give: str
    allows: str


def gaps(seen: Survey) -> tuple[Gap, ...]:
    """What is missing, in the order of the notebooks that it holds back."""
    return (*_target_gaps(seen), *_dump_gaps(seen), *_training_gaps(seen), *_served_gaps(seen), *_cost_gaps())


def borrowed(seen: Survey) -> list[str]:
    """What the draft takes from its target for want of its own: "embedding", "head"."""
    parts = {"embedding": "embed_tokens.weight", "head": "lm_head.weight"}
    return [part for part, name in parts.items() if name not in seen.investigation.checkpoint.tensors]


def lacks_weights(seen: Survey) -> bool:
    """Whether the pass, and so notebooks 03 to 05, needs a target that was not given."""
    return seen.case.target is None and bool(borrowed(seen))


def _target_gaps(seen: Survey) -> Iterator[Gap]:
    if seen.case.target is not None:
        if seen.investigation.target.token_texts is None:
            yield Gap("token texts of the target", "its tokenizer.json in --target", "05: where do drafts fail")
        return
    lent = f"; 03 to 05 at all, since this draft takes its {' and '.join(borrowed(seen))} from it"
    yield Gap(
        "the target's embedding, final norm and head",
        "--target PATH",
        "02: do the states belong to the tokens, are the tokens the target's own; 03: what would a perfect pupil be"
        " worth; 04 and 07: what each engine makes of the layer ids, which lines fix it" + lent * lacks_weights(seen),
    )


def _dump_gaps(seen: Survey) -> Iterator[Gap]:
    if not seen.dumps:
        yield Gap(
            "recorded hidden states",
            "--dump PATH",
            "02: are the states what they are said to be; 03: does the trainer's number come back; 04: which boundary"
            " feeds which slot; 05: what acceptance length will the server show",
        )
        return
    for dump in seen.dumps:
        if not dump.usable:
            missing = [*["boundaries"] * (dump.boundaries is None), *["turns"] * (not dump.masked)]
            yield Gap(
                f"the {' and '.join(missing)} of the dump {dump.section.name}",
                "the lines of its [[dumps]] in the case",
                "02 to 05 on this dump, which is left out until then",
            )
    yield from _states_gaps(seen)


def _states_gaps(seen: Survey) -> Iterator[Gap]:
    """What the dumps that can be read do not hold."""
    usable, n = seen.usable, seen.investigation.shape and seen.investigation.shape.n_layers
    if not usable:
        return
    if not any({n, FINAL_NORMED} & set(dump.boundaries) for dump in usable):
        last = f"B({n})" if n else "B(n)"
        yield Gap(
            "the state after the last block in any dump",
            f"a dump with {last} or final_normed",
            "02: are the recorded tokens the target's own; 05: a forecast of the served number",
        )
    for derived, questions in ((seen.trained, "03, 05"), (seen.served, "04: what does the served wiring cost; 05")):
        if derived is not None and not holding(usable, derived.wiring.slots):
            needed = ", ".join(map(boundary_name, derived.wiring.slots))
            yield Gap(f"{needed} in one greedy dump", "--dump PATH", questions)
    if not any(dump.stored.temperature for dump in usable):
        yield Gap(
            "a dump of sampled responses", "--dump PATH, its temperature in the case", "05: acceptance at a temperature"
        )
    if n and not holding(usable, range(n + 1)):
        yield Gap(f"every boundary, B(0) to B({n}), in one dump", "--dump PATH", "04: which wiring fits without hints")


def holding(dumps: Sequence[DumpSeen], boundaries: Sequence[Boundary]) -> list[DumpSeen]:
    """The dumps that hold all of these boundaries and were not sampled, as far as their files tell."""
    return [d for d in dumps if set(boundaries) <= set(d.boundaries) and not d.stored.temperature]


def _training_gaps(seen: Survey) -> Iterator[Gap]:
    if seen.trained is None:
        yield Gap(
            "what fed fc in training",
            "training.boundaries in the case",
            f"03: does the trainer's number come back ({seen.trained_trouble}); 04 searches in a dump",
        )
    if seen.case.training.record is None:
        yield Gap(
            "the accuracy that the trainer printed",
            "training.full_acc in the case, or --training-record FILE",
            "03: is the trainer's number right, and against which truth",
        )


def _served_gaps(seen: Survey) -> Iterator[Gap]:
    served = seen.case.served
    if served is None:
        yield Gap(
            "the engine",
            "--engine NAME --engine-version V",
            "04: what does the served wiring cost; 05: is the served number explained; 07: the line for your engine",
        )
        return
    if served.version is None:
        default = seen.investigation.engine.default_version
        yield Gap("the engine's version", "--engine-version V", f"04 and 07 read ids as of {default} until then")
    if served.config is None:
        yield Gap("the config.json as served", "--server-config FILE", "04 takes the draft's own until then")
    for option, field, allows in (
        ("--server-flags TEXT", "launch", "05: K and tree as served; what the flags cap"),
        ("--server-log FILE", "logs", "05: is the served number explained"),
    ):
        shown = field == "launch" and any(log.launch for log in seen.logs)
        if not getattr(served, field) and not shown:
            yield Gap(f"the server's {'log' if field == 'logs' else 'flags'}", option, allows)
    if served.acceptance_length is None and not served.logs:  # which mostly hold it
        yield Gap(
            "the acceptance length that the engine printed",
            "served.acceptance_length and served.steps in the case",
            "05: is the served number explained",
        )


def _cost_gaps() -> Iterator[Gap]:
    yield Gap(
        "speeds with the draft and without it",
        "[cost] in the case",
        "06: what does a round cost, does speculation pay, and at which draft length",
    )
