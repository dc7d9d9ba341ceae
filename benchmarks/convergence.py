"""Convergence: ResNet-20 on 1, 2 and 4 towers follows one curve for the same global batch.

  python -m benchmarks.convergence                 # the sample in colour, some minutes
  python -m benchmarks.convergence --data=fashion_mnist --epochs=20 \\
      --output=docs/figures/convergence

Every run has the same seed, hence the same initial weights and batches. Batch normalisation uses
the moments of the global batch (`sync`), so N towers compute what one computes. The curves differ
only by rounding, which an unsettled net amplifies from step to step. For scale, a last run
(`1 + noise`) trains one tower from initial weights that are changed by a millionth.

The images are Colour Fashion, see `colour_fashion`: CIFAR-shaped, made of Fashion-MNIST. It is not
CIFAR-10.
"""

import argparse
import time
from typing import Any, Dict, List, Sequence

import numpy as np

from benchmarks.harness.colour_fashion import SIZE, colour
from benchmarks.harness.figures import write_figures
from benchmarks.harness.flags import at_least, one_of, path_to_write, several
from models import MODELS
from towers.base.usage_error import UsageError
from towers.training.reporting.chart import Curve, write_chart

NOISE = 1e-6


def load(name: str, num_train: int, num_validation: int) -> Any:
  """Returns the grey data set `name` in colour, with at most the given numbers of examples."""
  from towers import data
  grey = data.load(name)

  def split(examples, count, seed):
    images, labels = (array[:count] for array in examples.arrays)
    return data.from_arrays(colour(images, seed=seed), labels, name='colour_' + examples.name)

  return data.DataSet(train=split(grey.train, num_train, seed=0),
                      validation=split(grey.validation, num_validation, seed=1),
                      image_shape=(SIZE, SIZE, 3), num_classes=grey.num_classes)


def measure(data_set: Any, *, num_towers: int, model: str, batch_size: int, epochs: float,
            measure_every: int, seed: int, noise: float = 0.0) -> Dict[str, Any]:
  """Trains in this process; returns steps, the mean loss up to each, and validation accuracy.

  Args:
    noise: relative change of the initial weights, up or down.
  """
  from benchmarks.harness.program import open_program
  from towers.training.settings.config import Config

  config = Config(model=model, batch_size=batch_size, batch_norm='sync', learning_rate=0.05,
                  weight_decay=1e-4, warmup_epochs=1, epochs=epochs, last_batch='drop', seed=seed)
  curve: Dict[str, Any] = dict(name=f"{num_towers}{' + noise' if noise else ''}", steps=[], loss=[],
                               accuracy=[])
  with open_program(config, data_set, num_towers=num_towers) as steps:
    if noise:
      _disturb(steps.session, noise)
    steps.start(0)
    total_steps = config.count_steps(steps.program.plan.steps_per_epoch)
    losses: List[float] = []
    started = time.monotonic()
    for step in range(1, total_steps + 1):
      losses.append(float(steps.train()))
      if step % measure_every == 0 or step == total_steps:
        validation = steps.begin_pass(step)
        steps.validate(validation)
        curve['steps'].append(step)
        curve['loss'].append(float(np.mean(losses)))
        curve['accuracy'].append(validation.means()['accuracy'])
        losses = []
    curve['seconds'] = time.monotonic() - started
  return curve


def _disturb(session, noise):
  """Changes every weight by the factor `1 + noise` or `1 - noise`, at random."""
  from tensorflow_v1 import tf
  variables = tf.trainable_variables()
  random = np.random.RandomState(0)
  values = {
      variable.initial_value: value * (1 + noise * random.choice([-1, 1], size=value.shape))
      for variable, value in zip(variables, session.run(variables))
  }
  session.run([variable.initializer for variable in variables], values)


def format_table(curves: Sequence[Dict[str, Any]]) -> str:
  """Returns accuracy over steps, a column for each number of towers."""
  lines = ['towers  ' + ''.join(f"{curve['name']:>12}" for curve in curves)]
  for row, step in enumerate(curves[0]['steps']):
    lines.append(f'{int(step):8}' + ''.join(f"{curve['accuracy'][row]:12.4f}" for curve in curves))
  first = np.array(curves[0]['accuracy'])
  distances = [np.abs(np.array(curve['accuracy']) - first).max() for curve in curves[1:]]
  lines.append(f"{'farthest':20}" + ''.join(f'{distance:12.4f}' for distance in distances))
  return '\n'.join(lines)


def _count_towers(name):
  return '1 tower' + name[1:] if name[0] == '1' else name + ' towers'


def main() -> None:
  """Trains once for each number of towers; prints the table, and writes JSON and a picture."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--data', default='sample', choices=('sample', 'fashion_mnist'),
                      help='the grey images to colour')
  parser.add_argument('--num_train', type=at_least(1), default=60000,
                      help='training examples, at most')
  parser.add_argument('--num_validation', type=at_least(1), default=10000,
                      help='validation examples, at most')
  parser.add_argument('--towers', type=several(at_least(1)), default='1,2,4')
  parser.add_argument('--model', type=one_of(MODELS), default='resnet20')
  parser.add_argument('--batch_size', type=at_least(1), default=128)
  parser.add_argument('--epochs', type=at_least(0, float), default=10)
  parser.add_argument('--measure_every', type=at_least(1), default=10, help='steps')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--output', type=path_to_write, help='writes OUTPUT.json and OUTPUT.svg')
  flags = parser.parse_args()
  try:
    data_set = load(flags.data, flags.num_train, flags.num_validation)
  except UsageError as error:
    raise SystemExit(str(error)) from None
  curves = []
  for num_towers, noise in [(count, 0.0) for count in flags.towers] + [(1, NOISE)]:
    curve = measure(data_set, num_towers=num_towers, model=flags.model, noise=noise,
                    batch_size=flags.batch_size, epochs=flags.epochs,
                    measure_every=flags.measure_every, seed=flags.seed)
    curves.append(curve)
    print(f"{_count_towers(curve['name'])}: accuracy {curve['accuracy'][-1]:.4f} after "
          f"{curve['steps'][-1]} steps, {curve['seconds']:.0f} s", flush=True)

  title = (f'{flags.model}, Colour Fashion ({flags.data}), global batch {flags.batch_size}, batch '
           'norm sync')
  print(f'{title}\n{format_table(curves)}')
  if flags.output:
    write_figures(flags.output + '.json', dict(title=title, curves=curves))
    write_chart(flags.output + '.svg', 'Validation accuracy: ' + title, [
        Curve(_count_towers(curve['name']), list(zip(curve['steps'], curve['accuracy'])), index)
        for index, curve in enumerate(curves)
    ], x_label='steps', most=1.0, format_y='{:.0%}'.format)


if __name__ == '__main__':
  main()
