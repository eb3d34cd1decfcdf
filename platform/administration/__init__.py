"""The admin: people, tokens, feedback and records, inside Django's admin."""
