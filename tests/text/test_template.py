"""Chat templates: the model's own, the helpers authors use, and what must not get out of the sandbox."""

from __future__ import annotations

import pytest

from service.text import TemplateError, TextModel, TextModelError
from service.text.template import ChatTemplate


def render(source: str, **message: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render([{"role": "user", "content": "hi", **message}])


def test_smollm_renders_as_its_card_shows(smollm: TextModel):
    assert smollm.render_chat([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed_and_special_tokens_are_known():
    assert render("  {% if true %}\n{{ bos_token }}x{% endif %}\n") == "<s>x"


def test_tojson_escapes_nothing_for_html():
    assert render("{{ messages[0] | tojson }}", content="<é>") == '{"role": "user", "content": "<é>"}'


def test_loop_controls_work():
    assert render("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}") == "1"


def test_a_template_that_refuses_says_so():
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_that_fails_is_the_clients_error_not_a_crash():
    with pytest.raises(TemplateError, match="fails on these messages"):
        render("{{ 'a' + 1 }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(TemplateError):
        render(source)


def test_template_syntax_in_a_message_is_plain_text():
    assert render("{{ messages[0]['content'] }}", content="{{ 7 * 7 }}") == "{{ 7 * 7 }}"


def test_an_invalid_template_is_an_error_of_the_model():
    with pytest.raises(TextModelError, match="not valid jinja2"):
        ChatTemplate("{% if %}", {})
