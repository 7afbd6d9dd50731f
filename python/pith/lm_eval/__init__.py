"""Pith as a model of EleutherAI's lm-evaluation-harness, 0.4.13 or newer.

    import lm_eval, pith.lm_eval
    model = pith.lm_eval.PithLM("smollm2", policy="snapkv(budget=25%)+int4,sink=4")
    lm_eval.simple_evaluate(model, tasks=["pith_facts"], task_manager=pith.lm_eval.task_manager())

On the command line, `python -m pith.lm_eval run --model pith --model_args pretrained=smollm2,policy=exact
--tasks pith_facts` is lm_eval with this model and the tasks beside this file, which need no network.
"""

import pathlib

try:
    import lm_eval.models  # noqa: F401  its own models come first: they load only into an empty registry
    from lm_eval.api.registry import register_model
    from lm_eval.tasks import TaskManager
except ImportError as error:
    raise ImportError("pith.lm_eval needs lm_eval 0.4.13 or newer: pip install 'pith-kv[lm-eval]'") from error

from ._model import PithLM

__all__ = ["TASKS", "PithLM", "task_manager"]

TASKS = pathlib.Path(__file__).parent / "tasks"

register_model("pith")(PithLM)


def task_manager(**options):
    """A TaskManager with Pith's offline tasks beside lm_eval's own."""
    return TaskManager(include_path=str(TASKS), **options)
