"""Fixtures that every test file may use; the builders behind them are in `toys`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toys

from eagle3lib.checkpoint import Draft, load_draft
from eagle3lib.sample import Sample
from eagle3lib.target import Target, load_target

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny untied target as a Hugging Face folder."""
    return toys.write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def target(target_folder: Path) -> Target:
    """The tiny target, opened."""
    return load_target(target_folder)


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny draft in speculators' form, without an input norm."""
    return toys.write_draft(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="session")
def draft(draft_folder: Path) -> Draft:
    """The tiny draft, opened on the CPU in float32."""
    return load_draft(draft_folder, device="cpu")


@pytest.fixture
def sample() -> Sample:
    """Two turns and every boundary of the tiny target."""
    return toys.make_sample()
