"""Read an experiment's TOML file as frozen data; unknown keys are errors."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strap.errors import StrapError, unknown

TRAINERS = ("bc", "ft", "mt", "strap")
RETRIEVALS = ("strap", "d-t", "d-s", "br", "fr", "random", "language")
STAGES = ("cache", "pretrain", "retrieve", "train", "evaluate")
"""tables of options, one per command; `pretrain` is `strap train` on the prior"""
SET_BY_RUNNER = {
    "cache": ("out", "json"),
    "train": (
        *("out", "recipe", "prior", "tasks", "episodes", "init", "frames", "cache"),
        *("seed", "json"),
    ),
    "retrieve": (
        *("target", "target_tasks", "target_episodes", "prior", "method", "encoder", "top_k"),
        *("stores", "out", "augmented", "report", "overwrite", "json"),
    ),
    "evaluate": ("suite", "task", "out", "workers", "against", "first", "seed", "json"),
}
"""command -> options whose values the experiment sets"""
INSTEAD_OF_TOP_K = ("fraction", "threshold")
"""options of `strap retrieve` that limit the number of matches instead of top_k"""
KEYS = (
    *("name", "suite", "target", "prior", "demonstrations", "encoder", "top_k", "seeds"),
    *("compare", "tasks", "methods", "paper", *STAGES),
)
METHOD_KEYS = (
    *("name", "train", "retrieval", "pretrained", "top_k", "encoder", "seeds"),
    *("retrieve_options", "train_options"),
)

Options = Mapping[str, Any]
"""option of `strap`, with underscores -> value"""
KnownOptions = Mapping[str, Mapping[str, bool]]
"""command -> {its option, such as `--top-k` or `--no-videos` -> whether it is a flag}"""


@dataclass(frozen=True)
class Method:
    """A method of the experiment: how it retrieves and how it trains."""

    name: str
    train: str
    retrieval: str | None
    top_k: tuple[int, ...]
    """how many matches; empty where nothing is retrieved, or options say how much"""
    encoders: tuple[str, ...]
    """empty where nothing is retrieved"""
    seeds: tuple[int, ...]
    pretrained: bool = False
    """whether training begins with a policy that was trained on the whole prior"""
    retrieve_options: Options = field(default_factory=dict)
    train_options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's file."""

    name: str
    suite: str
    target: str
    """the target dataset's name below the data folder"""
    prior: tuple[str, ...]
    """names below the data folder, or patterns such as `libero_90*`"""
    demonstrations: tuple[str, ...]
    """positions of the target demonstrations that are trained on; each is a repetition"""
    encoder: str
    tasks: Mapping[str, str]
    """short name -> instruction"""
    methods: tuple[Method, ...]
    states: tuple[int, int]
    """the first fixed initial state of the evaluation, and the one after the last"""
    options: Mapping[str, Options]
    compare: tuple[str, ...]
    """methods that every other one is compared with, state by state"""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """method, or method and K ("STRAP K=200") -> task -> the published success rate in per cent"""

    def published(self, method: str, top_k: int | None) -> Mapping[str, float]:
        """Return the published rates of a method by task, for this K if there are any."""
        return self.paper.get(f"{method} K={top_k}") or self.paper.get(method) or {}


def read_experiment(path: str | Path, known: KnownOptions | None = None) -> Experiment:
    """Read and check an experiment's file.

    Args:
        path: a TOML file.
        known: the options of each command; if given, other options are errors.
    """
    path = Path(path).expanduser()
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise StrapError(f"no such file: '{path}'; check the path") from error
    except (OSError, ValueError) as error:
        raise StrapError(f"cannot read '{path}' as TOML ({error}): correct that line") from error
    try:
        return _read(raw, known)
    except StrapError as error:
        raise StrapError(f"'{path}': {error}") from error


