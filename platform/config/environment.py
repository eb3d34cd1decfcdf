"""Every setting, typed and checked when the process starts.

A setting comes from the environment, or else from the file `up.env` in `VAR_DIR`, which
`manage.py up` writes so that commands in another shell reach the instance that it serves. The
numbers of the contract are settings with the contract's values as defaults. The table in
`docs/settings.md` is made from this module by `manage.py settings_table`.
"""

import json
import os
import re
import ssl
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from config.work import Count, Seconds, Size, WorkSettings

ROOT = Path(__file__).resolve().parents[2]

_FIT_FOR_A_HEADER = re.compile("[!-~]+")


class EnvironmentInvalid(Exception):
    """A setting is missing or wrong; the message names each in one line."""


class Environment(WorkSettings):
    """The settings of one process, read once."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", validate_default=True)

    # Where things are.
    var_dir: Path = Field(ROOT / "var", description="Folder of everything that this instance keeps")
    models_dir: Path | None = Field(
        None, description="Folder of prepared models; `models` in `VAR_DIR` when unset"
    )
    catalogue_path: Path = Field(
        ROOT / "deploy" / "catalogue.toml", description="The catalogue of models"
    )
    database_url: str = Field("", description="PostgreSQL, as `postgresql://...`")
    valkey_url: str = Field("", description="Valkey or Redis 7+, as `redis://...` or `unix://...`")
    secret_key: str = Field("", description="Django's secret, at least 32 characters")

    # How the deployment calls itself.
    site_name: str = Field("Basalt", min_length=1, description="Name shown to people")
    support_email: str = Field("support@example.org", description="Where people write for help")
    api_url: str = Field("http://127.0.0.1:8000", description="Address of the API")
    app_url: str = Field("", description="Address of the App; that of the API when unset")
    docs_url: str = Field("", description="Address of the docs; `/docs` of the App when unset")
    discord_url: str = Field("", description="Address of the community chat, if there is one")
    cookbook_url: str = Field(
        "", description="Where old addresses of examples lead; the docs when unset (C-649)"
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        ("*",), description="Host names that are served, separated by commas"
    )
    debug: bool = Field(False, description="Django's debug pages; never on a server")

    # People.
    mail_url: str = Field(
        "",
        description="Mail server: `smtp://user:password@host:587` (STARTTLS where it is offered), "
        "`smtps://...`, or `console://`; the log of the runner when unset",
    )
    mail_from: str = Field("", description="Sender of mails; `SUPPORT_EMAIL` when unset")
    team_emails: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Who is mailed about token requests and spend, separated by commas (A-550)"
    )
    apply_questions: Annotated[tuple[str, ...], NoDecode] = Field(
        ("Role", "Links", "Models you need", "How did you hear of us"),
        description="Optional questions of the Apply form, separated by commas (A-003)",
    )
    session_days: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Days after its last renewal that a session ends (A-066)"
    )
    invite_days: Annotated[float, Field(gt=0)] = Field(
        7.0, description="Days that an Invite's link works (A-023)"
    )
    approval_link_days: Annotated[float, Field(gt=0)] = Field(
        7.0, description="Days that the link of an approval works (A-030)"
    )
    password_link_minutes: Annotated[float, Field(gt=0)] = Field(
        60.0, description="Minutes that a link for a password works (A-036, A-078)"
    )
    sign_in_tries_per_minute: Count = Field(
        5, description="Sign-ins, asked links and set passwords a minute from an address (A-042)"
    )
    forms_per_minute: Count = Field(
        30, description="Applications, and notes of feedback, a minute from an address"
    )
    erase_days: Annotated[float, Field(gt=0)] = Field(
        14.0, description="Days after which what a deleted User wrote is erased"
    )
    staff_two_factor: bool = Field(
        True, description="Staff and admins open the admin only with two-factor sign-in"
    )
    reauthentication_seconds: Seconds = Field(
        300.0, description="Seconds for which a repeated password lets sensitive actions through"
    )
    feedback_images: Count = Field(5, description="Screenshots of a note of feedback (A-381)")
    feedback_image_bytes: Size = Field(
        2 * 2**20, description="Bytes of one screenshot of feedback (A-381)"
    )
    feedback_webhook: str = Field(
        "",
        description="Where each note of feedback becomes an issue: `https://api.linear.app/graphql`"
        ", or an address that takes JSON; unset: notes wait in the admin (A-387, A-388)",
    )
    feedback_token: str = Field("", description="`Authorization` of the tracker")
    feedback_team: str = Field("", description="Team in Linear whose issues notes become")
    github_client_id: str = Field("", description="OAuth app of GitHub; unset: no such sign-in")
    github_client_secret: str = Field("", description="Its secret")
    github_url: str = Field("https://github.com", description="GitHub, or an Enterprise server")
    google_client_id: str = Field("", description="OAuth client of Google; unset: no such sign-in")
    google_client_secret: str = Field("", description="Its secret")
    google_url: str = Field("https://accounts.google.com", description="Google's OpenID issuer")
    huggingface_client_id: str = Field(
        "", description="OAuth app of Hugging Face; unset: no such sign-in"
    )
    huggingface_client_secret: str = Field("", description="Its secret")
    huggingface_url: str = Field(
        "https://huggingface.co", description="OpenID issuer of Hugging Face"
    )

    # Processes.
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Log level")
    log_json: bool = Field(False, description="Write logs as JSON lines")
    db_pool_size: Count = Field(8, description="Database connections of one process at most")
    db_pool_timeout: Seconds = Field(
        1.0, description="Seconds to wait for a database connection (C-094)"
    )
    lease_seconds: Seconds = Field(
        15.0, description="A process that was not heard of for so long has lost what it owned"
    )
    heartbeat_seconds: Seconds = Field(3.0, description="Seconds between two heartbeats")
    reap_seconds: Seconds = Field(5.0, description="Seconds between two looks for lost work")
    drain_seconds: Seconds = Field(
        10.0, description="Seconds that running work gets to end when a process is stopped"
    )

    metrics_token: SecretStr = Field(
        SecretStr(""), description="Who sends it as a Bearer token reads `/metrics`; off when unset"
    )

    # Bodies and answers.
    max_body_size: Size = Field(8 * 2**20, description="Bytes of a request body (C-037)")
    harvest_max_body_size: Size = Field(
        50 * 2**20, description="Bytes of the body of `POST /v1/harvest` (C-038)"
    )
    gzip_minimum: Size = Field(500, description="Bytes from which a JSON answer is gzipped (C-032)")
    keepalive_seconds: Seconds = Field(
        5.0, description="Seconds between keepalive comments or spaces (C-210, C-217)"
    )
    early_answer_seconds: Seconds = Field(
        150.0, description="Seconds after which an unstreamed answer starts with a 200 (C-217)"
    )
    answer_timeout: Seconds = Field(
        840.0, description="Seconds to wait for an answer, and between two chunks (C-221)"
    )
    background_answer_timeout: Seconds = Field(
        2700.0, description="Seconds that background work waits for an answer to start (C-222)"
    )
    stalled_reader_seconds: Seconds = Field(
        60.0, description="Seconds after which a client that does not read is cut"
    )
    send_buffer_bytes: Size = Field(
        2**20, description="Bytes of an answer that may wait for a slow reader"
    )
    idempotency_seconds: Seconds = Field(
        86_400.0, description="Seconds for which an `Idempotency-Key` is kept (C-386)"
    )
    inline_answer_bytes: Size = Field(
        2**20, description="Bytes of a kept answer above which it goes to the file storage"
    )
    max_result_bytes: Size = Field(
        2**30,
        description="Bytes of log probabilities and activations that large answers of one process "
        "may have under way; further large answers wait for their turn",
    )
    health_timeout: Seconds = Field(2.0, description="Seconds for the database's check (C-634)")

    # Traffic.
    rate_limit_per_minute: Count = Field(
        600, description="Requests a minute in each bucket of a key (C-364)"
    )
    bad_key_limit_per_minute: Count = Field(
        60, description="Refused keys a minute from one address (C-017)"
    )
    max_inflight_per_key: Count = Field(16, description="Completions of a key at once (C-370)")
    max_queued_per_key: Count = Field(64, description="Completions waiting in a key's line (C-371)")
    max_inflight_per_model: Count = Field(
        100, description="Requests in flight to one model (C-375)"
    )
    warm_after_answer_seconds: Seconds = Field(
        300.0, description="Seconds for which a model without a report is warm (C-134)"
    )
    breaker_failures: Count = Field(5, description="Failures in a row that open a breaker (C-376)")
    breaker_seconds: Seconds = Field(60.0, description="Seconds that a breaker stays open (C-376)")
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Addresses or networks whose `X-Forwarded-For` is believed"
    )

    # Tokens.
    monthly_allowance: Annotated[int, Field(ge=0)] = Field(
        5_000_000, description="Tokens of a new User for each UTC month (C-316)"
    )
    spend_stop_dollars: Annotated[Decimal, Field(gt=0)] = Field(
        Decimal(3000),
        description="US dollars of GPUs in 24 hours at which new GPU work pauses (C-617)",
    )
    spend_warning_dollars: Annotated[Decimal, Field(gt=0)] = Field(
        Decimal(2000),
        description="US dollars of GPUs in 24 hours at which the team is warned (A-481)",
    )
    spend_stale_seconds: Seconds = Field(
        180.0, description="Seconds after which the last count of containers is stale (A-492)"
    )
    spend_sample_days: Annotated[int, Field(ge=3)] = Field(
        35, description="Days for which the count of each minute is kept"
    )
    site_environment: str = Field(
        "production", min_length=1, max_length=40, description="Name of this site in spend reports"
    )
    analytics_time_zones: Annotated[tuple[str, ...], NoDecode] = Field(
        (
            "UTC",
            "Europe/Prague",
            "Europe/London",
            "America/New_York",
            "America/Los_Angeles",
        ),
        description="Time zones of the hours in `Analytics`, separated by commas (A-475)",
    )
    max_keys_per_user: Count = Field(10, description="API keys of a User (C-011)")

    # Files.
    file_storage: str = Field(
        "",
        pattern=r"^(s3://[a-z0-9][a-z0-9.-]+(/[\w./-]+)?)?$",
        description="`s3://BUCKET/PREFIX` for kept files; `files` in `VAR_DIR` when unset",
    )
    s3_endpoint_url: str = Field("", description="Address of an S3-compatible storage")
    s3_region: str = Field("", description="Region of the storage")
    s3_access_key: str = Field(
        "", description="Access key of the storage; the environment of boto3 when unset"
    )
    s3_secret_key: str = Field("", description="Secret of the access key")

    # Inference.
    accept_seconds: Seconds = Field(
        5.0, description="Seconds in which a live worker must accept a request"
    )
    vllm_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(
        {},
        description="API keys of vLLM servers, as a JSON object of model ids and keys",
    )
    vllm_ca_file: Path | None = Field(
        None,
        description="Certificates of the authorities that vouch for vLLM servers at `https://` "
        "addresses; those of the system when unset",
    )
    worker_report_seconds: Seconds = Field(
        0.5, description="Seconds between two reports of a worker; dead after six missed"
    )
    engine_memory_gib: Annotated[float, Field(gt=0)] = Field(
        2.0, description="GiB of an engine's key-value cache"
    )
    engine_threads: Annotated[int, Field(ge=0)] = Field(
        0, description="Threads of an engine on the processor; all cores when 0"
    )

    @field_validator(
        "allowed_hosts",
        "trusted_proxies",
        "team_emails",
        "apply_questions",
        "analytics_time_zones",
        mode="before",
    )
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(filter(None, (part.strip() for part in value.split(","))))

    @field_validator("vllm_keys", mode="before")
    @classmethod
    def _read_keys(cls, value: object) -> object:
        """Read the object; what is wrong is said without a word of the value."""
        if not isinstance(value, str):
            return value
        try:
            keys = json.loads(value or "{}")
        except json.JSONDecodeError:
            raise ValueError("must be a JSON object of model ids and keys") from None
        good = isinstance(keys, dict) and all(
            isinstance(key, str) and _FIT_FOR_A_HEADER.fullmatch(key) for key in keys.values()
        )
        if not good:
            raise ValueError("must be a JSON object of model ids and keys without blanks")
        return keys

    @field_validator("vllm_ca_file")
    @classmethod
    def _is_certificate(cls, value: Path | None) -> Path | None:
        if value is not None:
            try:
                ssl.create_default_context(cafile=value)
            except (OSError, ssl.SSLError):
                raise ValueError(f"{value} holds no certificates that can be read") from None
        return value

    @field_validator("var_dir", "models_dir", "catalogue_path")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value.absolute() if value else value

    @property
    def models(self) -> Path:
        """Folder of prepared models."""
        return self.models_dir or self.var_dir / "models"

    @property
    def app_address(self) -> str:
        """Address of the App, without a slash at its end."""
        return (self.app_url or self.api_url).rstrip("/")

    def require_servers(self) -> None:
        """Raise `EnvironmentInvalid` unless the database, Valkey and the secret are set."""
        missing = [
            name.upper()
            for name in ("database_url", "valkey_url", "secret_key")
            if not getattr(self, name)
        ]
        if missing:
            raise EnvironmentInvalid(
                f"{', '.join(missing)} not set: start an instance with script/run, or set them "
                f"(looked in the environment and in {self.var_dir / 'up.env'})"
            )
        if len(self.secret_key) < 32:
            raise EnvironmentInvalid("SECRET_KEY is shorter than 32 characters")


def load() -> Environment:
    """Read and check the settings; raises `EnvironmentInvalid` naming every wrong one."""
    var_dir = Path(os.environ.get("VAR_DIR") or ROOT / "var")
    try:
        return Environment(_env_file=var_dir / "up.env")
    except ValidationError as invalid:
        lines = [f"{str(error['loc'][0]).upper()}: {error['msg']}" for error in invalid.errors()]
        raise EnvironmentInvalid("wrong settings: " + "; ".join(lines)) from None
