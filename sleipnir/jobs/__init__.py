"""Jobs: one request to many runs, which a scheduler carries out piece by piece. Pure: what is stored of a job, and how
it goes on."""
