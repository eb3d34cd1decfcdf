"""From a request to the sequences that answer it, or a refusal that says what is wrong."""

from inference.engine import logprobs
from inference.engine.limits import EngineLimits
from inference.engine.loading import LoadedModel
from inference.engine.messages import EngineRequest, FailureCode
from inference.engine.prefix import PrefixKey
from inference.engine.residual import Capture, InterventionError, SteeringPlan, check_layers
from inference.engine.sampler import Draw
from inference.engine.sequence import Job, Prompt, Sequence
from inference.engine.text import Alphabet, Detokenizer, StopWatch


class Refusal(ValueError):
    """The engine does not take a request."""

    def __init__(self, code: FailureCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Intake:
    """Checks what only the engine can know: the vocabulary, the context, Layers and positions."""

    def __init__(self, loaded: LoadedModel, limits: EngineLimits) -> None:
        self._loaded = loaded
        self._limits = limits
        self._alphabet = Alphabet(loaded.tokenizer, loaded.vocabulary)
        self._arrivals = 0

    def open(self, request: EngineRequest) -> Job:
        """Return the request with a sequence for each choice. Raises Refusal."""
        self._check_tokens(request)
        self._check_context(request)
        stream = self._loaded.stream
        shortest = min(len(prompt) for prompt in request.prompts)
        try:
            check_layers(request.read_layers, stream)
            reach = shortest + max(1, request.max_tokens) - 2
            steering = SteeringPlan.check(request.steering, stream, reach)
        except InterventionError as error:
            raise Refusal(FailureCode.INVALID_REQUEST, str(error), error.param) from error
        self._arrivals += 1
        job = Job(
            request=request,
            arrival=self._arrivals,
            key=PrefixKey(request.cache_scope, steering.digest),
            steering=steering,
            open_choices=len(request.prompts) * request.n,
            capture=Capture(request.read_layers, stream) if request.read_layers else None,
        )
        job.result_bytes = self._result_bytes(job)
        if job.result_bytes > self._limits.result_bytes:
            raise Refusal(
                FailureCode.OUT_OF_MEMORY,
                f"The answer would hold {job.result_bytes} bytes of residual rows and log"
                f" probabilities; the engine holds {self._limits.result_bytes} at most.",
            )
        for number, tokens in enumerate(request.prompts):
            prompt = Prompt(tokens)
            for choice in range(request.n):
                job.sequences.append(self._sequence(job, prompt, number, choice))
        return job

    def _sequence(self, job: Job, prompt: Prompt, number: int, choice: int) -> Sequence:
        request = job.request
        stopping = request.stopping
        ends = () if stopping.ignore_end else self._loaded.end_tokens
        return Sequence(
            job=job,
            prompt=prompt,
            index=number * request.n + choice,
            leads=choice == 0,
            draw=Draw(
                request.sampling,
                choice=choice,
                prompt=prompt.tokens,
                banned=(*ends, *stopping.token_ids),
                min_tokens=stopping.min_tokens,
                device=self._loaded.stream.device,
                kernels=self._loaded.kernels,
            ),
            detokenizer=Detokenizer(self._alphabet, prompt.tokens),
            stops=StopWatch(stopping.texts, include=stopping.include_text),
        )

    def _check_tokens(self, request: EngineRequest) -> None:
        refused = FailureCode.INVALID_REQUEST
        if not request.prompts or not all(request.prompts):
            raise Refusal(refused, "A prompt must have at least one token.", "prompt")
        vocabulary = self._loaded.vocabulary
        for name, ids in (
            *(("prompt", prompt) for prompt in request.prompts),
            ("stop_token_ids", request.stopping.token_ids),
        ):
            for token in ids:
                if not 0 <= token < vocabulary:
                    raise Refusal(
                        refused,
                        f"Token id {token} is out of vocabulary: the model has ids 0 to"
                        f" {vocabulary - 1}.",
                        name,
                    )
        if request.read_layers and (request.n != 1 or len(request.prompts) != 1):
            raise Refusal(
                refused,
                "Set n to 1: activations and steering vectors are for one choice only.",
                "output_residual_stream",
            )

    def _check_context(self, request: EngineRequest) -> None:
        """Refuse what does not fit the context (C-097)."""
        longest = self._loaded.max_model_len
        asked = max(1, request.max_tokens)
        for prompt in request.prompts:
            total = len(prompt) + asked
            if total > longest:
                raise Refusal(
                    FailureCode.CONTEXT_LENGTH,
                    f"This model's maximum context length is {longest} tokens. However, you"
                    f" requested {asked} output tokens and your prompt contains {len(prompt)}"
                    f" input tokens, for a total of {total} tokens. Please reduce the length of"
                    " the input prompt or the number of requested output tokens."
                    f" (parameter=input_tokens, value={len(prompt)})",
                    "prompt",
                )

    def _result_bytes(self, job: Job) -> int:
        """Return the most that the request's residual rows and prompt scores can take."""
        request, stream = job.request, self._loaded.stream
        tokens = sum(len(prompt) for prompt in request.prompts)
        rows = tokens + max(1, request.max_tokens) - 1
        read = len(request.read_layers) * rows * stream.hidden * stream.dtype.itemsize
        if job.prompt_scores is None:
            return read
        columns = logprobs.width(job.prompt_scores, self._loaded.vocabulary)
        return read + tokens * columns * logprobs.NUMBER_BYTES
