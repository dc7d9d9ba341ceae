"""Outcome: what a run has come to, as `--result_file` holds it."""

from typing import Any, Dict

import numpy as np

from tensorflow_v1 import count_compiled, tf
from towers.training.reporting.progress import Progress
from towers.training.stepping.steps import Steps


def build_result(steps: Steps, progress: Progress, end: Any, *, trained: Dict[str, float],
                 examples_seen: int, started: float) -> Dict[str, Any]:
  """Returns what `--result_file` holds, by name.

  Args:
    steps, progress, end: of the run.
    trained: means of the training steps since the validation before the last, by name.
    examples_seen: in all steps, those before a resume included.
    started: time.monotonic() when the process began.
  """
  program = steps.program
  all_reduce = program.gradients.all_reduce
  return dict(
      global_step=int(end.step), examples_seen=examples_seen, num_towers=len(program.towers),
      global_batch_size=program.plan.batch_size, train_loss=end.train_loss,
      **{f'train_{name}': mean for name, mean in trained.items() if name != 'loss'},
      **{f'validation_{name}': value.tolist() if isinstance(value, np.ndarray) else value
         for name, value in {'loss': None, 'accuracy': None, **end.validation}.items()},
      validation_examples=end.validation_examples, stopped=end.stopped,
      examples_per_second=progress.examples_per_second, input_wait=progress.input_wait,
      first_losses=steps.metrics.first_losses, all_reduce_bytes=all_reduce and all_reduce.num_bytes,
      setup_seconds=progress.first_step_at and progress.first_step_at - started,
      xla_compilations=count_compiled(), tensorflow_version=tf.__version__)
