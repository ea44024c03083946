"""A first look at a dump's folder: some names, and what a file of each kind holds. The folder may hold a million."""

from __future__ import annotations

import os
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from eagle3lib import pickles
from eagle3lib.errors import InputError
from eagle3lib.tensors import open_safetensors

#: Names looked at.
NAMES = 256
#: Files tried before a kind of file counts as unreadable.
TRIED = 4


class Glance:
    """What layouts are recognised by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""  # why a file that looks like states could not be read
        with os.scandir(folder) as entries:
            self.names = sorted(islice((e.name for e in entries if not e.name.startswith(".")), NAMES))

    def files(self, *suffixes: str) -> list[Path]:
        """Files among the names that end so."""
        return [self.folder / name for name in self.names if name.endswith(suffixes)]

    @cached_property
    def safetensors(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of the first readable safetensors file, {} without one."""
        for file in self.files(".safetensors")[:TRIED]:
            try:
                with open_safetensors(file) as handle:
                    return {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}
            except InputError as error:
                self.trouble = self.trouble or f" {error}"
        return {}

    @cached_property
    def pickled(self) -> Any:
        """What the first readable `.pt` file holds, None without one."""
        for file in self.files(".pt")[:TRIED]:
            try:
                return pickles.read(file)
            except InputError as error:
                self.trouble = self.trouble or f" {error}"
        return None

    @property
    def pickled_keys(self) -> set[str]:
        """The keys of `pickled` where it is a dictionary."""
        return set(self.pickled) if isinstance(self.pickled, dict) else set()
