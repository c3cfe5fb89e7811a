"""`python -m sleipnir_scheduler`: one scheduler instance, all of its services, until SIGTERM or SIGINT."""

from sleipnir_scheduler.main import main

if __name__ == "__main__":
    main()
