"""Pages for people: HTML of the templates, from the same client and with the same permissions as the HTTP API."""
