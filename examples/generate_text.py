"""Generate from an unmodified checkpoint: several prompts in one batch, then one as a stream.

python examples/generate_text.py [MODEL]

MODEL is a Hugging Face folder, a .gguf file, an artifact, or "demo" (SmolLM2-135M-Instruct).
"""

import sys

from tilewright import LLM, SamplingParams

PROMPTS = ["The capital of France is", "One, two, three,", "def fibonacci(n):"]


def main(model: str = "demo") -> None:
    llm = LLM(model)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    for result in llm.generate(PROMPTS, params):
        output = result.outputs[0]
        print(f"{result.prompt!r} -> {output.text!r} ({output.finish_reason})")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    for piece in llm.stream_chat(messages, params):
        print(piece, end="", flush=True)
    stats = llm.stats
    print(f"\ndecode {stats.decode_tokens_per_second:.1f} tokens/s over {stats.steps} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
