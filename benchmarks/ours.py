"""Steps of ours: the program of main.py, as its loop takes them."""

import dataclasses
import io
import os
from typing import Any, Dict

from benchmarks.task import LEARNING_RATE, MOMENTUM, NETS, Task
from training.config import Config


def build_config(task: Task, settings: Dict[str, Any]) -> Config:
  """Returns the config of a task, with the settings of speed given."""
  return Config(model=task.net, batch_size=task.global_batch_size, num_gpus=task.num_towers, device='cpu',
                learning_rate=LEARNING_RATE, momentum=MOMENTUM, schedule='constant', validation='none', shuffle=False,
                **dict(dict(intra_threads=task.intra_threads), **settings))


def find_settings(task: Task, program: str) -> Dict[str, Any]:
  """Returns the fastest settings, as `--autotune` finds them, or remembers them.

  Args:
    task: of the net; trials take a data set of main.py of the same shape.
    program: the path of main.py.
  """
  from training.autotune import autotune
  config = build_config(task, dict(data=NETS[task.net].tuned_on))
  tuned = autotune(config, program=program)
  return {field.name: getattr(tuned, field.name) for field in dataclasses.fields(Config)
          if getattr(tuned, field.name) != getattr(config, field.name)}


def set_environment(settings: Dict[str, Any]) -> None:
  """Sets what TensorFlow must find when it is loaded."""
  from training.xla import set_xla
  set_xla(settings.get('xla', 'auto'), os.environ)


def run_towers(turns: Any, task: Task, settings: Any = None) -> None:
  """Input, staging, guard, input wait and progress, which tells nobody; no validation, no checkpoints."""
  from benchmarks.program import open_program
  from tensorflow_v1 import tf
  from training.progress import Progress

  config = build_config(task, settings or {})
  with open_program(config, task.load(), num_towers=task.num_towers, model=task.build_model()) as steps:
    steps.start(0)
    progress = Progress(total_steps=10 ** 9, first_step=0, plan=steps.program.train.inputs.plan,
                        learning_rate=steps.learning_rate, input_wait_seconds=lambda: steps.input_wait_seconds,
                        stream=io.StringIO())
    turns.watch(steps.session, [variable for variable in tf.trainable_variables()
                                if not variable.name.startswith('copies/')])
    while True:
      loss = steps.train()
      progress.step(step=steps.step, loss=loss)
      if not turns.end_step(loss):
        break
