"""llama.cpp from nothing: the sdist of llama-cpp-python carries its source, and CMake builds the server."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

WORK = Path(__file__).parent.parent / "work" / "llama_cpp"  # ignored by git
SDIST = "llama-cpp-python==0.3.36"
SDIST_FILE = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
#: No web page (its build would download one), no TLS, no tests: a server that answers on this machine.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
)


@dataclass(frozen=True)
class Engine:
    """llama.cpp's source and where it was built."""

    source: Path
    build: Path

    @property
    def server(self) -> Path:
        return self.build / "bin" / "llama-server"

    def convert(self, *arguments: str | Path) -> None:
        """Run its own converter of Hugging Face folders, with the gguf library that came with it."""
        script = self.source / "convert_hf_to_gguf.py"
        environment = {**os.environ, "PYTHONPATH": str(self.source / "gguf-py")}
        subprocess.run([sys.executable, script, *map(str, arguments)], env=environment, check=True)


def obtain(folder: Path = WORK, jobs: int = 2) -> Engine:
    """The engine in `folder`: downloaded, unpacked and built there, as far as that is not done yet.

    Args:
        folder: holds `src` (the unpacked sdist) and `build`.

    Raises:
        RuntimeError: if the download is not the file expected.
        subprocess.CalledProcessError: if pip or CMake fails.
    """
    engine = Engine(folder / "src" / "vendor" / "llama.cpp", folder / "build")
    if not engine.source.is_dir():
        _unpack(_download(folder), folder / "src")
    if not engine.server.is_file():
        subprocess.run(["cmake", "-S", engine.source, "-B", engine.build, *OPTIONS], check=True)
        subprocess.run(["cmake", "--build", engine.build, "--target", "llama-server", "-j", str(jobs)], check=True)
    return engine


def _download(folder: Path) -> Path:
    file = folder / SDIST_FILE
    if not file.is_file():
        options = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, SDIST], check=True)
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SDIST_SHA256:
        raise RuntimeError(f"{file} has sha256 {found}, expected {SDIST_SHA256}.")
    return file


def _unpack(file: Path, into: Path) -> None:
    """The archive's one folder becomes `into`; it appears there only when it is whole."""
    part = into.with_name(into.name + ".part")
    with tarfile.open(file) as archive:
        archive.extractall(part, filter="data")
    (inner,) = part.iterdir()
    inner.rename(into)
    part.rmdir()
