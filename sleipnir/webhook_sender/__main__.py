"""`python -m sleipnir.webhook_sender`."""

from sleipnir.webhook_sender.main import main

if __name__ == "__main__":
    main()
