"""`repair-hf world build|serve`: draw the toy world, serve its LLM.

`build` writes a folder of pictures with captions. `serve` runs an OpenAI-compatible endpoint on loopback, to try
retries, limits and kills over a real connection.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Literal

from repair_hf.cli.subcommands import suggest, unused
from repair_hf.runtime.options import SEEDS, Bounded, opt
from repair_hf.toyworld.corpus import SEED, SPLITS, build_world

EPILOG = """examples:
  repair-hf world build --output runs/world
  repair-hf world build --train 10000 --output runs/large
  repair-hf world serve --port 8000"""


@dataclass
class BuildOptions(Bounded):
    _argument_group_name = "world"

    output: str = opt("runs/world", "Folder of the world.")
    domain: Literal["plain", "web", "target"] = opt(
        "target",
        "`target`: for the demo and the study. `web`: what `world/base` is pretrained on. `plain`: without faults.",
    )
    train: int = opt(SPLITS["train"], "Training pictures; five captions each.", least=1)
    validation: int = opt(SPLITS["validation"], "Validation pictures.", least=1)
    test: int = opt(SPLITS["test"], "Test pictures.", least=1)
    seed: int = opt(SEED, "Seed of scenes and captions.", least=0, most=SEEDS - 1)


@dataclass
class ServeOptions(Bounded):
    """Where the oracle listens, and which faults it simulates."""

    port: int = opt(8000, "Port on 127.0.0.1; 0 takes a free one.", least=0, most=65535)
    llm: str = opt(
        "world/oracle",
        "The model: world/oracle, world/erring, or one with faults: world/oracle?missed=0.1.",
    )


def build(options: BuildOptions) -> None:
    """Draw the world's pictures and write their captions. The test split does not depend on the other sizes."""
    splits = {name: getattr(options, name) for name in SPLITS}
    folder = build_world(options.output, splits=splits, seed=options.seed, domain=options.domain)
    print("world   " + ", ".join(f"{count:,} {name}" for name, count in splits.items()) + f" pictures   -> {folder}")
    suggest("mine", "--pairs", str(folder), "--model", "world/base", "--output", unused("runs/failures"))


def serve(options: ServeOptions) -> None:
    """Serve the scripted LLM as an OpenAI-compatible endpoint on 127.0.0.1, until interrupted."""
    from repair_hf.toyworld import oracle
    from repair_hf.toyworld.errors import LLMS, errors_of
    from repair_hf.toyworld.server import ChatServer

    answer = partial(oracle.answer_to, errors=errors_of(options.llm, LLMS))

    with ChatServer(answer, port=options.port) as server:
        url = server.base_url
        print(f"serve   the oracle, by OpenAI's protocol, at {url}", flush=True)  # a program may wait for the address
        print("It needs no key, but LiteLLM requires one to be set: OPENAI_API_KEY=none will do.", flush=True)
        threading.Event().wait()


ACTIONS = {
    "build": ((BuildOptions,), build),
    "serve": ((ServeOptions,), serve),
}
