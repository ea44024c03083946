"""What engines and trainers are beside their rule for layer ids: patches and treatment of drafts; what fed `fc`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3lib.boundaries import FINAL_NORMED, boundary_name
from eagle3lib.ecosystems._config_ids import config_lines, read_at
from eagle3lib.ecosystems._flags import Flags
from eagle3lib.ecosystems._reading import Header, Rules
from eagle3lib.ecosystems._system import Captures, System, TargetShape, release
from eagle3lib.errors import InputError
from eagle3lib.sampling import Sampling
from eagle3lib.speculation import Speculation

#: The remedy that serves everywhere: the number sizes a table and changes no weight.
RAISE_LIMIT = "Set max_position_embeddings in the draft's config.json to the context that the target is served with."

__all__ = ["Captures", "Engine", "Patch", "System", "TargetShape", "Trainer", "release"]


@dataclass(frozen=True)
class Beyond:
    """What an engine does with positions at or past the draft's own `max_position_embeddings`.

    Attributes:
        outcome: "stops" before it serves; "served" with angles as the replay has them; "undrafted", so that no draft
            is accepted; "unsafe", for reads outside the rope table; "unknown", where no source was read.
    """

    outcome: Literal["stops", "served", "undrafted", "unsafe", "unknown"]
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Patch:
    """What makes an engine feed `fc` with given boundaries.

    Attributes:
        ids: None where no ids do; then `settings` is empty, and `note` says what it would take.
        settings: key paths and values; of the draft's config.json, unless the engine takes them as `argument`.
        text: the settings as the lines of config.json that change.
        argument: whether they are arguments of the engine instead.
        verify: how one captured row shows that the right state was captured, boundary by boundary.
    """

    engine: str
    label: str
    version: str
    ids: tuple[int, ...] | None
    settings: dict[str, Any]
    text: str
    argument: bool
    note: str
    verify: str


class Engine(System):
    """A serving engine."""

    takes_argument = False  # whether ids are an argument of the engine and not read from config.json
    temperature_last: bool = False  # tokens are cut by top-k and top-p before the temperature, not after it
    flags: Flags  # how it reads its own arguments

    def speculation(self, text: str, architecture: str | None = None, version: str | None = None) -> Speculation:
        """How the server was told to speculate.

        Args:
            text: what it was started with, or the line of its log that repeats that: `ServedSection.launch`.
            architecture: the target's Hugging Face name, by which some engines choose what is not stated.
            version: the release, where the case states it.

        Raises:
            InputError: if the text is not what this engine takes.
        """
        return self.flags.read(self.name, text, architecture, version)

    def sampling(self, temperature: float, top_k: int | None = None, top_p: float = 1.0) -> Sampling:
        """How this engine draws from the target: top-k, then top-p of what is left, ties kept.

        vLLM: v1/sample/ops/topk_topp_sampler.py. SGLang: speculative/eagle_info.py, `verify`.
        """
        return Sampling(temperature, top_k, top_p, self.temperature_last)

    def draft_sampling(self, sampling: Sampling) -> Sampling:
        """How it draws from a draft, where it draws at all: at the request's temperature, nothing cut.

        vLLM: v1/spec_decode, `compute_probs_and_sample_next_token`. SGLang: speculative/spec_utils.py,
        `renorm_draft_probs`.
        """
        return Sampling(sampling.temperature)

    def rules(self, draft: Header) -> Rules:
        """What this engine does with such a draft besides its layer ids, as of `verified`."""
        return Rules({}, (), ())

    def stops(self, draft: Header) -> list[str]:
        """Why this engine would not load the draft at all, as of `verified`; [] where it would."""
        return []

    def beyond(self, limit: int, version: str | None = None) -> Beyond:
        """What happens where the target serves a longer context than `limit`, the draft's max_position_embeddings."""
        return Beyond("unknown", f"What {self.label} does beyond {limit} positions was not read.", RAISE_LIMIT)

    def patch(
        self,
        config: dict[str, Any],
        boundaries: Sequence[int],
        target: TargetShape,
        version: str | None = None,
    ) -> Patch:
        """What makes this engine feed `fc` with these boundaries: settings, or what its model code has to capture."""
        captures = self.ids(boundaries, target, version)
        note, settings = captures.note, {}
        if captures.ids is None:
            note = (
                f"{captures.problem} ({note}) Its model code would have to capture, and concatenate in this "
                f"order: {_in_words(boundaries, target)}. Or serve the rewired checkpoint: fc's column "
                "blocks moved to the slots where their boundaries are served, and the engine left as it is."
            )
        else:
            settings = self.settings(captures.ids)
        text = config_lines({} if self.takes_argument else config, settings) if settings else ""
        return Patch(
            self.name, self.label, version or self.default_version, captures.ids, settings, text,
            self.takes_argument, note, verify(boundaries, target),
        )  # fmt: skip

    def settings(self, ids: tuple[int, ...]) -> dict[str, Any]:
        """Key paths and the values they need."""
        return {self.key: list(ids)}


