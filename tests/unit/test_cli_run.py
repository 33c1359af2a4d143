"""`puna run`: what goes to which stream, and when it ends."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
from cli_runs import ENDLESS, alphabet, puna
from tiny_model import write_tiny

import puna as package


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return alphabet(tmp_path)


def test_output_is_the_text_alone(model: Path) -> None:
    """Prompt and continuation go to standard output, nothing else does; the exit status is 0."""
    result = puna("run", model, "-p", "from w", "-n", 8)
    assert (result.status, result.out) == (0, "from wxyz\n")


def test_llama_cpp_form_is_run(model: Path) -> None:
    """`puna -m MODEL -p TEXT` gives what `puna run MODEL -p TEXT` gives."""
    assert puna("-m", model, "-p", "from w").out == puna("run", model, "-p", "from w").out


def test_opening_and_summary(model: Path) -> None:
    """Standard error says once at the start what runs on what, and at the end speed and memory by region."""
    result = puna("run", model, "-p", "from w")
    first, last = result.err.split("\n\n")
    assert re.fullmatch(rf"{re.escape(str(model))} \(llama\) on \w+: .*\d threads?.*", first)
    assert re.search(
        r"prompt +6 tokens, [\d.]+ tokens/s, first token after [\d.]+ s\n"
        r"generated +4 tokens, [\d.]+ tokens/s\n"
        r"memory +weights [\d.]+ .?i?B, compute buffer [\d.]+ .?i?B, KV cache [\d.]+ .?i?B, scratch [\d.]+ .?i?B, "
        r"total [\d.]+ .?i?B\n"
        r"model +.*alphabet.gguf on \w+: .*\n$",
        last,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-n", "2"], "stopped at the limit of 2 tokens (-n)"),
        (["-n", "1"], "stopped at the limit of 1 token (-n)"),
        (["-n", "0"], "stopped at the limit of 0 tokens (-n)"),
        (["-c", "16"], "stopped: the context of 16 tokens is full (-c)"),
        (["-c", "16", "-n", "-2"], "stopped: the context of 16 tokens is full (-c)"),
    ],
)
def test_limits_are_said(tmp_path: Path, words: list[str], said: str) -> None:
    """A text that a limit ended says which limit, last."""
    model = alphabet(tmp_path, follow=ENDLESS)
    assert puna("run", model, "-p", "a", *words).err.splitlines()[-1] == said


def test_one_token_is_singular(model: Path) -> None:
    """A context of 1 is a context of 1 token."""
    assert "the context of 1 token is full" in puna("run", model, "-p", "a", "-c", 1).err


def test_a_full_context_is_used_up(tmp_path: Path) -> None:
    """A context of 8 holds a prompt of 3 and 5 more tokens; the one after them needs no place."""
    model = alphabet(tmp_path, follow=ENDLESS)
    assert puna("run", model, "-p", "abc", "-c", 8).out == "abcdefghi\n"


def test_no_limit_nothing_said(model: Path) -> None:
    """A text that the model ended itself has no such line."""
    assert "stopped" not in puna("run", model, "-p", "w").err


def test_reverse_prompt_ends_the_text(model: Path) -> None:
    """The text ends before a stop string, of which nothing is shown."""
    assert puna("run", model, "-p", "a", "-r", "ijk", "-r", "xyz").out == "abcdefgh\n"


def test_no_display_prompt(model: Path) -> None:
    """--no-display-prompt leaves the continuation alone."""
    assert puna("run", model, "-p", "from w", "--no-display-prompt").out == "xyz\n"


def test_prompts_from_everywhere(model: Path, tmp_path: Path) -> None:
    """-p, -f, standard input by `-` and a pipe give the same text, one new line at its end aside."""
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"a\nw\n")
    expected = "a\nwxyz\n"
    assert puna("run", model, "-p", r"a\nw").out == expected
    assert puna("run", model, "-f", file).out == expected
    assert puna("run", model, "-f", "-", stdin=b"a\nw\n").out == expected
    assert puna("run", model, "-p", "-", stdin=b"a\nw").out == expected
    assert puna("run", model, stdin=b"a\nw\n").out == expected


def test_standard_input_keeps_its_backslashes(model: Path) -> None:
    """Escapes are for what is typed into a command line, not for what is piped in."""
    assert puna("run", model, stdin=rb"\nw").out == "\\nwxyz\n"
    assert puna("run", model, "-p", r"\nw", "--no-escape").out == "\\nwxyz\n"


def test_verbose_prompt(model: Path) -> None:
    """--verbose-prompt shows each id of the prompt with its piece, on standard error."""
    result = puna("run", model, "-p", "w the", "--verbose-prompt", "-n", 0)
    assert "prompt of 2 tokens:\n      86  'w'\n     258  ' the'\n" in result.err


def test_seed_decides(tmp_path: Path) -> None:
    """The same seed gives the same text, another one another."""
    model = write_tiny(tmp_path / "a.gguf")
    texts = [puna("run", model, "-p", "a", "-n", 12, "-s", seed).out for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_greedy_needs_no_seed(tmp_path: Path) -> None:
    """--temp 0 gives the same text each time."""
    model = write_tiny(tmp_path / "a.gguf", architecture="gemma3", vocab="spm", quant="Q8_0")
    first, second = (puna("run", model, "-p", "a", "-n", 8, "--temp", 0) for _ in range(2))
    assert first.out == second.out
    assert first.status == 0


def test_sampling_flags_reach_the_sampler(model: Path) -> None:
    """A bias that rules out the expected token, and --ignore-eos, change the text."""
    x = "ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz".index("x") + 32
    assert "x" not in puna("run", model, "-p", "w", "-n", 1, "-l", f"{x}-inf", "--no-display-prompt").out
    result = puna("run", model, "-p", "z", "-n", 4, "--ignore-eos", "--temp", 0)
    assert "stopped at the limit of 4 tokens" in result.err


@pytest.mark.parametrize("words", [["-ctk", "q8_0", "-ctv", "f16"], ["-b", "1"], ["-t", "1"], ["--no-mmap"]])
def test_loading_flags_change_no_text(model: Path, words: list[str]) -> None:
    """Types of the cache, batch size, threads and mapping are honoured; the text stays."""
    result = puna("run", model, "-p", "from w", *words)
    assert (result.status, result.out) == (0, "from wxyz\n")


def test_loading_flags_arrive(model: Path) -> None:
    """The loading flags reach puna.load under its own names."""
    with mock.patch.object(package, "load", side_effect=package.PunaError("seen"), create=True) as load:
        numbers = ("-c", "64", "-b", "8", "-t", "2")
        words = ("-ctk", "q8_0", "-ctv", "f16", "--backend", "blas", "--no-mmap", "-nr")
        words += ("--mlock", "--mem-align", "128", "--no-huge-pages")
        assert puna("run", model, "-p", "a", *numbers, *words).error == "seen"
    (name,), given = load.call_args
    assert name == str(model)
    assert {**given, "progress": None} == {
        "backend": "blas",
        "n_ctx": 64,
        "threads": 2,
        "n_batch": 8,
        "cache_type_k": "q8_0",
        "cache_type_v": "f16",
        "mmap": False,
        "mlock": True,
        "mem_align": 128,
        "huge_pages": False,
        "repack": False,
        "parallel": 4,
        "fit": False,
        "progress": None,
    }


def test_colour_sets_off_the_prompt(model: Path) -> None:
    """--color paints the prompt; auto does so at a terminal only; by default nothing is painted."""
    painted = "\x1b[33mfrom w\x1b[0mxyz\n"
    words = ("run", model, "-p", "from w")
    assert puna(*words, "--color").out == painted
    assert puna(*words, "--color", "auto", tty="out").out == painted
    assert puna(*words, "--color", "auto").out == puna(*words, tty="out").out == "from wxyz\n"


def test_output_is_utf8_whatever_the_terminal_says(model: Path) -> None:
    """Text outside the terminal's encoding neither fails nor changes."""
    result = puna("run", model, "-p", "é€w", encoding="ascii")
    assert (result.status, result.out) == (0, "é€wxyz\n")


