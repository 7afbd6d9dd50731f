"""kvpress's own evaluation with Pith inside: its data, its scorers, its files of results.

    python -m pith.kvpress.evaluate --kvpress CHECKOUT --press_name PRESS [--data FOLDER] [kvpress's own arguments]

PRESS is one of kvpress's, or
    pith:POLICY         the engine's choice of rows in transformers' cache (PithPress)
    pith-scores:POLICY  a selector's scores under kvpress's choice (PithScorerPress), with --compression_ratio
    pith-engine:POLICY  the model in Pith's engine (PithEnginePipeline): all policies; --model is a folder or GGUF file
kvpress's evaluation is in its repository alone (`pip install 'kvpress[eval]'` brings what that needs). --data is a
folder of parquet or JSON lines in place of the dataset's name on the hub.
"""

import argparse
import dataclasses
import importlib
import pathlib
import sys

from .. import _pith
from . import PithEnginePipeline, PithPress, PithScorerPress


# kvpress's evaluation sets a press's ratio and writes it down; of these two the policy says what stays.
@dataclasses.dataclass
class ChosenPress(PithPress):
    compression_ratio: float = 0.0


@dataclasses.dataclass
class EnginePress:
    """Stands for a press where kvpress's evaluation asks for one."""

    policy: str
    compression_ratio: float = 0.0


KINDS = {"pith": lambda policy: ChosenPress(policy=policy),
         "pith-scores": lambda policy: PithScorerPress(policy=policy), "pith-engine": EnginePress}


def press_of(name):
    """Of a name with one of our prefixes; None: kvpress's."""
    kind, colon, policy = name.partition(":")
    if not colon:
        return None
    if kind not in KINDS:
        raise _pith.InvalidArgument(f"--press_name {name}: before a colon there are {', '.join(KINDS)}")
    return KINDS[kind](str(_pith.Policy(policy)))


def evaluation_of(checkout):
    """The modules evaluate and evaluate_registry of a checkout of kvpress."""
    folder = pathlib.Path(checkout) / "evaluation"
    if not (folder / "evaluate_registry.py").is_file():
        raise _pith.NotFound(f"--kvpress {checkout}: {folder} has no evaluate_registry.py; give a checkout of kvpress")
    sys.path.insert(0, str(folder))
    return importlib.import_module("evaluate"), importlib.import_module("evaluate_registry")


def runner_over(runner):
    """Their runner, whose pipeline is the engine's for an EnginePress."""
    class Runner(runner):
        def _setup_model_pipeline(self):
            if not isinstance(self.press, EnginePress):
                return super()._setup_model_pipeline()
            pipeline = PithEnginePipeline(self.config.model, self.press.policy, seed=self.config.seed,
                                          device=self.config.device or "cpu", **(self.config.model_kwargs or {}))
            self.pipeline = lambda *args, press, **call: pipeline(*args, **call)
            self.pipeline.tokenizer = pipeline.tokenizer
            return None
    return Runner


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m pith.kvpress.evaluate", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvpress", required=True, metavar="CHECKOUT")
    parser.add_argument("--press_name", required=True, metavar="PRESS")
    parser.add_argument("--data", metavar="FOLDER")
    parser.add_argument("--dataset", default="ruler")
    given, theirs = parser.parse_known_args(argv)
    press = press_of(given.press_name)
    evaluation, registry = evaluation_of(given.kvpress)
    asks_ratio = any(word.startswith("--compression_ratio") for word in theirs)
    if press is not None:
        registry.PRESS_REGISTRY[given.press_name] = press
        if not isinstance(press, PithScorerPress):
            if asks_ratio:
                raise _pith.InvalidArgument("--compression_ratio: the policy of pith: and pith-engine: says what stays")
            theirs.append("--compression_ratio=0.0")
    if given.data:
        registry.DATASET_REGISTRY[given.dataset] = given.data
    evaluation.EvaluationRunner = runner_over(evaluation.EvaluationRunner)
    evaluation.Fire(evaluation.CliEntryPoint(), name="evaluate",
                    command=[f"--press_name={given.press_name}", f"--dataset={given.dataset}", *theirs])


if __name__ == "__main__":
    try:
        main()
    except _pith.PithError as error:
        sys.exit(f"pith: {error}")