def _read(raw: dict[str, Any], known: KnownOptions | None) -> Experiment:
    _check_keys("key", raw, KEYS)
    options = {stage: _options(raw.get(stage, {}), stage, known) for stage in STAGES}
    states = parse_states(options["evaluate"].pop("episodes", "0:20"))
    tasks = _typed(raw, "tasks", dict, {})
    if not tasks or not all(isinstance(text, str) and text for text in tasks.values()):
        raise StrapError('[tasks] must give each short name its instruction: Mug-Mug = "put …"')
    methods = _methods(raw, known)
    names = [method.name for method in methods]
    compare = tuple(raw.get("compare", [name for name in ("BC", "STRAP") if name in names]))
    for name in compare:
        if name not in names:
            raise unknown("method to compare with", name, names)
    return Experiment(
        name=_typed(raw, "name", str),
        suite=_typed(raw, "suite", str, "libero_10"),
        target=_typed(raw, "target", str),
        prior=_texts(raw, "prior"),
        demonstrations=_texts(raw, "demonstrations"),
        encoder=_typed(raw, "encoder", str),
        tasks=tasks,
        methods=methods,
        states=states,
        options=options,
        compare=compare,
        paper=_paper(raw.get("paper", {}), methods, tasks),
    )


def _methods(raw: dict[str, Any], known: KnownOptions | None) -> tuple[Method, ...]:
    entries = raw.get("methods")
    if not isinstance(entries, list) or not entries:
        raise StrapError('there is no method: give at least one [[methods]] with name = "BC"')
    methods = tuple(_method(entry, raw, known) for entry in entries)
    names: dict[str, str] = {}
    for method in methods:
        if other := names.get(folder_name(method.name)):
            raise StrapError(
                f"methods '{other}' and '{method.name}' would share their folders: rename one"
            )
        names[folder_name(method.name)] = method.name
    return methods


def _method(entry: Any, raw: dict[str, Any], known: KnownOptions | None) -> Method:
    if not isinstance(entry, dict):
        raise StrapError(f"a method is {entry!r}: it must be a table, [[methods]]")
    _check_keys("key of a method", entry, METHOD_KEYS)
    name = _typed(entry, "name", str)
    train, retrieval = entry.get("train"), entry.get("retrieval")
    if train not in TRAINERS:
        raise unknown(f"train of method {name}", train, TRAINERS)
    if retrieval is not None and retrieval not in RETRIEVALS:
        raise unknown(f"retrieval of method {name}", retrieval, RETRIEVALS)
    if (train == "strap") != (retrieval is not None):
        raise StrapError(
            f"method {name} has train = '{train}' and retrieval = {retrieval!r}: train = 'strap' "
            "needs a retrieval, and the others must not have one"
        )
    if retrieval is None:
        for key in ("top_k", "encoder", "retrieve_options"):
            if key in entry:
                raise StrapError(f"method {name} retrieves nothing: remove its {key}")
    options = _options(entry.get("retrieve_options", {}), "retrieve", known)
    given = {*raw.get("retrieve", {}), *options}
    instead = next((key for key in INSTEAD_OF_TOP_K if key in given), None)
    if instead and "top_k" in entry:
        raise StrapError(f"method {name} has top_k and {instead}: remove one")
    top_k = entry.get("top_k", raw.get("top_k", 100))
    if retrieval and top_k == "auto" and not instead:
        options, instead = {**options, "top_k": "auto"}, "top_k"
    return Method(
        name=name,
        train=train,
        retrieval=retrieval,
        top_k=() if instead or not retrieval else _top_k(top_k),
        encoders=_texts({"encoder": raw.get("encoder")} | entry, "encoder") if retrieval else (),
        seeds=_seeds(entry.get("seeds", raw.get("seeds", [1234]))),
        pretrained=_pretrained(entry, name, train),
        retrieve_options=options,
        train_options=_options(entry.get("train_options", {}), "train", known),
    )


def _pretrained(entry: dict[str, Any], name: str, train: str) -> bool:
    """Return whether a method starts from a policy of the prior: FT always, STRAP on request."""
    pretrained = entry.get("pretrained", train == "ft")
    if not isinstance(pretrained, bool):
        raise StrapError(f"pretrained of method {name} is {pretrained!r}: give true or false")
    if "pretrained" in entry and train != "strap":
        raise StrapError(
            f"method {name} has pretrained and train = '{train}': remove it, because only train = "
            "'strap' can set it (ft always starts from a policy of the prior, the others never do)"
        )
    return pretrained