def test_terminals_get_no_control_characters(tmp_path: Path) -> None:
    """What a model generates cannot steer a terminal; a pipe gets it as it is."""
    escape = chr(0x100 + 27)  # the byte 0x1b in GPT-2's alphabet
    model = alphabet(tmp_path, follow={"w": escape, escape: "<|im_end|>"})
    assert puna("run", model, "-p", "w", tty="out").out == "w\\x1b\n"
    assert puna("run", model, "-p", "w").out == "w\x1b\n"


def test_dump_graph_and_plan(model: Path) -> None:
    """--dump-graph and --dump-plan print and generate nothing, and need no prompt."""
    graph = puna("run", model, "--dump-graph")
    assert "embed(token_embd.weight, " in graph.out.splitlines()[1]
    plan = puna("run", model, "--dump-plan")
    assert "kernel" in plan.out.splitlines()[0]
    assert "compute buffer" in plan.out.splitlines()[-1]
    assert graph.status == plan.status == 0
    assert graph.err == plan.err == ""


def test_notes_are_shown(tmp_path: Path) -> None:
    """What the user must know about the file or the context stands after the opening line."""
    model = alphabet(tmp_path, n_ctx=32, metadata={"tokenizer.ggml.pre": None})
    notes = [line for line in puna("run", model, "-p", "w", "-c", 64).err.splitlines() if "note:" in line]
    assert len(notes) == 2
    assert any("a context of 64 exceeds the 32 that the model was trained on" in note for note in notes)
    assert any("'tokenizer.ggml.pre' is missing" in note for note in notes)


def test_without_a_prompt_a_terminal_gets_a_conversation(model: Path, tmp_path: Path) -> None:
    """No text, a terminal and a chat template start a conversation; -no-cnv and a prompt do not."""
    assert puna("run", model, tty="in", typed=["hi"]).out == "abcdefghijklmnopqrstuvwxyz\n"
    assert puna("-m", model, tty="in", typed=["hi"]).out == "abcdefghijklmnopqrstuvwxyz\n"
    assert puna("run", model, "-p", "w", tty="in").out == "wxyz\n"
    assert "prompt is empty" in puna("run", model, "-no-cnv", tty="in").error
    plain = alphabet(tmp_path, chat_template=None)
    assert "prompt is empty" in puna("run", plain, tty="in").error


@pytest.mark.parametrize(
    "words", [["-cnv"], ["-sys", "Be brief."], ["--chat-template", "chatml"], ["-no-cnv", "-cnv"]]
)
def test_conversation_on_demand(model: Path, words: list[str]) -> None:
    """-cnv, and what implies it, make the prompt the first message, and standard input the next ones."""
    result = puna("-m", model, "-p", "hi", *words, stdin=b"again\n")
    assert result.out == "abcdefghijklmnopqrstuvwxyz\n" * 2
