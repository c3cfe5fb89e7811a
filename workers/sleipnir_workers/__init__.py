"""How is a visit executed? One package per question (workers/README.md); `app` is the Celery application."""
