"""Django's mail backend, chosen by `MAIL_URL`."""

import ssl
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.backends.console import EmailBackend as ConsoleBackend
from django.core.mail.backends.smtp import EmailBackend as SmtpBackend
from django.core.mail.message import EmailMessage
from django.core.mail.utils import DNS_NAME

TIMEOUT_SECONDS = 30
SMTP_PORT, SMTPS_PORT = 25, 465


class MailServerInvalid(Exception):
    """`MAIL_URL` names no mail server."""


class UpgradingSmtp(SmtpBackend):
    """Sends over STARTTLS where the server offers it, and never a password without."""

    def open(self) -> bool | None:
        """Connect; raises `OSError` or `smtplib.SMTPException`."""
        if self.connection is not None:
            return False
        options: dict[str, Any] = {"local_hostname": DNS_NAME.get_fqdn(), "timeout": self.timeout}
        if self.use_ssl:
            options["context"] = ssl.create_default_context()
        self.connection = self.connection_class(self.host, self.port, **options)
        self.connection.ehlo()
        if not self.use_ssl and self.connection.has_extn("starttls"):
            self.connection.starttls(context=ssl.create_default_context())
            self.connection.ehlo()
        elif not self.use_ssl and self.username:
            self.close()
            raise MailServerInvalid(f"{self.host} offers no STARTTLS: use smtps:// for a password")
        if self.username and self.password:
            self.connection.login(self.username, self.password)
        return True


class MailBackend(BaseEmailBackend):
    """Hands messages to the backend that `MAIL_URL` names."""

    @cached_property
    def _inner(self) -> Any:
        url = urlsplit(settings.BASALT.mail_url or "console://")
        if url.scheme == "console":
            return ConsoleBackend(fail_silently=self.fail_silently)
        if url.scheme not in ("smtp", "smtps") or not url.hostname:
            raise MailServerInvalid("MAIL_URL must be smtp://..., smtps://... or console://")
        secure = url.scheme == "smtps"
        return UpgradingSmtp(
            host=url.hostname,
            port=url.port or (SMTPS_PORT if secure else SMTP_PORT),
            username=unquote(url.username or ""),
            password=unquote(url.password or ""),
            use_ssl=secure,
            use_tls=False,
            timeout=TIMEOUT_SECONDS,
        )

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Send; returns how many were."""
        return int(self._inner.send_messages(email_messages) or 0)
