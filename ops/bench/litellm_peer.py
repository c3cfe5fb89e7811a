"""Threads that call a model through litellm in a loop, with litellm's own settings: `litellm_peer.py CALLS THREADS`.

The address and key are litellm's variables of the environment. Prints `ready` after one call, waits for a line, makes
the calls, prints `done`, and stays until it is killed, so that its memory and CPU can be read. Imports nothing of
Sleipnir.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no internet

import litellm

MESSAGES = [{"role": "user", "content": "Say a word."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    ask(stream=options.stream)
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [
        threading.Thread(target=ask_often, args=(options.calls // options.threads, options.stream))
        for _ in range(options.threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("done", flush=True)
    threading.Event().wait()


def ask_often(times: int, stream: bool) -> None:
    for _ in range(times):
        ask(stream=stream)


def ask(*, stream: bool) -> str:
    reply = litellm.completion(model="openai/gpt-test", messages=MESSAGES, stream=stream, timeout=600)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(piece.choices[0].delta.content or "" for piece in reply if piece.choices)


if __name__ == "__main__":
    main()
