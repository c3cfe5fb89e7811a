"""A process that searches an index, as a rag worker does: `knowledge_searcher.py INDEX QUESTIONS TIMES`.

QUESTIONS is a JSON file of texts, with their vectors beside it (.npy). Prints one JSON object: milliseconds and
searches per second, on one core. Then it waits for the end of its standard input, so that its memory can be measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "workers")]
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402

from sleipnir.knowledge.order import SearchQuery  # noqa: E402
from sleipnir_workers.knowledge.artefact import Artefact  # noqa: E402
from sleipnir_workers.knowledge.search import search  # noqa: E402


def main() -> None:
    index, questions, times = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    texts, vectors = json.loads(questions.read_text()), np.load(questions.with_suffix(".npy"))
    artefact = Artefact.open(index)

    def hybrid(number: int) -> None:
        search(artefact, SearchQuery(texts[number]), lambda _: vectors[number : number + 1], None)

    def keywords(number: int) -> None:
        search(artefact, SearchQuery(texts[number]), None, None)

    for number in range(min(10, len(texts))):
        hybrid(number)
    figures = {}
    for name, ask in (("hybrid", hybrid), ("keyword", keywords)):
        took_ms = []
        for number in range(times):
            started = time.perf_counter()
            ask(number % len(texts))
            took_ms.append((time.perf_counter() - started) * 1000)
        figures |= {
            f"{name}_p50_ms": float(np.percentile(took_ms, 50)),
            f"{name}_p99_ms": float(np.percentile(took_ms, 99)),
            f"{name}_per_s": times / sum(took_ms) * 1000,
        }
    print(json.dumps(figures), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
