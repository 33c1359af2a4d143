"""`puna chat`: the conversation, its commands, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from cli_runs import ENDLESS, Result, alphabet, puna
from tiny_model import VOCABULARIES, write_tiny

import puna as package
from puna.cli.screen import Screen

REPLY = "abcdefghijklmnopqrstuvwxyz\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path)


def chat(model: Path, *lines: str, words: tuple[object, ...] = ()) -> Result:
    """A conversation whose lines are piped in."""
    return puna("chat", model, *words, stdin="".join(f"{line}\n" for line in lines).encode())


def saved(model: Path, path: Path, *lines: str, words: tuple[object, ...] = ()) -> list[dict[str, str]]:
    """The messages that a conversation ends with."""
    assert chat(model, *lines, f"/save {path}", words=words).status == 0
    messages: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return messages


def test_each_line_gets_a_reply(model: Path) -> None:
    """Replies alone go to standard output; empty lines are passed over; the end of the input ends it."""
    result = chat(model, "hello", "", "again")
    assert (result.status, result.out) == (0, REPLY * 2)
    assert "> " not in result.err


def test_the_last_line_needs_no_end(model: Path) -> None:
    """A message without a new line at its end is a message."""
    assert puna("chat", model, stdin=b"hello").out == REPLY


def test_first_message_by_flag(model: Path) -> None:
    """-p is the first message, before those of standard input."""
    assert chat(model, "two", words=("-p", "one")).out == REPLY * 2


def test_single_turn(model: Path) -> None:
    """-st ends after one reply."""
    assert chat(model, "one", "two", words=("-st",)).out == REPLY
    assert chat(model, "two", words=("-st", "-p", "one")).out == REPLY


def test_messages_go_through_the_template(model: Path) -> None:
    """--verbose-prompt shows the prompt as the template writes it, system prompt and earlier turns included."""
    result = chat(model, "hi", "ho", words=("-sys", "Be brief.", "--verbose-prompt"))
    pieces = [line[11:-1] for line in result.err.splitlines() if line.endswith("'")]
    prompt = "".join(pieces).replace("\\n", "\n")
    first = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.startswith(first + first[: len(first) - len("<|im_start|>assistant\n")])
    assert prompt.endswith(f"{REPLY[:-1]}<|im_end|>\n<|im_start|>user\nho<|im_end|>\n<|im_start|>assistant\n")


def test_stats_tell_memory(model: Path) -> None:
    """/stats says how much of the cache the conversation holds, and what else is remembered."""
    result = chat(model, "one", "/stats", "/clear", "/stats")
    before, after = (line for line in result.err.splitlines() if line.startswith("pages "))
    assert before == "pages      32.0 KiB of 128.0 KiB held; no earlier texts at hand"
    assert after == "pages      0 B of 128.0 KiB held; no earlier texts at hand"


def test_earlier_turns_are_not_computed_again(model: Path) -> None:
    """The second prompt is taken from the cache up to the end of the first reply; the stats say so."""
    result = chat(model, "one", "/stats", "two", "/stats")
    stats = [line for line in result.err.splitlines() if line.startswith("prompt ")]
    assert "from the cache" not in stats[0]
    first = int(stats[0].split()[1])
    total, cached = int(stats[1].split()[1]), int(stats[1].split("(")[1].split()[0])
    # All of the first prompt, and the reply but for its last token, whose keys were never needed.
    assert cached == first + 26
    assert total - first > cached


def test_regenerating(model: Path, tmp_path: Path) -> None:
    """/regen answers the last message anew, and the messages stay one question and one reply."""
    messages = saved(model, tmp_path / "a.json", "hi", "/regen")
    assert messages == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": REPLY[:-1]},
    ]


def test_regenerating_with_a_seed_gives_another_reply(tmp_path: Path) -> None:
    """A fixed seed counts up, so /regen differs, and the whole conversation is still repeatable."""
    model = write_tiny(tmp_path / "a.gguf")
    words = ("-s", "7", "-n", "12", "--temp", "2")
    first, second = (chat(model, "hi", "/regen", words=words).out for _ in range(2))
    assert first == second
    one, two = (
        saved(model, tmp_path / "a", "hi", words=words),
        saved(model, tmp_path / "b", "hi", "/regen", words=words),
    )
    assert one[1]["content"] != two[1]["content"]


def test_system_prompt(model: Path, tmp_path: Path) -> None:
    """-sys, -sysf and /system set the system prompt; /clear keeps it."""
    file = tmp_path / "s.txt"
    file.write_text("From a file.\n", encoding="utf-8")
    path = tmp_path / "a.json"
    assert saved(model, path, words=("-sys", "Given.")) == [{"role": "system", "content": "Given."}]
    assert saved(model, path, words=("-sysf", str(file)))[0]["content"] == "From a file."
    assert saved(model, path, "hi", "/system New.", "/clear", words=("-sys", "Old.")) == [
        {"role": "system", "content": "New."}
    ]
    assert "system prompt: Given." in chat(model, "/system", words=("-sys", "Given.")).err


def test_saving_and_loading(model: Path, tmp_path: Path) -> None:
    """/load goes on from what /save wrote."""
    path = tmp_path / "a.json"
    before = saved(model, path, "hi", words=("-sys", "é"))
    after = saved(model, tmp_path / "b.json", f"/load {path}", "more")
    assert after[:3] == before
    assert [message["role"] for message in after[3:]] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "this is no JSON"),
        ("[" * 100_000, "this is no conversation"),
        ('"text"', "this is no list of messages"),
        ('[{"role": "user"}]', "this is no list of messages"),
        ('[{"role": "user", "content": 3}]', "this is no list of messages"),
        ('[{"role": "user", "content": "a"}]', "the roles are out of order"),
        ('[{"role": "pope", "content": "a"}, {"role": "assistant", "content": "a"}]', "the roles are out of"),
    ],
)
def test_files_that_are_no_conversation(model: Path, tmp_path: Path, content: str, message: str) -> None:
    """/load refuses them, and says why."""
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    result = chat(model, f"/load {path}")
    assert result.status == 2
    assert f"a.json: {message}" in result.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/regen", "there is no reply yet"),
        ("/claer", "there is no command /claer; did you mean /clear?"),
        ("/usr/bin", "// sends a text that begins with /"),
        ("/save", "/save: a file is missing; write /save FILE"),
        ("/load /no/such/file", "error: /no/such/file: cannot read the file: No such file or directory\n"),
        ("/save /no/such/file", "error: /no/such/file: cannot write the file: No such file or directory\n"),
    ],
)
def test_wrong_commands(model: Path, line: str, message: str) -> None:
    """A command that cannot be done ends a piped conversation, but not one at a terminal."""
    piped = chat(model, line)
    assert (piped.status, piped.out) == (2, "")
    assert message in piped.err
    typed = puna("chat", model, tty="in", typed=[line, "hi"])
    assert (typed.status, typed.out) == (0, REPLY)
    assert message in typed.err


def test_help_and_exit(model: Path) -> None:
    """/help lists every command, /exit ends, and a doubled slash sends a text that begins with one."""
    result = chat(model, "/help", "//etc is what?", "/exit", "unheard")
    assert (result.status, result.out) == (0, REPLY)
    for command in ("/exit", "/clear", "/regen", "/system", "/save", "/load", "/stats", "/tokens"):
        assert f"  {command} " in result.err


def test_several_lines_are_one_message(model: Path, tmp_path: Path) -> None:
    """Continued lines and blocks are sent as one."""
    messages = saved(model, tmp_path / "a.json", "one\\", "two", "'''", "/three", "four", "'''")
    assert [m["content"] for m in messages if m["role"] == "user"] == ["one\ntwo", "/three\nfour"]


def test_a_message_that_the_input_cuts_off(model: Path) -> None:
    """A continued line at the end of the input is sent; a block without an end is an error."""
    assert puna("chat", model, stdin=b"hi\\\n").out == REPLY
    result = puna("chat", model, stdin=b"'''\nhi\n")
    assert (result.status, result.out) == (2, "")
    assert "close it with '''" in result.err


def test_a_full_context_is_said(tmp_path: Path) -> None:
    """A reply that fills the context, and a message that no longer fits, are both said."""
    model = alphabet(tmp_path, follow=ENDLESS)
    result = puna("chat", model, "-c", 64, tty="in", typed=["hi", "more", "/clear", "once more"])
    assert result.status == 0
    assert result.err.count("stopped: the context of 64 tokens is full (-c)") == 2
    assert result.err.count("error: ") == 1
    assert "error: the conversation has 80 tokens, the context 64; start over with /clear" in result.err
    assert len(result.out.splitlines()) == 2


def test_length_limit_is_for_each_reply(model: Path) -> None:
    """-n limits every reply, and says so."""
    result = chat(model, "a", "b", words=("-n", "3"))
    assert result.out == "abc\nabc\n"
    assert result.err.count("stopped at the limit of 3 tokens (-n)") == 2


def test_interrupting_a_reply_keeps_what_came(model: Path, tmp_path: Path) -> None:
    """Ctrl-C in a reply returns to the prompt; what had come is the reply that the next turn builds on."""
    path, write = tmp_path / "a.json", Screen.write

    def interrupted(screen: Screen, text: str) -> None:
        write(screen, text)
        if text == "c" and not path.exists():
            path.touch()
            raise KeyboardInterrupt

    with mock.patch.object(Screen, "write", interrupted):
        result = puna("chat", model, tty="in", typed=["hi", "more", f"/save {path}"])
    assert (result.status, result.out) == (0, "abc\n" + REPLY)
    contents = [message["content"] for message in json.loads(path.read_text(encoding="utf-8"))]
    assert contents == ["hi", "abc", "more", REPLY[:-1]]


def test_interrupt_at_the_prompt_ends(model: Path) -> None:
    """Ctrl-C at the prompt ends the conversation with status 130, summary included."""
    result = puna("chat", model, tty="in", typed=["hi", KeyboardInterrupt(), "unheard"])
    assert (result.status, result.out) == (130, REPLY)
    assert "\nmemory " in result.err


def test_clearing_empties_the_cache(model: Path) -> None:
    """After /clear the cache holds nothing, and the next turn is answered as ever."""
    result = chat(model, "hi", "/clear", "/tokens", "ho")
    assert "cache      0 of " in result.err
    assert result.out == REPLY * 2


@pytest.mark.parametrize("words", [("chat",), ("run", "-cnv")])
def test_no_template_is_said_before_the_weights_are_loaded(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A model that cannot chat is refused from its header, before the prompt is read, with what to do instead."""
    key = "tokenizer.ggml.tokens"
    tokens = [token.replace("<|im_start|>", "<|start|>") for token in VOCABULARIES["spm"]()[key]]
    model = write_tiny(tmp_path / "a.gguf", chat_template=None, vocab="spm", metadata={key: tokens})
    command, *flags = words
    with mock.patch.object(package, "load", side_effect=AssertionError):
        result = puna(command, model, *flags, "-f", "nowhere.txt")
    assert result.status == 2
    assert "a.gguf: the model has no chat template, and no tokens of ChatML; continue a text" in result.error


def test_model_without_a_template(tmp_path: Path) -> None:
    """ChatML serves where its tokens are there; --chat-template takes another; else it is an error."""
    model = write_tiny(tmp_path / "a.gguf", chat_template=None, vocab="spm", metadata={})
    assert chat(model, "hi", words=("-n", "2")).status == 0
    assert (
        puna("chat", model, "--chat-template", "{{ messages[0].content }}", "-n", 2, stdin=b"x").status == 0
    )


def test_named_templates(tmp_path: Path) -> None:
    """--chat-template takes the name of a template in the model file."""
    key = {"tokenizer.chat_template.short": "{{ messages[-1].content }}"}
    model = alphabet(tmp_path, metadata=key)
    result = chat(model, "hi", words=("--chat-template", "short", "--verbose-prompt"))
    assert "prompt of 2 tokens:" in result.err


def test_colours_are_for_what_was_typed(model: Path) -> None:
    """--color paints the prompt of a terminal, and resets before the reply."""
    out = puna("chat", model, "--color", tty="in out", typed=["hi"]).out
    assert f"\x1b[1;32m\x1b[0m{REPLY}" in out
