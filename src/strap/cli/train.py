"""`strap train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from strap.choices import ChoicesMode
from strap.cli.match_weights import choose_match_weights
from strap.cli.options import Json, OpenArgument, SelectionArgument, print_json
from strap.cli.progress import show_progress
from strap.cli.run_policies import fingerprint_run
from strap.datasets import OpenOptions
from strap.datasets.selection import Selection
from strap.errors import StrapError
from strap.folders import cache_folder
from strap.provenance import fingerprint_json
from strap.runs import POLICY, is_run

if TYPE_CHECKING:
    from strap.choices import ChosenMatches
    from strap.training import FrameCache, Trained, TrainingSettings


@dataclass(frozen=True)
class Command:
    """Train a policy on a run of `strap retrieve`, or on a dataset of demonstrations.

    Frames are decoded once into a cache, from which training reads them. Run the same command again
    to resume an interrupted training, or with more --steps to continue a finished one.
    """

    EXAMPLES: ClassVar = (
        "strap train my-run",
        "strap train demonstrations --recipe bc --out bc",
        "strap train my-run --vision frozen --steps 3000 --out small",
    )
    GROUPS: ClassVar = {
        "input and output": ("data", "out", "json"),
        "what the policy learns from": (
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
        "hardware and storage": ("device", "compile", "frames", "cache"),
        "how the datasets are read": (
            *("format", "orientation", "missing"),
            *("rlds_camera", "rlds_language", "rlds_action"),
        ),
    }

    data: Annotated[Path, tyro.conf.Positional]
    """a run folder, a dataset or the name of one on the hub, or a frame cache"""
    out: Path | None = None
    """the checkpoint folder (default for a run: RUN/policy)"""
    recipe: Literal["bc", "ft", "mt", "strap"] | None = None
    """bc: target only; ft: prior, then target; mt: prior ∪ target; strap: target ∪ retrieved
    (default: strap for a run, bc for a dataset)"""
    preset: Literal["fixed", "paper", "released"] = "fixed"
    """fixed: the paper's policy with our corrections; paper: as the paper describes it; released:
    as the authors' code has it, with a causal mask; docs/policy.md lists the differences"""
    kind: Literal["transformer", "diffusion"] = "transformer"
    """transformer: the paper's main policy; diffusion: the paper's diffusion policy"""
    vision: Literal["resnet", "frozen"] | None = None
    """resnet: a ResNet trained from scratch, for a GPU; frozen: image features computed once,
    trains in minutes on a CPU (default: what --frames holds, else resnet)"""
    prior: tuple[Path, ...] = ()
    """if DATA is a dataset: other datasets to pre-train on (ft) or to train on as well (mt)"""
    choosing: SelectionArgument = field(default_factory=Selection)
    steps: int | None = None
    """optimiser steps (default: 60000; diffusion 25000, frozen 6000)"""
    batch: int | None = None
    """windows per step (default: 32; diffusion 256, frozen 32)"""
    learning_rate: float | None = None
    """the learning rate after the warm-up (default: 0.0001; frozen 0.001)"""
    warmup: int | None = None
    """steps over which the learning rate rises (default: 1000, diffusion 500; presets paper and
    released 10000, diffusion 0; frozen 100)"""
    weight_decay: float | None = None
    """AdamW's weight decay (default: 1e-05; diffusion of the presets paper and released 0)"""
    alpha: float | None = None
    """mt and strap: the target's share of every batch (default: every frame is equally likely)"""
    match_weights: str | None = None
    """strap: how often each match is drawn: cost: cheaper matches more often; importance (for a
    run): matches that resemble the target more than the rest of the prior more often; or a file
    with a JSON list, one weight per match in the order of matches.parquet"""
    choices: ChoicesMode = "use"
    """for a run: use: leave out matches rejected in `strap view` (RUN/augmented still holds them)
    and multiply the match weights by those set there; ignore: train on all matches"""
    decay: bool = False
    """decay the learning rate to 0 along half a cosine; --steps can't be raised later"""
    pretrain_steps: int | None = None
    """ft: steps on the prior (default: half of all)"""
    finetune_steps: int = 0
    """mt and strap: the last N of the steps train on the target only"""
    holdout: int = 0
    """how many target demonstrations to hold out; their likelihood is logged"""
    seed: int = 1234
    """seed of the initial weights, the batches and the choice of held-out demonstrations"""
    history: int | None = None
    """frames that the policy sees, including the current one; a run must keep the others before its
    matches (`strap retrieve --history`)"""
    chunk: int | None = None
    """actions that the policy predicts; a run must keep as many frames after its matches (`strap
    retrieve --chunk`)"""
    normalize: Literal["none", "proprioception", "all"] | None = None
    """what to normalise by the data's statistics; all: proprioception and actions (default:
    proprioception, diffusion all; presets paper and released none)"""
    ema: bool = False
    """keep an exponential moving average of the weights, and use it to act"""
    init: Path | None = None
    """a checkpoint to start from: its weights and its normalisation"""
    imagenet: str | None = None
    """ResNet-18 weights to start from: a file (torchvision, timm or transformers) or a hub id
    (default: none; diffusion of the presets paper and released microsoft/resnet-18)"""
    initial: Literal["normal", "backbone"] | None = None
    """which weights are initialised from N(0, 0.02): normal: those of the whole transformer, with
    FiLM at 0; backbone: only those of the transformer's blocks (default: normal; presets paper and
    released backbone)"""
    attention: Literal["full", "causal"] | None = None
    """causal: the executed action is read from a token that sees only the oldest frame (default:
    full; preset released causal)"""
    qkv_bias: Literal["on", "off"] | None = None
    """whether queries, keys and values have biases (default: on; presets paper and released off)"""
    min_std: float | None = None
    """the least standard deviation of the mixture's components (default: 0.05; presets paper and
    released 0.005)"""
    pixels: Literal["imagenet", "unit"] | None = None
    """how a ResNet's input is scaled: imagenet: by ImageNet's mean and standard deviation; unit:
    from 0 to 1 (default: imagenet; presets paper and released unit)"""
    crop: Literal["window", "frame"] | None = None
    """window: the same random crop for all frames of a window; frame: one for each frame (default:
    window; presets paper and released frame)"""
    windows: Literal["segment", "context"] | None = None
    """segment: learn the actions at the frames of a retrieved segment; context: at every frame
    whose whole history and action chunk are among the frames kept around the segment, and also
    learn the actions that pad the end of a trajectory (default: segment; presets paper and released
    context)"""
    text_encoder: str | None = None
    """the model that embeds instructions: minilm, clip, words (no model), a hub id or a local
    folder (default: minilm; clip for transformers of --preset paper or released)"""
    cameras: tuple[str, ...] = ()
    """which cameras (default: all)"""
    proprioception: tuple[str, ...] = ()
    """which proprioception keys (default: all, except `state` if it only repeats the others)"""
    image_size: int | None = None
    """height and width of the images that the policy sees; other sizes are resized (default: the
    size in --frames, else 128)"""
    frames: Path | None = None
    """a folder that `strap cache` made from the same datasets; then nothing is decoded"""
    cache: Path | None = None
    """without --frames: the folder for decoded frames (default: the user's cache folder, or
    $STRAP_CACHE)"""
    compile: Literal["auto", "on", "off"] = "auto"
    """compile the network, which takes more than a minute at the start; auto: on a GPU for 20,000
    steps or more"""
    device: str = "auto"
    """where training runs: auto, cpu or cuda"""
    opening: OpenArgument = field(default_factory=OpenOptions)
    json: Json = False
    """print the outcome as JSON"""

    def run(self) -> None:
        """Build the frame cache, train, and print the result."""
        from strap.encoders.network import choose_device
        from strap.policies.settings import imagenet_preset, policy_preset
        from strap.training import train

        choose_device(self.device)  # report errors before frames are decoded
        network = self.network()
        out = self._out()
        with show_progress(quiet=self.json) as progress:
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

    def _about(self, chosen: ChosenMatches | None) -> dict[str, Any]:
        """Return what the checkpoint records about the run; empty if DATA is not a run."""
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
        raise StrapError(
            f"'{self.data}' is not a run: name a folder for the policy with --out FOLDER"
        )

    def training(self, vision: Any, *, has_matches: bool) -> TrainingSettings:
        """Return the training's settings; raise for options that its recipe does not use."""
        from strap.training import training_preset

        recipe = self.recipe or ("strap" if has_matches else "bc")
        for option, given, recipes in (
            ("--prior", self.prior, ("ft", "mt")),
            ("--match-weights", self.match_weights, ("strap",)),
        ):
            if given and recipe not in recipes:
                raise StrapError(
                    f"{option} is given, but the recipe {recipe} does not use it: leave it out, or "
                    f"choose --recipe {' or '.join(recipes)}"
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
        """Return the given settings of the policy; raise for those that it does not use."""
        from strap.policies.settings import PolicySettings, policy_preset

        transformers = self._given("initial", "attention", "min_std", "qkv_bias")
        resnets = self._given("pixels")
        for kind, unused in (("diffusion", transformers), ("frozen", resnets)):
            if unused and kind in (self.kind, self.vision):
                word = next(iter(unused)).replace("_", "-")
                option = "--kind" if kind == self.kind else "--vision"
                raise StrapError(f"--{word} has no effect with {option} {kind}: leave it out")
        given = self._given("history", "chunk", "normalize") | transformers | resnets
        given |= {"qkv_bias": self.qkv_bias == "on"} if self.qkv_bias else {}
        preset = policy_preset(self.preset, kind=self.kind, vision=self.vision or "resnet")
        PolicySettings.from_json(asdict(replace(preset, **given)))  # raises for invalid values
        return given

    def _given(self, *names: str) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _cache(self, progress: Any) -> tuple[FrameCache, ChosenMatches | None]:
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
        self.training(vision, has_matches=bool(source.retrieved))  # raise before decoding frames
        inputs: dict[str, Any] = {
            "cameras": self.cameras,
            "proprioception": self.proprioception,
            "language": self.text_encoder or text_encoder_preset(self.preset, kind=self.kind),
            **self._given("vision", "image_size"),
        }
        if self.frames is not None:
            return select_clips(open_cache(self.frames), source, **inputs), source.chosen
        options = CacheOptions(**inputs)
        name = f"{self.data.stem}-{fingerprint_json([source.fingerprint(), str(options)])[:12]}"
        place = self.cache or cache_folder() / "frames" / name
        return build_cache(source, place, options, progress=progress), source.chosen

    def _require_nothing_to_choose(self) -> None:
        """Raise an error if an option differs from what is fixed by the frame cache."""
        fixed = ["cameras", "proprioception", "vision", "image_size", "text_encoder"]
        fixed += ["prior", "frames", "cache"]
        defaults = {entry.name: entry.default for entry in fields(self)}
        given = [name for name in fixed if getattr(self, name) != defaults[name]]
        words = [f"--{name.replace('_', '-')}" for name in given]
        if self.choosing != Selection():
            words.append("--tasks and --episodes")
        words += [] if self.opening == OpenOptions() else ["options of how datasets are read"]
        if words:
            raise StrapError(
                f"'{self.data}' is a frame cache, which is already built, so these have no effect: "
                f"{', '.join(words)}; build another cache with `strap cache`, or train on the run "
                "or the dataset itself"
            )
