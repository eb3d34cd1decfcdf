"""Users and API keys in Django's admin."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.admin_base import RoleAdmin
from accounts.keys import pause_key, resume_key, revoke_key
from accounts.models import ApiKey, User


class NewUserForm(AdminUserCreationForm):  # type: ignore[type-arg]
    """The form of a new User."""

    class Meta:
        model = User
        fields = ("email", "name")


class UserForm(UserChangeForm):  # type: ignore[type-arg]
    """The form of a User."""

    class Meta:
        model = User
        fields = "__all__"


@admin.register(User)
class PeopleAdmin(UserAdmin, RoleAdmin):  # type: ignore[type-arg]
    """Users by email."""

    form = UserForm
    add_form = NewUserForm
    ordering = ("email",)
    list_display = ("email", "name", "is_staff", "suspended_at", "created_at")
    list_filter = ("is_staff", "is_superuser", ("suspended_at", admin.EmptyFieldListFilter))
    search_fields = ("email", "name")
    readonly_fields = ("id", "created_at", "last_login")
    filter_horizontal = ("groups", "user_permissions")
    fieldsets = (
        (None, {"fields": ("id", "email", "password", "name", "suspended_at")}),
        ("Rights", {"fields": ("is_staff", "is_superuser", "groups", "user_permissions")}),
        ("Times", {"fields": ("created_at", "last_login")}),
    )
    add_fieldsets = (
        (None, {"fields": ("email", "name", "usable_password", "password1", "password2")}),
    )

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Refuse: the ledger names its User for good."""
        return False


@admin.register(ApiKey)
class ApiKeyAdmin(RoleAdmin):
    """API keys, to be paused or revoked; a secret is shown nowhere."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "paused_at")
    list_filter = (
        ("paused_at", admin.EmptyFieldListFilter),
        ("revoked_at", admin.EmptyFieldListFilter),
    )
    list_select_related = ("user",)
    search_fields = ("prefix", "name", "user__email")
    fields = ("id", "user", "prefix", "name", "created_at", "last_used_at", "paused_at")
    readonly_fields = fields
    actions = ("pause", "resume", "revoke")

    @admin.action(description="Pause the selected API keys")
    def pause(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        """Refuse the keys until they are resumed."""
        for key in keys:
            pause_key(key_id=key.id)

    @admin.action(description="Resume the selected API keys")
    def resume(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        """Accept paused keys again."""
        for key in keys:
            resume_key(key_id=key.id)

    @admin.action(description="Revoke the selected API keys for good")
    def revoke(self, request: HttpRequest, keys: QuerySet[ApiKey]) -> None:
        """End the keys."""
        for key in keys:
            revoke_key(key_id=key.id)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: a key is made by `create_key`, which alone knows its secret."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        """Refuse: a revoked key keeps its row."""
        return False
