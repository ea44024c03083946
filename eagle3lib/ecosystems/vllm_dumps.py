"""vLLM's hidden-states connector: `{request id}.safetensors` with `hidden_states` [S, m, H] and `token_ids` [S].

Source, in vllm-project/vllm: distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py (method
`extract_hidden_states`). States stand from low to high and once each, whatever ids were asked for and in whatever
order; id n is B(n), un-normed. Nothing in a file says where the prompt ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eagle3lib.axes import Known
from eagle3lib.boundaries import Boundary
from eagle3lib.ecosystems._files import named
from eagle3lib.ecosystems._glance import Glance
from eagle3lib.ecosystems._layout import Layout, Origin, StoredSample
from eagle3lib.ecosystems.speculators_dumps import states_and_tokens


class ConnectorLayout(Layout):
    """One file a request, without loss masks."""

    name = "vllm"
    label = "vLLM's connector (.safetensors with hidden_states, token_ids)"

    def fits(self, glance: Glance) -> bool:
        return {"hidden_states", "token_ids"} <= set(glance.safetensors)

    def files(self, folder: Path) -> Iterator[Path]:
        return named(folder, "", ".safetensors")

    def read(self, file: Path, known: Known) -> Iterator[StoredSample]:
        token_ids, states, logprobs = states_and_tokens(file, known)
        yield StoredSample(file.name, token_ids, states, logprobs=logprobs)

    def boundaries(self, stored: StoredSample, origin: Origin) -> tuple[Boundary, ...] | None:
        """The draft's ids from low to high, and n after them where there is one state more."""
        if origin.slots is None or origin.target is None:
            return None
        slots = tuple(sorted(set(origin.slots)))
        if len(stored.states) == len(slots):
            return slots
        return tuple(sorted({*slots, origin.target.n_layers})) if len(stored.states) == len(slots) + 1 else None


LAYOUTS = (ConnectorLayout(),)
