"""Run by test_llm_life.py in a process of its own: forks around a model, and prints what came."""

import json
import multiprocessing
import os
import sys
import threading

from tilewright import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def tokens(llm, prompt=(5, 9, 77, 3)):
    """What the model says after a prompt."""
    return llm.generate([list(prompt)], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def same(llm, wanted):
    """Whether the model still says what it should, and its engine is in order."""
    is_same = tokens(llm) == wanted and tokens(llm, (1, 2)) != wanted
    llm.engine.check_integrity()
    return is_same


def forked(check) -> bool:
    """Whether `check()` holds in a child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def while_others_generate(llm, wanted) -> list[bool]:
    """Forks while two threads use the model, so that some child begins with a lock that is held."""
    busy, results = True, []

    def work():
        while busy:
            results.append(tokens(llm) == wanted)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    children = [forked(lambda: same(llm, wanted)) for _ in range(5)]
    busy = False
    for thread in threads:
        thread.join()
    return [*children, *results]


def with_a_request_open(llm, wanted) -> list[bool]:
    """The request is the parent's: it goes on there, and has ended in the child."""
    sequence = llm.engine.add([5, 9, 77, 3], GREEDY)
    llm.advance(sequence)
    pages = llm.engine.pool.num_used

    def child():
        llm.advance(sequence)
        is_ended = sequence.finish_reason == "abort" and not sequence.pages
        return is_ended and llm.engine.pool.num_used == 0 and same(llm, wanted)

    found = [pages > 0, forked(child)]
    while not sequence.is_finished:
        llm.advance(sequence)
    return [*found, tuple(sequence.output) == wanted]


def new_model(folder, wanted, answers):
    """In a child: a model of its own."""
    with LLM(folder, target="cpu") as llm:
        answers.put(llm.was_cached and same(llm, wanted))


def by_multiprocessing(folder, wanted, method) -> bool:
    context = multiprocessing.get_context(method)
    answers = context.Queue()
    child = context.Process(target=new_model, args=(folder, wanted, answers))
    child.start()
    child.join()
    return child.exitcode == 0 and answers.get()


def main(folder):
    llm = LLM(folder, target="cpu", kv_cache_bytes=1 << 20)
    wanted = tokens(llm)
    results = {
        "idle": [forked(lambda: same(llm, wanted) and forked(lambda: same(llm, wanted)))],
        "busy": while_others_generate(llm, wanted),
        "open": with_a_request_open(llm, wanted),
        "closed": [forked(lambda: llm.close() is None), same(llm, wanted)],
    }
    for method in ("fork", "spawn", "forkserver"):
        results[method] = [by_multiprocessing(folder, wanted, method)]
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
