"""Flags: what each means, and what is said of a wrong one."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import fields
from typing import Any

import pytest

from puna.cli import chat, inspect, options, run, tokenize
from puna.cli.parser import Parser
from puna.errors import RequestError
from puna.sampling import SamplingParams

# The flags of one option, a text for its value (None for a switch), where the value goes, and what it becomes.
SAMPLING: list[tuple[str, str | None, str, Any]] = [
    ("-s --seed", "7", "seed", 7),
    ("--samplers", "top_k;temperature", "samplers", ("top_k", "temperature")),
    ("--sampling-seq --sampler-seq", "kt", "samplers", ("top_k", "temperature")),
    ("--temp --temperature", "0.5", "temp", 0.5),
    ("--top-k", "5", "top_k", 5),
    ("--top-p", "0.5", "top_p", 0.5),
    ("--min-p", "0.5", "min_p", 0.5),
    ("--typical --typical-p", "0.5", "typical_p", 0.5),
    ("--top-nsigma --top-n-sigma", "1.5", "top_n_sigma", 1.5),
    ("--xtc-probability", "0.5", "xtc_probability", 0.5),
    ("--xtc-threshold", "0.2", "xtc_threshold", 0.2),
    ("--repeat-last-n", "-1", "repeat_last_n", -1),
    ("--repeat-penalty", "1.1", "repeat_penalty", 1.1),
    ("--frequency-penalty", "-0.5", "frequency_penalty", -0.5),
    ("--presence-penalty", "0.5", "presence_penalty", 0.5),
    ("--dry-multiplier", "0.8", "dry_multiplier", 0.8),
    ("--dry-base", "1.5", "dry_base", 1.5),
    ("--dry-allowed-length", "3", "dry_allowed_length", 3),
    ("--dry-penalty-last-n", "32", "dry_penalty_last_n", 32),
    ("--dry-sequence-breaker", r"\n\n", "dry_sequence_breakers", ("\n\n",)),
    ("--dynatemp-range", "0.2", "dynatemp_range", 0.2),
    ("--dynatemp-exp", "1.5", "dynatemp_exponent", 1.5),
    ("--mirostat", "2", "mirostat", 2),
    ("--mirostat-ent", "4.5", "mirostat_tau", 4.5),
    ("--mirostat-lr", "0.2", "mirostat_eta", 0.2),
    ("--min-keep", "2", "min_keep", 2),
    ("-l --logit-bias", "5-inf", "logit_bias", {5: float("-inf")}),
    ("--ignore-eos", None, "ignore_eos", True),
]
OTHERS: list[tuple[str, str | None, str, Any]] = [
    ("-m --model", "a.gguf", "model", "a.gguf"),
    ("-p --prompt", "-text", "prompt", "-text"),
    ("-f --file", "a.txt", "file", "a.txt"),
    ("-n --predict --n-predict", "-1", "predict", -1),
    ("--context-shift", None, "context_shift", True),
    ("--keep", "-1", "keep", -1),
    ("--prompt-cache", "kept", "prompt_cache", "kept"),
    ("--prompt-cache-all", None, "prompt_cache_all", True),
    ("--prompt-cache-ro", None, "prompt_cache_ro", True),
    ("-c --ctx-size", "0", "ctx_size", 0),
    ("-b --batch-size", "1", "batch_size", 1),
    ("-t --threads", "2", "threads", 2),
    ("--fit", None, "fit", True),
    ("-np --parallel", "2", "parallel", 2),
    ("-ctk --cache-type-k", "q8_0", "cache_type_k", "q8_0"),
    ("-ctv --cache-type-v", "f16", "cache_type_v", "f16"),
    ("--backend", "blas", "backend", "blas"),
    ("--arch-file", "a.py", "arch_file", ["a.py"]),
    ("--no-mmap", None, "no_mmap", True),
    ("--mlock", None, "mlock", True),
    ("--mem-align", "4096", "mem_align", 4096),
    ("--no-huge-pages", None, "no_huge_pages", True),
    ("-nr --no-repack", None, "no_repack", True),
    ("-e --escape", None, "escape", True),
    ("--no-escape", None, "escape", False),
    ("-r --reverse-prompt", "User:", "reverse_prompt", ["User:"]),
    ("--verbose-prompt", None, "verbose_prompt", True),
    ("--color", "auto", "color", "auto"),
    ("-sys --system-prompt", "Be brief.", "system_prompt", "Be brief."),
    ("-sysf --system-prompt-file", "s.txt", "system_prompt_file", "s.txt"),
    ("-st --single-turn", None, "single_turn", True),
    ("--chat-template", "{{ x }}", "chat_template", "{{ x }}"),
    ("--chat-template-file", "t.jinja", "chat_template_file", "t.jinja"),
    ("-cnv --conversation", None, "conversation", True),
    ("-no-cnv --no-conversation", None, "conversation", False),
    ("--no-display-prompt", None, "no_display_prompt", True),
    ("--dump-graph", None, "dump_graph", True),
    ("--dump-plan", None, "dump_plan", True),
    ("--debug", None, "debug", True),
]
CASES = [(flag, *rest) for flags, *rest in SAMPLING for flag in flags.split()]
OTHER_CASES = [(flag, *rest) for flags, *rest in OTHERS for flag in flags.split()]


def parse(*words: str) -> argparse.Namespace:
    return run.build("puna run").parse(words)


def given(flag: str, text: str | None) -> list[str]:
    return [flag] if text is None else [flag, text]


@pytest.mark.parametrize(("flag", "text", "field", "value"), CASES, ids=[case[0] for case in CASES])
def test_each_sampling_flag_sets_its_field(flag: str, text: str | None, field: str, value: Any) -> None:
    """A sampling flag gives its field of SamplingParams that value, and no other field any."""
    assert options.sampling_of(parse(*given(flag, text))) == {field: value}


@pytest.mark.parametrize(
    ("flag", "text", "name", "value"), OTHER_CASES, ids=[case[0] for case in OTHER_CASES]
)
def test_each_other_flag_sets_its_option(flag: str, text: str | None, name: str, value: Any) -> None:
    """A flag sets its own option and leaves all others as they are."""
    expected = {**vars(parse()), name: value}
    assert vars(parse(*given(flag, text))) == expected


def test_no_flag_is_untested() -> None:
    """The two tables above are all flags of `puna run`."""
    flags = {flag for action in run.build("puna")._actions for flag in action.option_strings}
    assert {case[0] for case in CASES + OTHER_CASES} == flags - {"-h", "--help"}


def test_every_sampling_field_has_a_flag() -> None:
    """SamplingParams has no field that the command line cannot set."""
    assert {case[2] for case in CASES} == {field.name for field in fields(SamplingParams)}


def test_sampling_flags_are_the_same_everywhere() -> None:
    """`puna chat` takes every sampling flag that `puna run` takes."""
    flags = {flag for action in chat.build("puna chat")._actions for flag in action.option_strings}
    assert {case[0] for case in CASES} <= flags


def test_repeated_flags_add_up() -> None:
    """-r and -l may be given several times."""
    arguments = parse("-r", "a", "-r", r"\n", "-l", "1+1", "-l", "2-1", "-l", "1+1")
    assert options.stops_of(arguments) == ["a", "\n"]
    assert options.sampling_of(arguments) == {"logit_bias": {1: 2.0, 2: -1.0}}


def test_no_escape_leaves_backslashes() -> None:
    """With --no-escape, -p, -r and the DRY breakers keep their backslashes."""
    arguments = parse("--no-escape", "-p", r"a\n", "-r", r"\n", "--dry-sequence-breaker", r"\n")
    assert options.prompt_of(arguments) == r"a\n"
    assert options.stops_of(arguments) == [r"\n"]
    assert options.sampling_of(arguments) == {"dry_sequence_breakers": (r"\n",)}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--n_predict", "3"], "predict", 3),
        (["--n-predict=3"], "predict", 3),
        (["-p=--debug"], "prompt", "--debug"),
        (["-p", ""], "prompt", ""),
        (["-p", "--temp"], "prompt", "--temp"),
        (["-p", "a=b"], "prompt", "a=b"),
        (["--color"], "color", "on"),
        (["--color", "off"], "color", "off"),
        (["--color", "model.gguf"], "name", "model.gguf"),
        (["--", "-m"], "name", "-m"),
        (["-n", "1", "-n", "2"], "predict", 2),
        (["-n", "-2"], "predict", -2),
    ],
)
def test_forms_of_flags(words: list[str], name: str, value: Any) -> None:
    """Underscores, `=`, values with dashes, an optional value, `--` and repetition mean what llama.cpp's do."""
    assert vars(parse(*words))[name] == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tmep", "1"], "there is no flag --tmep; the nearest are --temp"),
        (["--no-warmup"], "there is no flag --no-warmup; the nearest are --no-mmap"),
        (["-zz"], "there is no flag -zz; "),
        (["--zzzzzzzzzz"], "there is no flag --zzzzzzzzzz; puna run --help lists them"),
        (["-n"], "-n: a value is missing; write -n N"),
        (["--no-mmap=1"], "--no-mmap: takes no value; leave out '=1'"),
        (["-n", "x"], "-n/--predict/--n-predict: 'x' is not a whole number"),
        (["-n", "1.5"], "'1.5' is not a whole number"),
        (["-n", "-3"], "-3 is not between -2 and 2147483647"),
        (["-c", "-1"], "-c/--ctx-size: -1 is not between 0 and 2147483647"),
        (["-b", "0"], "-b/--batch-size: 0 is not between 1 and"),
        (["-t", "two"], "-t/--threads: 'two' is not a whole number"),
        (["--temp", "hot"], "--temp/--temperature: 'hot' is not a number"),
        (["--temp", "nan"], "out of range"),
        (["--top-p", "1.5"], "--top-p: 1.5 is out of range; give a number from 0 to 1"),
        (["--top-k", "0.5"], "--top-k: '0.5' is not a whole number"),
        (["--mirostat", "3"], "--mirostat: 3 is out of range"),
        (["--samplers", "top_k;magic"], "--samplers: 'magic' names no sampler"),
        (["--sampling-seq", "kz"], "names no sampler"),
        (["-l", "five"], "-l/--logit-bias: 'five' is no token id with a bias"),
        (["--dry-sequence-breaker", ""], "has 0 bytes"),
        (["--color=pink"], "--color: 'pink' is not one of on, off, auto"),
        (["a.gguf", "b.gguf"], "unrecognized arguments: b.gguf; puna run --help lists the options"),
        (
            ["a.gguf", "--color", "blue"],
            "unrecognized arguments: blue; after --color write one of on, off, auto",
        ),
        (["--color", "blue", "a.gguf"], "unrecognized arguments: a.gguf; after --color write one of on, off"),
    ],
)
def test_wrong_flags(words: list[str], message: str) -> None:
    """A wrong flag or value is one line that names the flag and what to write."""
    with pytest.raises(RequestError) as caught:
        parse(*words)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_words_may_stand_apart() -> None:
    """The words of a command line are the same ones wherever the flags stand between them."""
    words = ["m.gguf", "a b", "--ids"]
    expected = tokenize.build("puna tokenize").parse(words)
    for order in itertools.permutations(words):
        if order.index("m.gguf") < order.index("a b"):
            assert tokenize.build("puna tokenize").parse(order) == expected


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--debug"], True),
        (["m", "-n", "1", "--debug"], True),
        (["m", "--frob", "--no_mmap", "--color", "--debug"], True),
        (["m", "-p", "--debug"], False),
        (["m", "--system_prompt", "--debug"], False),
        (["m", "-p=--debug"], False),
        (["m", "--", "--debug"], False),
    ],
)
def test_debug_is_a_flag(words: list[str], asked: bool) -> None:
    """--debug counts in a flag's place, on a line with other mistakes too, and never as a value."""
    assert run.build("puna run").debugs(words) is asked


def test_models_are_named_once() -> None:
    """The model comes by place or by -m; none, or both, is an error."""
    assert options.model_name(parse("a.gguf")) == options.model_name(parse("-m", "a.gguf")) == "a.gguf"
    with pytest.raises(RequestError, match="no model is named"):
        options.model_name(parse())
    with pytest.raises(RequestError, match="two models are named, 'a' and 'b'"):
        options.model_name(parse("a", "-m", "b"))


@pytest.mark.parametrize("module", [run, chat, inspect, tokenize], ids=lambda m: m.__name__)
def test_help_explains_every_option(module: Any) -> None:
    """Each option has a help text, in which no % breaks the formatting."""
    parser: Parser = module.build("puna x")
    assert all(action.help for action in parser._actions)
    assert len(parser.format_help().splitlines()) > len(parser._actions)
