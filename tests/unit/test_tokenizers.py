"""The tokenizer adapter, and the small tokenizer that ships with the stand-ins."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from router.adapters.tokenizers import ChatTemplateError, HfTokenizer, TokenizerLoadError
from router.sim.tokenizer import locate_tokenizer
from tests.fakes.standins import shipped_tokenizer

TEXTS = [
    "",
    "Hello, world!",
    "  two  spaces\n\n\tand tabs ",
    "Grüße, 你好 🚀",
    "x" * 1000,
    "12345678",
]


def with_template(template: str | None) -> HfTokenizer:
    tokenizer = Tokenizer.from_file(str(locate_tokenizer() / "tokenizer.json"))
    return HfTokenizer(
        tokenizer,
        chat_template=template,
        special_tokens={"eos_token": "<|im_end|>"},
        now=lambda: datetime(2026, 4, 30, tzinfo=UTC),
    )


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_the_round_trip(text: str) -> None:
    """Byte-level BPE loses nothing: decoding the ids gives the text back."""
    tokenizer = shipped_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_training_makes_the_shipped_files(tmp_path: Path) -> None:
    """The shipped tokenizer is what the script makes of the corpus in the repository."""
    script = Path(__file__).parents[2] / "scripts" / "train_tokenizer.py"
    spec = importlib.util.spec_from_file_location("train_tokenizer", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        made = json.loads((tmp_path / name).read_text("utf-8"))
        assert made == json.loads((locate_tokenizer() / name).read_text("utf-8"))
    assert shipped_tokenizer().vocabulary_size == 4096


def test_chats_are_rendered_with_turns_tools_and_an_opening() -> None:
    """Roles open turns, tools join the system turn, the assistant's turn is opened at the end."""
    tokenizer = shipped_tokenizer()
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"text": "there"}]},
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    plain = tokenizer.render_chat(messages)
    assert plain.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nthere")
    assert plain.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert not tokenizer.render_chat(messages, add_generation_prompt=False).endswith("assistant\n")
    with_tools = tokenizer.render_chat(messages, tools=tools)
    assert '"name": "look"' in with_tools
    assert with_tools.count("<|im_start|>system") == 1
    ids = tokenizer.encode(plain, add_special_tokens=False)
    assert [token for token in ids if tokenizer.is_special(token)] == [1, 2, 1, 2, 1]


def test_a_final_message_can_be_continued() -> None:
    """The prompt then ends with the final message's content, and nothing after it."""
    tokenizer = shipped_tokenizer()
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "One, two,"},
    ]
    text = tokenizer.render_chat(messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("assistant\nOne, two,")
    with pytest.raises(ChatTemplateError, match="exclude"):
        tokenizer.render_chat(messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ eos_token }}{{ strftime_now('%Y-%m-%d') }}", "<|im_end|>2026-04-30"),
        ("{{ {'b': '<ü>', 'a': 1} | tojson }}", '{"b": "<ü>", "a": 1}'),
        ("{{ custom | default('none') }}", "none"),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}x{% endfor %}",
            "x",
        ),
    ],
)
def test_templates_find_the_names_they_expect(template: str, expected: str) -> None:
    """Special tokens, the clock, unescaped JSON, keyword arguments and loop controls."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "a"}]
    assert with_template(template).render_chat(messages) == expected


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / messages }}",
    ],
)
def test_bad_or_hostile_templates_refuse_with_a_typed_error(template: str) -> None:
    """A refusal, a mutation, an escape from the sandbox and a bug all end as ChatTemplateError."""
    with pytest.raises(ChatTemplateError):
        with_template(template).render_chat([{"role": "user", "content": "a"}])


def test_what_cannot_be_rendered_says_why() -> None:
    """No template, parts that are not text, and unknown roles are named."""
    image: list[dict[str, object]] = [{"role": "user", "content": [{"type": "image_url"}]}]
    with pytest.raises(ChatTemplateError, match="no chat template"):
        with_template(None).render_chat(image)
    with pytest.raises(ChatTemplateError, match="image_url"):
        shipped_tokenizer().render_chat(image)
    with pytest.raises(ChatTemplateError, match="unknown role: ghost"):
        shipped_tokenizer().render_chat([{"role": "ghost", "content": "boo"}])


def test_loading_names_the_file_at_fault(tmp_path: Path) -> None:
    """Missing or broken files and templates are load errors, not errors of the first request."""
    with pytest.raises(TokenizerLoadError, match=r"tokenizer\.json"):
        HfTokenizer.load(tmp_path)
    source = (locate_tokenizer() / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(source)
    assert HfTokenizer.load(tmp_path).vocabulary_size == 4096
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": "{% if %}"}')
    with pytest.raises(TokenizerLoadError, match="chat template"):
        HfTokenizer.load(tmp_path)
    config.write_text("[1]")
    with pytest.raises(TokenizerLoadError, match=r"tokenizer_config\.json"):
        HfTokenizer.load(tmp_path)
    config.write_text('{"chat_template": [{"name": "default", "template": "named"}]}')
    chat: list[dict[str, object]] = [{"role": "user", "content": "a"}]
    assert HfTokenizer.load(tmp_path).render_chat(chat) == "named"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert HfTokenizer.load(tmp_path).render_chat(chat) == "file"
