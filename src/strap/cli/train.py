"""`strap train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from strap.choices import Use
from strap.cli.match_weights import choose_match_weights
from strap.cli.options import Choosing, Json, Opening, print_json
from strap.cli.progress import showing
from strap.cli.run_policies import fingerprint_run
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.provenance import fingerprint_json
from strap.runs import POLICY, is_run

if TYPE_CHECKING:
    from strap.choices import Chosen
    from strap.training import FrameCache, Trained, TrainingSettings


@dataclass(frozen=True)
class Command:
    """Train a policy on a run of `strap retrieve`, or on a dataset of demonstrations.

    Frames are decoded once into a cache, and training reads that. Killed, the same command goes on
    where it was; with more --steps it goes on from the end.
    """

    EXAMPLES: ClassVar = (
        "strap train my-run",
        "strap train demonstrations --recipe bc --out bc",
        "strap train my-run --vision frozen --steps 3000 --out small",
    )
    GROUPS: ClassVar = {
        "what is given, what is made": ("data", "out", "json"),
        "what it learns from": (
            *("recipe", "prior", "tasks", "episodes", "alpha", "match_weights", "choices"),
            *("pretrain_steps", "finetune_steps", "holdout", "windows", "cameras"),
            *("proprioception", "image_size"),
        ),
        "the policy": (
            *("preset", "kind", "vision", "history", "chunk", "normalize", "text_encoder"),
            *("attention", "min_std", "qkv_bias", "pixels", "init", "imagenet", "initial"),
        ),
        "the training": (
            *("steps", "batch", "learning_rate", "warmup", "decay", "weight_decay", "crop", "ema"),
            *("seed",),
        ),
        "where it runs, where frames lie": ("device", "compile", "frames", "cache"),
        "how the datasets are read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    data: Annotated[Path, tyro.conf.Positional]
    """a run folder, a dataset or the name of one on the hub, or a frame cache"""
    out: Path | None = None
    """the checkpoint folder (default, for a run: its folder `policy`)"""
    recipe: Literal["bc", "ft", "mt", "strap"] | None = None
    """bc: target only; ft: prior, then target; mt: prior ∪ target; strap: target ∪ retrieved
    (default: strap on a run, bc on a dataset)"""
    preset: Literal["fixed", "paper", "released"] = "fixed"
    """fixed: the paper's policy with our corrections; paper: as the paper says; released: as the
    authors' code does it, causal mask included; docs/policy.md lists the differences"""
    kind: Literal["transformer", "diffusion"] = "transformer"
    """transformer: the paper's policy; diffusion: its other one"""
    vision: Literal["resnet", "frozen"] | None = None
    """resnet: from scratch, for a GPU; frozen: features computed once, minutes on a CPU (default:
    what --frames holds, else resnet)"""
    prior: tuple[Path, ...] = ()
    """for a dataset: further datasets to pre-train on (ft) or to train on beside it (mt)"""
    choosing: Choosing = field(default_factory=Selection)
    steps: int | None = None
    """optimiser steps (default: 60000; diffusion 25000, frozen 6000)"""
    batch: int | None = None
    """windows per step (default: 32; diffusion 256, frozen 32)"""
    learning_rate: float | None = None
    """the greatest one, after the warm-up (default: 0.0001; frozen 0.001)"""
    warmup: int | None = None
    """steps over which the learning rate rises (default: 1000, diffusion 500; presets paper and
    released 10000, diffusion 0; frozen 100)"""
    weight_decay: float | None = None
    """AdamW's (default: 1e-05; diffusion of the presets paper and released 0)"""
    alpha: float | None = None
    """mt and strap: the target's share of every batch (default: every frame is as likely as any
    other)"""
    match_weights: str | None = None
    """strap: cost: matches that cost less are drawn more often; importance: matches whose frames
    are like the target's and unlike the rest of the prior's (for a run); or a file with a JSON
    list, one weight per match in the order of matches.parquet"""
    choices: Use = "use"
    """for a run: leave out what was rejected in `strap view` (RUN/augmented still holds it), and
    multiply match weights by those given there; ignore: train on all matches"""
    decay: bool = False
    """let the learning rate fall to nothing by half a cosine; --steps can't be raised later"""
    pretrain_steps: int | None = None
    """ft: steps on the prior (default: half of all)"""
    finetune_steps: int = 0
    """mt and strap: the last so many of the steps draw from the target alone"""
    holdout: int = 0
    """target demonstrations kept aside; their likelihood is logged"""
    seed: int = 1234
    """of the first weights, the batches and the held-out demonstrations"""
    history: int | None = None
    """frames the policy sees, the present one included; a run must keep the others before its
    matches (`strap retrieve --history`)"""
    chunk: int | None = None
    """actions the policy predicts; a run must keep as many frames after its matches (`strap
    retrieve --chunk`)"""
    normalize: Literal["none", "proprioception", "all"] | None = None
    """what is normalised by the data's statistics (default: proprioception, diffusion all; presets
    paper and released none)"""
    ema: bool = False
    """keep and run an exponential average of the weights"""
    init: Path | None = None
    """a checkpoint to begin with: its weights and its normalisation"""
    imagenet: str | None = None
    """ResNet-18 weights to begin with: a file (torchvision, timm or transformers) or a hub id
    (default: none; diffusion of the presets paper and released microsoft/resnet-18)"""
    initial: Literal["normal", "backbone"] | None = None
    """which weights are drawn from N(0, 0.02) at first: normal, those of the whole transformer, and
    FiLM begins with 0; backbone, those of its blocks alone (default: normal; presets paper and
    released backbone)"""
    attention: Literal["full", "causal"] | None = None
    """causal: the action that is executed is read from a token that sees the oldest frame alone
    (default: full; preset released causal)"""
    qkv_bias: Literal["on", "off"] | None = None
    """whether queries, keys and values have biases (default: on; presets paper and released off)"""
    min_std: float | None = None
    """the least standard deviation of the mixture's components (default: 0.05; presets paper and
    released 0.005)"""
    pixels: Literal["imagenet", "unit"] | None = None
    """what a ResNet sees: pixels by ImageNet's mean and deviation, or from 0 to 1 (unit) (default:
    imagenet; presets paper and released unit)"""
    crop: Literal["window", "frame"] | None = None
    """window: one random crop for all its frames; frame: one for each (default:
    window; presets paper and released frame)"""
    windows: Literal["segment", "context"] | None = None
    """segment: learn the actions of a retrieved segment's frames; context: those of every frame
    whose history and actions are among the frames kept around it, and everywhere what is repeated
    behind a trajectory's end (default: segment; presets paper and released context)"""
    text_encoder: str | None = None
    """what embeds instructions: minilm, clip, words (no model), a hub id or a local folder
    (default: minilm; clip for transformers of --preset paper or released)"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: all)"""
    proprioception: tuple[str, ...] = ()
    """which proprioception keys (default: all, but `state` where it only repeats the others)"""
    image_size: int | None = None
    """side of the images the policy sees; others are resized (default: that of --frames, else
    128)"""
    frames: Path | None = None
    """a folder that `strap cache` made of the same datasets: nothing is decoded"""
    cache: Path | None = None
    """without --frames: where decoded frames are kept (default: the user's cache folder, or
    $STRAP_CACHE)"""
    compile: Literal["auto", "on", "off"] = "auto"
    """fuse the network's operations, which takes more than a minute to begin; auto: on a GPU for
    20,000 steps or more"""
    device: str = "auto"
    """auto, cpu or cuda"""
    opening: Opening = field(default_factory=OpenOptions)
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Cache, train, say what came of it."""
        from strap.encoders.network import choose_device
        from strap.policies.settings import imagenet_preset, policy_preset
        from strap.training import train

        choose_device(self.device)  # what is wrong is noticed before frames are decoded
        network = self.network()
        out = self._out()
        with showing(quiet=self.json) as progress:
            cache, chosen = self._cache(progress)
        vision: Any = "resnet" if cache.has_frames else "frozen"
        policy = policy_preset(self.preset, kind=self.kind, vision=vision)
        training = self.training(vision, has_matches=bool(cache.retrieved))
        imagenet = self.imagenet
        if imagenet is None and self.init is None:
            imagenet = imagenet_preset(self.preset, kind=self.kind, vision=vision)
        uses_matches = training.recipe == "strap"
        if uses_matches and chosen is not None and chosen.fingerprint and not self.json:
            print(chosen)
        done = train(
            cache,
            out,
            policy=replace(policy, **network),
            training=training,
            match_weights=choose_match_weights(self.match_weights, self.data, cache, chosen)
            if uses_matches
            else None,
            about=self._about(chosen),
            init=self.init,
            imagenet=imagenet,
            device=self.device,
            quiet=self.json,
        )
        self._report(done, training.recipe)

    def _about(self, chosen: Chosen | None) -> dict[str, Any]:
        """Return what the checkpoint says of a run that is trained on."""
        if chosen is None:
            return {}
        choices = chosen.to_json()
        return {"matches": fingerprint_run(self.data), **({"choices": choices} if choices else {})}

    def _report(self, done: Trained, recipe: str) -> None:
        if self.json:
            values = {"held_out": done.held_out, "best": done.best, "best_step": done.best_step}
            print_json({"path": str(done.path), "recipe": recipe, "step": done.step, **values})
            return
        print(f"{recipe}: {done.step} steps → {done.path}")
        if done.best is not None:
            print(
                f"held-out −log π: {done.held_out:.4g} at the end, best {done.best:.4g} "
                f"at step {done.best_step}"
            )

    def _out(self) -> Path:
        if self.out is not None:
            return self.out
        if is_run(self.data):
            return self.data / POLICY
        raise StrapError(f"'{self.data}' is no run: say where the policy goes with --out FOLDER")

    def training(self, vision: Any, *, has_matches: bool) -> TrainingSettings:
        """Return the training's settings; raise for options that its recipe has no use for."""
        from strap.training import training_preset

        recipe = self.recipe or ("strap" if has_matches else "bc")
        for option, given, recipes in (
            ("--prior", self.prior, ("ft", "mt")),
            ("--match-weights", self.match_weights, ("strap",)),
        ):
            if given and recipe not in recipes:
                raise StrapError(
                    f"{option} is given, but the recipe {recipe} makes no use of it: leave it out, "
                    f"or choose --recipe {' or '.join(recipes)}"
                )
        preset = training_preset(self.preset, kind=self.kind, vision=vision)
        return replace(
            preset,
            recipe=recipe,
            ema=self.ema or preset.ema,
            decay=self.decay or preset.decay,
            **self._given("steps", "batch", "learning_rate", "warmup", "weight_decay", "seed"),
            **self._given("alpha", "pretrain_steps", "finetune_steps", "holdout"),
            **self._given("crop", "windows", "compile"),
        )

    def network(self) -> dict[str, Any]:
        """Return the policy's settings that were given; raise for those that it has no use for."""
        from strap.policies.settings import PolicySettings, policy_preset

        transformers = self._given("initial", "attention", "min_std", "qkv_bias")
        resnets = self._given("pixels")
        for kind, useless in (("diffusion", transformers), ("frozen", resnets)):
            if useless and kind in (self.kind, self.vision):
                word = next(iter(useless)).replace("_", "-")
                option = "--kind" if kind == self.kind else "--vision"
                raise StrapError(f"--{word} means nothing with {option} {kind}: leave it out")
        given = self._given("history", "chunk", "normalize") | transformers | resnets
        given |= {"qkv_bias": self.qkv_bias == "on"} if self.qkv_bias else {}
        preset = policy_preset(self.preset, kind=self.kind, vision=self.vision or "resnet")
        PolicySettings.from_json(asdict(replace(preset, **given)))  # raises where one is no use
        return given

    def _given(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _cache(self, progress: Any) -> tuple[FrameCache, Chosen | None]:
        from strap.policies.settings import text_encoder_preset
        from strap.training.cache import open_cache
        from strap.training.cache_builder import CacheOptions, build_cache
        from strap.training.cache_part import select_clips
        from strap.training.data import open_training_data

        if (self.data / "content.json").is_file():
            self._require_nothing_to_choose()
            return open_cache(self.data), None
        vision = self.vision or "resnet"
        source = open_training_data(
            self.data,
            prior=self.prior,
            whole_prior=self.recipe in ("ft", "mt"),
            selection=self.choosing,
            opening=self.opening,
            choices=self.choices,
            progress=progress,
        )
        self.training(vision, has_matches=bool(source.retrieved))  # before frames are decoded
        seen: dict[str, Any] = {
            "cameras": self.cameras,
            "proprioception": self.proprioception,
            "language": self.text_encoder or text_encoder_preset(self.preset, kind=self.kind),
            **self._given("vision", "image_size"),
        }
        if self.frames is not None:
            return select_clips(open_cache(self.frames), source, **seen), source.chosen
        options = CacheOptions(**seen)
        name = f"{self.data.stem}-{fingerprint_json([source.fingerprint(), str(options)])[:12]}"
        place = self.cache or cache_folder() / "frames" / name
        return build_cache(source, place, options, progress=progress), source.chosen

    def _require_nothing_to_choose(self) -> None:
        """Raise an error where an option would choose what a frame cache has settled already."""
        settled = ["cameras", "proprioception", "vision", "image_size", "text_encoder"]
        settled += ["prior", "frames", "cache"]
        plain = {entry.name: entry.default for entry in fields(self)}
        given = [name for name in settled if getattr(self, name) != plain[name]]
        words = [f"--{name.replace('_', '-')}" for name in given]
        if self.choosing != Selection():
            words.append("--tasks and --episodes")
        words += [] if self.opening == OpenOptions() else ["options of how datasets are read"]
        if words:
            raise StrapError(
                f"'{self.data}' is a frame cache, which {', '.join(words)} can't change: make one "
                "of what you want with `strap cache`, or train on the run or the dataset itself"
            )
