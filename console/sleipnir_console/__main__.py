"""`python -m sleipnir_console`: the HTTP API, until SIGTERM or SIGINT."""

from sleipnir_console.main import main

if __name__ == "__main__":
    main()