def _options(given: Any, stage: str, known: KnownOptions | None) -> dict[str, Any]:
    command = "train" if stage == "pretrain" else stage
    if not isinstance(given, dict):
        raise StrapError(f"the options of {stage} are {given!r}: they must be a table")
    for key, value in given.items():
        if key in SET_BY_RUNNER[command]:
            raise StrapError(f"'{key}' of [{stage}] is set by the runner itself: remove it")
        scalars = value if isinstance(value, list) else [value]
        if not all(isinstance(one, bool | int | float | str) for one in scalars):
            raise StrapError(f"'{key}' of [{stage}] is {value!r}: give a text, number or list")
        if known is not None:
            _check_option(key, value, command, known[command])
    return dict(given)


def _check_option(key: str, value: Any, command: str, known: Mapping[str, bool]) -> None:
    words = {f"--{option_name(key)}", f"--no-{option_name(key)}"} & set(known)
    if words and isinstance(value, bool) and not any(known[word] for word in words):
        raise StrapError(
            f"'{key}' is {str(value).lower()}, but --{option_name(key)} of strap {command} takes a "
            "value: give it as a text or a number"
        )
    if not words:
        names = {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in known}
        allowed = sorted(names - set(SET_BY_RUNNER[command]))
        raise unknown(f"option of strap {command}", key, allowed)


def _paper(
    raw: Any, methods: tuple[Method, ...], tasks: Mapping[str, str]
) -> Mapping[str, Mapping[str, float]]:
    names = [method.name for method in methods]
    names += [f"{method.name} K={top_k}" for method in methods for top_k in method.top_k]
    _check_keys("method of [paper]", raw, names)
    for method, rates in raw.items():
        _check_keys(f"task of [paper.{method}]", rates, tasks)
        for task, rate in rates.items():
            if not isinstance(rate, int | float) or not 0 <= rate <= 100:
                raise StrapError(
                    f"[paper.{method}] says {rate!r} for {task}: give a rate in per cent"
                )
    return {method: dict(rates) for method, rates in raw.items()}


def parse_states(text: Any) -> tuple[int, int]:
    """Return the range of initial states (first, stop) that "0:20" or 20 describes.

    >>> parse_states("20:40"), parse_states(20)
    ((20, 40), (0, 20))
    """
    found = re.fullmatch(r"(?:(\d+):)?(\d+)", str(text))
    if not found or int(found[2]) <= int(found[1] or 0):
        raise StrapError(
            f"episodes is {text!r}: give a range of initial states, such as '0:20', or their count"
        )
    return int(found[1] or 0), int(found[2])


def option_name(key: str) -> str:
    """Return an option's name as on the command line, without the leading dashes."""
    return key.replace("_", "-")


def folder_name(text: str) -> str:
    """Return a text as a valid name of a folder.

    >>> folder_name("STRAP + fused, 0.5")
    'STRAP-fused-0.5'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "unnamed"


def _check_keys(kind: str, given: Any, known: Collection[str]) -> None:
    if not isinstance(given, dict):
        raise StrapError(f"{given!r} must be a table")
    for key in given:
        if key not in known:
            raise unknown(kind, key, known)


def _typed(raw: dict[str, Any], key: str, kind: type, default: Any = None) -> Any:
    value = raw.get(key, default)
    if not isinstance(value, kind) or value == "":
        words = "missing" if value is None else repr(value)
        raise StrapError(f"'{key}' is {words}: give a {'table' if kind is dict else 'text'}")
    return value


def _texts(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key)
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise StrapError(f"'{key}' is {value!r}: give a text, or a list of texts")
    return _require_distinct(key, texts)


def _seeds(value: Any) -> tuple[int, ...]:
    seeds = value if isinstance(value, list) else [value]
    if not seeds or not all(type(seed) is int for seed in seeds):
        raise StrapError(f"seeds is {value!r}: give whole numbers, such as [1234, 42]")
    return _require_distinct("seeds", seeds)


def _top_k(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(k) is int and k > 0 for k in values):
        raise StrapError(
            f"top_k is {value!r}: give a whole number above 0, a list of such, or auto"
        )
    return _require_distinct("top_k", values)


def _require_distinct(key: str, values: list[Any]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise StrapError(f"'{key}' is {values!r}: give each value once")
    return tuple(values)
