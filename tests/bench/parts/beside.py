"""What the engine is measured beside: the memory, plain transformers, another server, a harvest."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.live import ROOT, start_process

PLAIN = """
import sys, time, torch
from transformers import AutoModelForCausalLM
folder, dtype, *counts = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
ends = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
for count in map(int, counts):
    prompt = torch.randint(200, 49000, (count, 64))
    with torch.inference_mode():
        model.generate(prompt, max_new_tokens=2, **ends)
        began = time.perf_counter()
        model.generate(prompt, max_new_tokens=64, **ends)
    print(count, count * 64 / (time.perf_counter() - began), flush=True)
"""


def bandwidth() -> float:
    """Bytes per second that one large sum reads with all threads; the best of several."""
    import torch

    numbers = torch.ones(64 << 20)
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        numbers.sum()
        best = max(best, numbers.nbytes / (time.perf_counter() - began))
    return best


def transformers(folder: Path, dtype: str, counts: tuple[int, ...]) -> dict[int, float]:
    """Tokens per second of `generate` on batches of prompts of one length, in its own process."""
    command = [sys.executable, "-c", PLAIN, str(folder), dtype, *map(str, counts)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {int(line.split()[0]): float(line.split()[1]) for line in lines}


def imports(module: str) -> list[tuple[str, float]]:
    """The packages whose import takes longest, with all that each brings, in seconds."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, float] = {}
    for line in done.stderr.splitlines():
        _, whole, name = line.removeprefix("import time:").split("|")
        top = name.strip()
        if whole.strip().isdigit() and "." not in top:
            found[top] = int(whole) / 1e6
    found[module] = sum(
        int(line.split("|")[0].removeprefix("import time:"))
        for line in done.stderr.splitlines()
        if line.removeprefix("import time:").split("|")[0].strip().isdigit()
    ) / 1e6  # fmt: skip
    return sorted(found.items(), key=lambda item: -item[1])[:8]


@contextmanager
def vllm(environment: Path, folder: Path, dtype: str, log: Path) -> Iterator[str]:
    """A vLLM server for the weights of `folder`, on all cores; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cores = f"0-{(os.cpu_count() or 1) - 1}"
    variables = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "HF_HUB_OFFLINE": "1",
        "VLLM_PLUGINS": "",
    }
    command = [
        str(environment / "bin" / "vllm"),
        *("serve", str(folder), "--dtype", dtype, "--served-model-name", "peer"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"),
        "--enforce-eager",
    ]
    process = subprocess.Popen(
        command, env=variables, stdout=log.open("wb"), stderr=subprocess.STDOUT, process_group=0
    )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if process.poll() is not None:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise RuntimeError(f"vLLM ended: {' '.join(last)}")
            try:
                if httpx.get(f"{address}/health", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@contextmanager
def harvest(model: str, folder: Path) -> Iterator[Callable[[], bool]]:
    """`manage.py harvest_file` over many prompts; yields whether it still runs."""
    prompts = folder / "prompts.jsonl"
    line = json.dumps({"prompt": "The quick brown fox jumps over the lazy dog. " * 12})
    prompts.write_text((line + "\n") * 4000)
    process = start_process(
        "harvest_file", str(prompts), str(folder / "out"), "--model", model, log=folder / "log"
    )
    try:
        deadline = time.monotonic() + 120
        # Its log speaks of tokens once it reads; what it writes gets its name at the end.
        while " tokens," not in (folder / "log").read_text() and process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text())
            time.sleep(0.2)
        yield lambda: process.poll() is None
    finally:
        process.kill()
        process.wait()
