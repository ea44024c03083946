"""The ladder: a planted wiring is climbed, a rung that suffices ends it, and what is not held is said so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toys
import torch

from eagle3lib.acceptance import acceptance
from eagle3lib.boundaries import Wiring
from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.errors import InputError
from eagle3lib.material import Material
from eagle3lib.repair import climb, recovered_share
from eagle3lib.rewire import rewire
from eagle3lib.rollout import rollout
from eagle3lib.sample import Sample
