"""Requests in, events out, one step at a time. Runs in one thread and knows no other.

A request is accepted, its choices wait, run and end; whatever happens to it, it gets exactly one
last event. A fault in one request fails that request alone.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many

import structlog
import torch
from torch import Tensor

from inference.engine import logprobs
from inference.engine.intake import Intake, Refusal
from inference.engine.limits import EngineLimits, LoadFigures
from inference.engine.loading import LoadedModel
from inference.engine.messages import (
    Accepted,
    Delta,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    PackedLogprobs,
)
from inference.engine.prefix import PrefixCache
from inference.engine.runner import Runner, StepScores, scored_positions
from inference.engine.sampler import Sampler
from inference.engine.scheduler import Chunk, Scheduler
from inference.engine.sequence import Job, Sequence
from inference.engine.store import BlockStore

log = structlog.get_logger(__name__)

Step = tuple[Many[Chunk], StepScores]


class NotFinite(ArithmeticError):
    """The model's scores for a request are no numbers."""


class Core:
    """All requests of one model."""

    def __init__(self, loaded: LoadedModel, limits: EngineLimits) -> None:
        """Set up the cache. Raises ValueError when one full sequence does not fit into it."""
        size = BlockStore.block_bytes(loaded.shapes, limits.block_tokens, loaded.stream.dtype)
        # More than every place could fill is never used.
        per_sequence = -(-loaded.max_model_len // limits.block_tokens)
        blocks = min(limits.cache_bytes // size - 1, limits.max_sequences * per_sequence)
        if blocks < per_sequence:
            raise ValueError(
                f"A cache of {limits.cache_bytes} bytes is too small for one sequence of"
                f" {loaded.max_model_len} tokens: it needs {(per_sequence + 1) * size} bytes."
            )
        self._loaded = loaded
        self._cache = PrefixCache(blocks, limits.block_tokens)
        self._store = BlockStore(
            loaded.shapes,
            blocks=blocks,
            block_tokens=limits.block_tokens,
            dtype=loaded.stream.dtype,
            device=loaded.stream.device,
            kernels=loaded.kernels,
        )
        self._runner = Runner(loaded, self._store)
        self._scheduler = Scheduler(self._cache, limits)
        self._sampler = Sampler(loaded.stream.device, loaded.kernels)
        self._intake = Intake(loaded, limits)
        self._limits = limits
        self._jobs: dict[str, Job] = {}
        self._figures = LoadFigures(blocks_total=blocks, blocks_free=blocks)

    @property
    def busy(self) -> bool:
        """There is a request that has not ended."""
        return bool(self._jobs)

    @property
    def figures(self) -> LoadFigures:
        """The load after the last step."""
        return self._figures

    def give_ahead(self) -> bool:
        """Take a piece of the cache's memory before it is used; returns whether there is more."""
        return self._store.give_ahead(self._cache.used)

    def accept(self, request: EngineRequest, worker_id: str) -> list[Event]:
        """Take a request; returns its first events. A refused one ends here."""
        name = request.request_id
        if name in self._jobs:
            log.warning("request_repeated", request_id=name)
            return []
        events: list[Event] = [Accepted(request_id=name, seq=0, worker_id=worker_id)]
        try:
            if len(self._jobs) >= self._limits.max_requests:
                raise Refusal(FailureCode.OUT_OF_MEMORY, "The engine holds too many requests.")
            job = self._intake.open(request)
        except Refusal as refusal:
            events.append(
                Failed(
                    request_id=name,
                    seq=1,
                    code=refusal.code,
                    message=str(refusal),
                    param=refusal.param,
                )
            )
            return events
        job.events = 1
        self._jobs[name] = job
        for sequence in job.sequences:
            self._scheduler.add(sequence)
        return events

    def abort(self, request_id: str) -> None:
        """Forget a request without a word; unknown ones are ignored."""
        job = self._jobs.get(request_id)
        if job is not None:
            self._drop(job)

    def fail_all(self, code: FailureCode, message: str) -> list[Event]:
        """End every request with the same failure."""
        events: list[Event] = []
        for job in list(self._jobs.values()):
            self._fail(job, code, message, events)
        return events

    def check_idle(self) -> None:
        """Raise AssertionError when something is held although no request is open."""
        assert not self._scheduler.busy, "a sequence outlived its request"
        self._cache.check_unused()

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Run one pass over what is due; returns every event that it caused."""
        events: list[Event] = []
        chunks = self._scheduler.next_step()
        if not chunks:
            # Whoever waits alone has room: an engine that cannot go on must not spin.
            assert not self._jobs, "requests are open, but none of them can run"
            return events
        for step in self._run(chunks, events):
            self._take(step, events)
        self._note(chunks, events)
        return events

    def _run(self, chunks: Many[Chunk], events: list[Event]) -> Iterable[Step]:
        """Run the chunks together, or request by request when that fails."""
        try:
            return [(chunks, self._runner.run(chunks))]
        except Exception:
            jobs = {chunk.sequence.job: None for chunk in chunks}
            log.exception("step_failed", requests=[job.request.request_id for job in jobs])
        done: list[Step] = []
        for job in jobs:
            own = [chunk for chunk in chunks if chunk.sequence.job is job]
            try:
                done.append((own, self._runner.run(own)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
                self._fail_by(job, error, events)
        return done

    def _take(self, step: Step, events: list[Event]) -> None:
        """Note what a pass computed, and let every choice that has new scores go on."""
        chunks, output = step
        # A NaN or an infinity anywhere in a row is its highest score.
        highest = output.scores.gather(1, output.best[:, None])[:, 0]
        finite: list[bool] = torch.isfinite(highest).tolist()
        due: list[tuple[Sequence, int]] = []
        for number, chunk in enumerate(chunks):
            sequence = chunk.sequence
            if not self._is_open(sequence):  # its request failed earlier in this step
                continue
            sequence.computed = chunk.stop
            rows = output.prompt_rows.get(number, slice(0, 0))
            own = [*finite[rows], *([finite[output.sample_rows[number]]] if chunk.samples else [])]
            if not all(own):
                self._fail_by(sequence.job, NotFinite(), events)
                continue
            try:
                self._keep_prompt_scores(chunk, output.scores[rows])
                forked = self._end_prompt(chunk)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
                self._fail_by(sequence.job, error, events)
                continue
            if chunk.samples:
                row = output.sample_rows[number]
                due.extend((member, row) for member in (sequence, *forked))
        alive = [(sequence, row) for sequence, row in due if self._is_open(sequence)]
        if alive:
            alive.sort(key=lambda pair: pair[1])
            wanted = [row for _, row in alive]
            everything = wanted == list(range(len(output.scores)))
            scores, best = output.scores, output.best
            if not everything:
                scores, best = scores[wanted], best[wanted]
            self._sample([sequence for sequence, _ in alive], scores, best, events)

    def _keep_prompt_scores(self, chunk: Chunk, scores: Tensor) -> None:
        sequence = chunk.sequence
        top = sequence.job.prompt_scores
        positions = scored_positions(chunk)
        if top is None or not positions:
            return
        following = sequence.prompt.tokens[positions.start + 1 : positions.stop + 1]
        sequence.prompt.score_parts.append(logprobs.pack(scores, following, top))

    def _end_prompt(self, chunk: Chunk) -> list[Sequence]:
        """When a chunk ends its prompt: share it, and start the prompt's other choices."""
        leader = chunk.sequence
        prompt, job = leader.prompt, leader.job
        if not leader.leads or prompt.computed or not chunk.samples:
            return []
        prompt.computed = True
        if job.prompt_scores is not None:
            columns = logprobs.width(job.prompt_scores, self._loaded.vocabulary)
            prompt.scores = logprobs.join(prompt.score_parts, columns)
            prompt.score_parts = []
        assert leader.lease is not None
        self._cache.remember(job.key, prompt.tokens, leader.lease)
        forked = self._scheduler.fork(leader)
        self._runner.copy([copy for _, copy in forked if copy is not None])
        return [sequence for sequence, _ in forked]

    def _sample(
        self, sequences: Many[Sequence], scores: Tensor, best: Tensor, events: list[Event]
    ) -> None:
        tokens = self._sampler.sample(scores, best, [sequence.draw for sequence in sequences])
        reports = _reports(sequences, scores, tokens)
        for sequence, token, report in zip(sequences, tokens, reports, strict=True):
            job = sequence.job
            if not self._is_open(sequence):  # another choice failed the request
                continue
            try:
                events.append(self._advance(sequence, token, report))
                if job.open_choices == 0:
                    events.append(self._finish(job))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's
                self._fail_by(job, error, events)

    def _advance(self, sequence: Sequence, token: int, report: PackedLogprobs | None) -> Delta:
        """Give a choice its next token; returns what it gained."""
        job = sequence.job
        asked, stopping = job.request, job.request.stopping
        sequence.generated.append(token)
        sequence.draw.note(token)
        job.generated += 1
        count = len(sequence.generated)
        text = ""
        reason: str | int | None = None
        ends = token in self._loaded.end_tokens and not stopping.ignore_end
        stops = token in stopping.token_ids
        done = ends or stops
        if done:
            reason = None if ends else token
        if not done or stopping.include_text:
            new = sequence.detokenizer.add(token)
            text, match = sequence.stops.add(new, listening=count > stopping.min_tokens)
            if match is not None and not done:
                done, reason = True, match
        over = not done and count >= sequence.limit
        if done or over:
            text += sequence.stops.flush()
            self._close(sequence)
        silent = asked.max_tokens == 0
        delta = Delta(
            request_id=asked.request_id,
            seq=job.next_event(),
            index=sequence.index,
            text="" if silent else text,
            token_ids=() if silent else (token,),
            given=job.given if job.generated == 1 else None,
            logprobs=None if silent else report,
            prompt_logprobs=None if sequence.answered else sequence.prompt.scores,
            finish_reason="length" if over or (done and silent) else "stop" if done else None,
            stop_reason=None if silent else reason,
        )
        sequence.answered = True
        return delta

    def _is_open(self, sequence: Sequence) -> bool:
        return self._jobs.get(sequence.job.request.request_id) is sequence.job

    def _close(self, sequence: Sequence) -> None:
        """Take an ended choice out; its prefix stays for later requests."""
        assert sequence.lease is not None
        tokens = sequence.tokens(0, sequence.computed)
        self._cache.remember(sequence.job.key, tokens, sequence.lease)
        self._scheduler.remove(sequence)
        sequence.job.open_choices -= 1

    def _finish(self, job: Job) -> Finished:
        residuals = None if job.capture is None else job.capture.result()
        del self._jobs[job.request.request_id]
        self._scheduler.end(job)
        return Finished(
            request_id=job.request.request_id,
            seq=job.next_event(),
            prompt_tokens=sum(len(prompt) for prompt in job.request.prompts),
            completion_tokens=job.generated,
            residuals=residuals,
        )

    def _fail_by(self, job: Job, error: Exception, events: list[Event]) -> None:
        """End a request because of an error of its own."""
        name = job.request.request_id
        if name not in self._jobs:
            return
        if isinstance(error, NotFinite):
            code = FailureCode.SERVER_ERROR
            message = "The model's scores for this request are not finite numbers."
        elif _out_of_memory(error):
            code = FailureCode.OUT_OF_MEMORY
            message = "The engine ran out of memory on this request."
        else:
            code, message = FailureCode.SERVER_ERROR, "The engine failed on this request."
        log.error("request_failed", request_id=name, code=code, exc_info=error)
        self._fail(job, code, message, events)

    def _fail(self, job: Job, code: FailureCode, message: str, events: list[Event]) -> None:
        self._runner.clear(self._drop(job))
        events.append(
            Failed(
                request_id=job.request.request_id, seq=job.next_event(), code=code, message=message
            )
        )

    def _drop(self, job: Job) -> list[int]:
        """Take all choices of a request out; returns the blocks that became free."""
        freed: list[int] = []
        for sequence in job.sequences:
            if sequence.lease is not None or sequence in self._scheduler.waiting:
                freed.extend(self._scheduler.remove(sequence))
        self._scheduler.end(job)
        del self._jobs[job.request.request_id]
        return freed

    def _note(self, chunks: Many[Chunk], events: Many[Event]) -> None:
        old = self._figures
        prefilled = [
            chunk.count for chunk in chunks if chunk.start < len(chunk.sequence.prompt.tokens)
        ]
        self._figures = LoadFigures(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            blocks_total=self._cache.blocks,
            blocks_free=self._cache.available,
            steps=old.steps + 1,
            prompt_tokens=old.prompt_tokens + sum(prefilled),
            generated_tokens=old.generated_tokens
            + sum(isinstance(event, Delta) for event in events),
        )


def _reports(
    sequences: Many[Sequence], scores: Tensor, tokens: Many[int]
) -> list[PackedLogprobs | None]:
    """Return the log probabilities of each new token, where its request asked."""
    reports: list[PackedLogprobs | None] = [None] * len(sequences)
    asked: dict[int, list[int]] = {}
    for row, sequence in enumerate(sequences):
        top = sequence.job.request.logprobs
        if top is not None:
            asked.setdefault(top, []).append(row)
    for top, rows in asked.items():
        packed = logprobs.pack(scores[rows], [tokens[row] for row in rows], top)
        for row, report in zip(rows, logprobs.split(packed), strict=True):
            reports[row] = report
    return reports


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)
