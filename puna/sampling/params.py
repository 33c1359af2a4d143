"""What a user may ask of sampling; command line, documentation and Python API all come from these fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from puna.sampling.options import Range, biases, breakers, integer, order, real, switch

__all__ = ["SamplingParams"]

UNIT, ANY, FACTOR, NATURAL = Range(0, 1), Range(-(10**6), 10**6), Range(0.001, 1000), Range(0, 10**6)
COUNT, WINDOW = Range(0, 2**31 - 1), Range(-1, 2**31 - 1)


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options, with llama.cpp's names, flags, defaults and meanings.

    Raises RequestError, naming the option and its range, for a value that cannot be honoured.
    `samplers` also takes callables: f(logits float32 [vocab], ids int32 [n]) -> logits [vocab], where
    `ids` are the tokens so far and -inf marks a token that is ruled out; it runs at its place in the order.
    A window of -1 is every token so far, as in llama.cpp before b10405, which refuses it since.
    """

    seed: int | None = integer(
        -1, "random seed; -1 takes a new one each time", "-s", "--seed", span=Range(-1, 2**64 - 1)
    )
    samplers: str | tuple[str | Callable[[Any, Any], Any], ...] = order(
        "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
        "samplers in the order they run, joined by ';'",
        "--samplers",
        letters=("--sampling-seq", "--sampler-seq"),
    )
    temp: float = real(
        0.8, "temperature; 0 or less takes the likeliest token", "--temp", "--temperature", span=ANY
    )
    top_k: int = integer(40, "keep the k likeliest tokens; 0 keeps all", "--top-k", span=WINDOW)
    top_p: float = real(
        0.95, "keep the likeliest tokens that together reach this probability", "--top-p", span=UNIT
    )
    min_p: float = real(
        0.05, "keep tokens at least this likely, relative to the likeliest", "--min-p", span=UNIT
    )
    typical_p: float = real(
        1.0,
        "keep the most typical tokens that together reach this probability",
        "--typical",
        "--typical-p",
        span=UNIT,
    )
    top_n_sigma: float = real(
        -1.0,
        "keep logits within n standard deviations of the highest; 0 or less is off",
        "--top-nsigma",
        "--top-n-sigma",
        span=ANY,
    )
    xtc_probability: float = real(
        0.0, "chance that XTC removes the likeliest tokens", "--xtc-probability", span=UNIT
    )
    xtc_threshold: float = real(
        0.1,
        "XTC spares only the least likely of the tokens above this probability; above 0.5 is off",
        "--xtc-threshold",
        span=UNIT,
    )
    repeat_last_n: int = integer(
        64, "how many last tokens the penalties look at; 0 is none, -1 all", "--repeat-last-n", span=WINDOW
    )
    repeat_penalty: float = real(
        1.0, "divides the logit of a token already seen; 1 is off", "--repeat-penalty", span=FACTOR
    )
    frequency_penalty: float = real(
        0.0, "taken from a token's logit each time it was seen", "--frequency-penalty", span=ANY
    )
    presence_penalty: float = real(
        0.0, "taken from a token's logit once it was seen", "--presence-penalty", span=ANY
    )
    dry_multiplier: float = real(
        0.0, "strength of DRY, which penalises repeated sequences; 0 is off", "--dry-multiplier", span=NATURAL
    )
    dry_base: float = real(
        1.75,
        "DRY's penalty grows by this with each token a repetition is longer",
        "--dry-base",
        span=Range(1, 1000),
    )
    dry_allowed_length: int = integer(
        2, "length of repetition that DRY lets pass", "--dry-allowed-length", span=COUNT
    )
    dry_penalty_last_n: int = integer(
        64, "how many last tokens DRY looks at; 0 is none, -1 all", "--dry-penalty-last-n", span=WINDOW
    )
    dry_sequence_breakers: tuple[str, ...] = breakers(
        ("\n", ":", '"', "*"),
        "text that ends a sequence for DRY, in place of the default ones; 'none' for none",
        "--dry-sequence-breaker",
    )
    dynatemp_range: float = real(
        0.0,
        "let the temperature follow the entropy, this far to either side; 0 is off",
        "--dynatemp-range",
        span=NATURAL,
    )
    dynatemp_exponent: float = real(
        1.0, "how the entropy maps to the temperature", "--dynatemp-exp", span=NATURAL
    )
    mirostat: int = integer(
        0,
        "1 or 2 for that version of Mirostat, which replaces all samplers but the temperature",
        "--mirostat",
        span=Range(0, 2),
    )
    mirostat_tau: float = real(5.0, "Mirostat's target surprise, in bits", "--mirostat-ent", span=NATURAL)
    mirostat_eta: float = real(0.1, "Mirostat's learning rate", "--mirostat-lr", span=NATURAL)
    min_keep: int = integer(0, "the least number of tokens a sampler leaves", "--min-keep", span=COUNT)
    logit_bias: Mapping[int, float] = biases(
        "added to the logit of a token: ID+BIAS or ID-BIAS", "-l", "--logit-bias"
    )
    ignore_eos: bool = switch("never end the text: rules out the end tokens", "--ignore-eos")

    def __post_init__(self) -> None:
        if self.seed is None:
            object.__setattr__(self, "seed", -1)
        for entry in fields(self):
            checked = entry.metadata["check"](entry.name, getattr(self, entry.name))
            object.__setattr__(self, entry.name, checked)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the seed."""
        return self.temp <= 0 and self.dynatemp_range == 0
