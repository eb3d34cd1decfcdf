"""The addresses of access. Of allauth only the flows that are used have one (A-013)."""

from allauth.account.views import reauthenticate
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as codes
from allauth.mfa.totp import views as totp
from allauth.socialaccount.providers.github import views as github
from allauth.socialaccount.providers.openid_connect import views as openid
from django.urls import path

from access import applying, passwords, profile, sign_in
from access.limits import limit_posts

urlpatterns = [
    path("apply", applying.apply, name="apply"),
    path("invited", applying.invited, name="invited"),
    path("sign-in", sign_in.sign_in, name="account_login"),
    path("sign-out", sign_in.sign_out, name="account_logout"),
    path("first-page", sign_in.to_first_page, name="first_page"),
    path("forgot-password", passwords.forgot_password, name="forgot_password"),
    path("set-password", passwords.set_first, name="set_password"),
    path("reset-password", passwords.reset, name="reset_password"),
    path("profile", profile.profile, name="profile"),
    path("profile/unlink/<slug:provider_id>", profile.unlink_provider, name="unlink_provider"),
    path("sign-in/github", github.oauth2_login, name="github_login"),
    path("sign-in/github/callback", github.oauth2_callback, name="github_callback"),
    path("sign-in/openid/<slug:provider_id>", openid.login, name="openid_connect_login"),
    path(
        "sign-in/openid/<slug:provider_id>/callback",
        openid.callback,
        name="openid_connect_callback",
    ),
    path("sign-in/code", limit_posts(mfa.authenticate), name="mfa_authenticate"),
    path("confirm", limit_posts(reauthenticate), name="account_reauthenticate"),
    path("confirm/code", limit_posts(mfa.reauthenticate), name="mfa_reauthenticate"),
    path("profile/two-factor", mfa.index, name="two_factor"),
    path("profile/two-factor", mfa.index, name="mfa_index"),
    path("profile/two-factor/activate", limit_posts(totp.activate_totp), name="mfa_activate_totp"),
    path("profile/two-factor/deactivate", totp.deactivate_totp, name="mfa_deactivate_totp"),
    path("profile/two-factor/codes", codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path(
        "profile/two-factor/codes/new",
        codes.generate_recovery_codes,
        name="mfa_generate_recovery_codes",
    ),
    path(
        "profile/two-factor/codes/file",
        codes.download_recovery_codes,
        name="mfa_download_recovery_codes",
    ),
    # Names that allauth asks for, of pages that are not here.
    path("profile/linked", profile.profile, name="socialaccount_connections"),
    path("sign-in/none", profile.gone, name="socialaccount_signup"),
    path("sign-up", profile.gone, name="account_signup"),
]
