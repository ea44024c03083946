"""Finds why an EAGLE-3 draft serves worse than it trained. See the README and the notebooks."""

from eagle3lib.acceptance import Acceptance, acceptance
from eagle3lib.boundaries import FINAL_NORMED, Wiring
from eagle3lib.case import Case, load_case
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.dumps import Dump, open_dump
from eagle3lib.errors import InputError
from eagle3lib.findings import Finding, Severity
from eagle3lib.rollout import Rollout, rollout
from eagle3lib.sample import Sample
from eagle3lib.target import Target, load_target
from eagle3lib.tree import TreeRollout, tree_rollout
from eagle3lib.tree_shapes import TreeShape

__all__ = [
    "FINAL_NORMED",
    "Acceptance",
    "Case",
    "Draft",
    "Dump",
    "Finding",
    "InputError",
    "Rollout",
    "Sample",
    "Severity",
    "Target",
    "TreeRollout",
    "TreeShape",
    "Wiring",
    "acceptance",
    "load_case",
    "load_draft",
    "load_target",
    "open_dump",
    "rollout",
    "tree_rollout",
]
