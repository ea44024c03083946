"""The bundled case for tests: its draft in speculators' own class, and the living target."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CASE = ROOT / "data" / "smollm2" / "case.toml"
sys.path.insert(0, str(CASE.parent))  # prepare.py and what it imports are scripts beside their data


@cache
def library_draft():
    """The committed draft as speculators loads it, float32, teacher head and embedding the target's."""
    import prepare

    if not (prepare.WORK / "verifier" / "model.safetensors").exists():
        prepare.save_verifier()
    return prepare.load_library_draft()


@cache
def living_target():
    """The whole target through transformers, float32."""
    from living_target import LivingTarget

    return LivingTarget()
