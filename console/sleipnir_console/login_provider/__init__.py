"""Logging in through OpenID Connect: what is configured, what is begun in a browser, what a provider proves."""
