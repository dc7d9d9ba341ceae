"""Script: all flags of `main.py` for a program of your own."""

import sys
from typing import Any, Callable, Optional

from towers.base.output import is_notebook
from towers.base.usage_error import UsageError


def main(model: Optional[Callable[..., Any]] = None, data: Optional[Callable[[], Any]] = None,
         predict: Optional[Callable[..., Any]] = None) -> None:
  """Runs the command line of a script: trains, or does the job that its flags name.

    if __name__ == '__main__':
      towers.main(model=model, data=load)     # python my_train.py --num_gpus=8 --checkpoint_dir=a

  Flags that the script defines by absl are parsed too, into `absl.flags.FLAGS`.

  Args:
    model: the model function of every tower; None for the flag --model.
    data: a function without arguments that returns `towers.Examples` to train on, a pair of them
      for training and validation, or a `towers.DataSet`; None for the flag --data.
    predict: what the model predicts, for --export_dir and --predict, see `towers.export`; None for
      the model's own attribute `predict`, if it has one.

  Raises:
    SystemExit: with the exit code of `main.py`, unless that is 0.
    UsageError: called in a notebook.
  """
  if is_notebook(sys.stdout) and 'kernel' in sys.argv[0]:
    raise UsageError('towers.main reads a command line, and a notebook has none: call towers.train('
                     'towers.Program(model, train=…, batch_size=…, optimizer=…), epochs=…).')
  from towers.cli.command_line import main as run
  code = run(sys.argv, model=model, data=data, predict=predict)
  if code:
    sys.exit(code)