class Trainer(System):
    """A training library."""

    fixed = False  # whether it captures the same boundaries always, whatever a config says

    def trained(self, config: dict[str, Any], target: TargetShape) -> tuple[int, ...] | None:
        """What fed `fc` by the config.json that this trainer wrote; None where it holds another list at a place that
        this trainer does not read, or one that it would have refused, or no list of ids at all."""
        try:
            ids = self.read_ids(config)
        except InputError:
            return None
        elsewhere = {read_at(config, path).ids for path in ids.ignored}
        if (elsewhere - {ids.ids} and not self.fixed) or self.trouble(ids, target):
            return None
        return self.asked(ids, target)

    def slots_and_teacher(self, stored: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """How a trainer splits stored states: all but the last feed `fc`, the last is the teacher."""
        if len(stored) < 2:
            raise InputError(f"A dump needs a state for fc and one for the teacher; found {len(stored)}.")
        return stored[:-1], stored[-1]


def _in_words(boundaries: Sequence[int], target: TargetShape) -> str:
    words = {0: "the embedding output", target.n_layers: "the last block's output, before the final norm",
             FINAL_NORMED: "the last block's output behind the final norm"}  # fmt: skip
    return ", ".join(
        f"{boundary_name(b)} ({words.get(b, f'the input of block {b}, counted from 0')})" for b in boundaries
    )


#: Relative difference below which two captures of one state are the same: the spacing of bfloat16, 2⁻⁷ of a
#: number with 8 significant bits.
SAME_STATE = 2**-7


def verify(boundaries: Sequence[int], target: TargetShape) -> str:
    """How one captured row of each boundary shows that it is that boundary.

    A row captured for a token of any prompt is held against what is known of it without the engine. A row of runaway
    norm, as the first token's in most targets, tells nothing: from one block to the next it hardly changes.
    """
    by_way: dict[str, list[str]] = {}
    for b in dict.fromkeys(boundaries):
        by_way.setdefault(_verified_by(b, target), []).append(boundary_name(b))
    said = [f"{', '.join(names)}: {way}" for way, names in by_way.items()]
    return "One captured row of ordinary norm, so not the first token's, verifies each. " + "; ".join(said) + "."


def _verified_by(boundary: int, target: TargetShape) -> str:
    if boundary == 0:
        return "the row equals the target's embedding row of that token (times √H where the target scales it)"
    if boundary == FINAL_NORMED:
        return "the head alone, applied to the row of the last prompt token, gives the sampled token"
    if boundary == target.n_layers:
        return "the final norm and the head, applied to the row of the last prompt token, give the sampled token"
    return f"‖row − dump's row‖ / ‖dump's row‖, same token and prompt, is below 2⁻⁷ ({SAME_STATE:.4f})"
