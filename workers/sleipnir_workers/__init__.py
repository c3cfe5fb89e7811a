"""How is a visit executed? One module or package per kind of work; `app` is the Celery application."""
