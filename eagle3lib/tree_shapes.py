"""The shape of a dynamic draft tree, and how each system counts it: the only place that knows.

    | what is asked for             | levels    | drafted nodes    | keys of a branch |
    |-------------------------------|-----------|------------------|------------------|
    | SGLang 0.5.23, topk > 1       | num_steps | draft_tokens - 1 | its place's      |
    | SGLang 0.5.23, topk = 1       | num_steps | num_steps        | its place's      |
    | EAGLE, `topK_genrate`         | depth + 1 | total_token - 1  | its ancestors'   |

Both count the root, the round's first token, among the nodes that the target verifies: `draft_tokens` and
`total_token` are what one verification costs. SGLang sets draft_tokens = num_steps + 1 whatever it was told where
topk = 1. EAGLE's loop runs `depth` times after the root's own children were taken, so its tree is a level deeper
than `depth` says. vLLM drafts chains only: its fixed token trees were removed in May 2026 (vllm#42121).

(sglang 0.5.23 srt/speculative/{eagle_worker_v2,eagle_utils,spec_utils}.py and srt/arg_groups/speculative_hook.py;
EAGLE eagle/model/cnets.py of February 2026)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Which keys of earlier steps a node sees. "ancestors": its own ancestors'. "places": those that were computed at
#: its place in the beam, whoever stood there: SGLang writes a key cache for each place and does not move keys when
#: the beam is reordered (sglang#8409, closed unmerged). For a chain they are the same.
OwnKeys = Literal["ancestors", "places"]


@dataclass(frozen=True)
class TreeShape:
    """How a tree grows and how much of it is verified.

    Attributes:
        topk: width of the beam, and children that each of its nodes offers.
        levels: depth of the deepest node that can be drafted; 1 for the root's children alone.
        nodes: drafted nodes that are kept for verification, the root not counted.
        label: the system's own numbers, for tables and figures.
    """

    topk: int
    levels: int
    nodes: int
    own_keys: OwnKeys
    label: str

    def __post_init__(self) -> None:
        if min(self.topk, self.levels, self.nodes) < 1:
            raise ValueError(f"{self.label}: a tree needs a topk, a level and a drafted node at least")
        if self.nodes > self.candidates:
            raise ValueError(
                f"{self.label}: {self.nodes} drafted nodes are asked for, topk {self.topk} over {self.levels} levels"
                f" offers {self.candidates}"
            )

    @classmethod
    def sglang(cls, num_steps: int, topk: int, draft_tokens: int) -> TreeShape:
        """As `--speculative-num-steps`, `--speculative-eagle-topk` and `--speculative-num-draft-tokens` ask for.

        Raises:
            ValueError: if a number is below 1, or the tree cannot offer that many nodes.
        """
        kept = num_steps + 1 if topk == 1 else draft_tokens
        label = f"SGLang topk {topk}, steps {num_steps}, draft tokens {kept}"
        return cls(topk, num_steps, kept - 1, "places", label)

    @classmethod
    def eagle(cls, total_token: int, depth: int, top_k: int) -> TreeShape:
        """As `total_token`, `depth` and `top_k` of EAGLE's `EaModel.from_pretrained` ask for.

        Raises:
            ValueError: as `sglang`.
        """
        label = f"EAGLE total_token {total_token}, depth {depth}, top_k {top_k}"
        return cls(top_k, depth + 1, total_token - 1, "ancestors", label)

    @classmethod
    def chain(cls, steps: int) -> TreeShape:
        """A chain of so many drafts, K.

        Raises:
            ValueError: if there are none.
        """
        return cls(1, steps, steps, "ancestors", f"chain K = {steps}")

    @property
    def verified(self) -> int:
        """Nodes that one verification computes, the root included."""
        return self.nodes + 1

    @property
    def candidates(self) -> int:
        """Nodes that are scored: the root's children, and those of every node of the beam at each further level."""
        return self.topk + (self.levels - 1) * self.topk**2

    def first_slot(self, level: int) -> int:
        """Where a level's candidates begin in the engines' order, level by level."""
        return 0 if level == 1 else self.topk + (level - 2) * self.topk**2
