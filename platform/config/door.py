"""The command line: settings are checked before a command runs."""

import sys

from config.environment import EnvironmentInvalid

WITHOUT_SERVERS = {
    "up",
    "help",
    "version",
    "models",
    "pull_model",
    "settings_table",
    "harvest_file",
}
"""Commands that need neither the database nor Valkey."""


def run(arguments: list[str]) -> None:
    """Run a management command; wrong settings end it with one line and exit code 2."""
    from django.core.management import execute_from_command_line

    try:
        from django.conf import settings

        command = arguments[1] if len(arguments) > 1 else "help"
        if command not in WITHOUT_SERVERS and not command.startswith("-"):
            settings.BASALT.require_servers()
    except EnvironmentInvalid as invalid:
        sys.stderr.write(f"manage.py: {invalid}\n")
        raise SystemExit(2) from None
    execute_from_command_line(arguments)
