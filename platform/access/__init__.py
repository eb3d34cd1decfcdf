"""Access: Applications and Invites, sign-in and its providers, sessions, passwords, the profile."""
