"""Commands for users, access tokens and the audit."""
