"""Compiles the engine's kernels, when a model is prepared. No torch here.

The file is kept beside the models, under a name that says for which source, torch and kind of
processor it is. A worker only looks for it: it needs no compiler and never waits for one.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

FOLDER = ".kernels"
"""In the folder of models."""
SOURCES = tuple(
    Path(__file__).with_name(f"{name}.cpp") for name in ("kernels", "attention", "linear", "block")
)
HEADERS = (Path(__file__).with_name("numbers.h"),)
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-std=c++17", "-fPIC", "-shared")


class NotCompiled(RuntimeError):
    """The kernels could not be compiled here. The message says why, in one line."""


def file_name() -> str:
    """Return the name of the compiled file for this source, torch and kind of processor."""
    sources = [source.read_text() for source in (*HEADERS, *SOURCES)]
    words = [*sources, " ".join(FLAGS), version("torch"), processor()]
    return f"kernels-{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}.so"


def processor() -> str:
    """Return what decides which instructions a compiler for this machine may use."""
    kind = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{kind[0]} {platform.processor()}"
    for name in ("model name", "flags", "Features"):
        kind += [line for line in lines if line.startswith(name)][:1]
    return " ".join(kind)


def build(folder: Path) -> Path:
    """Compile the kernels into `folder` unless they are there; returns the file.

    Safe to kill and to run twice at once. Raises NotCompiled.
    """
    target = folder / file_name()
    if target.exists():
        return target
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise NotCompiled("there is no C++ compiler (c++, g++ or clang++)")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(dir=folder, prefix=".kernels-")
    os.close(descriptor)
    fresh = Path(path)
    try:
        subprocess.run(
            [compiler, *FLAGS, *map(str, SOURCES), "-o", str(fresh)],
            check=True,
            capture_output=True,
            timeout=300,
        )
        fresh.chmod(0o755)
        fresh.rename(target)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise NotCompiled(f"{compiler} failed: {lines[0] if lines else error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{compiler} failed: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return target
