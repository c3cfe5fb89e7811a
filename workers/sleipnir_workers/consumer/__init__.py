"""The consumer: which messages does this worker take from Celery, and when does it stop?"""
