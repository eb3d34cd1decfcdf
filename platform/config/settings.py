"""Django's settings, made from the typed environment."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

from config.admin_colours import ADMIN_COLOURS
from config.environment import ROOT, Environment, load
from config.logs import configure as configure_logs
from config.providers import providers_settings
from operations.schedule import beat_schedule

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
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "administration.apps.SiteConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    "django_celery_beat",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.mfa",
    "accounts",
    "billing",
    "inference",
    "completions",
    "vectors",
    "jobs",
    "looms",
    "harvests",
    "api",
    "pages",
    "access",
    "feedback",
    "administration",
    "operations",
    "config",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "pages.old_addresses.OldAddresses",
    "pages.policy.PolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "accounts.sessions.SessionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
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


def file_storage(env: Environment) -> dict[str, Any]:
    """Django's form of `FILE_STORAGE`: a folder, or a bucket of an S3-compatible storage."""
    if not env.file_storage:
        return {"BACKEND": "django.core.files.storage.FileSystemStorage"}
    parts = urlsplit(env.file_storage)
    options: dict[str, Any] = {
        "bucket_name": parts.netloc,
        "location": parts.path.strip("/"),
        "file_overwrite": False,
        "default_acl": None,
        "signature_version": "s3v4",
    }
    given = {
        "endpoint_url": env.s3_endpoint_url,
        "region_name": env.s3_region,
        "access_key": env.s3_access_key,
        "secret_key": env.s3_secret_key,
    }
    options |= {name: value for name, value in given.items() if value}
    return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}


STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "static"]
STORAGES = {
    "default": file_storage(BASALT),
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
MEDIA_ROOT = BASALT.var_dir / "files"

# The 8 MiB of a body are counted in `config.server`; Django must not refuse it earlier.
DATA_UPLOAD_MAX_MEMORY_SIZE = None
LOGIN_URL = "/sign-in"
SESSION_COOKIE_AGE = int(BASALT.session_days * 86_400)
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

LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/first-page"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
# Length alone is asked for: 8 characters at least, any Unicode, no rules of composition.
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
]

# Providers and two-factor sign-in. allauth makes no User and sends no mail here.
ACCOUNT_ADAPTER = "access.adapters.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_RATE_LIMITS = False
ACCOUNT_DEFAULT_HTTP_PROTOCOL = urlsplit(BASALT.app_address).scheme
ACCOUNT_REAUTHENTICATION_TIMEOUT = int(BASALT.reauthentication_seconds)
SOCIALACCOUNT_ADAPTER = "access.adapters.ProviderAdapter"
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
SOCIALACCOUNT_LOGIN_ON_GET = False
SOCIALACCOUNT_PROVIDERS = providers_settings(BASALT)
MFA_ADAPTER = "access.adapters.TwoFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_RATE_LIMITS = False
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_ISSUER = BASALT.site_name

EMAIL_BACKEND = "accounts.mail_backend.MailBackend"
DEFAULT_FROM_EMAIL = BASALT.mail_from or BASALT.support_email

UNFOLD = {
    "SITE_TITLE": BASALT.site_name,
    "SITE_HEADER": BASALT.site_name,
    "SITE_URL": "/playground",
    "SITE_ICON": "/static/img/basalt.svg",
    "SITE_FAVICONS": [{"rel": "icon", "href": "/static/img/basalt.svg", "type": "image/svg+xml"}],
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "TABS": "administration.navigation.tabs",
    "SIDEBAR": {"navigation": "administration.navigation.menu"},
    "STYLES": ["/static/css/admin.css"],
    "SCRIPTS": ["/static/js/admin/lists.js"],
    "COLORS": ADMIN_COLOURS,
    "BORDER_RADIUS": "6px",
}


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

# Of two processes that are sent one code of an authenticator app, one takes it.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": BASALT.valkey_url,
        "KEY_PREFIX": "basalt:cache",
    }
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
    # Who rings holds a connection to the database: a lost bell is told at once.
    "max_retries": 0,
}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
CELERY_TASK_DEFAULT_QUEUE = "runner"
# No results are kept, so none are cleaned up.
CELERY_RESULT_EXPIRES = None
CELERY_BEAT_SCHEDULE = beat_schedule(reap_seconds=BASALT.reap_seconds)

LOGGING_CONFIG = None
configure_logs(BASALT.log_level, as_json=BASALT.log_json)

BASE_DIR: Path = ROOT
