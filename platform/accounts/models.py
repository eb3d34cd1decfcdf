"""Users, who sign in by email, the keys by which their programs are known, and mails to people."""

import uuid
from typing import ClassVar

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone

KEY_NAME_LENGTH = 32
"""Characters of an API key's name at most (C-012)."""

TAG_LENGTH = 32
"""Characters of a tag at most (A-422)."""

ANSWER_LENGTH = 5_000
"""Characters of an answer, a remark or a note at most."""


class Role(models.TextChoices):
    """What a User may do in the admin."""

    USER = "user", "User"
    STAFF = "staff", "Staff"
    ADMIN = "admin", "Admin"


class Standing(models.TextChoices):
    """Whether a User may sign in."""

    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"
    DELETED = "deleted", "Deleted"


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
        "staff", default=False, help_text="May open the admin pages, to decide and to read."
    )
    suspended_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Set: no sign-in, and every API key of the User is refused.",
    )
    deleted_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Set: nothing but the rows that count is left of the User.",
    )
    erased_at = models.DateTimeField(null=True, blank=True, editable=False)
    team = models.BooleanField(
        "team account", default=False, help_text="Numbers about Users leave the team out."
    )
    organization = models.CharField(
        max_length=200, blank=True, help_text="Shown in place of the Application's answer."
    )
    discord_handle = models.CharField(max_length=100, blank=True)
    session_number = models.PositiveIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(email=Lower("email")), name="user_email_lower_case"
            ),
            models.CheckConstraint(
                condition=models.Q(is_superuser=False) | models.Q(is_staff=True),
                name="user_admin_is_staff",
            ),
            models.CheckConstraint(
                condition=models.Q(deleted_at=None) | models.Q(is_staff=False),
                name="user_deleted_has_no_role",
            ),
        ]

    def __str__(self) -> str:
        return str(self.email)

    @property
    def is_active(self) -> bool:  # type: ignore[override]
        """Whether the User may sign in; what Django's sign-in and sessions ask for."""
        return self.suspended_at is None and self.deleted_at is None

    @property
    def is_admin(self) -> bool:
        """Whether the User may change what the admin shows."""
        return self.is_active and self.is_staff and self.is_superuser

    @property
    def role(self) -> Role:
        """What the User may do in the admin while they are active."""
        if self.is_superuser:
            return Role.ADMIN
        return Role.STAFF if self.is_staff else Role.USER

    @property
    def standing(self) -> Standing:
        """Whether the User may sign in, in a word."""
        if self.deleted_at is not None:
            return Standing.DELETED
        return Standing.ACTIVE if self.suspended_at is None else Standing.SUSPENDED

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """Return what a session must carry: a new password or number ends all (A-068, A-069)."""
        own: str = super()._get_session_auth_hash(secret)  # type: ignore[misc]
        return f"{own}.{self.session_number}"

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


class Tag(models.Model):
    """A word that groups Users, in lowercase letters, digits and dashes (A-422)."""

    name = models.CharField(max_length=TAG_LENGTH, unique=True)

    class Meta:
        ordering = ("name",)
        constraints = [
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[a-z0-9-]{1,32}$"), name="tag_form"
            )
        ]

    def __str__(self) -> str:
        return str(self.name)


class UserTag(models.Model):
    """A tag that a User has."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="user_tags")
    tag = models.ForeignKey(Tag, on_delete=models.CASCADE, related_name="user_tags")
    added_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    added_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "tag"], name="user_tag_once")]

    def __str__(self) -> str:
        return str(self.tag_id)


class Remark(models.Model):
    """What an admin wrote about a User; only the admin reads it (A-586)."""

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="remarks")
    by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    text = models.TextField(max_length=ANSWER_LENGTH)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d}"


class LinkPurpose(models.TextChoices):
    """Why a link that sets a password was sent."""

    APPROVAL = "approval", "Approval"
    FIRST = "first", "First password"
    RESET = "reset", "Reset"


class PasswordLink(models.Model):
    """A link that sets a User's password, once; only its hash is kept (A-033, A-038).

    One that is neither used nor replaced is the newest, and a User has one of them at most.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="password_links")
    purpose = models.CharField(max_length=16, choices=LinkPurpose)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    replaced_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user"],
                condition=models.Q(used_at=None, replaced_at=None),
                name="password_link_newest_only",
            )
        ]

    def __str__(self) -> str:
        return f"{self.purpose} of {self.created_at:%Y-%m-%d %H:%M}"


class LinkAsk(models.Model):
    """Somebody asked for a link on a page; the runner looks whether the address has a User.

    So the page does the same for every address, and takes the same time (A-076, A-077).
    """

    email = AddressField()
    at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M}"


class MailKind(models.TextChoices):
    """The mails that are sent (contract-app.md section 12)."""

    APPROVAL = "approval", "Approval"
    REJECTION = "rejection", "Rejection"
    INVITE = "invite", "Invite"
    RESET = "reset", "Reset"
    FIRST_PASSWORD = "first_password", "First password"
    TOKEN_REQUEST = "token_request", "Token request, to the team"
    TOKEN_DECISION = "token_decision", "Decided token request"
    SPEND = "spend", "Spend, to the team"


class Mail(models.Model):
    """A mail on its way: written with what caused it, sent after that is committed (A-537).

    `text` and `html` hold `LINK_PLACE` where the address of `link` belongs: the secret of a link is
    in no row. Both are emptied once the mail is sent or given up. `next_try_at` is also the lease
    of the process that sends.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=16, choices=MailKind)
    to = models.EmailField()
    subject = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    html = models.TextField(blank=True)
    link = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    attempts = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField(default=timezone.now)
    sent_at = models.DateTimeField(null=True)
    given_up_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(sent_at=None) | models.Q(given_up_at=None),
                name="mail_sent_or_given_up",
            )
        ]
        indexes = [
            models.Index(
                fields=["next_try_at"],
                condition=models.Q(sent_at=None, given_up_at=None),
                name="mail_waiting",
            ),
            models.Index(fields=["-created_at"], name="mail_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} to {self.to}"


class AdminAction(models.Model):
    """What somebody with a role did, to what, when; never changed or removed (A-392).

    `by` is null for a command on the server. It names its object by id alone, so that nothing of a
    person is left in it once they are deleted.
    """

    at = models.DateTimeField(default=timezone.now)
    by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    action = models.CharField(max_length=100)
    kind = models.CharField(max_length=64)
    target_id = models.CharField(max_length=64)
    details = models.CharField(max_length=1_000, blank=True)

    class Meta:
        indexes = [models.Index(fields=["kind", "target_id", "-id"], name="admin_action_of_target")]

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.target_id}"
