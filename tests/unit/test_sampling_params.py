"""The declarations of the sampling options, their ranges and their command line forms."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from puna.errors import RequestError
from puna.sampling import SamplingParams
from puna.sampling.options import SAMPLERS, parse_letters, parse_logit_bias, parse_names

DEFAULT_ORDER = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"


def test_defaults_are_those_of_llama_cpp() -> None:
    """Every default equals llama.cpp's since b10405."""
    params = SamplingParams()
    found = {entry.name: getattr(params, entry.name) for entry in fields(params)}
    assert found == {
        "seed": -1,
        "samplers": tuple(DEFAULT_ORDER.split(";")),
        "temp": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "repeat_last_n": 64,
        "repeat_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ("\n", ":", '"', "*"),
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "min_keep": 0,
        "logit_bias": {},
        "ignore_eos": False,
    }


def command_line(arguments: list[str]) -> SamplingParams:
    """Parse a command line with nothing but the fields' metadata."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    for entry in fields(SamplingParams):
        how = entry.metadata
        forms = [(how["flags"], how["parse"], how["help"]), *how["also"]]
        for flags, parse, text in forms:
            if parse is None:
                parser.add_argument(*flags, dest=entry.name, action="store_true", help=text)
            elif how["repeat"]:
                parser.add_argument(*flags, dest=entry.name, action="append", help=text)
            else:
                parser.add_argument(*flags, dest=entry.name, type=parse, help=text)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    for entry in fields(SamplingParams):
        if entry.metadata["repeat"] and entry.name in given:
            given[entry.name] = entry.metadata["parse"](given[entry.name])
    return SamplingParams(**given)


def test_metadata_is_enough_for_a_command_line() -> None:
    """A parser built from the metadata alone takes llama.cpp's flags."""
    line = "--temp 0.3 --top-k 7 --sampling-seq kt --ignore-eos -s 9 -l 5+1.5 --logit-bias 6-inf"
    params = command_line([*line.split(), "--dry-sequence-breaker", "none"])
    assert params == SamplingParams(
        temp=0.3,
        top_k=7,
        samplers=("top_k", "temperature"),
        ignore_eos=True,
        seed=9,
        logit_bias={5: 1.5, 6: -math.inf},
        dry_sequence_breakers=(),
    )
    assert command_line([]) == SamplingParams()


def test_every_field_has_flags_and_help() -> None:
    """Each field has a long flag and a help text, and no two fields share a flag."""
    flags = [flag for entry in fields(SamplingParams) for flag in entry.metadata["flags"]]
    flags += [flag for entry in fields(SamplingParams) for form in entry.metadata["also"] for flag in form[0]]
    assert len(flags) == len(set(flags))
    for entry in fields(SamplingParams):
        assert entry.metadata["help"]
        assert any(flag.startswith("--") for flag in entry.metadata["flags"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temp", math.nan),
        ("temp", "warm"),
        ("temp", None),
        ("temp", True),
        ("top_p", 1.01),
        ("top_p", -0.1),
        ("min_p", math.nan),
        ("typical_p", 2),
        ("xtc_probability", -1),
        ("xtc_threshold", math.inf),
        ("top_k", 1.5),
        ("top_k", False),
        ("top_k", -2),
        ("repeat_last_n", -2),
        ("repeat_penalty", 0),
        ("frequency_penalty", math.inf),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", ("",)),
        ("dry_sequence_breakers", ("x" * 41,)),
        ("dry_sequence_breakers", 3),
        ("dynatemp_range", -0.5),
        ("mirostat", 3),
        ("mirostat_tau", -1),
        ("min_keep", -1),
        ("seed", -2),
        ("seed", 2**64),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", [1]),
        ("ignore_eos", 1),
        ("samplers", "top_k;top_q"),
        ("samplers", "kq"),
        ("samplers", ("top_k", 3)),
        ("samplers", 5),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    """A value that cannot be honoured raises RequestError that names the option and what it takes."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value).startswith(f"{name}: ")
    assert caught.value.fix


def test_range_in_the_message() -> None:
    """The message gives the value and the range."""
    with pytest.raises(RequestError, match=r"top_p: 1\.5 is out of range; give a number from 0 to 1"):
        SamplingParams(top_p=1.5)


def test_numbers_of_other_types_are_normalised() -> None:
    """NumPy's numbers become Python's, and a seed of None is a random one."""
    params = SamplingParams(seed=None, temp=np.float32(0.5), top_k=np.int64(3), logit_bias={np.int32(4): 1})  # type: ignore[arg-type, dict-item]
    assert (params.seed, params.temp, params.top_k, params.logit_bias) == (-1, 0.5, 3, {4: 1.0})
    assert type(params.temp) is float
    assert type(params.top_k) is int


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("top_k;temperature", ("top_k", "temperature")),
        ("top-k;temp;typical;nucleus", ("top_k", "temperature", "typ_p", "top_p")),
        ("dry", ("dry",)),
        ("edskypmxt", tuple(DEFAULT_ORDER.split(";"))),
        ("typ", ("temperature", "typ_p", "top_p")),
        ("", ()),
        (["min_p", len], ("min_p", len)),
    ],
)
def test_orders(given: Any, expected: tuple[Any, ...]) -> None:
    """samplers takes names joined by ';', one name, letters, or a list of names and callables."""
    assert SamplingParams(samplers=given).samplers == expected


def test_letters_and_names_agree() -> None:
    """The letters of all samplers and their names parse to the same order, which is the default one."""
    assert (
        parse_letters("".join(SAMPLERS.values())) == parse_names(DEFAULT_ORDER) == SamplingParams().samplers
    )


def test_logit_bias_forms() -> None:
    """ID+BIAS and ID-BIAS are read as llama.cpp reads them, and biases of one id add up."""
    assert parse_logit_bias(["15043+1", "15043-0.25", "7-inf", "8+1e-2"]) == {
        15043: 0.75,
        7: -math.inf,
        8: 0.01,
    }


@pytest.mark.parametrize("text", ["", "5", "+1", "5*1", "5+", "5+-1", "x+1", "5+nan", "5 + 1"])
def test_malformed_logit_bias(text: str) -> None:
    """Anything else is refused, with an example."""
    with pytest.raises(RequestError, match="such as 15043"):
        parse_logit_bias([text])


@pytest.mark.parametrize(("given", "greedy"), [({"temp": 0}, True), ({"temp": -1}, True), ({}, False)])
def test_greedy(given: dict[str, Any], greedy: bool) -> None:
    """A temperature of 0 or less is greedy."""
    assert SamplingParams(**given).greedy is greedy


def test_options_do_not_need_numpy() -> None:
    """The options and the stop strings can be imported without NumPy, which the command line relies on."""
    code = "import sys, puna.sampling; assert 'numpy' not in sys.modules, 'numpy was imported'"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
