"""Users, who sign in by email, and the keys by which their programs are known."""

import uuid
from typing import ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

KEY_NAME_LENGTH = 32
"""Characters of an API key's name at most (C-012)."""


class AddressField(models.EmailField):  # type: ignore[type-arg]
    """An email address in lower case, in the database and in every look-up (A-041)."""

    def to_python(self, value: object) -> object:
        """Return the address as it is kept: lower case, no space around it."""
        return value.strip().lower() if isinstance(value, str) else value

    def get_prep_value(self, value: object) -> object:
        """Bring what is stored or looked for to the kept form."""
        return super().get_prep_value(self.to_python(value))

    def pre_save(self, model_instance: models.Model, add: bool) -> object:
        """Leave the kept form on the instance too, so that it reads the same before a refresh."""
        value = self.to_python(super().pre_save(model_instance, add))
        setattr(model_instance, self.attname, value)
        return value


class UserManager(BaseUserManager["User"]):
    """Makes Users; a User without a password has an unusable one until they set it."""

    def create_user(self, email: str, password: str | None = None, *, name: str = "") -> "User":
        """Make a User; `email` must be a valid address that no User has."""
        user = self.model(email=email, name=name)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(
        self, email: str, password: str | None = None, *, name: str = ""
    ) -> "User":
        """Make an admin; the same conditions as for `create_user`."""
        user = self.model(email=email, name=name, is_staff=True, is_superuser=True)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser, PermissionsMixin):
    """A person. Everything that is made with a key of theirs belongs to the User (C-015)."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = AddressField(unique=True, error_messages={"unique": "A User has this email already."})
    name = models.CharField(max_length=150, blank=True)
    is_staff = models.BooleanField(
        "admin", default=False, help_text="May open the admin pages of this deployment."
    )
    suspended_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Set: no sign-in, and every API key of the User is refused.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(email=Lower("email")), name="user_email_lower_case"
            )
        ]

    def __str__(self) -> str:
        return str(self.email)

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        """Whether the User may sign in; what Django's sign-in and sessions ask for."""
        return self.suspended_at is None

    def get_full_name(self) -> str:
        """Return the name, or the address of a User without one."""
        return self.name or str(self.email)

    def get_short_name(self) -> str:
        """Return what a page calls the User."""
        return self.get_full_name()


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """Reads of API keys."""

    def live(self) -> "ApiKeyQuerySet":
        """Return the keys that are not revoked; a paused key is live (C-011)."""
        return self.filter(revoked_at__isnull=True)


class ApiKey(models.Model):
    """A key of a User, of which only a hash is kept (C-010). A revoked key keeps its row (C-642).

    `prefix` is what lists show: `sk-acs-` (or `acs-bm-` of the old platform) and four characters.
    `digest` is the SHA-256 of the whole key in hex.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="api_keys")
    name = models.CharField(max_length=KEY_NAME_LENGTH)
    prefix = models.CharField(max_length=16, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(null=True, editable=False)
    paused_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[models.Manager["ApiKey"]] = ApiKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "API key"
        constraints = [
            models.UniqueConstraint(
                "user",
                Lower("name"),
                condition=models.Q(revoked_at__isnull=True),
                name="api_key_name_once_per_user",
            ),
            models.CheckConstraint(
                condition=~models.Q(name="") & models.Q(digest__regex="^[0-9a-f]{64}$"),
                name="api_key_named_and_hashed",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}...)"
