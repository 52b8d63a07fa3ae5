"""Chat templates with tools, written here in the documented form of each family of models."""

# ruff: noqa: E501 - a template's lines break where the template does

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from wander.models.calls.turns import PREAMBLE
from wander.models.tokenizer import TEMPLATE

START, END = "<|im_start|>", "<|im_end|>"
_OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_LISTED = "{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}"
_SYSTEM = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n<tools>' }}" + _LISTED + "{{ '\n</tools>\n\nCall one by "
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "' }}{% endif %}"
)
_RESULT = "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
_HERMES_CALL = (
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' + (c.function.arguments | tojson)'
    " + '}\n</tool_call>' }}"
)


def _chatml(call: str, said: str = "{{ m.content }}", before: str = _SYSTEM) -> str:
    """Return a ChatML template whose assistant says `said` and then writes each call `c`."""
    calls = (
        "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
        + call
        + "{% endfor %}"
    )
    return (
        before
        + "{% for m in messages %}{% if m.role == 'tool' %}"
        + _RESULT
        + "{% elif m.role == 'assistant' %}"
        "{{ '<|im_start|>assistant\n' }}" + said + calls + "{{ '<|im_end|>\n' }}{% else %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + _OPEN
    )


QWEN25 = _chatml(_HERMES_CALL)
QWEN3 = _chatml(
    _HERMES_CALL,
    "{% set last = messages | map(attribute='role') | list %}"
    "{% if m.reasoning_content and 'user' not in last[loop.index0:] %}"
    "{{ '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' }}{% endif %}{{ m.content }}",
)
"""Thinking stays until the next message of a user."""
QWEN3_CODER = _chatml(
    "{{ '<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>\n' }}"
    "{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}",
    before="{% if tools %}{{ '<|im_start|>system\n<tools>' }}" + _LISTED + "{{ '<|im_end|>\n' }}{% endif %}",
)
SMOLLM3 = (
    "{% if xml_tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in xml_tools %}{{ '\n' + (t | string) }}"
    "{% endfor %}{{ '\n</tools> <tool_call>{...}</tool_call>, or Python in <code></code><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}" + _RESULT + "{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}" + _OPEN
)
"""Shows the content alone, whatever calls a message has."""
LFM2_OLD = (
    "{{ bos_token }}{% if tools %}{{ '<|im_start|>system\nList of tools: <|tool_list_start|>' }}"
    "{{ (tools | tojson) + '<|tool_list_end|><|im_end|>\n' }}{% endif %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'tool' %}{{ '<|tool_response_start|>' + m.content + '<|tool_response_end|>' }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}" + _OPEN
)
LFM2 = LFM2_OLD.replace(
    "{% else %}{{ m.content }}{% endif %}",
    "{% else %}{{ m.content }}{% if m.tool_calls %}{{ '<|tool_call_start|>[' }}{% for c in m.tool_calls %}"
    "{{ c.function.name + '(' }}{% for k, v in c.function.arguments.items() %}{{ k + '=' + (v | tojson) }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ')' }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}{{ ']<|tool_call_end|>' }}{% endif %}{% endif %}",
)
LLAMA3 = (
    "{{ bos_token }}{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n' }}"
    + _LISTED
    + "{{ '<|eot_id|>' }}{% endif %}{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{{ '{\"name\": \"' + c.name + '\", \"parameters\": ' + (c.arguments | tojson) + '}<|eot_id|>' }}"
    "{% else %}{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
    "{{ (m.content | trim) + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% set turns = namespace(odd=false) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') == turns.odd %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set turns.odd = not turns.odd %}{% endif %}"
    "{% if m.role == 'user' %}{% if loop.last and tools %}"
    "{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{% elif m.role == 'tool' %}"
    "{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{% elif m.tool_calls %}"
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
    "{% endfor %}CALLS{{ eos_token }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_7 = _MISTRAL.replace(
    "CALLS",
    "{{ m.content + '[TOOL_CALLS][' }}{% for c in m.tool_calls %}{% set f = c.function %}"
    '{{ \'{"name": "\' + f.name + \'", "arguments": \' + (f.arguments | tojson) + \', "id": "\' + c.id + \'"}\' }}'
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']' }}",
).replace("loop.last and tools", "loop.first and tools")
MISTRAL_11 = _MISTRAL.replace(
    "CALLS",
    "{{ m.content }}{% for c in m.tool_calls %}"
    "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson) }}{% endfor %}",
).replace("loop.last and tools", "loop.first and tools")
PLAIN_JSON = (
    '{% if tools %}{{ \'<|im_start|>system\nReply with {"name": ..., "parameters": {...}} to call one of:\' }}'
    + _LISTED
    + "{{ '<|im_end|>\n' }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}" + _OPEN
)
WITHOUT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    + _OPEN
)


@dataclass(frozen=True)
class Family:
    """A chat template, the special tokens beside it, and what is found out about it."""

    template: str
    form: str
    special: tuple[str, ...] = (START, END)
    end: str = END
    shows_calls: bool = True
    reasons: bool = False
    words: bool = True
    """False where the template drops the words beside a call."""
    most_calls: int = 4


_LFM2 = (START, END, "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "<|tool_list_end|>",
         "<|tool_response_start|>", "<|tool_response_end|>")  # fmt: skip
_LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>")
_MISTRALS = ("</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
             "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")  # fmt: skip
FAMILIES = {
    "qwen2.5": Family(QWEN25, "hermes"),
    "qwen3": Family(QWEN3, "hermes", reasons=True),
    "qwen3-coder": Family(QWEN3_CODER, "qwen3_coder"),
    "smollm3": Family(SMOLLM3, "hermes", shows_calls=False),
    "lfm2-old": Family(LFM2_OLD, "lfm2", _LFM2, shows_calls=False),
    "lfm2": Family(LFM2, "lfm2", _LFM2),
    "llama3": Family(LLAMA3, "json", _LLAMA, "<|eot_id|>", words=False, most_calls=1),
    "mistral-7": Family(MISTRAL_7, "mistral", _MISTRALS, "</s>"),
    "mistral-11": Family(MISTRAL_11, "mistral", _MISTRALS, "</s>"),
    "plain": Family(PLAIN_JSON, "json", shows_calls=False),
    "given tools": Family(PREAMBLE + WITHOUT, "hermes"),
    "tiny": Family(TEMPLATE, "hermes", ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>"), "<|end|>"),
}


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes with the family's special tokens and template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(one, special=True) for one in family.special])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=family.end,
        pad_token=family.end,
        bos_token=family.special[0],
        chat_template=family.template,
    )
