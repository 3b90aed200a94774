"""Help texts: every option is explained, examples are calls that parse, mistakes are answered."""

from __future__ import annotations

import re
import shlex
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import tyro

from strap.cli import main
from strap.cli.help import format_help, options_of
from strap.cli.page import format_page, list_commands
from strap.policies.settings import Kind, Preset, Vision, imagenet_preset, policy_preset
from strap.training.settings import training_preset

ALL = list_commands()
PAGE = Path(__file__).parent.parent / "docs" / "commands.md"


def test_the_page_of_commands_is_what_they_print() -> None:
    assert PAGE.read_text() == format_page(ALL), "python -m strap.cli.page > docs/commands.md"


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_explained(name: str) -> None:
    shown = format_help(name, ALL[name])
    for option in options_of(ALL[name]):
        assert option.text, option.word
        assert option.word in shown
        assert option.text.count("default") <= 1
    assert max(map(len, shown.splitlines())) <= 100
    assert "None" not in shown


@pytest.mark.parametrize("name", ALL)
def test_options_are_those_of_the_parser(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no description is wrapped
    with pytest.raises(SystemExit):
        tyro.cli(ALL[name], args=["-h"], config=(tyro.conf.FlagCreatePairsOff,))
    told = re.findall(r"^\W*(--[a-z][a-z-]*)", capsys.readouterr().out, flags=re.M)
    words = {option.word for option in options_of(ALL[name]) if not option.is_positional}
    assert set(told) - {"--help"} == words


@pytest.mark.parametrize("name", ALL)
def test_groups_name_real_options_once(name: str) -> None:
    names = [name for names in getattr(ALL[name], "GROUPS", {}).values() for name in names]
    assert len(names) == len(set(names))
    assert set(names) <= {option.name for option in options_of(ALL[name])}


@pytest.mark.parametrize("name", [name for name in ALL if " " not in name])
def test_examples_parse(name: str) -> None:
    assert ALL[name].EXAMPLES
    for example in ALL[name].EXAMPLES:
        words = shlex.split(example.removesuffix(" …"))
        assert words[:2] == ["strap", name]
        if example.endswith("…"):
            words += ["--out", "run"]
        tyro.cli(ALL[name], args=words[2:], config=(tyro.conf.FlagCreatePairsOff,))


def test_the_longest_help_fits_two_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert len(format_help("retrieve", ALL["retrieve"]).splitlines()) <= 122


def test_a_default_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retrieve", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "how many matches to keep in all (default: 100); auto:" in shown
    assert "--rule even|released even: exactly" in shown


def test_defaults_of_training_are_those_of_the_presets() -> None:
    texts = {option.name: option.text for option in options_of(ALL["train"])}
    for preset, kind, vision in product(*map(get_args, (Preset, Kind, Vision))):
        training = training_preset(preset, kind=kind, vision=vision)
        policy = policy_preset(preset, kind=kind, vision=vision)
        imagenet = imagenet_preset(preset, kind=kind, vision=vision)
        of_training = (
            "steps",
            "batch",
            "learning_rate",
            "warmup",
            "weight_decay",
            "crop",
            "windows",
        )
        of_policy = ("normalize", "initial", "attention", "min_std", "pixels")
        values: dict[str, object] = {name: getattr(training, name) for name in of_training}
        values |= {name: getattr(policy, name) for name in of_policy}
        values |= {"imagenet": imagenet or "none", "qkv_bias": "on" if policy.qkv_bias else "off"}
        is_default = (preset, kind, vision) == ("fixed", "transformer", "resnet")
        for name, value in values.items():
            told = re.split(r"[ ,;)]+", texts[name].partition("(default: ")[2])
            shown = "0" if value == 0 else str(value)
            assert shown in (told[:1] if is_default else told), (preset, kind, vision, name, value)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["retrieve", "--targt", "x"], "did you mean --target?"),
        (["train", "x", "--step", "5"], "did you mean --steps?"),
        (["store", "verify", "x", "--dropp"], "did you mean --drop?"),
        (["evaluate", "x", "--videos"], "did you mean --no-videos?"),
        (["doctor", "--frobnicate"], "has no option --frobnicate: All of them"),
    ],
)
def test_a_misspelt_option_names_the_nearest(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert hint in told
    assert len(told.splitlines()) == 1


def test_an_option_that_took_the_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--encoder", "pixels", "--cameras", "front", "data", "--out", "s"]) == 2
    told = capsys.readouterr().err
    assert "found no DATASET: --cameras takes every word that follows" in told
    assert "strap embed DATASET --cameras …" in told
    assert len(told.splitlines()) == 1


def test_arguments_are_found_before_and_between_options() -> None:
    from strap.cli.help import require_positionals_first

    embed = ALL["embed"]
    require_positionals_first("embed", embed, ["data", "--cameras", "front", "wrist"])
    require_positionals_first("embed", embed, ["--cameras", "front", "--batch", "8", "data"])
    require_positionals_first("embed", embed, ["--cameras=front", "data"])
    require_positionals_first("embed", embed, ["--json", "data", "--tasks", "mug"])
    require_positionals_first("embed", embed, ["--batch", "8"])  # missing, and no option took it


def test_both_spellings_of_an_option_are_known() -> None:
    from strap.cli.help import require_known_words

    require_known_words("retrieve", ALL["retrieve"], ["--top_k", "3", "--top-k=3", "--out", "-1"])
