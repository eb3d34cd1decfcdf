"""Django's settings, made from the typed environment."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from config.environment import ROOT, Environment, load
from config.logs import configure as configure_logs

BASALT: Environment = load()
"""Every setting of Basalt's own, typed: the way by which the rest of the code reads them."""

SECRET_KEY = BASALT.secret_key or "not-serving"
DEBUG = BASALT.debug
ALLOWED_HOSTS = list(BASALT.allowed_hosts)
ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
USE_I18N = False

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    "django_celery_beat",
    "accounts",
    "billing",
    "inference",
    "completions",
    "api",
    "pages",
    "operations",
    "config",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "pages.policy.PolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "pages.context.context",
            ]
        },
    }
]

STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
MEDIA_ROOT = BASALT.var_dir / "files"

# The 8 MiB of a body are counted in `config.server`; Django must not refuse it earlier.
DATA_UPLOAD_MAX_MEMORY_SIZE = None
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BASALT.app_address.startswith("https://")
# Behind a proxy that ends TLS, the forms of the admin come from these addresses.
CSRF_TRUSTED_ORIGINS = sorted(
    {
        urlunsplit((*urlsplit(address)[:2], "", "", ""))
        for address in (BASALT.app_address, BASALT.api_url)
    }
)
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]


def _database(url: str) -> dict[str, Any]:
    """Django's form of a `postgresql://` address; sockets come as `?host=/folder`."""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    host = options.pop("host", unquote(parts.hostname or ""))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            # A process that vanished inside a transaction must not keep a User's account locked.
            "options": "-c idle_in_transaction_session_timeout=10s",
            **options,
            "pool": {
                "min_size": 1,
                "max_size": BASALT.db_pool_size,
                "timeout": BASALT.db_pool_timeout,
            },
        },
    }


DATABASES = {"default": _database(BASALT.database_url)} if BASALT.database_url else {}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
}

CELERY_BROKER_URL = BASALT.valkey_url.replace("unix://", "redis+socket://")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 10,
    "retry_on_timeout": False,
}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
CELERY_TASK_DEFAULT_QUEUE = "runner"
CELERY_BEAT_SCHEDULE = {
    "reap": {
        "task": "operations.reap",
        "schedule": BASALT.reap_seconds,
        "options": {"queue": "runner", "expires": 2 * BASALT.reap_seconds},
    },
    "forget-expired-keys": {
        "task": "api.forget_expired_keys",
        "schedule": 600.0,
        "options": {"queue": "runner", "expires": 600},
    },
}

LOGGING_CONFIG = None
configure_logs(BASALT.log_level, as_json=BASALT.log_json)

BASE_DIR: Path = ROOT
