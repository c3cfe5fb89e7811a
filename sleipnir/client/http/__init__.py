"""Clients over HTTP: the classes of a client for a deployment that is reached by its HTTP API (docs/http-api.md).

    with Client("https://runs.example.com", token=...) as client:
        run = client.submit("log-triage", "server.log")
        print(run.wait().status)

`Client` and `AsyncClient` with a URL have the same methods as with Redis, and handles of the same classes.
connections.py sends requests, problems.py makes errors of their refusals, runs.py, batches.py and schedules.py have the
handles, gates.py, jobs.py and webhooks.py what a client does with these, client.py its methods. A method that is not
defined there raises NotServed with the reason that unserved.py has for it: there is a route for each of the others. A
test compares the table with the classes.

Rules.
1. A request is repeated only if that changes nothing: reading, and requests that the API lets be repeated. `submit`
sends a key with each submission, a new one if there is no `request_id`, so a lost answer leads to no second run.
2. Redirects are not followed: a token goes to the origin that the caller has named and nowhere else, and never in clear
text to another machine.
3. In an event loop the requests are made by threads, at most 256 at once.
"""
